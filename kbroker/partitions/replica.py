"""One partition on one node: its log, its state in the cluster, and its waiters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from kbroker.cluster import Partition, Topic
from kbroker.config import TopicConfig
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader
from kbroker.protocol.schema import BrokerEpoch
from kbroker.runtime.changes import Changes
from kbroker.storage.errors import (
    LostBytesError,
    StorageError,
    SyncFailedError,
    WriteRefusedError,
)
from kbroker.storage.log import Log, LogAppendInfo

from .leader_state import LeaderState
from .log_settings import log_config
from .traffic import ReplicaTraffic
from .waiters import CommitWaiters, FetchListener, FetchWait

# Leader epoch of a request that skips the epoch check.
ANY_EPOCH = -1


class Flushing(Protocol):
    """The interface of `Flusher` that a replica uses."""

    changes: Changes

    def max_sync_delay(self, flush_ms: int) -> float: ...

    def opened(self, replica: Replica) -> None: ...

    def appended(self, replica: Replica) -> None: ...


class Replica:
    """A partition that a node hosts, as its leader or as a follower.

    The high watermark is the minimum durable end offset of the in-sync replicas: the leader
    computes it (`leader_state`), a follower gets it from the leader. With one replica it is the
    durable end of its own log. Acks, pending fetches and reads wait for it, so no consumer ever
    reads a record that a power failure could remove.

    Durable means synced, or only appended if the flush policy does not wait for the disk.

    Attributes:
        partition: State of the partition in the metadata.
        leader_state: State of the leader, None on a follower.
        term: Number that increases with each change of leader, leader epoch or role.
        commits: Waiters for the high watermark.
        writes: Waiters for the durable end offset of this node.
        closed: True if the replica no longer serves requests.
    """

    __slots__ = (
        "_deleted",
        "_fetches",
        "_flusher",
        "_follower_fetches",
        "_in_sync_min",
        "_on_write_rejected",
        "_segment",
        "_unread_bytes",
        "closed",
        "commits",
        "config",
        "durable_end",
        "flush_messages",
        "flush_seconds",
        "index",
        "leader_epoch",
        "leader_state",
        "log",
        "partition",
        "term",
        "topic",
        "traffic",
        "writes",
    )

    def __init__(
        self,
        topic: Topic,
        partition: Partition,
        log: Log,
        config: TopicConfig,
        flusher: Flushing,
        on_write_rejected: Callable[[Replica, StorageError], None],
    ) -> None:
        """Create a replica; `on_write_rejected` is called if an append fails or bytes are lost."""
        self.topic = topic
        self.index = partition.index
        self.log = log
        self.leader_epoch = partition.leader_epoch
        self.partition = partition
        self.leader_state: LeaderState | None = None
        self.term = 0
        self.durable_end = 0
        self.commits = CommitWaiters()
        self.writes = CommitWaiters()
        self.closed = False
        self.traffic = ReplicaTraffic()
        self._deleted = False
        self._segment = log.active
        self._flusher = flusher
        self._on_write_rejected = on_write_rejected
        self._fetches: dict[FetchListener, None] = {}  # in the order of their arrival
        self._follower_fetches: dict[FetchWait, None] = {}
        self._unread_bytes = 0
        self._apply_config(config)

    def configure(self, config: TopicConfig) -> None:
        """Apply changed settings of the topic."""
        self.log.configure(log_config(config))
        self._apply_config(config)
        self.commit()  # the high watermark may advance if fewer replicas are required

    def _apply_config(self, config: TopicConfig) -> None:
        self.config = config
        self.flush_messages = config.flush_messages
        self.flush_seconds = self._flusher.max_sync_delay(config.flush_ms)
        self._update_in_sync_min()

    def _update_in_sync_min(self) -> None:
        """Cache the number of in-sync replicas that acks=all requires, for each append."""
        self._in_sync_min = min(self.config.min_insync_replicas, len(self.partition.replicas))
        if self.leader_state is not None:
            self.leader_state.in_sync_min = self._in_sync_min

    # -- roles

    @property
    def is_leader(self) -> bool:
        return self.leader_state is not None

    def become_leader(self, leader_state: LeaderState) -> None:
        """Become the leader in the leader epoch of `leader_state.partition`.

        A replica that led before keeps its log, so pending acks stay valid.
        """
        self.traffic.count(self.log)
        self.leader_state = leader_state
        self._take_role(leader_state.partition)
        self.commit()

    def keep_leading_unregistered(self, partition: Partition) -> None:
        """Stay leader after this node's registration ended: fail waiters with acks=1 only."""
        self.update_partition(partition)
        self.writes.fail()

    def become_follower(self, partition: Partition) -> None:
        """Become a follower, and fail all waiters: uncommitted records may be truncated."""
        self.traffic.stop()
        self.leader_state = None
        self._take_role(partition)
        self.commits.fail()
        self.writes.fail()

    def _take_role(self, partition: Partition) -> None:
        self.term += 1
        self._flusher.changes.notify()
        self._take_state(partition)
        self.wake()

    def _take_state(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = max(self.leader_epoch, partition.leader_epoch)
        self._update_in_sync_min()

    def update_partition(self, partition: Partition) -> None:
        """Apply a newer state of the partition under the same leader and leader epoch."""
        if self.leader_state is not None:
            self.leader_state.follow(partition)
        self._take_state(partition)
        self.commit()

    def check_is_replica(self, node_id: int) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER unless the node has a replica."""
        if node_id not in self.partition.replicas:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- epochs

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (KIP-320)."""
        if current_leader_epoch == ANY_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    def diverging_epoch(self, last_fetched_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Return the diverging epoch and its end offset, or None if the logs match (KIP-595).

        The diverging epoch is the largest epoch that both logs can have.

        Args:
            last_fetched_epoch: Last leader epoch in the log of the fetcher.
            fetch_offset: Fetch offset of the fetcher.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE if the fetcher has an epoch above all epochs of this
                log.
        """
        if last_fetched_epoch == ANY_EPOCH:
            return None
        epoch, end_offset = self.end_of_epoch(last_fetched_epoch)
        if epoch < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return epoch, end_offset
        return None

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and its end offset; (-1, -1) if it is unknown."""
        epochs, end_offset = self.log.epochs, self.log.log_end_offset
        if epoch == self.leader_epoch:
            return epoch, end_offset
        if max(epochs.latest, 0) <= epoch < self.leader_epoch:
            # The current epoch gets an entry with its first batch; until then it starts at the end.
            return (epochs.latest if epochs.latest >= 0 else epoch), end_offset
        return epochs.end_offset_for(epoch, end_offset)

    # -- appending

    def check_enough_in_sync(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS if the ISR is smaller than acks=all requires."""
        if len(self.partition.isr) < self._in_sync_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def append_produced(
        self, batch: memoryview, header: BatchHeader, now_ms: int, *, all_in_sync: bool
    ) -> LogAppendInfo:
        """Append a validated batch of a client.

        Args:
            batch: The batch.
            header: Header of the batch.
            now_ms: Current time of the log clock in ms.
            all_in_sync: True for acks=all.

        Raises:
            KafkaError: Errors of `Log.append`, and NOT_ENOUGH_REPLICAS if `all_in_sync` is set and
                the ISR is too small.
        """
        if all_in_sync and len(self.partition.isr) < self._in_sync_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return self.append(batch, header, now_ms)

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> LogAppendInfo:
        """Append one validated batch as the leader. Raises the errors of `Log.append`."""
        try:
            appended = self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        except (WriteRefusedError, SyncFailedError, LostBytesError) as error:
            self._on_write_rejected(self, error)
            raise
        self.traffic.appends += 1
        if not appended.duplicate:
            size = len(batch)
            self._unread_bytes += size
            if self._follower_fetches:
                for fetch in tuple(self._follower_fetches):
                    fetch.grow(size)
            self._flusher.appended(self)
        return appended

    def append_replicated(self, batches: memoryview, now_ms: int) -> int:
        """Append batches from the leader; return the log end offset.

        Raises the errors of `Log.append_replicated`.
        """
        before = self.log.log_end_offset
        try:
            with self._rejections_reported():
                return self.log.append_replicated(batches, now_ms=now_ms)
        finally:
            if self.log.log_end_offset > before:  # even if a later batch was rejected
                self._unread_bytes += len(batches)
                self._flusher.appended(self)

    @contextmanager
    def _rejections_reported(self) -> Iterator[None]:
        """Report rejected writes and lost bytes to the node."""
        try:
            yield
        except (WriteRefusedError, SyncFailedError, LostBytesError) as error:
            self._on_write_rejected(self, error)
            raise

    def has_rolled(self) -> bool:
        """Return True once after each new segment."""
        rolled = self._segment is not None and self._segment is not self.log.active
        self._segment = self.log.active
        return rolled

    def delete_records_before(self, offset: int) -> None:
        """Move the log start; pending fetches before it return OFFSET_OUT_OF_RANGE."""
        self.log.delete_records_before(offset)
        self.wake()

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Truncate the log to `offset`. Must not run during a sync or checkpoint of this log.

        Raises StorageError.
        """
        with self._rejections_reported():
            self.log.truncate_to(offset, now_ms=now_ms)
        self._after_truncation()

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Drop all records and continue at `offset`. No append may wait for a sync.

        Raises StorageError.
        """
        with self._rejections_reported():
            self.log.restart_at(offset, now_ms=now_ms)
        self._after_truncation()

    def _after_truncation(self) -> None:
        self.durable_end = self.log.log_end_offset
        self._segment = self.log.active
        self.wake()

    def failure(self) -> ErrorCode:
        """Return the error for an appended batch that will not be committed here."""
        if self._deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.log.offline is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def timeout_error(self) -> ErrorCode:
        """Return the error for an appended batch that is not committed in time."""
        if self.leader_state is not None and self.leader_state.is_below_minimum():
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.REQUEST_TIMED_OUT

    # -- committing

    def synced(self, offset: int) -> None:
        """Record that everything before `offset` is durable on this node."""
        if offset > self.durable_end:
            self.durable_end = offset
            if self.writes.queue:
                self.writes.advance(offset)
        leader_state = self.leader_state
        if leader_state is not None:
            if leader_state.alone:
                self._commit(offset)
            else:
                self.commit()

    def commit(self) -> None:
        """Advance the high watermark to the minimum of the in-sync replicas, as the leader."""
        leader_state = self.leader_state
        if leader_state is not None:
            end = self.log.log_end_offset
            self._commit(leader_state.high_watermark(self.durable_end, end, trio.current_time()))

    def update_high_watermark(self, offset: int) -> None:
        """Advance the high watermark to that of the leader, as a follower."""
        self._commit(min(offset, self.durable_end))

    def _commit(self, offset: int) -> None:
        if offset > self.log.high_watermark:
            assert offset <= self.durable_end, "the high watermark exceeds the durable end"
            ends_transactions = bool(self.log.producers.ended)
            self.log.advance_high_watermark(offset)
            if self.commits.queue:
                self.commits.advance(offset)
            size, self._unread_bytes = self._unread_bytes, 0
            if self._fetches:
                for fetch in tuple(self._fetches):
                    fetch.grow(size)
            if self._follower_fetches:
                for fetch in self._follower_fetches:
                    fetch.hurry()
            if ends_transactions:
                for fetch in (*self._fetches, *self._follower_fetches):
                    fetch.on_transactions_ended()
            self._flusher.changes.notify()

    def follower_fetched(
        self, node_id: int, broker_epoch: BrokerEpoch, offset: int, log_start: int
    ) -> bool:
        """Record that a follower has the records from `log_start` to `offset`.

        This may advance the high watermark.

        Returns:
            True if a follower should join the ISR.
        """
        leader_state = self.leader_state
        if leader_state is None:
            return False
        now, end = trio.current_time(), self.log.log_end_offset
        if leader_state.record_fetch(node_id, broker_epoch, offset, end, now, log_start=log_start):
            self._flusher.changes.notify()  # the low watermark may have advanced
        self._commit(leader_state.high_watermark(self.durable_end, end, now))
        return bool(leader_state.joining(self.log.high_watermark, end, now))

    def isr_proposal(self) -> frozenset[int] | None:
        """Return the ISR to store; None on a follower, or if the stored ISR is up to date."""
        leader_state = self.leader_state
        if leader_state is None or leader_state.alone or self.log.offline is not None:
            return None
        return leader_state.proposal(
            self.log.high_watermark, self.log.log_end_offset, trio.current_time()
        )

    def low_watermark(self) -> int:
        """Return the low watermark of all live replicas. Raises NOT_LEADER_OR_FOLLOWER."""
        if self.leader_state is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader_state.low_watermark(self.log.log_start_offset)

    @property
    def is_high_watermark_current(self) -> bool:
        """True if the high watermark covers all records committed under earlier leaders.

        Before that, the high watermark of a new leader may be lower than the one clients have seen.
        """
        leader_state = self.leader_state
        return (
            leader_state is None
            or leader_state.alone
            or self.log.high_watermark >= leader_state.epoch_start
        )

    # -- waiting

    def add_fetch(self, fetch: FetchWait, *, of_follower: bool = False) -> None:
        """Notify `fetch` of every change until `remove_fetch`.

        A consumer's fetch is notified of readable records, a follower's fetch of appended records
        and of the high watermark.
        """
        if of_follower:
            self._follower_fetches[fetch] = None
        else:
            self._fetches[fetch] = None

    def remove_fetch(self, fetch: FetchWait) -> None:
        self._fetches.pop(fetch, None)
        self._follower_fetches.pop(fetch, None)

    def add_listener(self, listener: FetchListener) -> None:
        """Notify a listener with its own readers of each change, until `remove_listener`."""
        self._fetches[listener] = None

    def remove_listener(self, listener: FetchListener) -> None:
        self._fetches.pop(listener, None)

    def wake(self) -> None:
        """Wake all pending fetches, because their response changed without new records."""
        for fetch in (*self._fetches, *self._follower_fetches):
            fetch.wake()

    def log_failed(self) -> None:
        """Complete pending fetches: the log is offline, so data that they read is invalid."""
        self.term += 1
        self.wake()

    def move_to(self, log: Log) -> None:
        """Continue with a log that has the same records in another directory."""
        self.log = log
        if self.leader_state is not None:
            self.traffic.count(log)
        self._segment = log.active
        self._flusher.opened(self)
        self.wake()

    def close(self, *, deleted: bool) -> None:
        """Stop serving and fail all waiters. The log manager closes the log."""
        self.closed = True
        self._deleted = deleted
        self.commits.fail()
        self.writes.fail()
        self.wake()
