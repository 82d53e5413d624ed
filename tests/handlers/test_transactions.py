"""Tests of transactions on the wire in both protocols: visibility, fencing and recovery."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.coordinator import TransactionState
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.records import iter_headers
from kbroker.storage.errors import StorageError
from kbroker.storage.log import LogAppendInfo

from ..brokers import started
from ..wire import (
    ANSWER_SECONDS,
    LATEST,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    fetch,
    list_offset,
    produce,
    produce_request,
    request,
    sequenced,
    until,
    values_of,
)

COMMITTED = 1
# Produce versions of transaction protocols 1 and 2 (KIP-890).
FIRST, SECOND = 11, 13
PROTOCOLS = pytest.mark.parametrize("version", [FIRST, SECOND], ids=["first", "second"])
NAME = "tx"


@dataclass
class Writer:
    """A transactional producer without a client library."""

    wire: Wire
    version: int
    id: int = -1
    epoch: int = -1
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def second(self) -> bool:
        return self.version >= SECOND

    async def init(self, timeout_ms: int = 60_000) -> ErrorCode:
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[NAME], key_type=1)
        await self.wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
        ask = request(
            ApiKey.INIT_PRODUCER_ID, transactional_id=NAME, transaction_timeout_ms=timeout_ms
        )
        response = await self.wire.ask(ApiKey.INIT_PRODUCER_ID, 5, ask)
        if not response.error_code:
            self.id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return ErrorCode(response.error_code)

    async def begin(self) -> None:
        """Initialise the producer ID; retry while an earlier transaction is being aborted."""
        while code := await self.init():
            assert code == ErrorCode.CONCURRENT_TRANSACTIONS
            await trio.sleep(0.01)

    async def add(self, topic: Topic, *partitions: int, version: int = 3) -> list[int]:
        cls = AddPartitionsToTxnRequest
        response = await self.wire.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            cls(
                v3_and_below_transactional_id=NAME,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[cls.Topic(name=topic.name, partitions=list(partitions))],
            ),
        )
        (row,) = response.results_by_topic_v3_and_below
        return [each.partition_error_code for each in row.results_by_partition]

    def batch(self, topic: Topic, *values: bytes, partition: int = 0) -> bytes:
        sequence = self.sequences.get((topic.name, partition), 0)
        self.sequences[topic.name, partition] = sequence + len(values)
        return sequenced(self.id, sequence, values, epoch=self.epoch, transactional=True)

    async def produce(self, topic: Topic, *values: bytes, partition: int = 0) -> ErrorCode:
        """Produce without adding the partition to the transaction first."""
        known = dict(self.sequences)
        row = await produce(
            self.wire,
            topic,
            self.batch(topic, *values, partition=partition),
            self.version,
            partition=partition,
            transactional_id=NAME,
        )
        if row.error_code:
            self.sequences = known
        return ErrorCode(row.error_code)

    async def write(self, topic: Topic, *values: bytes, partition: int = 0) -> None:
        if not self.second:
            assert await self.add(topic, partition) == [0]
        assert await self.produce(topic, *values, partition=partition) == ErrorCode.NONE

    async def end(self, *, commit: bool) -> ErrorCode:
        ask = request(
            ApiKey.END_TXN,
            transactional_id=NAME,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        response = await self.wire.ask(ApiKey.END_TXN, 5 if self.second else 4, ask)
        if not response.error_code and self.second:
            self.id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return ErrorCode(response.error_code)

    async def commit(self) -> None:
        assert await self.end(commit=True) == ErrorCode.NONE

    async def abort(self) -> None:
        assert await self.end(commit=False) == ErrorCode.NONE


async def begin_writer(wire: Wire, version: int) -> Writer:
    writer = Writer(wire, version)
    await writer.begin()
    return writer


async def committed_values(wire: Wire, topic: Topic, partition: int = 0) -> list[bytes | None]:
    """Return the committed values, filtered by aborted transactions like in a consumer."""
    row = await fetch(wire, topic, isolation_level=COMMITTED, partitions=[partition])
    ahead = [(each.first_offset, each.producer_id) for each in row.aborted_transactions]
    values: list[bytes | None] = []
    aborting: set[int] = set()
    for position, header in iter_headers(row.records or b""):
        aborting |= {each for first, each in ahead if first == header.base_offset}
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.producer_id not in aborting:
            one = type(row)(records=row.records[position : position + header.size])
            values += values_of(one)
    return values


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        while not await condition():  # noqa: ASYNC110  # there is no event for what tests look at
            await trio.sleep(0.005)


async def describe(wire: Wire) -> Any:
    ask = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[NAME])
    (row,) = (await wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, ask)).transaction_states
    return row


# -- visibility


@PROTOCOLS
async def test_committed_transaction_is_visible_atomically(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t", 2)
    writer = await begin_writer(wire, version)
    for round_ in range(3):
        await writer.write(topic, b"a%d" % round_)
        await writer.write(topic, b"b%d" % round_, partition=1)
        assert (
            len(await committed_values(wire, topic))
            == len(await committed_values(wire, topic, 1))
            == round_
        )
        assert (await list_offset(wire, topic, LATEST, isolation_level=COMMITTED)).offset == (
            2 * round_
        )
        await writer.commit()
        # The records are visible as soon as the commit is acknowledged.
        assert await committed_values(wire, topic) == [b"a%d" % n for n in range(round_ + 1)]
        assert await committed_values(wire, topic, 1) == [b"b%d" % n for n in range(round_ + 1)]


@PROTOCOLS
async def test_aborted_transaction_is_invisible(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, version)
    for round_ in range(4):
        await writer.write(topic, b"%d" % round_)
        assert await writer.end(commit=round_ % 2 == 0) == ErrorCode.NONE
    assert await committed_values(wire, topic) == [b"0", b"2"]
    uncommitted = (await fetch(wire, topic)).records
    data = [header for _, header in iter_headers(uncommitted) if not header.is_control]
    assert len(data) == 4, "read_uncommitted consumers get aborted records"


@PROTOCOLS
async def test_open_transaction_hides_later_records(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"before"]))
    writer = await begin_writer(wire, version)
    await writer.write(topic, b"open")
    await produce(wire, topic, batch([b"after"]))
    row = await fetch(wire, topic, isolation_level=COMMITTED)
    assert (values_of(row), row.last_stable_offset, row.high_watermark) == ([b"before"], 1, 3)
    await writer.commit()
    assert await committed_values(wire, topic) == [b"before", b"open", b"after"]


async def test_commit_completes_pending_read_committed_fetch(broker: Broker, wire: Wire) -> None:
    """The bytes of the transaction count for `min_bytes`, not only the marker."""
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, SECOND)
    await writer.write(topic, bytes(20_000))
    fetched: list[Any] = []

    async def read() -> None:
        limits = {"min_bytes": 10_000, "max_wait_ms": 60_000}
        fetched.append(await fetch(reader, topic, isolation_level=COMMITTED, **limits))

    async with connected(broker.endpoint) as reader, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        replica = broker.node.partitions.named_replica("t", 0)
        await until(lambda: replica._fetches)
        assert not fetched
        await writer.commit()
    assert values_of(fetched[0])[0] == bytes(20_000)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
async def test_marker_has_timestamp_type_of_topic(wire: Wire, kind: str) -> None:
    topic = await create_topic(wire, "t", configs={"message.timestamp.type": kind})
    writer = await begin_writer(wire, SECOND)
    await writer.write(topic, b"x")
    await writer.commit()
    _, (_, marker) = iter_headers((await fetch(wire, topic)).records)
    assert marker.is_control
    assert marker.is_log_append_time == (kind == "LogAppendTime")
    assert marker.max_timestamp == marker.base_timestamp > 0


@PROTOCOLS
async def test_marker_has_producer_id_and_epoch(wire: Wire, version: int) -> None:
    """In protocol 2, the marker has the next epoch, which fences late batches."""
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, version)
    await writer.write(topic, b"x")
    epoch = writer.epoch
    await writer.commit()
    assert writer.epoch == (epoch + 1 if writer.second else epoch)
    row = await fetch(wire, topic)
    (_, data), (_, marker) = iter_headers(row.records)
    assert (data.is_transactional, data.is_control, data.producer_epoch) == (True, False, epoch)
    assert (marker.is_transactional, marker.is_control) == (True, True)
    assert (marker.producer_id, marker.producer_epoch) == (writer.id, writer.epoch)


async def test_late_batch_of_ended_transaction_is_rejected(wire: Wire) -> None:
    """KIP-890: otherwise the batch would become part of the next transaction."""
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, SECOND)
    await writer.write(topic, b"x")
    late = writer.batch(topic, b"late")
    await writer.commit()
    row = await produce(wire, topic, late, SECOND, transactional_id=NAME)
    assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await committed_values(wire, topic) == [b"x"]
    await writer.write(topic, b"y")
    await writer.commit()
    assert await committed_values(wire, topic) == [b"x", b"y"]


# -- validation and fencing


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_batch_for_partition_not_added_is_rejected(
    wire: Wire, version: int, code: ErrorCode
) -> None:
    topic = await create_topic(wire, "t", 2)
    writer = await begin_writer(wire, version)
    assert await writer.produce(topic, b"x") == code
    assert await writer.add(topic, 1) == [0]
    assert await writer.produce(topic, b"x") == code
    assert await writer.produce(topic, b"x", partition=1) == ErrorCode.NONE


@pytest.mark.parametrize("version", [11, 12, 13])
async def test_batch_of_unknown_producer_is_rejected(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, version)
    writer.id += 1
    assert await writer.produce(topic, b"x") == ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_transactional_batch_without_transactional_id_is_rejected(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, SECOND)
    row = await produce(wire, topic, writer.batch(topic, b"x"), SECOND)
    assert row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@PROTOCOLS
async def test_new_producer_fences_old_one(wire: Wire, version: int) -> None:
    """The open transaction of the old producer is aborted; all of its later requests fail."""
    topic = await create_topic(wire, "t", 2)
    old = await begin_writer(wire, version)
    await old.write(topic, b"old")
    new = Writer(wire, version)
    assert await new.init() == ErrorCode.CONCURRENT_TRANSACTIONS
    await new.begin()
    assert (new.id, new.epoch) == (old.id, old.epoch + 2)
    assert await old.produce(topic, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await old.produce(topic, b"zombie", partition=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await old.add(topic, 1) == [ErrorCode.PRODUCER_FENCED]
    assert await old.add(topic, 1, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert await old.end(commit=True) == ErrorCode.PRODUCER_FENCED
    await new.write(topic, b"new")
    await new.commit()
    assert await committed_values(wire, topic) == [b"new"]


@PROTOCOLS
async def test_pipelined_batches_of_transaction_keep_order(wire: Wire, version: int) -> None:
    """The first batch waits for the coordinator; the others wait for the first one."""
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, version)
    if not writer.second:
        assert await writer.add(topic, 0) == [0]
    frames = b""
    for number in range(5):
        data = writer.batch(topic, b"%d" % number)
        ask = produce_request(topic, data, transactional_id=NAME)
        frames += wire.frame(ApiKey.PRODUCE, version, ask)
    await wire.send_bytes(frames)
    for _ in range(5):
        ((row,),) = (each.partition_responses for each in (await wire.receive()).responses)
        assert row.error_code == 0
    await writer.commit()
    assert await committed_values(wire, topic) == [b"0", b"1", b"2", b"3", b"4"]


# -- requests of brokers and operators


async def test_partitions_are_added_to_several_transactions(wire: Wire) -> None:
    topic = await create_topic(wire, "t", 3)
    writer = await begin_writer(wire, FIRST)
    assert await writer.add(topic, 0) == [0]
    cls = AddPartitionsToTxnRequest

    def row(name: str, *partitions: int, verify_only: bool) -> Any:
        return cls.Transaction(
            transactional_id=name,
            producer_id=writer.id,
            producer_epoch=writer.epoch,
            verify_only=verify_only,
            topics=[cls.Topic(name="t", partitions=list(partitions))],
        )

    ask = cls(
        transactions=[
            row(NAME, 0, 1, verify_only=True),
            row(NAME, 0, 1, 9, verify_only=True),
            row("missing", 0, verify_only=True),
            row(NAME, 2, verify_only=False),
            row(NAME, 1, 9, verify_only=False),
        ]
    )
    response = await wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, ask)
    codes = [
        [each.partition_error_code for each in result.topic_results[0].results_by_partition]
        for result in response.results_by_transaction
    ]
    assert codes == [[0, 120], [55, 55, 3], [49], [0], [55, 3]]
    assert [(each.topic, each.partitions) for each in (await describe(wire)).topics] == [
        ("t", [0, 2])
    ]


async def test_adding_unknown_partition_adds_none(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, FIRST)
    assert await writer.add(topic, 0, 7) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert (await describe(wire)).transaction_state == "Empty"
    offsets = Topic("__transaction_state")
    assert await writer.add(offsets, 0) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_transactions_are_listed_and_described(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, FIRST)
    row = await describe(wire)
    assert (row.error_code, row.transaction_state, row.transaction_timeout_ms) == (
        0,
        "Empty",
        60_000,
    )
    assert (row.producer_id, row.producer_epoch, row.topics) == (writer.id, 0, [])
    assert row.transaction_start_time_ms == -1
    await writer.write(topic, b"x")

    async def listed(version: int = 2, **filters: Any) -> list[str]:
        ask = request(ApiKey.LIST_TRANSACTIONS, **filters)
        response = await wire.ask(ApiKey.LIST_TRANSACTIONS, version, ask)
        assert response.error_code == 0
        return [each.transactional_id for each in response.transaction_states]

    for version in range(3):
        assert await listed(version) == [NAME]
    assert await listed(state_filters=["Ongoing"]) == [NAME]
    assert await listed(state_filters=["Empty"]) == []
    assert await listed(producer_id_filters=[writer.id, 99]) == [NAME]
    assert await listed(producer_id_filters=[99]) == []
    assert await listed(duration_filter=60_000) == []
    assert await listed(duration_filter=0, transactional_id_pattern="t.") in ([NAME], [])
    assert await listed(transactional_id_pattern="t") == []
    assert await listed(transactional_id_pattern="") == [NAME]
    ask = request(ApiKey.LIST_TRANSACTIONS, state_filters=["ongoing", "Dead"])
    response = await wire.ask(ApiKey.LIST_TRANSACTIONS, 2, ask)
    assert response.unknown_state_filters == ["ongoing"]
    for pattern in ("(", "a" * 100_000, "(a{1000}){1000}"):
        ask = request(ApiKey.LIST_TRANSACTIONS, transactional_id_pattern=pattern[:30_000])
        response = await wire.ask(ApiKey.LIST_TRANSACTIONS, 2, ask)
        assert response.error_code in (0, ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_complex_pattern_is_not_matched_with_very_long_id(wire: Wire) -> None:
    """RE2 may take the product of both lengths, which would be a second."""
    await begin_writer(wire, FIRST)
    long = "a" * 32_000
    init = request(ApiKey.INIT_PRODUCER_ID, transactional_id=long, transaction_timeout_ms=60_000)

    async def is_known() -> bool:
        return not (await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, init)).error_code

    await eventually(is_known)
    for pattern, code, found in (
        ("(a?.?)" * 150 + "b", ErrorCode.INVALID_REGULAR_EXPRESSION, []),
        ("a.*", ErrorCode.NONE, [long]),
    ):
        ask = request(ApiKey.LIST_TRANSACTIONS, transactional_id_pattern=pattern)
        response = await wire.ask(ApiKey.LIST_TRANSACTIONS, 2, ask)
        assert response.error_code == code
        assert [each.transactional_id for each in response.transaction_states] == found


async def test_unknown_transactional_ids_are_not_found(wire: Wire) -> None:
    await begin_writer(wire, FIRST)
    ask = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["missing", ""])
    rows = (await wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, ask)).transaction_states
    assert [row.error_code for row in rows] == [
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    ]


@pytest.mark.parametrize("version", [1, 2])
async def test_operator_can_abort_hanging_transaction(wire: Wire, version: int) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, FIRST)
    await writer.write(topic, b"x")
    await produce(wire, topic, batch([b"y"]))

    async def mark(**fields: Any) -> ErrorCode:
        cls = WriteTxnMarkersRequest
        row = cls.Marker(
            producer_id=writer.id,
            topics=[cls.Topic(name=fields.pop("topic", "t"), partition_indexes=[0])],
            **fields,
        )
        response = await wire.ask(ApiKey.WRITE_TXN_MARKERS, version, cls(markers=[row]))
        ((found,),) = (each.partitions for each in response.markers[0].topics)
        return ErrorCode(found.error_code)

    assert await mark(topic="missing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await mark(producer_epoch=-1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await committed_values(wire, topic) == []
    assert await mark(producer_epoch=writer.epoch, coordinator_epoch=5) == ErrorCode.NONE
    assert await committed_values(wire, topic) == [b"y"]
    assert await mark(producer_epoch=writer.epoch, coordinator_epoch=4) == (
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )


async def test_transactional_producers_of_partition_are_described(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, SECOND)
    await produce(wire, topic, batch([b"first"]))
    await writer.write(topic, b"x", b"y")
    cls = DescribeProducersRequest
    ask = cls(topics=[cls.Topic(name="t", partition_indexes=[0])])

    async def state() -> tuple[int, ...]:
        response = await wire.ask(ApiKey.DESCRIBE_PRODUCERS, 0, ask)
        (row,) = response.topics[0].partitions[0].active_producers
        return row.producer_epoch, row.last_sequence, row.current_txn_start_offset

    assert await state() == (0, 1, 1)
    await writer.commit()
    assert await state() == (1, -1, -1)


# -- timeouts, failures and restarts


async def test_transaction_is_aborted_after_timeout(wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, FIRST)
    assert await writer.init(timeout_ms=50) == ErrorCode.NONE
    await writer.write(topic, b"x")
    await produce(wire, topic, batch([b"y"]))

    async def is_aborted() -> bool:
        return await committed_values(wire, topic) == [b"y"]

    await eventually(is_aborted)
    assert (await describe(wire)).transaction_state == "CompleteAbort"
    assert await writer.produce(topic, b"z") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await writer.end(commit=True) == ErrorCode.PRODUCER_FENCED


@PROTOCOLS
async def test_transaction_commits_after_one_topic_is_deleted(wire: Wire, version: int) -> None:
    topic, other = await create_topic(wire, "t"), await create_topic(wire, "other")
    writer = await begin_writer(wire, version)
    await writer.write(topic, b"x")
    await writer.write(other, b"y")
    await delete_topic(wire, "t")
    await writer.commit()
    assert await committed_values(wire, other) == [b"y"]


async def test_marker_is_retried_if_partition_is_offline(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is acknowledged, because the decision is stored."""
    monkeypatch.setattr("kbroker.coordinator_runtime.transactions.END_SECONDS_MAX", 0.1)
    monkeypatch.setattr("kbroker.coordinator_runtime.transactions.RETRY_BACKOFF_SECONDS", 0.05)
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, FIRST)
    await writer.write(topic, b"x")
    log = broker.node.partitions.named_replica("t", 0).log
    monkeypatch.setattr(log, "offline", "out of order")
    await writer.commit()
    assert (await describe(wire)).transaction_state == "PrepareCommit"
    assert await writer.add(topic, 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert await writer.end(commit=True) == ErrorCode.CONCURRENT_TRANSACTIONS
    monkeypatch.setattr(log, "offline", None)

    async def is_complete() -> bool:
        return bool((await describe(wire)).transaction_state == "CompleteCommit")

    await eventually(is_complete)
    assert await committed_values(wire, topic) == [b"x"]


@PROTOCOLS
@pytest.mark.parametrize("commit", [True, False])
async def test_end_is_not_acknowledged_before_decision_is_replicated(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch, version: int, commit: bool
) -> None:
    """Another coordinator that takes over without the decision could abort the transaction."""
    monkeypatch.setattr("kbroker.coordinator_runtime.transactions.END_SECONDS_MAX", 0.05)
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, version)
    await writer.write(topic, b"x")
    monkeypatch.setattr(broker.node.transactions, "_end_prepared", lambda *_: None)
    assert await writer.end(commit=commit) == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_completion_is_retried_if_it_cannot_be_stored(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All markers are written, but not the completion record. The producer must not get stuck."""
    monkeypatch.setattr("kbroker.coordinator_runtime.transactions.RETRY_BACKOFF_SECONDS", 0.05)
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, SECOND)
    await writer.write(topic, b"x")
    coordinator_replica = broker.node.transactions.shard(NAME).replica
    outcomes = iter([None, StorageError("the disk is full")])

    def append(replica: Replica, *args: Any) -> LogAppendInfo:
        outcome = next(outcomes, None) if replica is coordinator_replica else None
        if outcome is not None:
            raise outcome
        return original(replica, *args)

    original = Replica.append
    monkeypatch.setattr(Replica, "append", append)
    await writer.commit()
    assert await committed_values(wire, topic) == [b"x"]
    assert (await describe(wire)).transaction_state == "PrepareCommit"

    async def is_complete() -> bool:
        return bool((await describe(wire)).transaction_state == "CompleteCommit")

    await eventually(is_complete)
    await writer.write(topic, b"y")
    await writer.commit()


async def test_markers_in_transaction_topic_are_ignored(broker: Broker, wire: Wire) -> None:
    """Clients can request such markers, but they do not change the state."""
    writer = await begin_writer(wire, SECOND)
    cls = WriteTxnMarkersRequest
    for commit in (True, False):
        row = cls.Marker(
            producer_id=writer.id,
            producer_epoch=0,
            transaction_result=commit,
            topics=[cls.Topic(name="__transaction_state", partition_indexes=[0])],
        )
        response = await wire.ask(ApiKey.WRITE_TXN_MARKERS, 1, cls(markers=[row]))
        assert response.markers[0].topics[0].partitions[0].error_code == 0
    broker.node.transactions.reload(NAME)
    assert (await describe(wire)).transaction_state == "Empty"


STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


@pytest.mark.slow
@PROTOCOLS
@pytest.mark.parametrize("state", STATES)
async def test_transaction_recovers_from_crash_in_every_state(
    tmp_path: Path, version: int, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared transactions complete, and open ones stay open."""
    commit = state.endswith("Commit")
    async with started(tmp_path / "data") as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 2)
        writer = await begin_writer(wire, version)
        if state != "Empty":
            await writer.write(topic, b"x")
            await writer.write(topic, b"y", partition=1)
        if state.startswith("Prepare"):
            monkeypatch.setattr("kbroker.coordinator_runtime.transactions.END_SECONDS_MAX", 0.05)
            monkeypatch.setattr(broker.node.transactions, "_write_markers", lambda ending: None)
        if state not in ("Empty", "Ongoing"):
            assert await writer.end(commit=commit) == ErrorCode.NONE
        assert (await describe(wire)).transaction_state == state
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    monkeypatch.undo()
    async with started(tmp_path / "crashed") as broker, connected(broker.endpoint) as wire:
        writer.wire = wire
        expected = state.replace("Prepare", "Complete")

        async def is_recovered() -> bool:
            return bool((await describe(wire)).transaction_state == expected)

        await eventually(is_recovered)
        if state == "Ongoing":
            assert await committed_values(wire, topic) == []
            await writer.commit()
        if state == "Empty":
            await writer.write(topic, b"x")
            await writer.commit()
        values = [] if state.endswith("Abort") else [b"x"]
        assert await committed_values(wire, topic) == values
        await writer.begin()
        await writer.write(topic, b"z")
        await writer.commit()
        assert await committed_values(wire, topic) == [*values, b"z"]


