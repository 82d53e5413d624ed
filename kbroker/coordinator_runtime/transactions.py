"""Transaction coordinators of a node, whose state is stored in `__transaction_state`.

The response to EndTxn is sent when the markers are committed in all partitions, so readers then see
the end of the transaction. (Kafka responds when the decision is stored.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import trio

from kbroker.cluster import NO_LEADER, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.cluster.features import TRANSACTION_VERSION
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.topics import NewTopic
from kbroker.coordinator import (
    Result,
    TransactionCoordinator,
    TransactionEvent,
    TransactionMetadata,
    TransactionSettings,
    TransactionState,
    some_of,
)
from kbroker.coordinator.transactions.transaction import SECOND_PROTOCOL
from kbroker.partitions.history import History
from kbroker.partitions.waiters import Pending
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.transactions import EndTxnResponse
from kbroker.protocol.records import Marker, end_transaction_marker, read_header
from kbroker.protocol.transaction_log import NO_PRODUCER_ID
from kbroker.runtime.time_slices import TimeSlice

from .add_partitions_to_txn import Writer, add_partitions
from .markers import DueMarker, TransactionEnd, TransactionMarkerChannelManager
from .partition_writer import LeaderReplica, PartitionWriter
from .shard import Shard
from .shards import ShardPending, Shards, outcome_of

logger = logging.getLogger(__name__)

# Maximum time in seconds that an EndTxn response waits for a replicated decision and markers.
END_SECONDS_MAX = 5
# Pause in seconds before transaction markers that could not be written are written again.
RETRY_BACKOFF_SECONDS = 0.2
# Maximum number of markers that are written and ends that are stored in a row. More are done in time
# slices, because thousands of transactions may be decided by one sync.
STEPS_AT_ONCE = 100
# Failed attempts before a warning is logged. While leaders move, some attempts fail.
TRIES_BEFORE_WARNING = 5

# Errors that mean that the partition already has a later marker of the producer.
SUPERSEDED_ERRORS = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)

TransactionShard: TypeAlias = Shard[TransactionCoordinator]
R = TypeVar("R")


class OffsetsEnded(Protocol):
    """Callback for each marker in `__consumer_offsets`, with partition, producer and outcome."""

    def __call__(self, index: int, producer_id: int, *, commit: bool) -> None: ...


class TransactionCoordinatorService(Shards[TransactionCoordinator]):
    """All transaction coordinators of one node.

    Attributes:
        memory: Memory limit for the transactional IDs of all coordinators of the node.
        history: Events of each transactional ID.
    """

    def __init__(
        self,
        context: NodeContext,
        partitions: PartitionWriter,
        peers: Peers,
        producer_ids: ProducerIds,
        offsets_ended: OffsetsEnded,
    ) -> None:
        super().__init__(context, partitions, TRANSACTIONS_TOPIC)
        self._peers = peers
        self.producer_ids = producer_ids
        self._offsets_ended = offsets_ended
        self.memory = self._memory_limit(
            "transaction.coordinator.ids.max.bytes",
            context.config.transaction_coordinator_ids_max_bytes,
        )
        self.history: History[str, TransactionEvent] = History()
        self._ends: dict[str, list[_PendingEnd]] = {}
        self._markers = TransactionMarkerChannelManager(context.cluster, peers)
        self._stuck: list[_EndingTransaction] = []
        self._stuck_changed = trio.Event()
        # Transactions whose next step is done in a time slice, and the steps since the last one.
        self._postponed: deque[_EndingTransaction] = deque()
        self._steps = 0
        self._postponed_changed = trio.Event()

    def _new_topic(self) -> NewTopic:
        config = self._context.config
        return self._internal_topic(
            "transaction.state.log.num.partitions",
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            {
                "compression.type": "uncompressed",
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "unclean.leader.election.enable": "false",
            },
        )

    def _new_coordinator(self, index: int) -> TransactionCoordinator:
        config = self._context.config
        settings = TransactionSettings(
            timeout_max_ms=config.transaction_max_timeout_ms,
            expiration_ms=config.transactional_id_expiration_ms,
        )
        return TransactionCoordinator(settings, self._has_second_protocol, self.memory)

    def _has_second_protocol(self) -> bool:
        return self._context.cluster.features.get(TRANSACTION_VERSION, 0) >= SECOND_PROTOCOL

    def _expiry_interval_ms(self) -> int:
        return self._context.config.transaction_remove_expired_interval_ms

    def _record_event(self, event: TransactionEvent) -> None:
        self.history.add(event.transactional_id, event)
        logger.log(
            logging.INFO if event.by_coordinator else logging.DEBUG,
            "transactional ID %s: %s; now %s, producer ID %d, epoch %d",
            event.transactional_id,
            event.cause,
            event.state,
            event.producer_id,
            event.epoch,
        )

    def known(self) -> Iterator[tuple[TransactionShard, str, TransactionMetadata]]:
        """Iterate over all transactional IDs of this node, with their coordinators."""
        for shard in self.shards():
            for transactional_id, transaction in tuple(shard.coordinator.transactions.items()):
                yield shard, transactional_id, transaction

    async def new_id_for(self, transactional_id: str) -> int:
        """Return an unused producer ID if the transactional ID may need one, else -1.

        Raises:
            KafkaError: NOT_COORDINATOR, or no producer ID could be allocated.
        """
        if not self.shard(transactional_id).coordinator.needs_producer_id(transactional_id):
            return NO_PRODUCER_ID
        return await self.producer_ids.next()

    # -- partitions of a transaction

    async def add_or_verify_transaction(
        self, writer: Writer, partitions: Collection[tuple[str, int]], *, adds: bool
    ) -> dict[tuple[str, int], ErrorCode]:
        """Add partitions to a transaction, or verify that it contains them, at its coordinator.

        Args:
            writer: Transactional producer.
            partitions: Topic and index of each partition.
            adds: Add the partitions (transaction version 2). Otherwise only verify them.

        Returns:
            The error code of each partition, NONE if records may be appended.
        """
        coordinator_id = self.coordinator_id(writer.transactional_id)
        if coordinator_id == NO_LEADER:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if coordinator_id != self._context.node_id:
            return await add_partitions(
                self._peers, coordinator_id, writer, partitions, verify_only=not adds
            )
        if adds:
            return dict.fromkeys(partitions, await self.join(*writer, partitions))
        return {partition: self.verify(*writer, partition) for partition in partitions}

    def verify(
        self, transactional_id: str, producer_id: int, epoch: int, partition: tuple[str, int]
    ) -> ErrorCode:
        """Return the error for a write to a partition in a producer's open transaction (TV1).

        Returns:
            NONE, TRANSACTION_ABORTABLE if the transaction does not contain the partition, or the
            reason why the producer has no open transaction.
        """
        try:
            coordinator = self.shard(transactional_id).coordinator
        except KafkaError as error:
            return error.code
        return coordinator.verify(transactional_id, producer_id, epoch, partition)

    async def join(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[tuple[str, int]],
    ) -> ErrorCode:
        """Add partitions to a producer's transaction (TV2).

        Returns:
            NONE if the partitions were added durably and the transaction is still open. The caller
            may then append records, but must not yield to the event loop before the append.
        """
        try:
            shard = self.shard(transactional_id)
        except KafkaError as error:
            return error.code
        added = shard.coordinator.add(
            transactional_id, producer_id, epoch, partitions, self.now(), second_protocol=True
        )
        outcome: ErrorCode | ShardPending | None = self.run(shard, added)
        code = await outcome_of(outcome)
        if code is None:
            return ErrorCode.NOT_COORDINATOR
        if code:
            return ErrorCode(code)
        # The transaction may have ended in the meantime.
        codes = (self.verify(transactional_id, producer_id, epoch, each) for each in partitions)
        return next((code for code in codes if code), ErrorCode.NONE)

    # -- ends

    def end(
        self, shard: TransactionShard, transactional_id: str, result: Result[EndTxnResponse]
    ) -> EndTxnResponse | Pending[Any] | None:
        """Store the end of a transaction. The response completes when readers can see the end."""
        assert isinstance(result.response, EndTxnResponse)
        if not result.records:
            return self.run(shard, result)
        pending_end = _PendingEnd(shard, result.response)
        pending = pending_end.pending
        # Register the response first: if no marker has to be awaited, `store` completes it.
        self._ends.setdefault(transactional_id, []).append(pending_end)
        stored = self.store(shard, result)
        if stored is not result:
            assert isinstance(stored.response, EndTxnResponse)
            pending_end.response = stored.response
            self._answer_ends(transactional_id)
        return pending

    def store(self, shard: TransactionShard, result: Result[R]) -> Result[R]:
        result = super().store(shard, result)
        if not self.serves(shard):
            return result  # prepared transactions are ended after the load
        log = shard.replica.log
        for transactional_id in shard.coordinator.take_prepared():
            write = partial(self._end_prepared, shard, transactional_id)
            if log.high_watermark >= log.log_end_offset:
                write(True)
            else:
                shard.replica.commits.add(log.log_end_offset, write)
        return result

    def _end_prepared(
        self, shard: TransactionShard, transactional_id: str, committed: bool
    ) -> None:
        """Write the markers of a transaction whose decision is durable."""
        if not committed:
            self._drop_lost(shard)
            return
        for pending_end in self._ends.get(transactional_id, ()):
            pending_end.is_decided = True
        transaction = shard.coordinator.transactions.get(transactional_id)
        if self.serves(shard) and transaction is not None and transaction.state.is_prepared:
            self._write_markers(_EndingTransaction(shard, transactional_id, transaction))

    def _write_markers(self, ending: _EndingTransaction) -> None:
        """Write the remaining markers to the current leaders of the partitions."""
        if self._is_postponed(ending, len(ending.unwritten)):
            return
        ending.waits += 1  # a failing disk may end the wait for an earlier marker
        for partition in sorted(ending.unwritten):
            self._write_marker(ending, partition)
        ending.waits -= 1
        self._complete_or_retry(ending)

    def _write_marker(self, ending: _EndingTransaction, partition: tuple[str, int]) -> None:
        known = self._context.cluster.partition(*partition)
        if known is None:
            ending.unwritten.discard(partition)  # the topic was deleted
        elif known.leader == self._context.node_id:
            self._write_local_marker(ending, partition)
        elif known.leader != NO_LEADER:
            ending.waits += 1
            done = partial(self._on_marker_done, ending, partition)
            self._markers.send(known.leader, DueMarker(partition, ending.end, done))

    def _is_postponed(self, ending: _EndingTransaction, steps: int) -> bool:
        """Count steps, and return True if they must be done in a time slice, which is scheduled."""
        self._steps += steps
        if self._steps <= STEPS_AT_ONCE:
            return False
        self._postponed.append(ending)
        self._postponed_changed.set()
        return True

    async def end_postponed(self) -> None:
        """Do the next steps of many or large transactions in time slices, until cancelled."""
        while True:
            await self._postponed_changed.wait()
            self._postponed_changed = trio.Event()
            time_slice = TimeSlice(self._context.fair_queue)
            while self._postponed:
                await self._continue_in_time_slices(self._postponed.popleft(), time_slice)
            self._steps = 0

    async def _continue_in_time_slices(
        self, ending: _EndingTransaction, time_slice: TimeSlice
    ) -> None:
        await time_slice.pause()
        if not ending.unwritten:
            self._complete(ending)
            return
        ending.waits += 1  # keeps the transaction open until all markers are sent
        async for partition in time_slice.each(sorted(ending.unwritten)):
            if self.serves(ending.shard):
                self._write_marker(ending, partition)
        ending.waits -= 1
        self._complete_or_retry(ending)

    def _write_local_marker(self, ending: _EndingTransaction, partition: tuple[str, int]) -> None:
        end = ending.end
        try:
            replica = self.append_marker(
                partition, end.marker, end.producer_id, end.epoch, is_bumped=end.is_bumped
            )
        except KafkaError as error:
            if error.code in SUPERSEDED_ERRORS:
                ending.unwritten.discard(partition)
            return
        log = replica.log
        if log.high_watermark >= log.log_end_offset:
            ending.unwritten.discard(partition)
            return
        ending.waits += 1
        replica.commits.add(
            log.log_end_offset, partial(self._on_local_marker_done, ending, partition)
        )

    def _on_local_marker_done(
        self, ending: _EndingTransaction, partition: tuple[str, int], committed: bool
    ) -> None:
        code = ErrorCode.NONE if committed else ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._on_marker_done(ending, partition, code)

    def _on_marker_done(
        self, ending: _EndingTransaction, partition: tuple[str, int], code: ErrorCode
    ) -> None:
        ending.waits -= 1
        if not code or code in SUPERSEDED_ERRORS:
            ending.unwritten.discard(partition)
        self._complete_or_retry(ending)

    def append_marker(
        self,
        partition: tuple[str, int],
        marker: Marker,
        producer_id: int,
        epoch: int,
        *,
        is_bumped: bool = False,
    ) -> LeaderReplica:
        """Append the end marker of a producer's transaction to a partition of this node.

        Args:
            partition: Topic and index of the partition.
            marker: Outcome of the transaction.
            producer_id: Producer of the transaction.
            epoch: Producer epoch.
            is_bumped: True if `epoch` is newer than the epoch of the transaction (TV2).

        Raises:
            KafkaError: The errors of `PartitionWriter.named_replica` and `LeaderReplica.append`,
                NOT_ENOUGH_REPLICAS, or INVALID_PRODUCER_EPOCH for a marker that is too late.
        """
        topic, index = partition
        now_ms = self.now().log_ms
        replica = self._partitions.named_replica(topic, index)
        batch = end_transaction_marker(
            marker,
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp=now_ms,
            is_log_append_time=replica.log.config.produce_rules.log_append_time,
        )
        header = read_header(batch)
        if is_bumped:
            replica.log.producers.check_bumped_marker(header)
        replica.check_enough_in_sync()
        replica.append(memoryview(batch), header, now_ms)
        if topic == OFFSETS_TOPIC:
            self._offsets_ended(index, producer_id, commit=marker.commit)
        return replica

    def _complete_or_retry(self, ending: _EndingTransaction) -> None:
        if ending.waits or not self.serves(ending.shard):
            return
        if ending.unwritten:
            self._retry_later(ending)
        elif not self._is_postponed(ending, 1):
            self._complete(ending)

    def _complete(self, ending: _EndingTransaction) -> None:
        """Store that all markers are written, and answer the requests that wait for that."""
        if not self.serves(ending.shard):
            return
        # Nothing waits for this record: if it is lost, the markers are written again.
        completed = ending.shard.coordinator.complete(ending.transactional_id, self.now())
        if self.store(ending.shard, completed) is not completed:
            self._retry_later(ending)
        self._answer_ends(ending.transactional_id)

    def _retry_later(self, ending: _EndingTransaction) -> None:
        ending.tries += 1
        if ending.unwritten and ending.tries == TRIES_BEFORE_WARNING:
            places = some_of([f"{topic}-{index}" for topic, index in sorted(ending.unwritten)])
            logger.warning(
                "transactional ID %s: cannot write markers to %s; retrying until "
                "the leaders accept them",
                ending.transactional_id,
                places,
            )
        self._stuck.append(ending)
        self._stuck_changed.set()

    async def work(self) -> None:
        """Run the base coordinator tasks and write markers, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().work)
            nursery.start_soon(self._markers.run)
            nursery.start_soon(self.retry_markers)
            nursery.start_soon(self.end_postponed)

    async def retry_markers(self) -> None:
        """Retry markers that could not be written, until cancelled."""
        while True:
            await self._stuck_changed.wait()
            await trio.sleep(RETRY_BACKOFF_SECONDS)
            self._stuck_changed = trio.Event()
            stuck, self._stuck = self._stuck, []
            for ending in stuck:
                if self.serves(ending.shard):
                    self._write_markers(ending)

    def _answer_ends(self, transactional_id: str) -> None:
        for pending_end in self._ends.pop(transactional_id, ()):
            pending_end.pending.resolve(pending_end.response)

    def _drop_lost(self, shard: TransactionShard) -> None:
        super()._drop_lost(shard)
        for transactional_id, waiting in tuple(self._ends.items()):
            if waiting[0].shard is shard:
                for pending_end in waiting:
                    pending_end.response = EndTxnResponse(error_code=ErrorCode.NOT_COORDINATOR)
                self._answer_ends(transactional_id)


