"""One partition on one node: its log, its place in the cluster, and who waits for it."""

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
from kbroker.storage.log import Appended, Log

from .leader_state import LeaderState
from .log_settings import log_config
from .traffic import ReplicaTraffic
from .waiters import CommitWaiters, FetchWait, Parked

ANY_EPOCH = -1
"""A request's leader epoch that asks for no check."""


class Flushing(Protocol):
    """What makes the records of replicas durable; see `flusher`."""

    changes: Changes

    def longest_wait(self, flush_ms: int) -> float: ...

    def opened(self, replica: Replica) -> None: ...

    def appended(self, replica: Replica) -> None: ...


class Replica:
    """What a node knows of a partition that it hosts, as its leader or as a follower.

    The high watermark is the smallest end of what is durable on the in-sync replicas: the leader
    computes it (`leader_state`), a follower gets it from the leader. With one replica it is the durable end of its
    own log. Acks, parked fetches and reads wait for it, so no reader ever sees a record that a power
    cut could take back.

    Durable is what is synced; with a flush policy that does not wait for the disk, what is appended.
    """

    __slots__ = (
        "_deleted",
        "_fetches",
        "_flusher",
        "_follower_fetches",
        "_in_sync_min",
        "_segment",
        "_unread_bytes",
        "_when_refused",
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
        when_refused: Callable[[Replica, StorageError], None],
    ) -> None:
        """`when_refused` is called if the system refuses an append, or the log has lost bytes."""
        self.topic = topic
        self.index = partition.index
        self.log = log
        self.leader_epoch = partition.leader_epoch
        self.partition = partition
        """The cluster's state of it."""
        self.leader_state: LeaderState | None = None
        """What this node knows as the leader; None in a follower."""
        self.term = 0
        """Another one after each change of leader, leader epoch or role."""
        self.durable_end = 0
        self.commits = CommitWaiters()
        """Those who wait for the high watermark."""
        self.writes = CommitWaiters()
        """Those who wait until something is durable on this node."""
        self.closed = False
        """It serves no more, and never will again."""
        self.traffic = ReplicaTraffic()
        self._deleted = False
        self._segment = log.active
        self._flusher = flusher
        self._when_refused = when_refused
        self._fetches: dict[Parked, None] = {}  # in order of their arrival
        self._follower_fetches: dict[FetchWait, None] = {}
        self._unread_bytes = 0
        self._take_over(config)

    def configure(self, config: TopicConfig) -> None:
        """Obey changed settings of the topic."""
        self.log.configure(log_config(config))
        self._take_over(config)
        self.commit()  # fewer replicas may be enough now

    def _take_over(self, config: TopicConfig) -> None:
        self.config = config
        self.flush_messages = config.flush_messages
        self.flush_seconds = self._flusher.longest_wait(config.flush_ms)
        self._count_required()

    def _count_required(self) -> None:
        """How many replicas acks=all needs in sync; kept, because each append asks."""
        self._in_sync_min = min(self.config.min_insync_replicas, len(self.partition.replicas))
        if self.leader_state is not None:
            self.leader_state.in_sync_min = self._in_sync_min

    # -- roles

    @property
    def is_leader(self) -> bool:
        return self.leader_state is not None

    def become_leader(self, leader_state: LeaderState) -> None:
        """Lead from now on, in the leader epoch of `leader_state.partition`.

        One that led before goes on with its log as it is, so acks that wait are still good.
        """
        self.traffic.count(self.log)
        self.leader_state = leader_state
        self._take_role(leader_state.partition)
        self.commit()

    def keep_leading_unregistered(self, partition: Partition) -> None:
        """Stay leader after this node's registration ended: fail waiters with acks=1 only."""
        self.follow_cluster(partition)
        self.writes.fail()

    def become_follower(self, partition: Partition) -> None:
        """Only copy from now on: what is not committed yet may be cut away, and waiters are told."""
        self.traffic.stop()
        self.leader_state = None
        self._take_role(partition)
        self.commits.fail()
        self.writes.fail()

    def _take_role(self, partition: Partition) -> None:
        self.term += 1
        self._flusher.changes.happened()
        self._take_state(partition)
        self.wake()

    def _take_state(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = max(self.leader_epoch, partition.leader_epoch)
        self._count_required()

    def follow_cluster(self, partition: Partition) -> None:
        """Take over a newer state of the partition under the same leader and leader epoch."""
        if self.leader_state is not None:
            self.leader_state.follow(partition)
        self._take_state(partition)
        self.commit()

    def check_is_replica(self, node_id: int) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER unless that node is one of the replicas."""
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
        """Where the logs of a reader and this one part, None when they do not (KIP-595).

        Returns (epoch, end offset) of the largest epoch that both can have. Raises
        OFFSET_OUT_OF_RANGE when the reader knows an epoch above all of ours.
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
        """Return the largest epoch up to `epoch` and where it ended; (-1, -1) when unknown."""
        epochs, end_offset = self.log.epochs, self.log.log_end_offset
        if epoch == self.leader_epoch:
            return epoch, end_offset
        if epochs.latest <= epoch < self.leader_epoch:
            # The history gets our epoch with its first batch; until then it begins at the end.
            return (epochs.latest if epochs.latest >= 0 else epoch), end_offset
        return epochs.end_offset_for(epoch, end_offset)

    # -- appending

    def check_enough_in_sync(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS when fewer replicas are in sync than acks=all asks for."""
        if len(self.partition.isr) < self._in_sync_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def append_produced(
        self, batch: memoryview, header: BatchHeader, now_ms: int, *, all_in_sync: bool
    ) -> Appended:
        """Append what a client sent and was found good.

        Raises KafkaError: what `Log.append` raises, and NOT_ENOUGH_REPLICAS when `all_in_sync` and
        too few replicas are in sync.
        """
        if all_in_sync and len(self.partition.isr) < self._in_sync_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return self.append(batch, header, now_ms)

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append one checked batch as the leader; see `Log.append` for what it raises."""
        try:
            appended = self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        except (WriteRefusedError, SyncFailedError, LostBytesError) as error:
            self._when_refused(self, error)
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
        """Append what the leader sent; returns the log end. `writes` tells when it is durable.

        Raises what `Log.append_replicated` raises.
        """
        before = self.log.log_end_offset
        try:
            with self._refusals_told():
                return self.log.append_replicated(batches, now_ms=now_ms)
        finally:
            if self.log.log_end_offset > before:  # also when a later batch was refused
                self._unread_bytes += len(batches)
                self._flusher.appended(self)

    @contextmanager
    def _refusals_told(self) -> Iterator[None]:
        """Tell the node if the system refuses a write, or if the log has lost bytes."""
        try:
            yield
        except (WriteRefusedError, SyncFailedError, LostBytesError) as error:
            self._when_refused(self, error)
            raise

    def has_rolled(self) -> bool:
        """True once after each roll of the log."""
        rolled = self._segment is not None and self._segment is not self.log.active
        self._segment = self.log.active
        return rolled

    def delete_records_before(self, offset: int) -> None:
        """Move the start of the log; parked fetches below it learn that they are out of range."""
        self.log.delete_records_before(offset)
        self.wake()

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Cut away what lies from `offset` on. Not while this log is synced or checkpointed.

        Raises StorageError.
        """
        with self._refusals_told():
            self.log.truncate_to(offset, now_ms=now_ms)
        self._was_cut()

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Lose all records; the next one has `offset`. Nothing may be waiting for a sync.

        Raises StorageError.
        """
        with self._refusals_told():
            self.log.restart_at(offset, now_ms=now_ms)
        self._was_cut()

    def _was_cut(self) -> None:
        self.durable_end = self.log.log_end_offset
        self._segment = self.log.active
        self.wake()

    def failure(self) -> ErrorCode:
        """Why something that was appended will not be committed here."""
        if self._deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.log.offline is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def why_late(self) -> ErrorCode:
        """Why something that was appended is not committed in time."""
        if self.leader_state is not None and self.leader_state.is_below_minimum():
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.REQUEST_TIMED_OUT

    # -- committing

    def synced(self, offset: int) -> None:
        """Everything below `offset` is durable on this node."""
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
        """Let the high watermark be what all that are in sync have; for a leader."""
        leader_state = self.leader_state
        if leader_state is not None:
            end = self.log.log_end_offset
            self._commit(leader_state.high_watermark(self.durable_end, end, trio.current_time()))

    def committed_by_leader(self, offset: int) -> None:
        """The leader says that everything below `offset` is committed; for a follower."""
        self._commit(min(offset, self.durable_end))

    def _commit(self, offset: int) -> None:
        if offset > self.log.high_watermark:
            assert offset <= self.durable_end, "more is committed than is durable here"
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
                    fetch.settled()
            self._flusher.changes.happened()

    def follower_fetched(
        self, node_id: int, broker_epoch: BrokerEpoch, offset: int, log_start: int
    ) -> bool:
        """A follower has everything from `log_start` to `offset`; what that commits is committed at
        once. Returns whether some follower should join those that are in sync."""
        leader_state = self.leader_state
        if leader_state is None:
            return False
        now, end = trio.current_time(), self.log.log_end_offset
        if leader_state.fetched(node_id, broker_epoch, offset, end, now, log_start=log_start):
            self._flusher.changes.happened()  # records may be deleted everywhere now
        self._commit(leader_state.high_watermark(self.durable_end, end, now))
        return bool(leader_state.joining(self.log.high_watermark, end, now))

    def isr_proposal(self) -> frozenset[int] | None:
        """The in-sync set that should be stored; None while it is, and for followers."""
        leader_state = self.leader_state
        if leader_state is None or leader_state.alone or self.log.offline is not None:
            return None
        return leader_state.proposal(
            self.log.high_watermark, self.log.log_end_offset, trio.current_time()
        )

    def low_watermark(self) -> int:
        """Where the log begins on all replicas that run. Raises NOT_LEADER_OR_FOLLOWER."""
        if self.leader_state is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.leader_state.low_watermark(self.log.log_start_offset)

    @property
    def knows_its_end(self) -> bool:
        """Whether all that was committed under earlier leaders is known to be; not yet in a new one.

        Before that, its high watermark may be lower than the one that clients have seen.
        """
        leader_state = self.leader_state
        return (
            leader_state is None
            or leader_state.alone
            or self.log.high_watermark >= leader_state.epoch_start
        )

    # -- waiting

    def park(self, fetch: FetchWait, *, of_follower: bool = False) -> None:
        """Tell `fetch` of every change until `unpark`: of what becomes readable, and a follower of
        what is appended and of the high watermark."""
        if of_follower:
            self._follower_fetches[fetch] = None
        else:
            self._fetches[fetch] = None

    def unpark(self, fetch: FetchWait) -> None:
        self._fetches.pop(fetch, None)
        self._follower_fetches.pop(fetch, None)

    def add_listener(self, parked: Parked) -> None:
        """Notify a listener, which has readers of its own, of each change until `remove_listener`."""
        self._fetches[parked] = None

    def remove_listener(self, parked: Parked) -> None:
        self._fetches.pop(parked, None)

    def wake(self) -> None:
        """The answer to parked fetches changed without new records."""
        for fetch in (*self._fetches, *self._follower_fetches):
            fetch.wake()

    def log_failed(self) -> None:
        """Answer parked fetches: the log is offline, so what they read of it no longer counts."""
        self.term += 1
        self.wake()

    def move_to(self, log: Log) -> None:
        """Go on with a log that has the same records in another directory."""
        self.log = log
        if self.leader_state is not None:
            self.traffic.count(log)
        self._segment = log.active
        self._flusher.opened(self)
        self.wake()

    def close(self, *, deleted: bool) -> None:
        """Stop serving: waiters are told. The log itself is closed by its manager."""
        self.closed = True
        self._deleted = deleted
        self.commits.fail()
        self.writes.fail()
        self.wake()
