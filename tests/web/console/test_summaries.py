"""Sentences about records of internal topics."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.groups import commit_offsets, delete_groups
from kbroker.cluster.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kbroker.web.console.summaries import key_summary_of, schema_summary, summary_of

from .consoles import console, record


async def test_offsets_of_group_are_described() -> None:
    async with console() as client:
        await client.create_topic("orders", record(b"v"), partitions=4)
        await commit_offsets(client.cluster, "billing", {("orders", 3): 60})
        await delete_groups(client.cluster, ["billing"])
        found = await client.get(f"/topics/{OFFSETS_TOPIC}/messages", from_="oldest")
        summaries = [each["summary"] for each in found["records"] if each.get("summary")]
        assert "Group billing committed offset 60 of orders-3" in summaries
        assert "Group billing: the committed offset of orders-3 was deleted" in summaries


async def test_records_of_other_topics_have_no_summary() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v", b'{"keytype":"SCHEMA"}'))
        (row,) = (await client.get("/topics/t/messages"))["records"]
        assert "summary" not in row


@pytest.mark.parametrize(
    ("topic", "fields", "text"),
    [
        (OFFSETS_TOPIC, {"group": "g", "tombstone": True}, "Group g: deleted"),
        (
            OFFSETS_TOPIC,
            {"group": "g", "generation": 3, "members": [{}]},
            "Group g: generation 3 with 1 member",
        ),
        (
            OFFSETS_TOPIC,
            {"group": "g", "member_id": "m", "subscribed_topic_names": ["a", "b"]},
            "Group g, member m: subscribed to a, b",
        ),
        (
            OFFSETS_TOPIC,
            {"group": "g", "member_id": "m", "member_epoch": 4},
            "Group g, member m: current assignment, member epoch 4",
        ),
        (
            TRANSACTIONS_TOPIC,
            {
                "transactional_id": "x",
                "state": "Ongoing",
                "producer_id": 7,
                "producer_epoch": 1,
                "partitions": {"t": [0, 1]},
            },
            "Transactional ID x: Ongoing, 2 partitions, producer 7, epoch 1",
        ),
        (
            SHARE_STATE_TOPIC,
            {
                "group": "s",
                "topic_id": "id",
                "partition": 2,
                "state": "snapshot",
                "start_offset": 5,
                "state_batches": [{}],
            },
            "Share group s: partition 2 of topic id, snapshot with start offset 5 and 1 batch",
        ),
    ],
)
def test_summary_of_coordinator_record_names_object_and_change(
    topic: str, fields: dict[str, Any], text: str
) -> None:
    assert summary_of(topic, fields) == text


@pytest.mark.parametrize(
    ("key", "is_deleted", "text"),
    [
        (b'{"keytype":"SCHEMA","subject":"s","version":2}', False, "Subject s, version 2"),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":2}',
            True,
            "Subject s, version 2: deleted permanently",
        ),
        (b'{"keytype":"CONFIG","subject":null}', False, "Compatibility level of all subjects"),
        (b'{"keytype":"DELETE_SUBJECT","subject":"s"}', False, "Subject s: deleted"),
        (b"[", False, ""),
        (b"7", False, ""),
    ],
)
def test_summary_of_registry_record_names_subject(key: bytes, is_deleted: bool, text: str) -> None:
    assert schema_summary(key, is_deleted=is_deleted) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ({"group": "g"}, "group g"),
        ({"group": "g", "topic": "t", "partition": 3}, "group g, t-3"),
        ({"group": "g", "member_id": "m"}, "group g, member m"),
        ({"group": "g", "regular_expression": "a.*"}, "group g, regular expression a.*"),
        ({"group": "g", "topic_id": "id", "partition": 2}, "group g, partition 2 of topic id"),
        ({"transactional_id": "x"}, "transactional ID x"),
    ],
)
def test_key_summary_names_object(key: dict[str, Any], text: str) -> None:
    assert key_summary_of(key) == text
