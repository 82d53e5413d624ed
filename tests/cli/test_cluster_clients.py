"""`kbroker cluster clients`: members of groups, and producers."""

from __future__ import annotations

import time

from kbroker.broker import Broker

from ..commands import Cli, ReadJson
from ..wire import Topic, connected
from .test_group import member
from .test_transactions import begin


async def test_clients_of_topic_are_its_members_and_producers(
    cli: Cli, broker: Broker, read_json: ReadJson
) -> None:
    for name in ("orders", "users"):
        await cli("topic", "create", name)
    await cli("topic", "produce", "users", "x")
    await cli("group", "seek", "idle", "--to", "start", "-t", "orders", "--yes")
    async with connected(broker.endpoint) as wire:
        producer = await begin(wire, "payments", Topic("orders"))
        async with member(broker, "readers", "orders", 0), member(broker, "others", "users", 0):
            rows = await read_json("cluster", "clients", "--topic", "orders")
            every = await read_json("cluster", "clients")
            shown = await cli("cluster", "clients", "--topic", "orders")
    assert [(row["role"], row["group"], row["transactional_id"]) for row in rows] == [
        ("consumer", "readers", None),
        ("producer", None, "payments"),
    ]
    assert rows[0]["client_id"] == "test"
    assert rows[0]["topics"] == ["orders"]
    assert rows[1]["producer_id"] == producer
    assert rows[1]["last_timestamp"] > (time.time() - 3600) * 1000
    assert [row["group"] for row in every if row["role"] == "consumer"] == ["others", "readers"]
    assert {tuple(row["topics"]) for row in every if row["role"] == "producer"} == {
        ("orders",),
        ("users",),
    }
    heading, of_member, of_producer = (line.split() for line in shown.stdout.splitlines())
    assert heading == ["ROLE", "NAME", "CLIENT-ID", "HOST", "TOPICS", "LAST-RECORD"]
    assert of_member == ["consumer", "readers", "test", rows[0]["host"], "orders", "-"]
    assert of_producer[:-1] == ["producer", "payments", "-", "-", "orders"]
    assert "brokers do not report the client IDs of producers; `kbroker config" in shown.stderr


async def test_producers_with_old_records_are_left_out_unless_since_covers_them(
    cli: Cli, read_json: ReadJson
) -> None:
    await cli("topic", "create", "orders")
    await cli("topic", "produce", "orders", "x", "-t", "-2h")
    shown = await cli("cluster", "clients")
    assert shown.stdout == "no clients found\n"
    assert shown.stderr.startswith("1 producer without a newer record left out; --since 1d shows")
    (row,) = await read_json("cluster", "clients", "--since", "3h")
    assert row["topics"] == ["orders"]


async def test_clients_of_unknown_topic_fail(cli: Cli) -> None:
    refused = await cli("cluster", "clients", "--topic", "nothing", status=1)
    assert "'nothing' does not exist" in refused.stderr
