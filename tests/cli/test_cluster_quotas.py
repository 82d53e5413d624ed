"""`kbroker cluster quotas`: list, set, remove."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker

from ..commands import Cli, ReadJson

QUOTAS = ("cluster", "quotas")


@pytest.fixture
def at(broker: Broker) -> tuple[str, str]:
    return ("--bootstrap", f"{broker.endpoint.host}:{broker.endpoint.port}")


async def test_quota_can_be_set_listed_and_removed(
    at: tuple[str, str], cli: Cli, read_json: ReadJson
) -> None:
    assert await read_json(*QUOTAS, "list", *at) == []
    limits = ("producer_byte_rate=1048576", "request_percentage=12.5")
    output = await cli(*QUOTAS, "set", "--user", "alice", *limits, *at)
    assert output.stdout.splitlines() == [
        "user=alice: producer_byte_rate is 1048576",
        "user=alice: request_percentage is 12.5",
    ]
    names = ("--user", "alice", "--client-id", "<default>")
    await cli(*QUOTAS, "set", *names, "consumer_byte_rate=1e6", *at)
    await cli(*QUOTAS, "set", "--ip", "10.0.0.1", "connection_creation_rate=5", *at)
    rows = [
        {"user": "alice", "quotas": {"producer_byte_rate": 1048576, "request_percentage": 12.5}},
        {"user": "alice", "client_id": "<default>", "quotas": {"consumer_byte_rate": 1000000}},
        {"ip": "10.0.0.1", "quotas": {"connection_creation_rate": 5}},
    ]
    assert await read_json(*QUOTAS, "list", *at) == rows
    assert await read_json(*QUOTAS, "list", "--user", "alice", *at) == rows[:2]
    assert await read_json(*QUOTAS, "list", "--client-id", "<default>", *at) == rows[1:2]
    table = (await cli(*QUOTAS, "list", *at)).stdout.splitlines()
    assert [line.split() for line in table] == [
        ["USER", "CLIENT-ID", "IP", "QUOTAS"],
        ["alice", "-", "-", "producer_byte_rate=1048576,request_percentage=12.5"],
        ["alice", "<default>", "-", "consumer_byte_rate=1000000"],
        ["-", "-", "10.0.0.1", "connection_creation_rate=5"],
    ]
    reply = await cli(*QUOTAS, "remove", "--yes", "--user", "alice", "request_percentage", *at)
    assert reply.stdout == "user=alice: removed request_percentage\n"
    reply = await cli(*QUOTAS, "remove", "--yes", "--user", "alice", *at)
    assert reply.stdout == "user=alice: removed producer_byte_rate\n"
    assert await read_json(*QUOTAS, "list", *at) == rows[1:]
    assert (await cli(*QUOTAS, "remove", "--yes", "--user", "alice", *at)).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["set", "producer_byte_rate=1"], 2, "--user, --client-id, both of them, or --ip"),
        (["remove"], 2, "--user, --client-id, both of them, or --ip"),
        (["set", "--user", "x", "bytes=1"], 2, "unknown quota 'bytes' (valid: producer_byte"),
        (["set", "--user", "x", "producer_byte_rate"], 2, "write producer_byte_rate=1000000"),
        (["set", "--user", "x", "producer_byte_rate=1mb"], 2, "or producer_byte_rate=1MB"),
        (["set", "--user", "x", "request_percentage=1MB"], 2, "write request_percentage=10"),
        (["set", "--user", "x", "producer_byte_rate=0"], 1, "must be greater than 0"),
        (["set", "--ip", "x.y", "connection_creation_rate=1"], 1, "not a valid IP"),
        (["set", "--ip", "::1", "producer_byte_rate=1"], 1, "Invalid configuration key"),
    ],
)
async def test_invalid_quota_is_rejected(
    at: tuple[str, str], cli: Cli, arguments: list[str], status: int, expected: str
) -> None:
    refused = await cli(*QUOTAS, *arguments, *at, status=status)
    assert expected in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("given", "number"), [("1MB", 1_000_000), ("1MiB", 1_048_576), ("1.5 kB", 1_500), ("2B", 2)]
)
async def test_byte_rates_may_have_units(
    at: tuple[str, str], cli: Cli, read_json: ReadJson, given: str, number: int
) -> None:
    await cli(*QUOTAS, "set", "--client-id", "app", f"consumer_byte_rate={given}", *at)
    (row,) = await read_json(*QUOTAS, "list", *at)
    assert row["quotas"] == {"consumer_byte_rate": number}
