"""`kbroker group`: list, describe, seek, delete, offset-delete, wait."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.coordinator_runtime.shards import Shards
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import encode_bytes
from kbroker.protocol.group_metadata import Assignment, TopicPartitions
from kbroker.protocol.messages.groups import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kbroker.protocol.messages.streams_groups import StreamsGroupTopologyDescriptionUpdateRequest

from ..commands import Cli, ReadJson
from ..coordinator.harness import subtopology, topology
from ..coordinator.streams.test_descriptions import PROCESSOR, SINK, SOURCE, description
from ..handlers.test_consumer_groups import beat as consumer_beat
from ..handlers.test_consumer_groups import find, set_config
from ..handlers.test_share_groups import alter, beat
from ..handlers.test_streams_groups import remove_delays, streams_beat
from ..wire import connected
from .records import offsets


@asynccontextmanager
async def member(broker: Broker, group: str, topic: str, *partitions: int) -> AsyncIterator[str]:
    """Join a group as its only member, with the given partitions; leave at the end."""
    async with connected(broker.endpoint) as wire:
        ask = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
        )
        joined = await wire.ask(ApiKey.JOIN_GROUP, 3, ask)
        owned = TopicPartitions(topic=topic, partitions=list(partitions))
        given = Assignment(assigned_partitions=[owned], user_data=None)
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[
                SyncGroupRequest.Assignment(
                    member_id=joined.member_id,
                    assignment=struct.pack(">h", 0) + encode_bytes(given, 0),
                )
            ],
        )
        assert (await wire.ask(ApiKey.SYNC_GROUP, 2, sync)).error_code == 0
        yield str(joined.member_id)
        leave = LeaveGroupRequest(group_id=group, member_id=joined.member_id)
        await wire.ask(ApiKey.LEAVE_GROUP, 1, leave)


async def test_group_commands_show_and_protect_group_with_member(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    await cli("group", "seek", "--yes", "g", "--to", "3", "-t", topic)
    async with member(broker, "g", topic, 0) as member_id:
        (row,) = await read_json("group", "describe", "g")
        assert (row["state"], row["assignor"], row["members"]) == ("Stable", "range", 1)
        assert row["coordinator"] == 1
        mine, free = row["partitions"]
        assert (mine["member_id"], mine["client_id"], mine["lag"]) == (member_id, "test", 2)
        assert (mine["log_start_offset"], mine["log_end_offset"]) == (0, 5)
        assert (free["member_id"], free["current_offset"]) == (None, 0)
        (listed,) = await read_json("group", "list")
        assert (listed["group"], listed["state"], listed["type"]) == ("g", "Stable", "classic")
        assert (listed["members"], listed["lag"], listed["assignor"]) == (1, 2, "range")
        assert (listed["topics"], listed["coordinator"]) == ([topic], 1)
        assert await read_json("group", "list", "--state", "empty") == []
        moved = await cli("group", "seek", "--yes", "g", "--to", "start", status=1)
        assert "1 active member (client test): stop it first" in moved.stderr
        assert (
            "the group has members" in (await cli("group", "delete", "--yes", "g", status=1)).stderr
        )
    text = (await cli("group", "describe", "g")).stdout
    assert "STATE        Empty" in text
    assert "MEMBER-ID" not in text
    assert "TOTAL-LAG" not in (await cli("group", "describe", "g", "-c")).stdout
    assert (await cli("group", "describe", "g", "-t")).stdout.split() == [
        *("TOPIC", "PARTITIONS", "LAG", "WITHOUT-OFFSET"),
        *("t", "2", "2", "0"),
    ]


async def test_group_lag_excludes_and_counts_partitions_without_offset(
    cli: Cli, read_json: ReadJson, topic: str
) -> None:
    """Partition 0 holds five records; the group has read only partition 1."""
    await cli("group", "seek", "--yes", "g", "--to", "end", "-t", f"{topic}:1")
    (listed,) = await read_json("group", "list")
    assert (listed["lag"], listed["without_offset"]) == (0, 1)
    assert "WITHOUT-OFFSET" in (await cli("group", "list")).stdout
    (row,) = await read_json("group", "describe", "g")
    found = [(each["partition"], each["current_offset"], each["lag"]) for each in row["partitions"]]
    assert found == [(0, None, None), (1, 0, 0)]
    assert (row["total_lag"], row["without_offset"]) == (0, 1)
    text = (await cli("group", "describe", "g")).stdout
    assert "TOTAL-LAG    0, 1 partition without offsets" in text
    waited = await cli("group", "wait", "g", "--lag", "0", "--timeout", "100ms", status=4)
    assert "lag 0, 1 partition without offsets" in waited.stderr
    explained = (await cli("explain", "group", "g")).stdout
    assert "no offset is committed for t-0: " in explained
    assert "it has read all records" not in explained
    await cli("group", "seek", "--yes", "g", "--to", "end", "-t", f"{topic}:0")
    await cli("group", "wait", "g", "--lag", "0")
    assert "WITHOUT-OFFSET" not in (await cli("group", "list")).stdout


async def test_group_commands_support_share_groups(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await find(wire)
        await alter(wire, {0: 1}, group="s", topic=topic)
        (row,) = await read_json("group", "describe", "s")
        assert (row["type"], row["state"], row["total_lag"]) == ("Share", "Empty", 4)
        (only,) = row["partitions"]
        assert (only["partition"], only["current_offset"], only["log_end_offset"]) == (0, 1, 5)
        sought = await read_json("group", "seek", "--yes", "s", "--to", "end")
        assert offsets(sought) == {0: (1, 5)}
        assert (await cli("group", "wait", "s", "--lag", "0")).stdout.startswith("s: Empty")
        shifted = await read_json(
            "group", "seek", "--yes", "s", "--shift", "-2", "-t", f"{topic}:0"
        )
        assert offsets(shifted) == {0: (5, 3)}
        for member_id in ("a", "b"):
            await beat(wire, member_id, 0, group="s", topics=[topic])
        await cli("group", "wait", "s", "--members", "2")
        (listed,) = await read_json("group", "list")
        assert (listed["group"], listed["type"]) == ("s", "share")
        assert (listed["members"], listed["lag"], listed["topics"]) == (2, 2, [topic])
        (row,) = await read_json("group", "describe", "s")
        assert {each["member_id"] for each in row["partitions"]} >= {"a"}
        moved = await cli("group", "seek", "--yes", "s", "--to", "start", status=1)
        assert "group s has 2 active members" in moved.stderr
        assert (
            "the group has members" in (await cli("group", "delete", "--yes", "s", status=1)).stderr
        )
        for member_id in ("a", "b"):
            await beat(wire, member_id, -1, group="s")
        assert (await cli("group", "delete", "--yes", "s")).stdout == "s: deleted\n"


async def test_offset_delete_of_share_group_deletes_whole_topics(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await find(wire)
        await alter(wire, {0: 1, 1: 0}, group="s", topic=topic)
        await beat(wire, "a", 0, group="s", topics=["other"])
        refused = await cli("group", "offset-delete", "--yes", "s", "-t", topic, status=1)
        assert "t-0: the group has members; stop them" in refused.stderr
        await beat(wire, "a", -1, group="s")
    part = await cli("group", "offset-delete", "--yes", "s", "-t", f"{topic}:0", status=2)
    assert "whole topics only" in part.stderr
    none = await cli("group", "offset-delete", "--yes", "s", "-t", "other", status=1)
    assert "no offsets for these topics" in none.stderr
    done = await cli("group", "offset-delete", "--yes", "s", "-t", topic)
    assert done.stdout == "t-0: deleted\nt-1: deleted\n"
    (row,) = await read_json("group", "describe", "s")
    assert row["partitions"] == []


async def test_group_delete_removes_offsets_and_groups(
    cli: Cli, read_json: ReadJson, topic: str
) -> None:
    await cli("group", "seek", "--yes", "g", "--to", "2", "-t", topic)
    assert (
        await cli("group", "offset-delete", "--yes", "g", "-t", f"{topic}:1")
    ).stdout == "t-1: deleted\n"
    (row,) = await read_json("group", "describe", "g")
    assert [each["current_offset"] for each in row["partitions"]] == [2, None]
    none = await cli("group", "offset-delete", "--yes", "g", "-t", "other", status=1)
    assert "no offsets for these topics" in none.stderr
    assert (await cli("group", "delete", "--yes", "g")).stdout == "g: deleted\n"
    assert "does not exist" in (await cli("group", "delete", "--yes", "g", status=1)).stderr
    assert (await cli("group", "delete", "--yes", "g", "--if-exists")).stdout == ""


async def test_unknown_group_suggests_similar_name(cli: Cli, topic: str) -> None:
    await cli("group", "seek", "--yes", "readers", "--to", "end", "-t", topic)
    output = (await cli("group", "describe", "raeders", status=1)).stderr
    assert "did you mean 'readers'?" in output
    nothing = await cli("group", "seek", "--yes", "fresh", "--to", "end", status=1)
    assert "--topic" in nothing.stderr


async def test_group_wait_returns_when_conditions_are_met(
    cli: Cli, topic: str, broker: Broker
) -> None:
    late = await cli("group", "wait", "g", "--members", "1", "--timeout", "300ms", status=4)
    assert "is still absent, 0 members" in late.stderr
    done = trio.Event()

    async def wait_for_it() -> None:
        await cli("group", "wait", "g", "--state", "Stable", "--members", "1")
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_it)
        await trio.sleep(0.1)
        async with member(broker, "g", topic, 0):
            await done.wait()
    await cli("group", "seek", "--yes", "g", "--to", "3", "-t", topic)
    behind = await cli("group", "wait", "g", "--lag", "1", "--timeout", "100ms", status=4)
    assert "lag 2" in behind.stderr
    assert "lag 2" in (await cli("group", "wait", "g", "--lag", "2")).stdout
    await cli("group", "wait", "g", status=2)


async def test_group_describe_omits_deleted_topic(cli: Cli, topic: str) -> None:
    """The group still has committed offsets for the deleted topic."""
    await cli("group", "seek", "--yes", "g", "--to", "end", "-t", topic)
    await cli("topic", "delete", "--yes", topic)
    rows = json.loads((await cli("group", "describe", "g", "-o", "json")).stdout)
    assert rows[0]["partitions"] == []


async def test_group_list_waits_while_broker_loads_groups(
    broker: Broker, cli: Cli, read_json: ReadJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers load their groups for a moment after a start."""
    await cli("topic", "create", "t")
    await cli("group", "seek", "--yes", "g", "--to", "end", "-t", "t")
    answers = iter([True, True])
    monkeypatch.setattr(Shards, "is_loading", property(lambda _: next(answers, False)))
    assert [row["group"] for row in await read_json("group", "list")] == ["g"]
    assert list(answers) == []


