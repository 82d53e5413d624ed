"""The log of one partition: an ordered list of segments.

A log has one owner, an event loop. Its methods do not block, except `sync` (and
`LogManager.sync_logs`), which may run in a worker thread while the owner keeps appending: they use
open files only. After the sync the owner calls `synced`.

Each log has four offsets. Each is exclusive, one after the last record that it covers::

    log_start_offset    first offset that is available
    high_watermark      consumers read up to here; the owner advances it
    synced_offset       records before it survive a power failure
    log_end_offset      offset of the next record

No file or directory is created before the first append. An idle partition uses no timer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    Marker,
    check_crc,
    iter_headers,
    placed,
)

from .cached import waiting
from .checkpoints import PartitionMetadata
from .epochs import LeaderEpochs
from .errors import CorruptLogError, StorageError, SyncFailedError, WriteRefusedError
from .files import Files
from .index import RELATIVE_OFFSET_MAX
from .log_config import LogConfig
from .log_segments import LogSegments
from .log_start_marks import LogStartMark
from .naming import LEADER_EPOCHS, directory_name
from .open_segments import OpenSegments
from .pending import Pending
from .producer_replay import end_transaction, marker_of, replay
from .producer_state import ProducerStates
from .retention import expired_segments
from .segment import FULL, UNTIMED, Segment, SegmentRules, Slice
from .snapshots import Snapshots
from .sync import AtomicWrite, SyncItem, sync_together

# Bytes appended or recovered after which the indexes and the producer state of the active segment
# are saved. After a crash, the next start walks at most this much plus the records since the last
# checkpoint. With one-record batches, 250,000 batches are walked per second, without a pause.
SAVE_EVERY_BYTES = 1024 * 1024

# Log size in bytes up to which only the `.log` file is written: one disk read returns all batches.
SHORT_LOG_BYTES = 4096

# Bytes of the log to search for a producer's earlier batches if the snapshot lacks them. Much more
# than producers have in flight.
RECALL_BYTES = 4 * 1024 * 1024

# First dirty offset of a log that was never compacted.
NEVER_COMPACTED = -1


class LogAppendInfo(NamedTuple):
    """Offsets and append time of a batch.

    Attributes:
        base_offset: Offset of the first record.
        last_offset: Offset of the last record.
        log_append_time_ms: Append time in ms, -1 for batches with CreateTime timestamps.
        duplicate: True if the batch was appended before. The offsets are those of the first append.
            The time is the batch's maximum timestamp even with CreateTime, as in Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool


class Log:
    """The records of one partition.

    Open a log through `LogManager`. After a failed sync or detected corruption, the log is offline
    until it is reopened: `offline` holds the reason, and reads and writes raise StorageError.
    """

    __slots__ = (
        "_changed",
        "_files",
        "_intact",
        "_lower_recovery_point",
        "_saved_bytes",
        "active",
        "appended_bytes",
        "config",
        "deleted",
        "directory",
        "epochs",
        "first_dirty_offset",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "on_offline",
        "partition",
        "pending",
        "producers",
        "read_only_reason",
        "segments",
        "synced_offset",
        "topic",
        "topic_id",
        "truncations",
    )

    def __init__(
        self,
        files: Files,
        data_dir: str,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: LogConfig,
        *,
        directory: str | None = None,
        changed: dict[Log, None] | None = None,
        lower_recovery_point: Callable[[Log], None] | None = None,
        open_segments: OpenSegments | None = None,
    ) -> None:
        self._files = files
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.directory = f"{data_dir}/{directory or directory_name(topic, partition)}"
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.synced_offset = 0
        self.high_watermark = 0
        # Offset before which records are compacted.
        self.first_dirty_offset = NEVER_COMPACTED
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.active: Segment | None = None
        self.offline: str | None = None
        # Reason why the log is read-only, None if it accepts appends.
        self.read_only_reason: str | None = None
        # Called when the log goes offline, possibly from a worker thread.
        self.on_offline: Callable[[Log], None] | None = None
        # True once the partition is deleted; its paths may then belong to another log.
        self.deleted = False
        # Number of truncations and restarts since the log was opened.
        self.truncations = 0
        # Bytes appended since the log was opened.
        self.appended_bytes = 0
        # Files to sync, and work for the next checkpoint.
        self.pending = Pending(durable=files.durable)
        identity = PartitionMetadata(topic_id, partition)
        self.segments = LogSegments(files, self.directory, identity, self.pending, open_segments)
        self._saved_bytes = 0
        self._intact = False  # all indexes and snapshots for a quick opening are on disk
        # Logs for the next checkpoint; the manager owns this dict.
        self._changed = changed if changed is not None else {}
        self._lower_recovery_point = lower_recovery_point

    def __repr__(self) -> str:
        return f"<Log {directory_name(self.topic, self.partition)} to {self.log_end_offset}>"

    def adopt(
        self,
        segments: list[Segment],
        snapshots: Snapshots,
        log_start: int,
        log_end: int,
        high_watermark: int,
        *,
        intact: bool,
        recovered_bytes: int,
    ) -> None:
        """Set segments and offsets of a log that was loaded from disk; its data is durable.

        Args:
            segments: All segments in offset order; the last one becomes active.
            snapshots: Producer snapshots of the log.
            log_start: Log start offset.
            log_end: Log end offset.
            high_watermark: Checkpointed high watermark; it is limited to start and end.
            intact: True if indexes and snapshots are complete, so nothing must be saved.
            recovered_bytes: Bytes of batches that were walked because no saved index covers them.
        """
        self.segments.adopt(segments, snapshots)
        if segments:
            self._activate(segments[-1])
        self._intact = intact
        self._saved_bytes = self.appended_bytes - recovered_bytes
        self.log_start_offset = log_start
        self.log_end_offset = self.synced_offset = log_end
        self.high_watermark = max(log_start, min(high_watermark, log_end))
        self._check_order()

    def _check_order(self) -> None:
        """Assert that the four offsets are in a valid order."""
        start, end = self.log_start_offset, self.log_end_offset
        assert start <= self.high_watermark <= end, f"{start} <= {self.high_watermark} <= {end}"
        assert self.synced_offset <= end, f"{self.synced_offset} <= {end}"

    def _activate(self, segment: Segment) -> None:
        """Make a loaded segment the active one. Raises CorruptLogError."""
        self.segments.open_for_append(segment)
        first = segment.first_timestamp()
        if first >= 0:
            segment.roll_at_ms = first + self._roll_after_ms(self.config, segment)
        else:
            # The first batch sets the roll time.
            segment.roll_at_ms = UNTIMED if segment.size else FULL
        self.active = segment

    # -- appending

    def append(
        self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> LogAppendInfo:
        """Append one validated batch as the leader, and return its offsets.

        Args:
            batch: The complete batch as received; it is written without a copy.
            header: Header of the batch as returned by `LogValidator.result`.
            leader_epoch: Epoch of this leader; never lower than in an earlier append.
            now_ms: Current time of the log clock in ms.

        Raises:
            KafkaError: An error of `ProducerStates.check` or `check_marker`, or RECORD_LIST_TOO_LARGE.
            StorageError: The batch could not be written; the log is unchanged.
        """
        config = self.config
        length = len(batch)
        producer_id = header.producer_id
        marker = None
        if producer_id >= 0:
            if header.attributes & CONTROL_BIT:
                marker = self._check_marker(batch, header)
            else:
                known = self.producers.check(header)
                if known is not None:
                    return LogAppendInfo(
                        known.base_offset, known.last_offset, known.timestamp, True
                    )
        base = self.log_end_offset
        last = base + header.last_offset_delta
        segment = self.active
        if (
            segment is None
            or segment.size + length > config.segment_bytes
            or header.max_timestamp > segment.roll_at_ms
            or last - segment.base_offset > RELATIVE_OFFSET_MAX
            or self.offline is not None
            or self.read_only_reason is not None
        ):
            self._check_fits(length)
            segment = self._segment_for(length, last, header.max_timestamp, now_ms)
        written = placed(batch, header, base, leader_epoch)
        segment.append(written, length, last, header.max_timestamp)
        if leader_epoch != self.epochs.latest:
            assert leader_epoch > self.epochs.latest, "an earlier leader appends"
            self.epochs.assign(leader_epoch, base)
        # A concurrent sync requires this order: write, mark the file as dirty, advance the log end.
        if not segment.file.dirty:
            self._mark_dirty(segment)
        self.log_end_offset = last + 1
        self.appended_bytes += length
        if header.max_timestamp < 0:
            segment.seen_ms = now_ms
        if producer_id >= 0:
            if marker is None:
                self.producers.update(header, base, now_ms)
            else:
                end_transaction(self.producers, segment.aborted, header, marker, base, now_ms)
        stamped = header.attributes & LOG_APPEND_TIME_BIT
        return LogAppendInfo(base, last, header.max_timestamp if stamped else -1, False)

    def _mark_dirty(self, segment: Segment) -> None:
        segment.file.dirty = True
        self._intact = False
        self._changed[self] = None
        self.pending.must_sync(segment.file)

    def append_replicated(self, batches: memoryview, *, now_ms: int) -> int:
        """Append batches as a follower; offsets and epochs are the leader's.

        Batches that the log already has are skipped. A batch larger than `segment_bytes` gets its
        own segment: the leader accepted it, perhaps with another setting. Offset gaps that
        compaction left on the leader are kept.

        Args:
            batches: Complete batches in offset order.
            now_ms: Current time of the log clock in ms.

        Returns:
            The new log end offset.

        Raises:
            KafkaError: CORRUPT_MESSAGE for a wrong CRC, OFFSET_OUT_OF_RANGE for a batch that
                overlaps the log end.
            StorageError: The batch could not be written.
        """
        for position, header in iter_headers(batches):
            if header.base_offset < self.log_end_offset:
                if header.last_offset < self.log_end_offset:
                    continue
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"batch {header.base_offset} to {header.last_offset}: overlaps the log end "
                    f"offset {self.log_end_offset}",
                )
            if not check_crc(batches, position, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}")
            self._append_unchanged(batches[position : position + header.size], header, now_ms)
        return self.log_end_offset

    def _append_unchanged(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        length, last = len(batch), header.last_offset
        if header.base_offset > self.log_end_offset:
            # Recovery must expect gaps, even if the topic is no longer compacted.
            self.first_dirty_offset = max(self.first_dirty_offset, 0)
        segment = self.active
        if (
            segment is None
            or segment.size + length > self.config.segment_bytes
            or header.max_timestamp > segment.roll_at_ms
            or last - segment.base_offset > RELATIVE_OFFSET_MAX
            or self.offline is not None
            or self.read_only_reason is not None
        ):
            segment = self._segment_for(length, last, header.max_timestamp, now_ms)
        segment.append([batch], length, last, header.max_timestamp)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        if not segment.file.dirty:
            self._mark_dirty(segment)
        self.log_end_offset = last + 1
        self.appended_bytes += length
        if header.max_timestamp < 0:
            segment.seen_ms = now_ms
        replay(self.producers, segment.aborted, batch, header, now_ms)

    def _check_fits(self, length: int) -> None:
        self._check_accepting()
        if length > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"batch of {length} bytes: larger than a segment ({self.config.segment_bytes} bytes)",
            )

    def _segment_for(self, length: int, last: int, max_timestamp: int, now_ms: int) -> Segment:
        """Return the segment for a batch if the active segment may be full or too old."""
        self._check_accepting()
        segment = self.active
        if (
            segment is not None
            and segment.roll_at_ms == UNTIMED
            and segment.size + length <= self.config.segment_bytes
            and last - segment.base_offset <= RELATIVE_OFFSET_MAX
            and self._is_young(segment, now_ms)
        ):
            return segment
        if segment is None or segment.size:
            segment = self.roll()
        segment.roll_at_ms = UNTIMED
        segment.created_ms = now_ms
        if max_timestamp >= 0:
            segment.roll_at_ms = max_timestamp + self._roll_after_ms(self.config, segment)
        return segment

    def _is_young(self, segment: Segment, now_ms: int) -> bool:
        """Return True if a segment without timestamps is younger than segment.ms."""
        if segment.created_ms < 0:
            segment.created_ms = now_ms
        return now_ms - segment.created_ms <= self._roll_after_ms(self.config, segment)

    def roll(self) -> Segment:
        """Start a new segment at the log end and close the previous one for appends.

        An empty active segment is kept.

        Returns:
            The active segment.

        Raises:
            StorageError: The segment could not be created. With CorruptLogError, the directory or a
                file is missing.
        """
        try:
            return self._roll()
        except FileNotFoundError as error:
            path = str(error.filename)
            raise CorruptLogError(path, 0, "it or its directory is missing") from None

    def _roll(self) -> Segment:
        old = self.active
        if old is not None and not old.size and old.base_offset == self.log_end_offset:
            return old
        if len(self.segments) == 1 and self.synced_offset <= self.segments[0].base_offset:
            # Otherwise a power failure could keep the new file name and lose the old one, and the
            # log would start too late.
            with self._offline_after_failed_sync():
                self.segments.sync_directory()
        segment = self.segments.start_segment(self.log_end_offset, self.segment_rules)
        if old is not None:
            self._save_producers()
        segment.roll_at_ms = FULL  # the first batch sets the roll time
        self.active = segment
        self._mark_dirty(segment)
        self.segments.schedule_directory_sync()
        return segment

    def _roll_after_ms(self, config: LogConfig, segment: Segment) -> int:
        return config.roll_after_ms(
            f"{directory_name(self.topic, self.partition)}/{segment.base_offset}"
        )

    def check_online(self) -> None:
        """Raise StorageError if the log is offline."""
        if self.offline is not None:
            raise StorageError(self.offline)

    def _check_accepting(self) -> None:
        self.check_online()
        if self.read_only_reason is not None:
            raise WriteRefusedError(self.read_only_reason)

    def fail(self, reason: str) -> None:
        """Take the log offline until it is reopened."""
        if self.offline is None:
            self.offline = reason
            if self.on_offline is not None:
                waiting(self.on_offline, self)

    @contextmanager
    def _offline_after_failed_sync(self) -> Iterator[None]:
        try:
            yield
        except SyncFailedError as error:
            self.fail(error.message)
            raise

    @contextmanager
    def offline_on_corruption(self) -> Iterator[None]:
        """Take the log offline if a read finds corruption."""
        try:
            yield
        except CorruptLogError as error:
            self.fail(error.message)
            raise

    # -- producers and transactions

    def _check_marker(self, batch: memoryview, header: BatchHeader) -> Marker | None:
        marker = marker_of(batch)
        if self.active is not None:
            with self.offline_on_corruption():
                # Load the entries now: the append must not fail later.
                _ = self.active.aborted.entries
        if marker is not None:
            self.producers.check_marker(header, marker)
        return marker

    def reload_producers(self, now_ms: int) -> None:
        """Rebuild the producer state from the newest valid snapshot and the batches after it.

        The indexes of aborted transactions are rebuilt from the same offset, because their durable
        part ends where the snapshot was taken. Raises CorruptLogError.
        """
        start, self.producers = self.segments.snapshots.newest(
            self.log_start_offset, self.log_end_offset, now_ms
        )
        if self.producers.has_newest_batches_only:
            self.producers.add_earlier_batches(self.segments.headers_before(start, RECALL_BYTES))
            self._changed[self] = None
            self.pending.queue_for_checkpoint(
                [self.segments.snapshots.rewrite(self.producers, start)]
            )
        uncertain: list[Segment] = []
        if start < self.log_end_offset or not self._intact:
            uncertain = self.segments.since(start)
        for segment in uncertain:
            segment.aborted.drop_from(start)
        if start < self.log_end_offset:
            for segment, position, header in self.segments.headers_since(start):
                if header.producer_id >= 0:
                    batch = b""
                    if header.is_control:
                        batch = segment.batch(position, header.size, self.epochs)
                    replay(self.producers, segment.aborted, batch, header, now_ms)
        for segment in uncertain[:-1]:  # closed segments are not saved again later
            self.pending.queue_for_checkpoint(segment.aborted.unsaved())
        self.producers.forget_ended(self.high_watermark)

    def _save_producers(self) -> None:
        """Queue a snapshot of the producer state at the log end."""
        self._changed[self] = None
        self.pending.queue_for_checkpoint(
            self.segments.save_snapshot(self.producers, self.log_end_offset)
        )

    def fence(self, producer_id: int) -> None:
        """Fence a producer (`ProducerStates.fence`) and save the new state."""
        self.producers.fence(producer_id)
        self._intact = False
        if self.log_end_offset in self.segments.snapshots.offsets:
            self._changed[self] = None
            rewritten = self.segments.snapshots.rewrite(self.producers, self.log_end_offset)
            self.pending.queue_for_checkpoint([rewritten])
        else:
            self.save()

    # -- safety

    def sync(self) -> int:
        """Make all records that are appended so far survive a power failure; blocks.

        A worker thread may call this while the owner appends, but only one thread at a time.

        Returns:
            The log end offset from before the sync, to pass to `synced`.

        Raises:
            StorageError: The sync failed and the log is offline. A retry could report success
                although data was lost.
        """
        offset = self.log_end_offset
        try:
            sync_together(self._files, self.pending.take_dirty())
        except StorageError as error:
            self.fail(error.message)
            raise
        return offset

    def synced(self, offset: int) -> None:
        """Record that everything before `offset` survives a power failure."""
        if offset > self.synced_offset:
            assert offset <= self.log_end_offset, "the synced offset exceeds the log end"
            self.synced_offset = offset
            self._changed[self] = None

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`, at most to the log end. It never decreases."""
        offset = min(offset, self.log_end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            segment = self.active
            if segment is not None and offset == self.log_end_offset:
                segment.mark(offset, segment.size)
            if self.producers.ended:
                self.producers.forget_ended(offset)

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest unstable transaction, or the high watermark."""
        first = self.producers.first_unstable_offset
        if first is None or first > self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    def take_checkpoint_work(self) -> tuple[list[SyncItem], list[Segment | LogStartMark]]:
        """Return the work of the next checkpoint for this log.

        Returns:
            The files to sync before the checkpoint records `synced_offset`, and the files to remove
            after it has recorded `log_start_offset`.
        """
        if self.needs_saving:
            self.save()
        epochs = self.epochs
        if epochs.changed and self.segments.directory_exists and not self._epoch_is_in_batches:
            path = f"{self.directory}/{LEADER_EPOCHS}"
            self.pending.queue_for_checkpoint([AtomicWrite(self._files, path, epochs.to_bytes())])
            epochs.changed, epochs.has_file = False, True
        return self.pending.take()

    @property
    def needs_saving(self) -> bool:
        """True if a start after a crash would walk many batches that no saved index covers."""
        return self.appended_bytes - self._saved_bytes >= SAVE_EVERY_BYTES

    @property
    def _is_short(self) -> bool:
        return len(self.segments) == 1 and self.segments.size <= SHORT_LOG_BYTES

    @property
    def _epoch_is_in_batches(self) -> bool:
        """True if the leader epoch is read from a few batches as fast as from its own file.

        This saves a write and a sync each for thousands of partitions that got their first record.
        """
        return self._is_short and len(self.epochs) == 1 and not self.epochs.has_file

    @property
    def _batches_suffice(self) -> bool:
        """True if a few batches make indexes and producer snapshots unnecessary.

        There are no such files yet, and no state depends on batches before the log start.
        """
        return (
            self._is_short
            and self.pending.is_bare
            and not self.segments.snapshots.offsets
            and self.segments[0].base_offset == self.log_start_offset
        )

    def note_change(self) -> None:
        """Include this log in the next checkpoint."""
        self._changed[self] = None

    def requeue(self) -> None:
        """Requeue the work of a failed checkpoint."""
        self.pending.requeue()
        if self.pending.needs_checkpoint:
            self._changed[self] = None

    def save(self) -> None:
        """Queue saving the indexes and the producer state, for a quick next opening."""
        self._saved_bytes = self.appended_bytes
        if self.active is not None:
            self.pending.queue_for_checkpoint(self.active.unsaved())
            self._save_producers()

    def close(self, *, clean: bool) -> bool:
        """Close all files; if `clean`, sync first.

        The next checkpoint completes the indexes, except for a short log, which has none.

        Returns:
            True if everything is durable.
        """
        is_durable = clean and self.offline is None
        if is_durable:
            self._changed[self] = None  # the high watermark may have moved
            try:
                if self.active is not None:
                    self.active.file.truncate_torn()  # `close_for_appends` closes the file
                    self._complete_active(self.active)
                self.synced(self.sync())
            except StorageError:
                is_durable = False
        for segment in self.segments:
            segment.close()
        self.active = None
        self.offline = self.offline or "the log is closed"
        return is_durable

    def _complete_active(self, segment: Segment) -> None:
        """Close the active segment for appends and save the producers, unless batches suffice."""
        if not (self._intact or self._batches_suffice):
            self.pending.queue_for_checkpoint(segment.close_for_appends())
            self._save_producers()

    # -- reading

    def read(self, offset: int, max_bytes: int, *, limit: int, at_least_one: bool = True) -> Slice:
        """Read whole batches of one segment, starting with the batch that contains `offset`.

        Args:
            offset: First offset to read; in a gap, reading starts with the next batch.
            max_bytes: Maximum number of bytes to return.
            limit: Offset to stop before: the high watermark or the last stable offset.
            at_least_one: Return the first batch even if it is larger than `max_bytes`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE if `offset` is before the log start or after the log
                end.
            StorageError: The file cannot be read. With CorruptLogError, its bytes are corrupt and
                the log is offline.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}: not between {self.log_start_offset} and {self.log_end_offset}",
            )
        if offset >= limit or offset == self.log_end_offset:
            return Slice(b"", offset, offset, 0)
        if self.offline is not None:
            raise StorageError(self.offline)
        try:
            segment = self.active
            if segment is not None and offset >= segment.base_offset:
                return segment.slice(
                    offset, max_bytes, limit, self.log_end_offset, self.epochs, at_least_one
                )
            return self._read_closed_segments(offset, max_bytes, limit, at_least_one)
        except CorruptLogError as error:
            self.fail(error.message)
            raise

    def _read_closed_segments(
        self, offset: int, max_bytes: int, limit: int, at_least_one: bool
    ) -> Slice:
        segments = self.segments
        number = segments.number_of(offset)
        while number < len(segments) - 1 and offset < limit:
            segment, end = segments[number], segments[number + 1].base_offset
            segments.keep_indexes(segment)
            found = segment.slice(offset, max_bytes, limit, end, self.epochs, at_least_one)
            if found.size or found.next_offset == offset:
                return found
            # The rest of this segment was compacted away.
            offset, number = max(offset, end), number + 1
        return self.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)

    # -- compaction (see storage.cleaning)

    @property
    def segment_rules(self) -> SegmentRules:
        """Rules for new segments; gaps stay allowed if the topic was compacted before."""
        rules = self.config.segment_rules
        return rules._replace(gaps_allowed=rules.gaps_allowed or self.first_dirty_offset >= 0)

    @property
    def durable_offset(self) -> int:
        """Offset before which records survive a crash; in memory, the log end offset."""
        return self.synced_offset if self._files.durable else self.log_end_offset

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace consecutive closed segments with a compacted one.

        The next checkpoint deletes the old files.

        Raises:
            StorageError: The log is unchanged.
        """
        self.segments.replace(old, new)
        self._changed[self] = None

    # -- retention and truncation

    def configure(self, config: LogConfig) -> None:
        """Apply new settings."""
        segment = self.active
        if segment is not None and segment.roll_at_ms >= 0:
            before = self._roll_after_ms(self.config, segment)
            segment.roll_at_ms += self._roll_after_ms(config, segment) - before
        self.config = config

    def apply_retention(self, now_ms: int) -> int:
        """Remove segments beyond the retention limits, and expired producers.

        The log start moves at once; the next checkpoint deletes the files.

        Args:
            now_ms: Current time of the log clock in ms.

        Returns:
            The number of removed segments.

        Raises:
            StorageError: The log is offline, or a new segment could not be created.
        """
        self.check_online()
        self.expire_producers(now_ms)
        if "delete" not in self.config.cleanup_policy:
            return 0
        count = expired_segments(
            [(it.size, it.latest_ms) for it in self.segments],
            now_ms=now_ms,
            retention_ms=self.config.retention_ms,
            retention_bytes=self.config.retention_bytes,
        )
        # Keep records above the high watermark: consumers have not been able to read them.
        while count and self._end_of(count - 1) > self.high_watermark:
            count -= 1
        if count:
            self._advance_log_start(self._end_of(count - 1))
        return count

    def expire_producers(self, now_ms: int) -> None:
        """Remove expired producers. Followers do only this: their leader applies retention."""
        self.producers.expire(now_ms, self.config.producer_expiration_ms)

    def _end_of(self, index: int) -> int:
        segments, after = self.segments, index + 1
        return segments[after].base_offset if after < len(segments) else self.log_end_offset

    def delete_records_before(self, offset: int) -> int:
        """Move the log start up to `offset`.

        The next checkpoint makes the new start durable and deletes the segments before it.

        Returns:
            The new log start offset.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE for an offset after the high watermark.
            StorageError: The log is offline.
        """
        self.check_online()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}: after the high watermark {self.high_watermark}",
            )
        if offset > self.log_start_offset:
            self._advance_log_start(offset)
        return self.log_start_offset

    def _advance_log_start(self, offset: int) -> None:
        """Move the log start and drop the segments that are completely before it."""
        if offset == self.log_end_offset and self.active is not None:
            self.roll()
        self.log_start_offset = offset
        self.epochs.truncate_start(offset)
        self._check_order()
        self.segments.drop_before(offset)
        if not self.segments.snapshots.offsets and self.segments[0].base_offset < offset:
            self.save()  # only the deleted batches held the state of their producers
        self._changed[self] = None

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Truncate the log to `offset`, including leader epochs and producer state.

        If `offset` is within a batch, the whole batch is removed. Must not run during a sync or
        checkpoint of this log. The result is durable on return.

        Args:
            offset: New log end offset.
            now_ms: Current time of the log clock in ms.

        Raises:
            StorageError: The disk is not writable. The log is unchanged, or offline if the error
                came after the first file was truncated.
        """
        self._check_accepting()
        if offset >= self.log_end_offset:
            return
        offset = max(offset, self.log_start_offset)
        segments = self.segments
        number = segments.number_of(offset)
        position, base = segments[number].find(offset)
        if base < self.log_start_offset:  # the log starts within this batch: drop all of it
            self.restart_at(self.log_start_offset, now_ms=now_ms)
            return
        self._lower_offsets(min(base, offset))
        with self._offline_if_truncation_fails():
            segments.snapshots.drop_after(self.log_end_offset)
            segments.remove_after(number)
            segment = segments[number]
            if segment is not self.active:
                self._activate(segment)
            segment.truncate(position)
            self._finish_truncation(segment, now_ms)
        self._check_order()

    def restart_at(self, offset: int, *, now_ms: int) -> None:
        """Drop all records and continue at `offset`, for a follower that is too far behind.

        Args:
            offset: Offset of the next record.
            now_ms: Current time of the log clock in ms.

        Raises:
            StorageError: As in `truncate_to`.
        """
        self._check_accepting()
        self._lower_offsets(min(offset, self.log_start_offset))
        with self._offline_if_truncation_fails():
            self.segments.snapshots.drop_after(self.log_end_offset)
            self.log_end_offset = self.log_start_offset = offset
            self.segments.remove_after(-1)
            self.active = None
            self._finish_truncation(self.roll(), now_ms)
            self.high_watermark = offset
        self._check_order()

    def _lower_offsets(self, offset: int) -> None:
        """Lower all offsets and checkpoints before a truncation.

        An unwritable disk is detected here. Raises StorageError; the log is then unchanged.
        """
        self.pending.run_checkpoint_writes()  # some pending writes concern data that stays
        before = self.log_end_offset, self.synced_offset, self.high_watermark
        log_start_offset, first_dirty_offset = self.log_start_offset, self.first_dirty_offset
        self.log_end_offset = offset
        self.log_start_offset = min(log_start_offset, offset)
        self.synced_offset = min(self.synced_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.first_dirty_offset = min(first_dirty_offset, offset)
        # Before the bytes are removed: a checkpoint beyond the log end counts as corruption.
        if self._lower_recovery_point is not None:
            try:
                self._lower_recovery_point(self)
            except StorageError:
                self.log_end_offset, self.synced_offset, self.high_watermark = before
                self.log_start_offset = log_start_offset
                self.first_dirty_offset = first_dirty_offset
                raise
        self.truncations += 1
        self.epochs.truncate_end(offset)

    @contextmanager
    def _offline_if_truncation_fails(self) -> Iterator[None]:
        """Take the log offline if a truncation fails, because its files are inconsistent."""
        try:
            yield
        except StorageError as error:
            self.fail(f"{error.message}; restart the server when the disk is writable")
            raise

    def _finish_truncation(self, segment: Segment, now_ms: int) -> None:
        """Make a truncation durable, so that a crash does not restore removed files."""
        self._mark_dirty(segment)
        self.segments.schedule_directory_sync()
        self.synced(self.sync())
        self.epochs.changed = True
        self.reload_producers(now_ms)
