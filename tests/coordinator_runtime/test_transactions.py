"""Transactions whose partitions, offsets and coordinator are on three nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.broker.local_node import LocalNode
from kbroker.coordinator import TransactionState
from kbroker.coordinator_runtime.markers import TransactionMarkerChannelManager
from kbroker.coordinator_runtime.transactions import STEPS_AT_ONCE
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest

from ..brokers import started
from ..handlers.test_groups import committed
from ..handlers.test_transactions import NAME, PROTOCOLS, Writer, begin_writer, committed_values
from ..loop_latency import longest_step
from ..replication.routed import (
    Routed,
    all_in_sync,
    coordinator,
    leader,
    routed,
    started_with_coordinators,
)
from ..wire import (
    ANSWER_SECONDS,
    ConnectionClosed,
    Topic,
    Wire,
    connected,
    create_topic,
    request,
    until,
)

BOTH_ENDS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
ENDS = pytest.mark.parametrize("how", ["stop", "crash"])
# Combinations of protocol, outcome, and how the node ends.
WAYS = pytest.mark.parametrize(
    ("version", "commit", "how"),
    [(11, True, "stop"), (11, False, "crash"), (13, True, "crash"), (13, False, "stop")],
)
MOVES = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started_with_coordinators() as broker:
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Routed]:
    async with routed(broker) as wire:
        yield wire


@pytest.fixture
async def topic(broker: Broker, wire: Routed) -> Topic:
    """Create a topic with one partition led by each node."""
    node = broker.running()
    await broker.create_topic("t", 3)
    found = node.cluster.topics["t"]
    assert {each.leader for each in found.partitions} == {1, 2, 3}
    return Topic("t", found.id)


async def coordinator_node(broker: Broker) -> LocalNode:
    return broker.local_node(await coordinator(broker, "transactions", NAME))


async def end(node: LocalNode, how: str) -> None:
    await (node.stop() if how == "stop" else node.crash())


async def all_seen(wire: Routed, topic: Topic) -> list[list[bytes | None]]:
    return [await committed_values(wire, topic, partition) for partition in range(3)]


async def write_all(writer: Writer, topic: Topic, value: bytes) -> None:
    for partition in range(3):
        await writer.write(topic, value, partition=partition)


@pytest.mark.slow
@PROTOCOLS
@BOTH_ENDS
async def test_transaction_ends_in_partitions_of_three_leaders(
    wire: Routed, topic: Topic, version: int, commit: bool
) -> None:
    writer = await begin_writer(wire, version)
    for round_ in range(3):
        before = await all_seen(wire, topic)
        await write_all(writer, topic, b"%d" % round_)
        assert await all_seen(wire, topic) == before
        assert not await writer.end(commit=commit)
        added: list[bytes | None] = [b"%d" % round_] if commit else []
        assert await all_seen(wire, topic) == [values + added for values in before]


async def test_partition_that_was_not_added_is_rejected(wire: Routed, topic: Topic) -> None:
    """With TV1, the leader verifies the partition with the coordinator on any node."""
    writer = await begin_writer(wire, 11)
    for partition in range(3):
        code = await writer.produce(topic, b"x", partition=partition)
        assert code == ErrorCode.TRANSACTION_ABORTABLE
    await write_all(writer, topic, b"y")
    await writer.commit()
    assert await all_seen(wire, topic) == [[b"y"]] * 3


@PROTOCOLS
async def test_fenced_producer_is_rejected_by_all_leaders(
    wire: Routed, topic: Topic, version: int
) -> None:
    old = await begin_writer(wire, version)
    await write_all(old, topic, b"x")
    new = await begin_writer(wire, version)
    for partition in range(3):
        code = await old.produce(topic, b"y", partition=partition)
        assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    await write_all(new, topic, b"z")
    await new.commit()
    assert await all_seen(wire, topic) == [[b"z"]] * 3


@pytest.mark.slow
@PROTOCOLS
@BOTH_ENDS
async def test_transaction_commits_offsets_of_groups_on_all_nodes(
    broker: Broker, wire: Routed, topic: Topic, version: int, commit: bool
) -> None:
    writer = await begin_writer(wire, version)
    groups = [f"group {number}" for number in range(8)]
    coordinators = {await coordinator(broker, "groups", group) for group in groups}
    assert coordinators == {1, 2, 3}
    await writer.write(topic, b"x")
    for number, group in enumerate(groups):
        await send_offset(writer, group, number)
        assert await committed(wire, "t", group) == -1
    assert not await writer.end(commit=commit)
    found = [await committed(wire, "t", group) for group in groups]
    assert found == (list(range(len(groups))) if commit else [-1] * len(groups))


async def send_offset(writer: Writer, group: str, offset: int) -> None:
    producer = {"transactional_id": NAME, "producer_id": writer.id, "producer_epoch": writer.epoch}
    if not writer.second:
        add = request(ApiKey.ADD_OFFSETS_TO_TXN, group_id=group, **producer)
        assert not (await writer.wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, add)).error_code
    cls = type(request(ApiKey.TXN_OFFSET_COMMIT))
    row = cls.Partition(partition_index=0, committed_offset=offset)
    ask = cls(group_id=group, topics=[cls.Topic(name="t", partitions=[row])], **producer)
    response = await writer.wire.ask(ApiKey.TXN_OFFSET_COMMIT, 5 if writer.second else 3, ask)
    assert response.topics[0].partitions[0].error_code == 0


@pytest.mark.slow
@WAYS
async def test_new_coordinator_completes_prepared_transaction(
    broker: Broker,
    wire: Routed,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    commit: bool,
    how: str,
) -> None:
    """The decision was stored: the next coordinator writes markers, and the producer may retry."""
    writer = await begin_writer(wire, version)
    await write_all(writer, topic, b"x")
    first = await coordinator_node(broker)
    sent = TransactionMarkerChannelManager.send

    def send(sender: TransactionMarkerChannelManager, *args: Any) -> None:
        if sender is not first.node.transactions._markers:
            sent(sender, *args)

    monkeypatch.setattr(TransactionMarkerChannelManager, "send", send)
    shard = first.node.transactions.shard(NAME)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_or_lose, writer, commit)
        await until(
            lambda: (
                shard.coordinator.transactions[NAME].state.is_prepared
                and shard.replica.log.high_watermark == shard.replica.log.log_end_offset
            )
        )
        await end(first, how)
    second = await coordinator_node(broker)
    assert second is not first
    await until(lambda: state_at(second) is not None)
    done = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    await until(lambda: state_at(second) is done)
    assert await all_seen(wire, topic) == [[b"x"] if commit else []] * 3
    await end_again(writer, commit)
    await write_all(writer, topic, b"y")
    await writer.commit()
    assert [values[-1] for values in await all_seen(wire, topic)] == [b"y"] * 3


async def end_or_lose(writer: Writer, commit: bool) -> None:
    """End a transaction; the response may be an error or may be missing."""
    with suppress(ConnectionClosed):
        await writer.end(commit=commit)


async def end_again(writer: Writer, commit: bool) -> None:
    """Retry EndTxn, as clients do while coordinators move."""
    with trio.fail_after(ANSWER_SECONDS):
        while code := await writer.end(commit=commit):
            assert code in MOVES
            await trio.sleep(0.01)


def state_at(node: LocalNode) -> TransactionState | None:
    """Return the transaction's state on a node that has its coordinator, or None."""
    for shard in node.node.transactions.shards():
        if NAME in shard.coordinator.transactions:
            return shard.coordinator.transactions[NAME].state
    return None


