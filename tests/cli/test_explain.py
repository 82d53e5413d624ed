"""`kbroker explain` without a control port, on a running broker."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from kbroker.broker import Broker
from kbroker.client import explanations
from kbroker.client.group_details import Row
from kbroker.client.groups import SHARE
from kbroker.testing.control import run_controlled_broker

from ..brokers import started
from ..commands import Cli, ReadJson
from ..wire import Topic, connected, create_topic
from .test_group import member
from .test_transactions import begin


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start a broker that accepts hanging transactions: it does not verify partitions."""
    async with started(transaction_partition_verification_enable=False) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _no_wait_for_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanations, "COMMIT_SECONDS", 0)


async def lines_of(cli: Cli, *words: str) -> list[str]:
    return [line.strip() for line in (await cli("explain", *words)).stdout.splitlines()]


async def test_explain_group_shows_members_and_unread_partitions(cli: Cli, broker: Broker) -> None:
    await cli("topic", "create", "t", "-p", "3")
    for index in range(2):
        await cli("topic", "produce", "t", "a", "b", "-p", str(index))
    await cli("group", "seek", "readers", "--to", "start", "-t", "t", "--yes")
    lines = await lines_of(cli, "group", "readers")
    assert lines[0].startswith("group readers (Classic) is Empty: it has no members")
    assert "4 records are unread" in lines
    async with member(broker, "readers", "t", 0, 2) as member_id:
        lines = await lines_of(cli, "group", "readers")
    assert lines[0] == "group readers (Classic) is Stable: all members have their partitions"
    (of_member,) = (line for line in lines if line.startswith(f"member {member_id}"))
    assert of_member.endswith(" has t-0, t-2")
    assert "t-0 is 2 records behind (at 0 of 2)" in lines
    assert "t-1 is 2 records behind (at 0 of 2), has no member" in lines
    assert lines[-1].startswith("no offset was committed for 0 s although records are unread; ")
    assert "members: test at " in lines[-1]
    assert "check the application (max.poll.interval.ms, session.timeout.ms)" in lines[-1]
    await cli("group", "seek", "readers", "--to", "end", "--yes")
    assert (await lines_of(cli, "group", "readers"))[-1] == (
        "it has read all records of its partitions"
    )