@pytest.mark.parametrize("at", [8, 80], ids=["header", "records"])
async def test_damaged_transaction_log_does_not_affect_other_partitions(
    tmp_path: Path, at: int
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        writer = await begin_writer(wire, SECOND)
        await writer.write(topic, b"x")
        await writer.commit()
        replica = broker.node.transactions.shard(NAME).replica
        directory = broker.node.partitions.named_replica(
            replica.topic.name, replica.index
        ).log.directory
    damage(Path(directory, "00000000000000000000.log"), at)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert await committed_values(wire, topic) == [b"x"]
        writer.wire = wire
        assert await writer.init() == ErrorCode.NOT_COORDINATOR
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["other"], key_type=1)
        await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
        ask = request(
            ApiKey.INIT_PRODUCER_ID, transactional_id="other", transaction_timeout_ms=1000
        )
        assert (await wire.ask(ApiKey.INIT_PRODUCER_ID, 5, ask)).error_code == 0


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)


async def test_transaction_survives_coordinator_reload(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "t")
    writer = await begin_writer(wire, SECOND)
    await writer.write(topic, b"x")
    broker.node.transactions.reload(NAME)
    await writer.commit()
    broker.node.transactions.reload(NAME)
    assert (await describe(wire)).transaction_state == "CompleteCommit"
    assert await committed_values(wire, topic) == [b"x"]