@pytest.mark.slow
@WAYS
async def test_new_leader_gets_marker_after_leader_ends(
    broker: Broker, wire: Routed, topic: Topic, version: int, commit: bool, how: str
) -> None:
    writer = await begin_writer(wire, version)
    await write_all(writer, topic, b"x")
    has_coordinator = await coordinator(broker, "transactions", NAME)
    lost = next(each for each in broker.nodes if each.id != has_coordinator)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end, lost, how)
        await end_again(writer, commit)
    expected: list[list[bytes | None]] = [[b"x"] if commit else []] * 3
    await eventually(lambda: all_seen(wire, topic), expected)
    await lost.start()
    await all_in_sync(broker)
    assert await all_seen(wire, topic) == expected


@pytest.mark.slow
@ENDS
async def test_transaction_times_out_at_new_coordinator(
    broker: Broker, wire: Routed, topic: Topic, how: str
) -> None:
    writer = Writer(wire, 13)
    assert not await writer.init(timeout_ms=1500)
    await write_all(writer, topic, b"x")
    await end(await coordinator_node(broker), how)
    await eventually(lambda: ends_of(broker, topic), [2, 2, 2])
    assert await all_seen(wire, topic) == [[]] * 3


async def ends_of(broker: Broker, topic: Topic) -> list[int]:
    """Return the last stable offset of each partition from its leader."""
    found = []
    for index in range(3):
        node = broker.local_node(await leader(broker, topic.name, index)).node
        found.append(node.partitions.named_replica(topic.name, index).log.last_stable_offset)
    return found


