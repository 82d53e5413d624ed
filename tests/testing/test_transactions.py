"""Operations of a test on transactions: end, expire, crash and explain."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import trio
from confluent_kafka import KafkaException, Producer

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import read_header
from kbroker.testing import LocalBroker, RunningBroker, WaitTimeout

from ..handlers.test_transactions import (
    FIRST,
    NAME,
    PROTOCOLS,
    SECOND,
    Writer,
    begin_writer,
    committed_values,
)
from ..wire import Topic, Wire, batch, connected, create_topic, produce, request, sequenced


@pytest.fixture
def orders(broker: RunningBroker) -> Topic:
    return topic_of(broker)


def topic_of(broker: RunningBroker) -> Topic:
    return Topic("orders", broker.broker.node.cluster.topics["orders"].id)


async def open_transaction(wire: Wire, orders: Topic, version: int = SECOND) -> Writer:
    """Open a transaction in orders-0, followed by a record of another producer."""
    writer = await begin_writer(wire, version)
    await writer.write(orders, b"open")
    await produce(wire, orders, batch([b"after"]))
    assert await committed_values(wire, orders) == []
    return writer


def new_confluent_producer(broker: LocalBroker, name: str = NAME, **settings: Any) -> Producer:
    """Return a librdkafka producer with an initialized transactional ID."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": name,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
            **settings,
        }
    )
    producer.init_transactions(10)
    return producer


def write_in_transaction(producer: Producer, value: str, *topics: str) -> None:
    """Begin a transaction and write to topics in it."""
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


# -- operations