async def test_explain_group_names_open_transaction_instead_of_blocked_member(
    cli: Cli, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        producer = await begin(wire, "payments", topic)
        await cli("group", "seek", "readers", "--to", "start", "-t", "t", "--yes")
        async with member(broker, "readers", "t", 0):
            lines = await lines_of(cli, "group", "readers")
    assert "1 record is unread" in lines
    assert lines[-1] == (
        "members with isolation.level=read_committed wait at offset 0 of t-0, because the "
        f"transaction of producer {producer} (transactional ID payments) is open"
    )


async def test_explain_group_without_offsets_does_not_blame_member_blocked_by_transaction(
    cli: Cli, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        await begin(wire, "payments", await create_topic(wire, "t"))
        await cli("group", "seek", "other", "--to", "start", "-t", "t", "--yes")
        async with member(broker, "readers", "t", 0):
            lines = await lines_of(cli, "group", "readers")
    assert "wait at offset 0 of t-0, because the transaction of producer" in lines[-1]
    assert not any(line.startswith("no offset was committed") for line in lines)


async def test_explain_group_names_members_that_have_not_reached_an_open_transaction(
    cli: Cli, broker: Broker
) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "a", "b", "c")
    async with connected(broker.endpoint) as wire:
        await begin(wire, "payments", Topic("t"))
        await cli("group", "seek", "readers", "--to", "start", "-t", "t", "--yes")
        async with member(broker, "readers", "t", 0):
            lines = await lines_of(cli, "group", "readers")
    assert "wait at offset 3 of t-0" in lines[-2]
    assert lines[-1].startswith("no offset was committed for 0 s although records are unread; ")


@pytest.mark.parametrize(
    ("group_type", "row", "line"),
    [
        (
            SHARE,
            {"current_offset": None, "log_start_offset": 0, "log_end_offset": 4},
            "no lag is known for t-0: the members have read no records there yet",
        ),
        (
            "Classic",
            {"current_offset": 3, "log_start_offset": None, "log_end_offset": None},
            (
                "no lag is known for t-0: the topic was deleted, is not available, or this user may "
                "not describe it"
            ),
        ),
    ],
)
def test_group_with_unknown_lag_has_not_read_all_records(
    group_type: str, row: Row, line: str
) -> None:
    row = {"topic": "t", "partition": 0, "lag": None, "member_id": None, **row}
    found = {"type": group_type, "without_offset": 0, "members": 0, "partitions": [row]}
    assert explanations.progress_sentences(found | {"total_lag": None}) == [line]


async def test_explain_unknown_objects_exits_with_status_1(cli: Cli) -> None:
    await cli("topic", "create", "t")
    for words in (
        ("group", "nothing"),
        ("partition", "nothing", "0"),
        ("partition", "t", "7"),
        ("transaction", "nothing"),
        ("share", "nothing", "t", "0"),
    ):
        await cli("explain", *words, status=1)
    assert (await lines_of(cli, "client", "me"))[0] == (
        "no member of the 0 groups that this user may describe has the client ID me"
    )


async def test_explain_partition_names_transactions_that_block_readers(
    cli: Cli, broker: Broker
) -> None:
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        assert (await lines_of(cli, "partition", "t", "0"))[-1] == "it has the offsets 0 to 0"
        producer = await begin(wire, "payments", topic)
        hanging = await begin(wire, "other", topic, added=False)
        lines = await lines_of(cli, "partition", "t", "0")
        of_transaction = await lines_of(cli, "transaction", "payments")
    assert lines[0].startswith("partition t-0 is available: broker 1 is the leader")
    assert "read_committed consumers wait at offset 0, because a transaction is open" in lines
    text = "\n".join(lines)
    assert f"producer {producer} (transactional ID payments) has an open transaction" in text
    assert f"producer {hanging} (transactional ID other)" in text
    assert of_transaction[0].startswith("transactional ID payments is Ongoing: ")
    assert of_transaction[2].endswith("the coordinator aborts it after 60 s")
    assert of_transaction[3] == "it has written to t-0"
    assert of_transaction[4] == "`kbroker cluster txn abort payments` aborts it"


async def test_explain_partition_lists_idempotent_producers_newest_first(
    cli: Cli, broker: Broker
) -> None:
    await cli("topic", "create", "t")
    for when in ("2026-01-02T03:04:05Z", "2026-01-03T03:04:05Z"):
        await cli("topic", "produce", "t", "x", "-t", when)
    lines = await lines_of(cli, "partition", "t", "0")
    found = [re.sub(r"\d+", "N", line, count=1) for line in lines[-2:]]
    assert found == [
        "producer N has written, its last record is of 2026-01-03T03:04:05.000Z",
        "producer N has written, its last record is of 2026-01-02T03:04:05.000Z",
    ]


async def test_explain_partition_names_rejected_producers(cli: Cli) -> None:
    await cli("topic", "create", "t", "-c", "min.insync.replicas=2")
    text = "\n".join(await lines_of(cli, "partition", "t", "0"))
    assert "producers with acks=all are rejected: min.insync.replicas is 2, 1 are in sync" in text


async def test_explain_client_lists_its_members(
    cli: Cli, broker: Broker, read_json: ReadJson
) -> None:
    await cli("topic", "create", "t")
    await cli("group", "seek", "readers", "--to", "start", "-t", "t", "--yes")
    async with member(broker, "readers", "t", 0) as member_id:
        (row,) = (await read_json("group", "describe", "readers"))[0]["partitions"]
        lines = await lines_of(cli, "client", row["client_id"])
    assert lines[0] == f"client {row['client_id']}:"
    assert lines[1].startswith(f"member {member_id} of group readers at ")
    assert lines[1].endswith(" has t-0")
    for found in (lines, await lines_of(cli, "client", "shop")):
        assert found[-3].startswith("brokers do not report the requests and errors of a client")
        assert "`kbroker serve --http-port`" in found[-2]
        assert "`kbroker config log-level kbroker.audit=DEBUG`" in found[-1]


async def test_explain_share_names_group_and_partition(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "consume", "t", "-g", "readers", "-o", ":end")
    lines = await lines_of(cli, "share", "readers", "t", "0")
    assert lines[0].startswith("group readers is Empty")
    assert lines[1] == "its type is Classic: only share groups share partitions"
    assert not any(line.startswith("members with this partition") for line in lines)
    assert any(line.startswith("partition t-0 is available") for line in lines)


async def test_explain_with_control_port_adds_history(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepare(_: Broker) -> None:
        """Create nothing."""

    async with run_controlled_broker(0, None, prepare) as (local, control):
        monkeypatch.setenv("KBROKER_BOOTSTRAP", local.bootstrap_servers)
        await cli("topic", "create", "t")
        await cli("topic", "consume", "t", "-g", "readers", "-o", ":end")
        words = ("--control", control.address, "--control-token-file", str(control.token_file))
        with_history = await lines_of(cli, "group", "readers", *words)
        without = await lines_of(cli, "group", "readers")
        await cli("explain", "group", "nothing", *words)
    assert with_history[-len(without) :] == without
    assert any("rebalance 1 because" in line for line in with_history)
