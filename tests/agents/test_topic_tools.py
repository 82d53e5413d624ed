"""Tools for topics."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Agent

THREE = [{"value": "x", "partition": 0}] * 3


async def names(agent: Agent, **arguments: Any) -> list[str]:
    found = await agent("list_topics", **arguments)
    return [each["name"] for each in found["untrusted"]["topics"]]


async def test_topics_are_listed_by_pattern_and_page(agent: Agent) -> None:
    for name in ("orders", "order-lines", "users"):
        await agent("create_topic", topic=name)
    assert await names(agent, pattern="order*") == ["order-lines", "orders"]
    assert await names(agent, skip=2) == ["users"]
    assert await names(agent, limit=1) == ["order-lines"]


async def test_listed_topics_have_records_and_bytes(agent: Agent) -> None:
    for name in ("full", "empty"):
        await agent("create_topic", topic=name, partitions=2)
    await agent("produce_messages", topic="full", messages=THREE)
    found = await agent("list_topics", limit=1, skip=1)
    (full,) = found["untrusted"]["topics"]
    assert (full["name"], full["records"], found["total"]) == ("full", 3, 2)
    assert full["bytes"] > 0
    (empty,) = (await agent("list_topics", pattern="empty"))["untrusted"]["topics"]
    assert (empty["records"], empty["bytes"]) == (0, 0)


async def test_created_topic_has_given_partitions_and_configs(agent: Agent) -> None:
    configs = {"retention.ms": "2d", "min.insync.replicas": "1"}
    assert await agent("create_topic", topic="t", partitions=3, configs=configs) == {
        "valid": True,
        "applied": True,
        "numbers": {"retention.ms": "172800000 (2d)"},
    }
    found = await agent("describe_topic", topic="t", limit=2)
    assert (found["total"], found["next_skip"], found["replication_factor"]) == (3, 2, 1)
    assert found["untrusted"]["configs"] == configs | {"retention.ms": "172800000"}
    assert [each["partition"] for each in found["untrusted"]["partitions"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "a/b"}, "INVALID_TOPIC_EXCEPTION"),
        ({"topic": "t", "configs": {"retention": "1"}}, "INVALID_CONFIG"),
        ({"topic": "t", "replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ({"topic": "t", "partitions": 100_000}, "INVALID_ARGUMENTS"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_invalid_topic_is_rejected(
    agent: Agent, arguments: dict[str, Any], error: str, dry_run: bool
) -> None:
    found = await agent.fail("create_topic", **arguments, dry_run=dry_run)
    assert found["error"] == error
    assert await names(agent) == []


async def test_dry_run_of_new_topic_and_partitions_changes_nothing(agent: Agent) -> None:
    assert (await agent("create_topic", topic="t", dry_run=True))["applied"] is False
    assert await names(agent) == []
    await agent("create_topic", topic="t")
    found = await agent("create_partitions", topic="t", total=4, dry_run=True)
    assert found == {"previous_partitions": 1, "partitions": 4, "applied": False}
    assert (await agent("describe_topic", topic="t"))["total"] == 1


async def test_partitions_are_added_but_never_removed(agent: Agent) -> None:
    await agent("create_topic", topic="t", partitions=2)
    found = await agent("create_partitions", topic="t", total=4)
    assert found == {"previous_partitions": 2, "partitions": 4, "applied": True}
    failed = await agent.fail("create_partitions", topic="t", total=3)
    assert "has 4 partitions" in failed["message"]


async def test_topic_is_deleted_only_without_preview(agent: Agent) -> None:
    await agent("create_topic", topic="t", partitions=2)
    await agent("produce_messages", topic="t", messages=THREE)
    topic_id = (await agent("describe_topic", topic="t"))["topic_id"]
    preview = {"topic_id": topic_id, "partitions": 2, "offsets_in_use": 3, "applied": False}
    assert await agent("delete_topic", topic="t") == preview
    assert await names(agent) == ["t"]
    assert await agent("delete_topic", topic="t", dry_run=False) == preview | {"applied": True}
    assert await names(agent) == []
    assert (await agent.fail("delete_topic", topic="t"))["error"] == "NO_SUCH_TOPIC"


async def test_topic_that_was_created_again_after_preview_is_kept(agent: Agent) -> None:
    await agent("create_topic", topic="t")
    shown = (await agent("delete_topic", topic="t"))["topic_id"]
    await agent("delete_topic", topic="t", topic_id=shown, dry_run=False)
    await agent("create_topic", topic="t")
    found = await agent.fail("delete_topic", topic="t", topic_id=shown, dry_run=False)
    assert found["error"] == "TOPIC_REPLACED"
    assert "to see the new topic" in found["hint"]
    assert await names(agent) == ["t"]


async def test_oldest_records_are_deleted_only_without_preview(agent: Agent) -> None:
    await agent("create_topic", topic="t", partitions=2)
    await agent("produce_messages", topic="t", messages=THREE)
    row = {"partition": 0, "start_offset": 0, "new_start_offset": 2, "error": None}
    found = await agent("delete_records", topic="t", before_offsets={"0": 2})
    assert (found["applied"], found["partitions"]) == (False, [row])
    found = await agent("delete_records", topic="t", before_offsets={"0": 2}, dry_run=False)
    assert (found["applied"], found["partitions"]) == (True, [row])
    found = await agent("delete_records", topic="t", all_records=True, dry_run=False)
    assert [each["new_start_offset"] for each in found["partitions"]] == [3, 0]
    described = await agent("describe_topic", topic="t")
    assert described["untrusted"]["partitions"][0]["start_offset"] == 3


async def test_time_in_place_of_offset_deletes_nothing(agent: Agent) -> None:
    await agent("create_topic", topic="t")
    await agent("produce_messages", topic="t", messages=THREE)
    times = {"before_offsets": {"0": 1_700_000_000_000}}
    failed = await agent.fail("delete_records", topic="t", **times, dry_run=False)
    assert failed["error"] == "LOOKS_LIKE_TIME"
    assert "`since` or `to_time`" in failed["hint"]
    failed = await agent.fail("consume_messages", topic="t", offsets=times["before_offsets"])
    assert failed["error"] == "LOOKS_LIKE_TIME"


@pytest.mark.parametrize("arguments", [{}, {"all_records": True, "before_offsets": {"0": 1}}])
async def test_deletion_of_records_needs_exactly_one_limit(
    agent: Agent, arguments: dict[str, Any]
) -> None:
    await agent("create_topic", topic="t")
    found = await agent.fail("delete_records", topic="t", **arguments)
    assert "either `before_offsets`, or `all_records`" in found["message"]