async def eventually(look: Callable[[], Awaitable[Any]], expected: Any) -> None:
    """Wait until `look()` returns the expected value."""
    with trio.fail_after(ANSWER_SECONDS):
        while await look() != expected:  # noqa: ASYNC110  # there is no event for it
            await trio.sleep(0.02)


async def test_transactions_that_time_out_together_do_not_block_event_loop() -> None:
    """Each writes fewer markers than `STEPS_AT_ONCE`, but many transactions end at once."""
    partitions, names = STEPS_AT_ONCE - 10, [f"tx-{number}" for number in range(60)]
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", partitions)
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=names, key_type=1)
        await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
        for name in names:
            await begin_transaction(wire, name, topic, partitions)
        service = broker.node.transactions
        for shard, name, _ in service.known():
            shard.coordinator.expire_timeout(name, service.now())
        with longest_step() as step:
            for shard in service.shards():
                service.deadlines.arm(shard)
            await until(
                lambda: all(
                    each.state is TransactionState.COMPLETE_ABORT for _, _, each in service.known()
                )
            )
        assert step.seconds < 0.025, str(step)


async def test_markers_are_retried_once_if_disk_fails_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append of the second marker fails, and with it the wait for the first one."""
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["tx"], key_type=1)
        await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
        await begin_transaction(wire, "tx", topic, 2)
        service = broker.node.transactions
        append = service.append_marker
        appended: list[tuple[str, int]] = []

        def append_marker(partition: tuple[str, int], *args: Any, **options: Any) -> Any:
            appended.append(partition)
            if len(appended) == 2:
                broker.node.partitions.named_replica("t", 0).commits.fail()
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            return append(partition, *args, **options)

        monkeypatch.setattr(service, "append_marker", append_marker)
        ((shard, _, _),) = service.known()
        shard.coordinator.expire_timeout("tx", service.now())
        service.deadlines.arm(shard)
        await until(
            lambda: shard.coordinator.transactions["tx"].state is TransactionState.COMPLETE_ABORT
        )
        assert sorted(appended) == [("t", 0), ("t", 0), ("t", 1), ("t", 1)]


async def begin_transaction(wire: Wire, name: str, topic: Topic, partitions: int) -> None:
    """Begin a transaction with all partitions of a topic."""
    init = request(ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
    producer = await wire.ask(ApiKey.INIT_PRODUCER_ID, 3, init)
    cls = AddPartitionsToTxnRequest
    add = cls(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[cls.Topic(name=topic.name, partitions=[*range(partitions)])],
    )
    (row,) = (await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)).results_by_topic_v3_and_below
    assert {each.partition_error_code for each in row.results_by_partition} == {0}
