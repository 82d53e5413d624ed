"""Records of internal topics in the console: keys in words, fields in filters and columns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.client.groups import commit_offsets
from kbroker.protocol.records import Record
from kbroker.web.console.internal_records import DECODED_BYTES_MAX, decode_internal

from .consoles import Console, console, record

OFFSETS = "/topics/__consumer_offsets/messages"
OFFSET_KEY = b"\x00\x01\x00\x04shop\x00\x01t\x00\x00\x00\x00"


async def commit(client: Console, *groups: str) -> None:
    await client.create_topic("t", record(b"v"))
    for group in groups:
        await commit_offsets(client.cluster, group, {("t", 0): 1})


async def test_key_of_offset_commit_is_shown_in_words_and_as_fields() -> None:
    async with console() as client:
        await commit(client, "shop")
        (row,) = (await client.get(OFFSETS))["records"]
        assert row["key_summary"] == "group shop, t-0"
        assert row["key_format"] == row["value_format"] == "coordinator"
        assert json.loads(row["key_text"]) == {"group": "shop", "topic": "t", "partition": 0}


async def test_key_of_other_topic_has_no_words() -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v", OFFSET_KEY))
        (row,) = (await client.get("/topics/t/messages"))["records"]
        assert "key_summary" not in row


@pytest.mark.parametrize(
    "where", ['key.group == "shop"', 'value.group == "shop" and value.committed_offset == 1']
)
async def test_fields_of_internal_topic_are_searched(where: str) -> None:
    async with console() as client:
        await commit(client, "shop", "billing")
        (row,) = (await client.get(OFFSETS, where=where))["records"]
        assert row["key_summary"] == "group shop, t-0"


async def test_fields_of_internal_topic_are_columns() -> None:
    async with console() as client:
        await commit(client, "shop")
        found: Any = await client.get(OFFSETS, field="value.committed_offset")
        assert found["records"][0]["fields"] == {"value.committed_offset": 1}


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("t", OFFSET_KEY, None),
        ("__consumer_offsets", None, b"v"),
        ("__consumer_offsets", b"\x00", b"v"),
        ("__consumer_offsets", b"\x00\x63\x00\x01g", None),
        ("__consumer_offsets", OFFSET_KEY, bytes(DECODED_BYTES_MAX)),
        ("__other", OFFSET_KEY, None),
    ],
)
def test_record_that_no_coordinator_wrote_is_not_decoded(
    topic: str, key: bytes | None, value: bytes | None
) -> None:
    assert decode_internal(topic, Record(key, value, 0, [], 0)) is None


def test_key_of_deleted_offset_is_decoded() -> None:
    found = decode_internal("__consumer_offsets", Record(OFFSET_KEY, None, 0, [], 0))
    assert found is not None
    assert found.key == {"group": "shop", "topic": "t", "partition": 0}
    assert found.fields == {**found.key, "tombstone": True}