@PROTOCOLS
async def test_abort_transaction_aborts_and_fences(
    broker: RunningBroker, wire: Wire, orders: Topic, version: int
) -> None:
    writer = await open_transaction(wire, orders, version)
    await broker.abort_transaction(NAME)
    assert await committed_values(wire, orders) == [b"after"], "read_committed consumers continue"
    assert await writer.produce(orders, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await writer.end(commit=True) != ErrorCode.NONE
    await writer.begin()
    await writer.write(orders, b"anew")
    await writer.commit()
    assert await committed_values(wire, orders) == [b"after", b"anew"]


async def test_abort_of_transaction_that_is_not_open_is_rejected(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    for operation in (broker.abort_transaction, broker.expire_transaction):
        with pytest.raises(ValueError, match=r"there is no transactional ID 'x' \(valid: none\)"):
            await operation("x")
    writer = await begin_writer(wire, SECOND)
    for operation in (broker.abort_transaction, broker.expire_transaction):
        with pytest.raises(ValueError, match=r"there is no transactional ID 'x' \(valid: tx\)"):
            await operation("x")
        with pytest.raises(
            ValueError, match=r"'tx': no transaction is open, its state is Empty \(open:"
        ):
            await operation(NAME)
    await writer.write(orders, b"x")
    await broker.expire_transaction(NAME)
    with pytest.raises(ValueError, match=r"its state is CompleteAbort \(open: none\)"):
        await broker.abort_transaction(NAME)


@PROTOCOLS
async def test_fence_producer_by_transactional_id_rejects_old_epoch(
    broker: RunningBroker, wire: Wire, orders: Topic, version: int
) -> None:
    writer = await open_transaction(wire, orders, version)
    assert await broker.fence_producer(transactional_id=NAME) == [writer.id]
    assert await committed_values(wire, orders) == [b"after"]
    assert await writer.produce(orders, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await writer.add(orders, 1) == [ErrorCode.PRODUCER_FENCED]
    for commit in (True, False):
        assert await writer.end(commit=commit) == ErrorCode.PRODUCER_FENCED
    await writer.begin()
    await writer.write(orders, b"anew")
    await writer.commit()
    assert await committed_values(wire, orders) == [b"after", b"anew"]


@pytest.mark.parametrize("by_id", [True, False])
async def test_transactional_producer_is_fenced_by_coordinator(
    broker: RunningBroker, wire: Wire, orders: Topic, by_id: bool
) -> None:
    """Fencing only in the logs would leave an open transaction that is never ended."""
    writer = await open_transaction(wire, orders, FIRST)
    assert await broker.fence_producer(writer.id if by_id else None) == [writer.id]
    assert await writer.end(commit=True) == ErrorCode.PRODUCER_FENCED
    assert await committed_values(wire, orders) == [b"after"]


async def test_idle_transactional_producer_is_fenced(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    writer = await begin_writer(wire, SECOND)
    await broker.fence_producer(transactional_id=NAME)
    assert await writer.produce(orders, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(ValueError, match=r"there is no transactional ID 'x' \(valid: tx\)"):
        await broker.fence_producer(transactional_id="x")
    with pytest.raises(ValueError, match="remove one of them"):
        await broker.fence_producer(writer.id, transactional_id=NAME)


@PROTOCOLS
async def test_expire_transaction_aborts_it(
    broker: RunningBroker, wire: Wire, orders: Topic, version: int
) -> None:
    writer = await open_transaction(wire, orders, version)
    await broker.expire_transaction(NAME)
    assert await committed_values(wire, orders) == [b"after"]
    assert await writer.produce(orders, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    text = str(broker.explain.transaction(NAME))
    # The actions of the test come first among events of the same millisecond.
    assert re.search(
        "the test expired the transaction\n(.* a transaction began;.*\n)?.*transaction timed out after 60000 ms; PrepareAbort, "
        f"producer {writer.id}, epoch {writer.epoch + 1}\n",
        text,
    ), text


async def test_move_coordinator_reloads_transactions_from_log(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    writer = await begin_writer(wire, FIRST)
    await broker.move_coordinator(transactional_id=NAME)
    assert await writer.add(orders, 0) == [ErrorCode.NOT_COORDINATOR]
    assert await writer.end(commit=True) == ErrorCode.NOT_COORDINATOR
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[NAME], key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    await writer.write(orders, b"x")
    await broker.move_coordinator(transactional_id=NAME)
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    await writer.commit()
    assert await committed_values(wire, orders) == [b"x"], (
        "the transaction was reloaded from the log"
    )
    with pytest.raises(ValueError, match=r"there is no transactional ID 'x' \(valid: tx\)"):
        await broker.move_coordinator(transactional_id="x")
    for arguments in ({}, {"group": "g", "transactional_id": NAME}):
        with pytest.raises(ValueError, match="pass either a group or a transactional ID"):
            await broker.move_coordinator(**arguments)


def test_librdkafka_producer_gets_abort_and_fence_errors() -> None:
    with LocalBroker(topics={"orders": 1}) as broker:
        producer = new_confluent_producer(broker)
        write_in_transaction(producer, "aborted", "orders")
        broker.abort_transaction(NAME)
        with pytest.raises(KafkaException) as failed:
            producer.commit_transaction(10)
        assert failed.value.args[0].fatal() or failed.value.args[0].txn_requires_abort()
        second = new_confluent_producer(broker)
        write_in_transaction(second, "fenced", "orders")
        broker.fence_producer(transactional_id=NAME)
        with pytest.raises(KafkaException) as failed:
            second.commit_transaction(10)
        assert failed.value.args[0].fatal()
        third = new_confluent_producer(broker)
        write_in_transaction(third, "committed", "orders")
        third.commit_transaction(10)
        assert [record.text for record in broker.records("orders")] == ["committed"]


async def test_fault_matches_transactional_id(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    """Requests contain the transactional ID in different fields."""
    writer = await begin_writer(wire, FIRST)
    broker.fault("AddPartitionsToTxn", error="COORDINATOR_LOAD_IN_PROGRESS", transactional_id=NAME)
    broker.fault("AddPartitionsToTxn", error="NOT_COORDINATOR", transactional_id="other").optional()
    assert await writer.add(orders, 0) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert await writer.add(orders, 0) == [0]
    assert "fault COORDINATOR_LOAD_IN_PROGRESS for AddPartitionsToTxn" in str(
        broker.explain.transaction(NAME)
    )
    await writer.abort()


@pytest.mark.parametrize("at", ["before", "after"])
async def test_fault_hits_one_partition_of_transaction(
    broker: RunningBroker, wire: Wire, orders: Topic, at: Literal["before", "after"]
) -> None:
    writer = await begin_writer(wire, FIRST)
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.fault("AddPartitionsToTxn", error=refused.name, topic="orders", partition=1, at=at)
    assert sorted(await writer.add(orders, 0, 1)) == [0, refused]
    assert await writer.produce(orders, b"x") == ErrorCode.NONE
    is_accepted = await writer.produce(orders, b"x", partition=1) == ErrorCode.NONE
    assert is_accepted == (at == "after"), "the work was done despite the error"


# -- clocks


@PROTOCOLS
async def test_coordinator_clock_expires_transaction(
    broker: RunningBroker, wire: Wire, orders: Topic, version: int
) -> None:
    writer = await open_transaction(wire, orders, version)
    await broker.advance_coordinator(58_000, keep_members=True)
    assert await committed_values(wire, orders) == []
    await broker.advance_coordinator(3_000, keep_members=True)
    assert await committed_values(wire, orders) == [b"after"], (
        "the markers are written when `advance` returns"
    )
    assert await writer.produce(orders, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH


def test_markers_are_written_on_disk_after_advance() -> None:
    with LocalBroker(topics={"orders": 1}, disk=True) as local:

        async def scenario(broker: RunningBroker) -> None:
            async with connected(broker.broker.endpoint) as wire:
                orders = topic_of(broker)
                await open_transaction(wire, orders)
                await broker.advance_coordinator(61_000, keep_members=False)
                assert await committed_values(wire, orders) == [b"after"]
                await broker.wait_until_idle()

        local.run_in_broker(scenario)


async def test_log_clock_does_not_expire_transaction(broker: RunningBroker, wire: Wire) -> None:
    """The log clock expires only unused transactional IDs."""
    orders = await create_topic(wire, "kept", configs={"retention.ms": "-1"})
    writer = await open_transaction(wire, orders)
    await broker.advance(30 * 86_400_000)
    await writer.write(orders, b"and on")
    await writer.commit()
    assert await committed_values(wire, orders) == [b"open", b"after", b"and on"]
    await broker.advance(6 * 86_400_000)
    assert str(broker.explain.transaction(NAME)).startswith(f"transactional id {NAME} is Complete")
    await broker.advance(2 * 86_400_000)
    assert str(broker.explain.transaction(NAME)).startswith(
        f"transactional id {NAME} does not exist"
    )
    assert await writer.produce(orders, b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- idleness


async def test_open_transaction_prevents_idle_broker(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    writer = await open_transaction(wire, orders)
    with pytest.raises(WaitTimeout, match=f"the transaction of {NAME} is Ongoing"):
        await broker.wait_until_idle(timeout=0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.wait_until_idle)
        await writer.commit()
    assert await committed_values(wire, orders) == [b"open", b"after"]


# -- explain


async def test_explanation_names_transaction_that_blocks_readers(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    writer = await begin_writer(wire, SECOND)
    await produce(wire, orders, batch([b"before"]))
    await writer.write(orders, b"open")
    explanation = str(broker.explain.partition("orders", 0))
    assert re.search(
        r"; read_committed consumers cannot read offset 1 and later: producer "
        rf"{writer.id} \(transactional id {NAME}\) has a transaction open since "
        r"\d\d:\d\d:\d\d \(\d+\.\d s\) there; "
        rf"`kbroker cluster txn abort {NAME}` aborts it",
        explanation,
    ), explanation
    assert "read_committed consumers" in await broker.report()
    assert "read_committed consumers" not in str(broker.explain.partition("orders", 1))
    with pytest.raises(WaitTimeout, match=f"transactional id {NAME}"):
        await broker.wait_for("orders", count=2, timeout=0.05)
    await writer.commit()
    assert "read_committed consumers" not in str(broker.explain.partition("orders", 0))


async def test_explanation_names_transaction_unknown_to_coordinator(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    """A batch that arrives after its marker opens a transaction in the log only."""
    hanging = sequenced(9, 0, transactional=True)
    replica = broker.broker.node.partitions.named_replica("orders", 0)
    replica.append(memoryview(hanging), read_header(hanging), broker.clock.log_ms())
    explanation = str(broker.explain.partition("orders", 0))
    assert "producer 9 has an open transaction that is unknown to the coordinators" in explanation
    assert "`kbroker cluster txn abort-hanging orders 0 0` aborts it" in explanation


async def test_explanation_has_state_and_history_of_transaction(
    broker: RunningBroker, wire: Wire, orders: Topic
) -> None:
    assert str(broker.explain.transaction(NAME)) == f"transactional id {NAME} does not exist"
    writer = await begin_writer(wire, SECOND)
    producer = f"producer {writer.id}, epoch {writer.epoch},"
    assert str(broker.explain.transaction(NAME)).startswith(
        f"transactional id {NAME} is Empty: {producer} has no transaction open\n"
    )
    await writer.write(orders, b"x", partition=1)
    broker.clock.coordinator.freeze()
    await broker.advance_coordinator(20_000, keep_members=True)
    explanation = str(broker.explain.transaction(NAME))
    assert re.match(
        rf"transactional id {NAME} is Ongoing: {producer} has a transaction open since "
        r"\S+ \(\d+\.\d s\) in orders-1; it is aborted in (40\.0|39\.\d) s\n",
        explanation,
    ), explanation
    assert "the test moved the coordinators' clock 20 s ahead" in explanation
    await broker.abort_transaction(NAME)
    explanation = str(broker.explain.transaction(NAME))
    assert "a transaction began; Ongoing" in explanation
    assert "the test aborted it; PrepareAbort" in explanation
    assert "all markers were written; CompleteAbort" in explanation
    assert f"transactional id {NAME} is CompleteAbort" in await broker.report()


# -- crashes


@pytest.fixture
def on_disk() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 1, "invoices": 1}, disk=True) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize(
    "point", ["txn.prepared", "txn.marker(1)", "txn.marker(2)", "txn.completed"]
)
def test_transactional_producer_survives_crash(
    on_disk: LocalBroker, point: str, is_committed: bool
) -> None:
    """The transaction is wholly committed or aborted in both topics; the producer continues."""
    producer = new_confluent_producer(on_disk)
    write_in_transaction(producer, "1", "orders", "invoices")
    end = producer.commit_transaction if is_committed else producer.abort_transaction
    on_disk.crash_at(point, "drop" if is_committed else "mixed", seed=7)
    ending = threading.Thread(target=end, args=(20,))
    ending.start()
    on_disk.wait_for_crash(timeout=10)
    ending.join()
    write_in_transaction(producer, "2", "orders", "invoices")
    producer.commit_transaction(20)
    wanted = ["1", "2"] if is_committed else ["2"]
    for topic in ("orders", "invoices"):
        assert [record.text for record in on_disk.records(topic)] == wanted
    on_disk.wait_until_idle()


def time_out(broker: LocalBroker) -> None:
    broker.clock.coordinator.advance(seconds=61)


def expire(broker: LocalBroker) -> None:
    broker.expire_transaction(NAME)


def abort(broker: LocalBroker) -> None:
    broker.abort_transaction(NAME)


def fence(broker: LocalBroker) -> None:
    broker.fence_producer(transactional_id=NAME)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["txn.prepared", "txn.marker(1)", "txn.completed"])
@pytest.mark.parametrize("end", [time_out, expire, abort, fence])
def test_crash_during_abort_by_test_is_handled(
    on_disk: LocalBroker, end: Callable[[LocalBroker], None], point: str
) -> None:
    write_in_transaction(new_confluent_producer(on_disk), "1", "orders", "invoices")
    on_disk.crash_at(point)
    end(on_disk)
    on_disk.wait_for_crash(timeout=10)
    on_disk.produce("orders", "2")
    assert [record.text for record in on_disk.records("orders")] == ["2"]
    assert on_disk.records("invoices") == []
    on_disk.wait_until_idle()


def test_missing_marker_is_handled(on_disk: LocalBroker) -> None:
    for point in ("txn.marker", "txn.marker(0)", "txn.marker(x)"):
        with pytest.raises(ValueError, match=r"there is no point .*, txn.marker\(N\)"):
            on_disk.crash_at(point)
    producer = new_confluent_producer(on_disk)
    on_disk.crash_at("txn.marker(2)")
    write_in_transaction(producer, "1", "orders")
    producer.commit_transaction(10)
    with pytest.raises(WaitTimeout):
        on_disk.wait_for_crash(timeout=0.05)
    on_disk.disarm_faults()
