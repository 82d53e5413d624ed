"""Tools for groups."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.groups import commit_offsets
from kbroker.client.member import open_member

from .conftest import Agent


@pytest.fixture
async def group(agent: Agent) -> str:
    """Create a group without members that has read one of the three records of a topic."""
    await agent("create_topic", topic="t", partitions=2)
    messages = [{"value": "x", "partition": 0, "timestamp": 1000 * at} for at in range(3)]
    await agent("produce_messages", topic="t", messages=messages)
    await commit_offsets(agent.cluster, "g", {("t", 0): 1})
    return "g"


async def offsets(agent: Agent) -> dict[int, int]:
    found = await agent("describe_group", group="g")
    return {
        each["partition"]: each["current_offset"]
        for each in found["untrusted"]["partitions"]
        if each["current_offset"] is not None
    }


async def test_groups_are_listed_by_pattern_and_state(agent: Agent, group: str) -> None:
    found = await agent("list_groups", pattern="g*", state="empty")
    (row,) = found["untrusted"]["groups"]
    assert (row["group"], row["state"], row["type"]) == (group, "Empty", "Classic")
    assert (row["members"], row["total_lag"], row["without_offset"]) == (0, 2, 0)
    assert (await agent("list_groups", pattern="x*"))["total"] == 0
    await commit_offsets(agent.cluster, "other", {("t", 0): 3})
    found = await agent("list_groups", skip=1)
    assert (found["total"], found["next_skip"]) == (2, None)
    assert [each["total_lag"] for each in found["untrusted"]["groups"]] == [0]
    assert (await agent("list_groups", state="stable"))["total"] == 0


async def test_description_contains_lag_and_members(agent: Agent, group: str) -> None:
    found = await agent("describe_group", group=group)
    assert (found["state"], found["members"], found["total_lag"]) == ("Empty", 0, 2)
    assert found["without_offset"] == 0
    async with open_member(agent.cluster, group, ["t"]) as member:
        await member.join()
        found = await agent("describe_group", group=group)
    assert (found["state"], found["members"], found["total"]) == ("Stable", 1, 2)
    assert {each["client_id"] for each in found["untrusted"]["partitions"]} == {"agent"}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"to": "earliest"}, {0: 0}),
        ({"to": "latest", "topic": "t"}, {0: 3, 1: 0}),
        ({"to_time": "1970-01-01T00:00:02Z"}, {0: 2}),
        ({"shift_by": 1}, {0: 2}),
        ({"shift_by": -9}, {0: 0}),
        ({"to_offsets": {"0": 2}, "topic": "t"}, {0: 2}),
        ({"to": "latest", "topic": "t", "partitions": [1]}, {0: 1, 1: 0}),
    ],
)
async def test_offsets_move_only_without_preview(
    agent: Agent, group: str, target: dict[str, Any], expected: dict[int, int]
) -> None:
    planned = await agent("reset_offsets", group=group, **target)
    assert (planned["applied"], planned["failed"]) == (False, 0)
    assert await offsets(agent) == {0: 1}
    done = await agent("reset_offsets", group=group, **target, dry_run=False)
    assert (done["applied"], done["untrusted"]) == (True, planned["untrusted"])
    assert await offsets(agent) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of to, to_time, shift_by, to_offsets"),
        ({"to": "earliest", "shift_by": 1}, "exactly one of"),
        ({"to_offsets": {"0": 1}}, "need `topic`"),
        ({"to": "earliest", "partitions": [0]}, "need `topic`"),
        ({"to_time": "noon"}, "is not a time"),
        ({"to_time": "2999-01-01"}, "is in the future"),
    ],
)
async def test_ambiguous_reset_is_rejected(
    agent: Agent, group: str, arguments: dict[str, Any], message: str
) -> None:
    found = await agent.fail("reset_offsets", group=group, **arguments)
    assert message in found["message"]


async def test_group_without_offsets_is_reset_only_with_topic(agent: Agent, group: str) -> None:
    found = await agent.fail("reset_offsets", group="new", to="latest")
    assert (found["error"], found["hint"]) == ("NO_OFFSETS", "give `topic`")
    assert (await agent("reset_offsets", group="new", to="latest", topic="t"))["total"] == 2


async def test_group_with_members_keeps_its_offsets(agent: Agent, group: str) -> None:
    async with open_member(agent.cluster, group, ["t"]) as member:
        await member.join()
        found = await agent("reset_offsets", group=group, to="latest", dry_run=False)
        assert (found["applied"], found["failed"]) == (False, found["total"])
        assert "must have no members" in found["hint"]
        failed = await agent.fail("delete_group", group=group, dry_run=False)
        assert failed["error"] == "NON_EMPTY_GROUP"


async def test_group_is_deleted_only_without_preview(agent: Agent, group: str) -> None:
    preview = {"state": "Empty", "members": 0, "applied": False}
    assert await agent("delete_group", group=group) == preview
    assert (await agent("list_groups"))["total"] == 1
    assert (await agent("delete_group", group=group, dry_run=False))["applied"] is True
    assert (await agent("list_groups"))["total"] == 0
    assert (await agent.fail("describe_group", group=group))["error"] == "NO_SUCH_GROUP"
