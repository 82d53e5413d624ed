"""kafka-consumer-groups: reset and description of offsets."""

from __future__ import annotations

from kbroker.broker import Broker

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