async def test_group_commands_support_streams_groups(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await remove_delays(wire)
        await streams_beat(wire, "a", 0, topology=topology(subtopology("0", topic)))
        await cli("group", "wait", "g", "--state", "Stable", "--members", "1")
        (row,) = await read_json("group", "describe", "g")
        assert (row["state"], row["type"], row["assignor"]) == ("Stable", "Streams", "sticky")
        assert [(each["partition"], each["member_id"]) for each in row["partitions"]] == [
            (0, "a"),
            (1, "a"),
        ]
        (listed,) = await read_json("group", "list")
        assert (listed["group"], listed["state"], listed["type"]) == ("g", "Stable", "streams")
        assert (listed["members"], listed["assignor"], listed["lag"]) == (1, "sticky", None)
        assert (
            "the group has members" in (await cli("group", "delete", "--yes", "g", status=1)).stderr
        )
        await streams_beat(wire, "a", -1)
    await cli("group", "seek", "--yes", "g", "--to", "3", "-t", topic)
    (row,) = await read_json("group", "describe", "g")
    assert (row["state"], row["total_lag"]) == ("Empty", 2)
    assert "dead_letter_queue" not in row
    await cli("group", "offset-delete", "--yes", "g", "-t", f"{topic}:0")
    await cli("group", "delete", "--yes", "g")
    assert await read_json("group", "list") == []


async def test_describe_draws_topology_of_streams_group(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await remove_delays(wire)
        await streams_beat(wire, "a", 0, topology=topology(subtopology("0", topic)))
        (row,) = await read_json("group", "describe", "g")
        assert row["topology_description"] == {"status": "NOT_STORED", "nodes": []}
        text = (await cli("group", "describe", "g")).stdout
        assert "TOPOLOGY     not stored" in text
        assert "Subtopology" not in text
        request = StreamsGroupTopologyDescriptionUpdateRequest(
            group_id="g",
            member_id="a",
            topology_description=description(SOURCE, PROCESSOR, SINK),
        )
        key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
        assert not (await wire.ask(key, 0, request)).error_code
    (row,) = await read_json("group", "describe", "g")
    assert row["topology_description"]["status"] == "AVAILABLE"
    first, *_ = row["topology_description"]["nodes"]
    assert first == {
        "subtopology": "0",
        "name": "source",
        "type": "source",
        "topics": ["orders"],
        "stores": [],
        "successors": ["count"],
    }
    text = (await cli("group", "describe", "g")).stdout
    assert "TOPOLOGY     stored" in text
    drawing = ["Subtopology 0", "  source (source: orders)", "  -> count (stores: counts)"]
    assert "\n".join(["", *drawing, "  -> sink (sink: totals)", ""]) in text
    for option in ("-s", "-c", "-t"):
        assert "Subtopology" not in (await cli("group", "describe", "g", option)).stdout


async def test_topology_of_older_broker_is_unknown(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await remove_delays(wire)
        await streams_beat(wire, "a", 0, topology=topology(subtopology("0", topic)))
    apis = broker.server._apis
    key = ApiKey.STREAMS_GROUP_DESCRIBE
    broker.server._apis = {**apis, key: apis[key]._replace(versions=range(1))}
    (row,) = await read_json("group", "describe", "g")
    assert row["topology_description"] == {"status": "NOT_REQUESTED", "nodes": []}
    text = (await cli("group", "describe", "g")).stdout
    assert "TOPOLOGY     unknown, because the broker does not support" in text


async def test_describe_shows_dead_letter_queue_of_share_group(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await find(wire)
        await alter(wire, {0: 1}, group="s", topic=topic)
        (row,) = await read_json("group", "describe", "s")
        assert row["dead_letter_queue"] is None
        assert "DLQ-TOPIC    -" in (await cli("group", "describe", "s")).stdout
        setting = "errors.deadletterqueue.topic.name"
        assert not await set_config(wire, ResourceType.GROUP, "s", setting, "dlq.t")
        problem = (
            "topic dlq.t does not exist; create it, or set "
            "errors.deadletterqueue.auto.create.topics.enable=true"
        )
        (row,) = await read_json("group", "describe", "s")
        assert row["dead_letter_queue"] == {
            "topic": "dlq.t",
            "copies_records": False,
            "records": None,
            "problem": problem,
        }
        assert f"DLQ-PROBLEM  {problem}" in (await cli("group", "describe", "s", "-s")).stdout
        enabled = "errors.deadletterqueue.group.enable=true"
        await cli("topic", "create", "dlq.t", "-c", enabled)
        lines = (await cli("group", "describe", "s")).stdout.splitlines()
        assert lines[6:9] == ["DLQ-TOPIC    dlq.t", "DLQ-COPIES   no", "DLQ-RECORDS  0"]
        assert "DLQ-TOPIC" not in (await cli("group", "describe", "s", "-c")).stdout


async def test_group_list_shows_consumer_group_without_offsets(
    cli: Cli, read_json: ReadJson, topic: str, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await find(wire)
        await consumer_beat(wire, "a", 0, group="c")
        await cli("group", "wait", "c", "--members", "1")
        (listed,) = await read_json("group", "list", "c")
    assert (listed["type"], listed["members"], listed["topics"]) == ("consumer", 1, [topic])
    assert (listed["assignor"], listed["lag"]) == ("uniform", None)
    assert (listed["lag"], listed["without_offset"]) == (None, 1)
    lines = (await cli("group", "list", "-o", "wide")).stdout.splitlines()
    assert lines[0].split()[:8] == [
        *("GROUP", "STATE", "TYPE", "MEMBERS", "LAG", "WITHOUT-OFFSET", "TOPICS", "ASSIGNOR")
    ]


async def test_alter_config_sets_and_deletes_settings_of_group(
    cli: Cli, read_json: ReadJson
) -> None:
    async def settings() -> dict[str, tuple[str, str, str]]:
        rows = await read_json("group", "describe", "g", "--configs")
        return {row["setting"]: (row["value"], row["default"], row["source"]) for row in rows}

    timeout = "consumer.session.timeout.ms"
    change = ("group", "alter-config", "g", "--set", f"{timeout}=50s")
    preview = await cli(*change, "--dry-run")
    assert f"group g: set {timeout}=50000 (50s) (now 45000 (45s))" in preview.stdout
    missing = await cli("group", "describe", "g", "--configs", status=1)
    assert "group 'g' does not exist" in missing.stderr
    changed = await cli(*change, "--set", "share.isolation.level=read_committed")
    assert changed.stdout == "g: changed\n"
    assert "group 'g' does not exist yet" in changed.stderr
    found = await settings()
    assert found[timeout] == ("50000", "45000", "group")
    assert found["share.isolation.level"] == ("read_committed", "read_uncommitted", "group")
    assert found["share.session.timeout.ms"] == ("45000", "45000", "default")
    await cli("group", "alter-config", "g", "--yes", "--delete", timeout)
    assert (await settings())[timeout] == ("45000", "45000", "default")


async def test_alter_config_changes_settings_of_groups_that_match_pattern(
    cli: Cli, read_json: ReadJson
) -> None:
    await cli("topic", "create", "t", "--partitions", "1")
    for name in ("bill-1", "bill-2"):
        await cli("group", "seek", name, "--to", "start", "--topic", "t")
    change = ("--set", "consumer.session.timeout.ms=50s")
    changed = await cli("group", "alter-config", "bill-*", *change)
    assert changed.stdout == "bill-1: changed\nbill-2: changed\n"
    assert changed.stderr == ""
    nothing = await cli("group", "alter-config", "none-*", *change, status=1)
    assert "pattern 'none-*' matches no group" in nothing.stderr
    rows = await read_json("group", "describe", "bill-*", "--configs")
    own = [(row["group"], row["value"]) for row in rows if row["source"] == "group"]
    assert own == [("bill-1", "50000"), ("bill-2", "50000")]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "no changes; give at least one of --set and --delete"),
        (("--set", "consumer.session.timeout.ms=2w"), 2, "unknown unit 'w'"),
        (("--set", "consumer.session.timeout.ms"), 2, "item 1 is not KEY=VALUE"),
        (("--set", "consumer.session.timeout.ms=1"), 1, "consumer.session.timeout.ms"),
        (("--set", "no.such=1"), 1, "no.such"),
    ],
)
async def test_alter_config_of_group_rejects_invalid_changes(
    cli: Cli, arguments: tuple[str, ...], status: int, message: str
) -> None:
    assert message in (await cli("group", "alter-config", "g", *arguments, status=status)).stderr


async def test_group_list_is_sorted_by_numbers(
    cli: Cli, broker: Broker, read_json: ReadJson
) -> None:
    await cli("topic", "create", "t", "--partitions", "1")
    await cli("topic", "produce", "t", "one", "two", "three")
    for name, offset in (("a", "end"), ("b", "start"), ("c", "1")):
        await cli("group", "seek", name, "--to", offset, "--topic", "t")

    async def names(*options: str) -> list[str]:
        return [row["group"] for row in await read_json("group", "list", *options)]

    assert await names() == await names("--sort", "name") == ["a", "b", "c"]
    assert await names("--sort", "lag") == ["b", "c", "a"]
    async with member(broker, "c", "t", 0):
        assert await names("--sort", "members") == ["c", "a", "b"]
