"""kafka-consumer-groups: reset and description of offsets."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kbroker.broker import Broker
from kbroker.client import groups
from kbroker.client.cluster import ClusterClient
from kbroker.client.topics import Partition
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..cli.test_group import member
from ..commands import Cli


async def test_consumer_groups_tool_resets_offsets(cli: Cli, broker: Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    await cli("topic", "create", "orders")
    await cli("topic", "produce", "orders", "a", "b", "c")
    groups = ("compat", "kafka-consumer-groups", *server, "--group", "g")
    moved = await cli(
        *groups, "--reset-offsets", "--to-offset", "2", "--topic", "orders", "--execute"
    )
    assert moved.stdout.split() == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "NEW-OFFSET",
        "g",
        "orders",
        "0",
        "2",
    ]
    described = await cli(*groups, "--describe")
    assert described.stdout.split()[9:15] == ["g", "orders", "0", "2", "3", "1"]
    assert "Consumer group 'g' has no active members." in described.stderr


async def test_reset_skips_group_with_member_with_lines_of_kafka(cli: Cli, broker: Broker) -> None:
    await cli("topic", "create", "t", "-p", "1")
    for name in ("a", "g", "z"):
        await cli("group", "seek", "--yes", name, "--to", "start", "--topic", "t")
    server = ("--bootstrap-server", broker.bootstrap_servers)
    reset = ("compat", "kafka-consumer-groups", *server, "--reset-offsets", "--to-latest")
    skipped = (
        "\nError: Assignments can only be reset if the group 'g' is inactive, but the current state "
        "is Stable.\n"
    )
    async with member(broker, "g", "t", 0):
        failed = await cli(*reset, "--all-groups", "--all-topics", "--execute", status=1)
        groups_of_export = ("--group", "a", "--group", "g")
        exported = await cli(*reset, *groups_of_export, "--all-topics", "--export", status=1)
    assert failed.stdout.startswith(skipped)
    assert [line.split() for line in failed.stdout.removeprefix(skipped).splitlines()] == [
        *([], ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]),
        *(["a", "t", "0", "0"], ["z", "t", "0", "0"]),
    ]
    assert failed.stderr == ""
    assert exported.stdout == skipped + "a,t,0,0\n"


async def test_reset_that_fails_names_changed_and_remaining_groups(
    cli: Cli, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "t", "-p", "1")
    for name in ("a", "b", "c"):
        await cli("group", "seek", "--yes", name, "--to", "start", "--topic", "t")
    commit = groups.commit_offsets

    async def commit_except_b(
        cluster: ClusterClient, name: str, offsets: Mapping[Partition, int]
    ) -> dict[Partition, ErrorCode]:
        if name == "b":
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return await commit(cluster, name, offsets)

    monkeypatch.setattr(groups, "commit_offsets", commit_except_b)
    reset = ("--reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--execute")
    server = ("--bootstrap-server", broker.bootstrap_servers)
    output = await cli("compat", "kafka-consumer-groups", *server, *reset, status=1)
    assert output.stderr.splitlines() == [
        "kbroker: changed: a",
        "kbroker: not confirmed as changed: b, c; repeat the command for these",
    ]
