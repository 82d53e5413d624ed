"""One partition on one node: its log, its place in the cluster, and who waits for it."""

from __future__ import annotations

from kbroker.cluster import Partition, Topic
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader, validate_produced
from kbroker.storage.log import Appended, Log

from .config import TopicConfig
from .flusher import Flusher
from .log_settings import log_config
from .waiters import CommitWaits, FetchWait

ANY_EPOCH = -1
"""A request's leader epoch that asks for no check."""


class Replica:
    """What a node knows of a partition that it hosts.

    The high watermark is the smallest end of what is synced on the in-sync replicas; with one
    replica that is the synced end of its own log (with a flush policy that does not wait for the
    disk: the end of the log). Acks, parked fetches and reads wait for it, so no reader ever sees a
    record that a power cut could take back.
    """

    __slots__ = (
        "_deleted",
        "_fetches",
        "_flusher",
        "_isr_size_min",
        "_segment",
        "_state",
        "_unread_bytes",
        "closed",
        "commits",
        "config",
        "flush_messages",
        "flush_seconds",
        "index",
        "leader_epoch",
        "log",
        "topic",
    )

    def __init__(
        self,
        topic: Topic,
        partition: Partition,
        log: Log,
        config: TopicConfig,
        flusher: Flusher,
    ) -> None:
        self.topic = topic
        self.index = partition.index
        self.log = log
        self.leader_epoch = partition.leader_epoch
        self.commits = CommitWaits()
        self._state = partition
        self.closed = False
        """It serves no more, and never will again."""
        self._deleted = False
        self._segment = log.active
        self._flusher = flusher
        self._fetches: set[FetchWait] = set()
        self._unread_bytes = 0
        self._take_over(config)

    def configure(self, config: TopicConfig) -> None:
        """Obey changed settings of the topic."""
        self.log.configure(log_config(config))
        self._take_over(config)

    def _take_over(self, config: TopicConfig) -> None:
        self.config = config
        self.flush_messages = config.flush_messages
        self.flush_seconds = self._flusher.longest_wait(config.flush_ms)
        self._count_required()

    def follow_cluster(self, partition: Partition) -> None:
        """Take over what the cluster decided about this partition."""
        self._state = partition
        self.leader_epoch = max(self.leader_epoch, partition.leader_epoch)
        self._count_required()

    def _count_required(self) -> None:
        """How many replicas acks=all needs in sync; kept, because each append asks."""
        self._isr_size_min = min(self.config.min_insync_replicas, len(self._state.replicas))

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

    def append_produced(
        self, records: memoryview | None, version: int, now_ms: int, *, all_in_sync: bool
    ) -> Appended:
        """Check what a client sent as Produce `version` and append it.

        Raises KafkaError: what `validate_produced` and `Log.append` raise, and
        NOT_ENOUGH_REPLICAS when `all_in_sync` and too few replicas are in sync.
        """
        header = validate_produced(records, version, now_ms, self.log.config.produce_rules)
        if all_in_sync and len(self._state.isr) < self._isr_size_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert records is not None
        return self.append(records, header, now_ms)

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append one checked batch as the leader; see `Log.append` for what it raises."""
        appended = self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=now_ms)
        if not appended.duplicate:
            self._unread_bytes += header.size
            self._flusher.appended(self)
        return appended

    def has_rolled(self) -> bool:
        """True once after each roll of the log."""
        rolled = self._segment is not None and self._segment is not self.log.active
        self._segment = self.log.active
        return rolled

    def delete_records_before(self, offset: int) -> None:
        """Move the start of the log; parked fetches below it learn that they are out of range."""
        self.log.delete_records_before(offset)
        self.wake()

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Lose all records; the next one has `offset`. Nothing may be waiting for a sync.

        Raises StorageError.
        """
        self.log.restart_at(offset, now_ms=now_ms)
        self._segment = self.log.active
        self.wake()

    def failure(self) -> ErrorCode:
        """Why something that was appended will not be committed here."""
        if self._deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self.log.offline is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def synced(self, offset: int) -> None:
        """Everything below `offset` is as durable as the flush policy asks."""
        if offset > self.log.high_watermark:
            ends_transactions = bool(self.log.producers.ended)
            self.log.advance_high_watermark(offset)
            self.commits.advance(offset)
            size, self._unread_bytes = self._unread_bytes, 0
            for fetch in tuple(self._fetches):
                fetch.grow(size)
            if ends_transactions:
                self.wake()  # more than the marker can be read now
            self._flusher.changes.happened()

    def park(self, fetch: FetchWait) -> None:
        """Tell `fetch` of every change until `unpark`."""
        self._fetches.add(fetch)

    def unpark(self, fetch: FetchWait) -> None:
        self._fetches.discard(fetch)

    def wake(self) -> None:
        """The answer to parked fetches changed without new records."""
        for fetch in tuple(self._fetches):
            fetch.wake()

    def move_to(self, log: Log) -> None:
        """Go on with a log that has the same records in another folder."""
        self.log = log
        self._segment = log.active
        self._flusher.opened(self)
        self.wake()

    def close(self, *, deleted: bool) -> None:
        """Stop serving: waiters are told. The log itself is closed by its manager."""
        self.closed = True
        self._deleted = deleted
        self.commits.fail()
        self.wake()
