"""Tests of TxnOffsetCommit and of its offsets after the end of the transaction.

Most tests use a fake transaction coordinator, the last ones the real one. tests/coordinator tests
the decisions of the group coordinator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.coordinator import Now, Result
from kbroker.coordinator_runtime.add_partitions_to_txn import Writer
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from kbroker.protocol.records import Marker, iter_headers
from kbroker.runtime.clock import SystemClock
from kbroker.storage.log import Log

from ..brokers import Start, started
from ..wire import Wire, connected, create_topic, delete_topic, metadata, request, until

PRODUCER, EPOCH = 7, 3
OFFSETS = "__consumer_offsets"
# First version of TxnOffsetCommit that names topics by ID.
VERSION_OF_IDS = 6


class FakeTransactions:
    """A fake transaction coordinator that returns `code` and records its calls."""

    def __init__(self, code: ErrorCode = ErrorCode.NONE) -> None:
        self.code = code
        self.joined: list[Collection[tuple[str, int]]] = []
        self.verified: list[tuple[str, int]] = []
        self.resume: trio.Event | None = None

    async def add_or_verify_transaction(
        self, writer: Writer, partitions: Collection[tuple[str, int]], *, adds: bool
    ) -> dict[tuple[str, int], ErrorCode]:
        assert writer.transactional_id == "tx"
        if adds:
            self.joined.append(partitions)
        else:
            self.verified.extend(partitions)
        await trio.lowlevel.checkpoint()
        if self.resume is not None:
            await self.resume.wait()
        return dict.fromkeys(partitions, self.code)


@pytest.fixture
def transactions() -> FakeTransactions:
    return FakeTransactions()


async def prepare(broker: Broker, wire: Wire, transactions: FakeTransactions) -> None:
    """Create a topic "t" and group coordinators, and install the fake transaction coordinator."""
    broker.node.transactions.add_or_verify_transaction = transactions.add_or_verify_transaction  # type: ignore[method-assign]
    if "t" not in broker.node.cluster.topics:
        await create_topic(wire, "t", partitions=4)
        await broker.node.groups.create_topic()


def txn_commit_request(
    offset: int, *, topic: str = "t", group: str = "g", epoch: int = EPOCH, **fields: Any
) -> TxnOffsetCommitRequest:
    cls = TxnOffsetCommitRequest
    row = cls.Partition(partition_index=0, committed_offset=offset, committed_metadata="m")
    return cls(
        transactional_id="tx",
        group_id=group,
        producer_id=PRODUCER,
        producer_epoch=epoch,
        topics=[cls.Topic(name=topic, partitions=[row])],
        **fields,
    )


async def txn_commit(
    wire: Wire, offset: int, *, version: int = 5, topic: str = "t", **fields: Any
) -> int:
    ask = txn_commit_request(offset, topic=topic, **fields)
    if version >= VERSION_OF_IDS:
        (found,) = (await metadata(wire, [topic], 12)).topics
        ask.topics[0].topic_id = found.topic_id
    response = await wire.ask(ApiKey.TXN_OFFSET_COMMIT, version, ask)
    return int(response.topics[0].partitions[0].error_code)


def append_marker(broker: Broker, *, commit: bool, group: str = "g", epoch: int = EPOCH) -> None:
    """Append the marker of the transaction to the partition of the group."""
    replica = broker.node.groups.shard(group).replica
    marker = Marker(commit=commit, coordinator_epoch=0)
    partition = replica.topic.name, replica.index
    assert broker.node.transactions.append_marker(partition, marker, PRODUCER, epoch) is replica


async def commit_without_transaction(wire: Wire, offset: int) -> None:
    cls = OffsetCommitRequest
    row = cls.Partition(partition_index=0, committed_offset=offset)
    ask = cls(group_id="g", topics=[cls.Topic(name="t", partitions=[row])])
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, ask)
    assert response.topics[0].partitions[0].error_code == 0


async def fetch(wire: Wire, *, version: int = 7, stable: bool = False) -> tuple[int, int]:
    """Return the committed offset of the group and the error code."""
    topic = OffsetFetchRequest.Topic(name="t", partition_indexes=[0])
    ask = OffsetFetchRequest(group_id="g", topics=[topic], require_stable=stable)
    ask.groups = [OffsetFetchRequest.Group(group_id="g", topics=[topic])]
    response = await wire.ask(ApiKey.OFFSET_FETCH, version, ask)
    topics = response.groups[0].topics if version >= 8 else response.topics
    row = topics[0].partitions[0]
    return row.committed_offset, row.error_code


def log_of(broker: Broker) -> Log:
    index = broker.node.groups.shard("g").replica.index
    return broker.node.partitions.named_replica(OFFSETS, index).log


@pytest.mark.slow
@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("commit", [True, False])
async def test_offsets_are_pending_until_transaction_ends_in_every_version(
    start: Start, transactions: FakeTransactions, version: int, commit: bool
) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        await commit_without_transaction(wire, 1)
        assert await txn_commit(wire, 42, version=version) == 0
        assert await fetch(wire) == (1, 0)
        for fetch_version in (7, 8, 9):
            unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert await fetch(wire, version=fetch_version, stable=True) == unstable
        append_marker(broker, commit=commit)
        assert await fetch(wire, stable=True) == (42 if commit else 1, 0)
        partition = (OFFSETS, broker.node.groups.shard("g").replica.index)
        assert (transactions.joined, transactions.verified) == (
            ([[partition]], []) if version >= 5 else ([], [partition])
        )


async def test_offset_commits_are_transactional_batches_in_log(
    start: Start, transactions: FakeTransactions
) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        assert await txn_commit(wire, 42) == 0
        assert await txn_commit(wire, 43) == 0
        assert len(transactions.joined) == 1, (
            "the open transaction in the log makes another call unnecessary"
        )
        log = log_of(broker)
        found = log.read(0, 1 << 20, limit=log.log_end_offset).records
        batches = found if isinstance(found, bytes) else found.read()
        headers = [header for _, header in iter_headers(batches)]
        assert [header.is_transactional for header in headers] == [True, True]
        assert {
            (each.producer_id, each.producer_epoch, each.base_sequence) for each in headers
        } == {(PRODUCER, EPOCH, -1)}
        assert log.last_stable_offset == 0
        assert log.producers.has_open_transaction(PRODUCER, EPOCH)
        append_marker(broker, commit=True)
        await until(lambda: log.last_stable_offset == 3)


@pytest.mark.parametrize("commit", [True, False])
async def test_pending_offsets_survive_restart(
    tmp_path: Path, transactions: FakeTransactions, commit: bool
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        await commit_without_transaction(wire, 1)
        assert await txn_commit(wire, 42) == 0
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        assert await fetch(wire, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        append_marker(broker, commit=commit)
        assert await fetch(wire, stable=True) == (42 if commit else 1, 0)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        assert await fetch(wire, stable=True) == (42 if commit else 1, 0)


async def test_marker_for_unloaded_coordinator_is_applied(
    start: Start, transactions: FakeTransactions
) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        await txn_commit(wire, 42)
        broker.node.groups.stop()
        marker = Marker(commit=True, coordinator_epoch=0)
        for index in range(len(broker.node.cluster.topics[OFFSETS].partitions)):
            broker.node.transactions.append_marker((OFFSETS, index), marker, PRODUCER, EPOCH)
        assert await fetch(wire, stable=True) == (42, 0)


@pytest.mark.parametrize("version", range(7))
async def test_error_codes_depend_on_version(
    start: Start, transactions: FakeTransactions, version: int
) -> None:
    """Clients never get PRODUCER_FENCED, and TRANSACTION_ABORTABLE only from version 4 on."""
    abortable = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
    expected = {
        ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_ABORTABLE: abortable,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        for transactions.code, code in expected.items():
            assert await txn_commit(wire, 1, version=version) == code
        assert log_of(broker).log_end_offset == 0


async def test_invalid_offset_commit_does_not_join_transaction(
    start: Start, transactions: FakeTransactions
) -> None:
    """The group ID is empty, or the partition does not exist."""
    transactions.code = ErrorCode.PRODUCER_FENCED
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        for version in range(7):
            code = await txn_commit(wire, 1, version=version, group="")
            assert code == ErrorCode.INVALID_GROUP_ID
            code = await txn_commit(wire, 1, version=version, topic="missing")
            assert code == (
                ErrorCode.UNKNOWN_TOPIC_ID
                if version >= VERSION_OF_IDS
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        assert (transactions.joined, transactions.verified) == ([], [])


async def test_commit_with_id_of_deleted_topic_is_rejected(
    start: Start, transactions: FakeTransactions
) -> None:
    """The response names the topic by the ID of the request, although the name exists again."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        old = await create_topic(wire, "again")
        await delete_topic(wire, "again")
        await create_topic(wire, "again")
        ask = txn_commit_request(1)
        ask.topics[0].topic_id = old.id
        response = await wire.ask(ApiKey.TXN_OFFSET_COMMIT, VERSION_OF_IDS, ask)
        (topic,) = response.topics
        (row,) = topic.partitions
        assert (topic.topic_id, row.error_code) == (old.id, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_commit_before_find_coordinator_is_rejected(wire: Wire) -> None:
    assert await txn_commit(wire, 1) == ErrorCode.NOT_COORDINATOR


async def test_old_producer_epoch_is_fenced_by_log(
    start: Start, transactions: FakeTransactions, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction coordinator may not know the new epoch yet. Fencing is no broker error."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        assert await txn_commit(wire, 1) == 0
        append_marker(broker, commit=False, epoch=EPOCH + 1)
        assert await txn_commit(wire, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await txn_commit(wire, 3, epoch=EPOCH + 1) == 0
        assert await txn_commit(wire, 2) == ErrorCode.INVALID_PRODUCER_EPOCH
        append_marker(broker, commit=True, epoch=EPOCH + 1)
        assert await fetch(wire, stable=True) == (3, 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_requests_wait_for_pending_commit_of_same_connection(
    start: Start, transactions: FakeTransactions
) -> None:
    """The requests after a commit that waits for its coordinator are processed after the commit."""
    transactions.resume = trio.Event()
    async with (
        start() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        await prepare(broker, wire, transactions)
        topic = OffsetFetchRequest.Topic(name="t", partition_indexes=[0])
        offset_fetch = OffsetFetchRequest(group_id="g", topics=[topic], require_stable=True)
        await wire.send_bytes(
            wire.frame(ApiKey.TXN_OFFSET_COMMIT, 5, txn_commit_request(1))
            + wire.frame(ApiKey.OFFSET_FETCH, 7, offset_fetch)
        )
        await until(lambda: transactions.joined)
        assert await fetch(other, stable=True) == (-1, 0)
        transactions.resume.set()
        assert (await wire.receive()).topics[0].partitions[0].error_code == 0
        row = (await wire.receive()).topics[0].partitions[0]
        assert row.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


@pytest.mark.parametrize("version", [3, 5])
async def test_commit_fails_if_transaction_ends_during_verification(
    start: Start, transactions: FakeTransactions, version: int
) -> None:
    """A batch after the marker would stay open forever, so the producer must retry."""
    transactions.resume = trio.Event()
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        ask = txn_commit_request(1)
        await wire.send_bytes(wire.frame(ApiKey.TXN_OFFSET_COMMIT, version, ask))
        await until(lambda: transactions.joined or transactions.verified)
        append_marker(broker, commit=False)
        transactions.resume.set()
        (row,) = (await wire.receive()).topics[0].partitions
        assert row.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert log_of(broker).producers.first_open_offset is None
        assert await txn_commit(wire, 1, version=version) == 0


async def test_transactional_commit_is_acknowledged_when_durable(
    tmp_path: Path, transactions: FakeTransactions
) -> None:
    async with (
        started(tmp_path) as broker,
        connected(broker.endpoint) as wire,
        trio.open_nursery() as nursery,
    ):
        await prepare(broker, wire, transactions)
        codes: list[int] = []

        async def commit() -> None:
            codes.append(await txn_commit(wire, 2))

        async with broker.node.partitions.flusher.sync_lock:
            nursery.start_soon(commit)
            await until(lambda: log_of(broker).log_end_offset)
            await trio.sleep(0.1)
            assert codes == []
        await until(lambda: codes)
        assert codes == [0]


@pytest.mark.slow
async def test_compaction_keeps_committed_transactional_offsets(
    start: Start, transactions: FakeTransactions
) -> None:
    """Every second transaction is aborted, and one is open during compaction.

    Markers of transactions with remaining records are kept; the others are removed after a day.
    """
    clock = ClockAhead()
    async with (
        start(clock, offsets_topic_num_partitions=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        await prepare(broker, wire, transactions)
        log = log_of(broker)
        await write_transactions(broker, wire, 0, 100)
        log.roll()
        assert await txn_commit(wire, 5000) == 0
        await compact(broker)
        await reload_groups(broker)
        assert await fetch(wire) == (98, 0)
        assert await fetch(wire, stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        append_marker(broker, commit=True)
        sizes = []
        for day in range(1, 8, 2):
            clock.ahead_ms = day * 86_400_000
            await write_transactions(broker, wire, day * 100, day * 100 + 100)
            await compact(broker)
            await reload_groups(broker)
            assert await fetch(wire, stable=True) == (day * 100 + 98, 0)
            sizes.append(log.segments.size)
        assert max(sizes) < 1.1 * sizes[0], "the log grows with every transaction"


async def write_transactions(broker: Broker, wire: Wire, start: int, stop: int) -> None:
    """Write a transaction per offset; only those with even offsets are committed."""
    for offset in range(start, stop):
        assert await txn_commit(wire, offset) == 0
        append_marker(broker, commit=offset % 2 == 0)


async def compact(broker: Broker) -> None:
    log_of(broker).roll()
    await broker.node.partitions.flusher.sync_now()
    assert await broker.node.maintenance.cleaner.clean_all() > 0


async def reload_groups(broker: Broker) -> None:
    broker.node.groups.stop()
    await broker.node.groups.load()


@pytest.mark.parametrize("commit", [True, False])
async def test_marker_during_end_of_load_ends_pending_offsets(
    start: Start,
    transactions: FakeTransactions,
    monkeypatch: pytest.MonkeyPatch,
    commit: bool,
) -> None:
    """Append the marker while a coordinator whose log was read resumes its groups."""
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        await commit_without_transaction(wire, 1)
        await txn_commit(wire, 2)
        groups = broker.node.groups
        index = groups.shard("g").replica.index
        groups.stop()
        groups.apply_leadership()
        load = groups._loader.get(index)
        assert load is not None
        resume = load.shard.coordinator.on_loaded

        def on_loaded(now: Now) -> Iterator[Result[None]]:
            marker = Marker(commit=commit, coordinator_epoch=0)
            broker.node.transactions.append_marker((OFFSETS, index), marker, PRODUCER, EPOCH)
            return resume(now)

        monkeypatch.setattr(load.shard.coordinator, "on_loaded", on_loaded)
        await groups.load()
        assert await fetch(wire, stable=True) == (2 if commit else 1, 0)


class ClockAhead(SystemClock):
    """A clock whose log domain is ahead of the system clock."""

    ahead_ms = 0

    def log_ms(self) -> int:
        return super().log_ms() + self.ahead_ms


async def test_group_with_pending_offsets_can_be_listed_and_deleted(
    start: Start, transactions: FakeTransactions
) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await prepare(broker, wire, transactions)
        await txn_commit(wire, 1)
        listed = await wire.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert [(row.group_id, row.group_state) for row in listed.groups] == [("g", "Empty")]
        ask = request(ApiKey.DELETE_GROUPS, groups_names=["g"])
        (row,) = (await wire.ask(ApiKey.DELETE_GROUPS, 2, ask)).results
        assert row.error_code == 0
        append_marker(broker, commit=True)
        assert await fetch(wire, stable=True) == (-1, 0)


# -- with the real transaction coordinator


class TransactionalProducer:
    """A transactional producer of transaction protocol 1 or 2 (KIP-890)."""

    def __init__(self, wire: Wire, *, second: bool) -> None:
        self.wire = wire
        self.second = second
        self.producer_id = self.epoch = -1

    async def begin_session(self) -> None:
        find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["tx"], key_type=1)
        await self.wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
        ask = request(ApiKey.INIT_PRODUCER_ID, transactional_id="tx", transaction_timeout_ms=60_000)
        response = await self.wire.ask(ApiKey.INIT_PRODUCER_ID, 4, ask)
        assert response.error_code == 0
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    async def add_group(self) -> None:
        """Send AddOffsetsToTxn, which only protocol 1 requires."""
        ask = AddOffsetsToTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id="g",
        )
        assert (await self.wire.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, ask)).error_code == 0

    async def commit_offset(self, offset: int, *, version: int | None = None) -> int:
        if version is None:
            version = 5 if self.second else 3
        ask = txn_commit_request(offset, epoch=self.epoch)
        ask.producer_id = self.producer_id
        response = await self.wire.ask(ApiKey.TXN_OFFSET_COMMIT, version, ask)
        return int(response.topics[0].partitions[0].error_code)

    async def end(self, *, commit: bool) -> int:
        ask = EndTxnRequest(
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        response = await self.wire.ask(ApiKey.END_TXN, 5 if self.second else 3, ask)
        if self.second and not response.error_code:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)


async def create_topics(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "t")
    await broker.node.groups.create_topic()


@pytest.mark.parametrize("second", [True, False])
async def test_offsets_are_visible_after_transaction_commits(start: Start, second: bool) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topics(broker, wire)
        producer = TransactionalProducer(wire, second=second)
        await producer.begin_session()
        expected = -1
        for offset in range(10):
            if not second:
                await producer.add_group()
            assert await producer.commit_offset(offset) == 0
            unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert await fetch(wire, stable=True) == unstable
            assert await fetch(wire) == (expected, 0)
            commit = offset % 3 != 2
            assert await producer.end(commit=commit) == 0
            expected = offset if commit else expected
            assert await fetch(wire, stable=True) == (expected, 0)


@pytest.mark.parametrize("version", range(5))
async def test_commit_for_group_outside_of_transaction_is_rejected(
    start: Start, version: int
) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topics(broker, wire)
        producer = TransactionalProducer(wire, second=False)
        await producer.begin_session()
        expected = ErrorCode.TRANSACTION_ABORTABLE if version >= 4 else ErrorCode.INVALID_TXN_STATE
        assert await producer.commit_offset(1, version=version) == expected
        await producer.add_group()
        assert await producer.commit_offset(1, version=version) == 0


@pytest.mark.parametrize("second", [True, False])
async def test_fenced_producer_cannot_commit_offsets(start: Start, second: bool) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topics(broker, wire)
        zombie, producer = (TransactionalProducer(wire, second=second) for _ in range(2))
        await zombie.begin_session()
        await producer.begin_session()
        assert await zombie.commit_offset(13) == ErrorCode.INVALID_PRODUCER_EPOCH
        if not second:
            await producer.add_group()
        assert await producer.commit_offset(1) == 0
        assert await zombie.commit_offset(13) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await producer.end(commit=True) == 0
        assert await zombie.commit_offset(13) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await fetch(wire, stable=True) == (1, 0)


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("commit", [True, False])
async def test_transaction_with_offsets_ends_after_restart(
    tmp_path: Path, second: bool, commit: bool
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topics(broker, wire)
        producer = TransactionalProducer(wire, second=second)
        await producer.begin_session()
        if not second:
            await producer.add_group()
        assert await producer.commit_offset(42) == 0
    async with started(tmp_path) as broker, connected(broker.endpoint) as producer.wire:
        unstable = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await fetch(producer.wire, stable=True) == unstable
        assert await producer.end(commit=commit) == 0
        assert await fetch(producer.wire, stable=True) == (42 if commit else -1, 0)