@PROTOCOLS
async def test_open_transaction_survives_move_of_log(tmp_path: Path, version: int) -> None:
    """The log moves to another log directory; aborted transactions stay aborted."""
    directories = [tmp_path / "a", tmp_path / "b"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        writer = await begin_writer(wire, version)
        for number in range(3):
            await writer.write(topic, b"%d" % number)
            assert await writer.end(commit=number != 1) == ErrorCode.NONE
        await writer.write(topic, b"open")
        logs = broker.node.partitions.logs
        (target,) = {each.data_dir for each in logs.managers} - {log_directory(broker)}
        broker.node.maintenance.log_dir_mover.begin("t", 0, target)
        await until(lambda: log_directory(broker) == target)
        await writer.write(topic, b"more")
        assert await committed_values(wire, topic) == [b"0", b"2"]
        await writer.commit()
        assert await committed_values(wire, topic) == [b"0", b"2", b"open", b"more"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        assert await committed_values(wire, topic) == [b"0", b"2", b"open", b"more"]


def log_directory(broker: Broker) -> str:
    """Return the log directory of partition 0 of "t"."""
    directory = broker.node.partitions.logs.where("t", 0)
    assert directory is not None
    return directory.data_dir


@PROTOCOLS
async def test_open_transaction_survives_deletion_of_its_records(
    tmp_path: Path, version: int
) -> None:
    """The last stable offset stays at the log start offset until the end, even after a crash."""
    async with started(tmp_path / "data") as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        writer = await begin_writer(wire, version)
        for value in (b"a", b"b", b"c"):
            await writer.write(topic, value)
        broker.node.partitions.named_replica("t", 0).delete_records_before(2)
        await broker.node.maintenance.log_manager_tasks.checkpoint()
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    async with started(tmp_path / "crashed") as broker, connected(broker.endpoint) as wire:
        writer.wire = wire
        await writer.write(topic, b"d")
        assert (await list_offset(wire, topic, LATEST, isolation_level=COMMITTED)).offset == 2
        await writer.abort()
        row = await fetch(wire, topic, 2, isolation_level=COMMITTED)
        assert row.last_stable_offset == row.high_watermark == 5
        assert [each.producer_id for each in row.aborted_transactions] == [writer.id]


async def test_idle_transactional_ids_expire(broker: Broker, wire: Wire) -> None:
    await begin_writer(wire, FIRST)
    service = broker.node.transactions
    await service.expire()
    (shard,) = service.shards()
    assert set(shard.coordinator.transactions) == {NAME}
    known = shard.coordinator.transactions[NAME]
    assert known.state is TransactionState.EMPTY
    for result in shard.coordinator.expire(
        service.now()._replace(log_ms=known.updated_ms + 7 * 86_400_000)
    ):
        assert result is not None
        service.run(shard, result)
    assert (await describe(wire)).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
