"""`kbroker cluster txn`: list, describe, abort, find-hanging, abort-hanging."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kbroker.broker import Broker
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest
from kbroker.storage.lookups import aborted_transactions
from kbroker.text.times import iso_time

from ..brokers import started
from ..commands import Cli, ReadJson
from ..wire import Topic, Wire, connected, create_topic, produce, request, sequenced

TIMEOUT_MS = 60_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start a broker that accepts hanging transactions: it does not verify partitions."""
    async with started(transaction_partition_verification_enable=False) as broker:
        yield broker


async def begin(wire: Wire, name: str, topic: Topic, *, added: bool = True) -> int:
    """Write a transactional record and return the producer ID.

    The transaction hangs unless the partition is `added` to it.
    """
    find = request(ApiKey.FIND_COORDINATOR, key=name, key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 3, find)
    init = request(
        ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS
    )
    producer_id = (await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init)).producer_id
    assert isinstance(producer_id, int)
    if added:
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name=topic.name, partitions=[0])],
        )
        await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)
    data = sequenced(producer_id, 0, transactional=True)
    row = await produce(wire, topic, data, 9, transactional_id=name)
    assert row.error_code == 0
    return producer_id


async def test_txn_list_and_describe_show_transaction_states(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    assert await read_json("cluster", "txn", "list") == []
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        open_id = await begin(wire, "open", topic)
        await begin(wire, "empty", topic, added=False)
    listed = await read_json("cluster", "txn", "list")
    assert [(row["transactional_id"], row["state"]) for row in listed] == [
        ("empty", "Empty"),
        ("open", "Ongoing"),
    ]
    assert listed[1]["producer_id"] == open_id
    (only,) = await read_json("cluster", "txn", "list", "--state", "Ongoing")
    misspelt = await cli("cluster", "txn", "list", "--state", "ongoing", status=1)
    assert "unknown state 'ongoing' (valid: Empty, Ongoing, " in misspelt.stderr
    assert only["transactional_id"] == "open"
    assert (
        await read_json("cluster", "txn", "list", "--state", "Ongoing", "--longer-than", "1h") == []
    )
    described = await read_json("cluster", "txn", "describe", "open", "empty")
    assert [(row["state"], row["partitions"]) for row in described] == [
        ("Ongoing", ["t-0"]),
        ("Empty", []),
    ]
    assert (described[0]["timeout_ms"], described[0]["producer_epoch"]) == (TIMEOUT_MS, 0)
    assert described[1]["start_timestamp"] is None
    text = (await cli("cluster", "txn", "describe", "open")).stdout
    assert "STATE             Ongoing" in text
    assert f"START-TIMESTAMP   {iso_time(described[0]['start_timestamp'])}" in text
    output = await cli("cluster", "txn", "describe", "missing", status=1)
    assert "`kbroker cluster txn list`" in output.stderr


async def test_hanging_transaction_is_found_and_aborted(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    async with connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await begin(wire, "open", topic)
        hanging_id = await begin(wire, "hangs", topic, added=False)
    assert await read_json("cluster", "txn", "find-hanging") == [], "too new to be suspected"
    for only in ((), ("--topic", "t")):
        (row,) = await read_json("cluster", "txn", "find-hanging", "--older-than", "0s", *only)
        assert (row["topic"], row["partition"], row["start_offset"]) == ("t", 0, 1)
        assert row["producer_id"] == hanging_id
    text = (await cli("cluster", "txn", "find-hanging", "--older-than", "0s")).stdout
    assert str(iso_time(row["last_timestamp"])) in text
    log = broker.node.partitions.named_replica("t", 0).log
    assert log.last_stable_offset == 0
    abort = ("cluster", "txn", "abort-hanging", "--yes", "t", "0")
    assert "no open transaction" in (await cli(*abort, "7", status=1)).stderr
    refused = (await cli(*abort, "0", status=1)).stderr
    assert "`kbroker cluster txn abort open`" in refused
    assert "--force" not in refused
    assert log.log_end_offset == 2
    await cli(*abort, "1")
    assert await read_json("cluster", "txn", "find-hanging", "--older-than", "0s") == []
    assert aborted_transactions(log, 0, 3) == [(hanging_id, 1)]
    await cli(*abort, "0", "--force")
    assert log.last_stable_offset == 4


async def test_transaction_known_to_coordinator_is_aborted_by_transactional_id(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    async with connected(broker.endpoint) as wire:
        producer_id = await begin(wire, "open", await create_topic(wire, "t"))
    log = broker.node.partitions.named_replica("t", 0).log
    shown = (await cli("cluster", "txn", "abort", "open", "--dry-run")).stdout
    assert f"open: transaction of producer {producer_id} in t-0, open since " in shown
    assert log.last_stable_offset == 0
    done = await cli("cluster", "txn", "abort", "open", "--yes")
    assert "open: aborted the transaction" in done.stdout
    assert log.last_stable_offset == 2
    assert aborted_transactions(log, 0, 2) == [(producer_id, 0)]
    assert await read_json("cluster", "txn", "list", "--state", "Ongoing") == []
    refused = await cli("cluster", "txn", "abort", "open", "--yes", status=1)
    assert "'open' has no open transaction" in refused.stderr
    missing = await cli("cluster", "txn", "abort", "missing", "--yes", status=1)
    assert "'missing' does not exist" in missing.stderr