@dataclass(slots=True)
class _PendingEnd:
    """An EndTxn whose response waits for markers.

    Attributes:
        response: Response after the transaction has ended.
        is_decided: True if the decision is replicated, so the response may precede the markers.
    """

    shard: TransactionShard
    response: EndTxnResponse
    is_decided: bool = False
    pending: Pending[EndTxnResponse] = field(init=False)

    def __post_init__(self) -> None:
        deadline = trio.current_time() + END_SECONDS_MAX
        self.pending = Pending(deadline=deadline, on_timeout=self._late_response)

    def _late_response(self) -> EndTxnResponse:
        """Return an error unless the decision is replicated: failover could lose the decision."""
        if self.is_decided:
            return self.response
        return EndTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)


class _EndingTransaction:
    """A prepared transaction and its remaining markers.

    Attributes:
        unwritten: Partitions whose markers are not committed yet.
        waits: Number of markers whose outcome is not known yet.
        tries: Number of failed attempts.
    """

    __slots__ = ("end", "shard", "transactional_id", "tries", "unwritten", "waits")

    def __init__(
        self, shard: TransactionShard, transactional_id: str, transaction: TransactionMetadata
    ) -> None:
        self.shard = shard
        self.transactional_id = transactional_id
        marker = Marker(
            commit=transaction.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=shard.replica.leader_epoch,
        )
        self.end = TransactionEnd(
            transaction.producer_id, transaction.epoch, marker, transaction.second_protocol
        )
        self.unwritten = set(transaction.partitions)
        self.waits = 0
        self.tries = 0
