"""One partition's ordered segments: append, read, mark what is safe, forget the old, cut the new.

A log belongs to one owner, an event loop that never waits in here. Only what blocks is handed out:
`sync` (and `sync_logs` of the manager for many logs) may run in a worker thread while the owner
goes on appending, because it touches nothing but open files. The owner then calls `synced`.

Four offsets, each the offset behind a last record::

    log_start_offset    the first record that is still there
    high_watermark      readers see what is before it; the owner moves it
    synced_offset       what is before it survives a power cut
    log_end_offset      the offset of the next record

Nothing exists on disk before the first append; an idle partition costs no file and no timer.
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

SAVE_EVERY_BYTES = 1024 * 1024
"""After how many bytes that were appended, or recovered, indexes and producer state are saved within a
segment: the next start after a crash walks no more than these, and what came since the last checkpoint.
Of batches of one record each a quarter of a million are walked in a second, in one piece."""

SHORT_LOG_BYTES = 4096
"""Up to this size a log needs no files beside its records: one read of a disk brings its batches."""

RECALL_BYTES = 4 * 1024 * 1024
"""How far back the log is asked which batches a producer wrote, where a snapshot does not say: much
more than producers have in flight."""

NEVER_COMPACTED = -1
"""The first dirty offset of a log that no run has touched."""


class Appended(NamedTuple):
    """Where a batch stands. `log_append_time_ms` is -1 for batches with their own times.

    `duplicate`: it had been appended before. The offsets are those of the first time and, as in
    Kafka, the time is the greatest of that batch, whoever set it.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool


class Log:
    """The records of one partition.

    Open one through `LogManager`. Every method raises StorageError once the log is offline, which
    it goes for good when a sync fails or damage is found; `offline` then says why.
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
        "partition",
        "pending",
        "producers",
        "refusal",
        "segments",
        "synced_offset",
        "topic",
        "topic_id",
        "when_offline",
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
        self.first_dirty_offset = NEVER_COMPACTED
        """Up to where the log is compacted."""
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.active: Segment | None = None
        self.offline: str | None = None
        self.refusal: str | None = None
        """Why nothing is appended for now; what is there can be read."""
        self.when_offline: Callable[[Log], None] | None = None
        """Called when it goes offline, perhaps from a worker thread."""
        self.deleted = False
        """The partition is gone; other files may stand under its paths."""
        self.appended_bytes = 0
        """Bytes appended since the log was opened."""
        self.pending = Pending(durable=files.durable)
        """What is not durable yet, and what waits for a checkpoint."""
        identity = PartitionMetadata(topic_id, partition)
        self.segments = LogSegments(files, self.directory, identity, self.pending, open_segments)
        self._saved_bytes = 0
        self._intact = False  # everything is on disk that makes opening quick
        # Shared with the manager: logs that its next checkpoint has to look at.
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
        """Take over what was found on disk, all of it durable; the last segment is active.

        `intact`: it is complete as well, so that nothing has to be saved before something changes.
        `recovered_bytes`: how much of the records was walked, because nothing saved told of it.
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
        """The offsets stand in the order that all else relies on.

        What is before the log start has been visible, what is visible or durable is there.
        """
        start, end = self.log_start_offset, self.log_end_offset
        assert start <= self.high_watermark <= end, f"{start} <= {self.high_watermark} <= {end}"
        assert self.synced_offset <= end, f"{self.synced_offset} <= {end}"

    def _activate(self, segment: Segment) -> None:
        """Go on appending to a segment that was loaded. Raises CorruptLogError."""
        self.segments.open_for_append(segment)
        first = segment.first_timestamp()
        if first >= 0:
            segment.roll_at_ms = first + self._roll_after_ms(self.config, segment)
        else:
            segment.roll_at_ms = UNTIMED if segment.size else FULL  # its first batch decides
        self.active = segment

    # -- appending

    def append(
        self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Append one validated batch as the leader, which gives it its offsets.

        Parameters:
            batch: the whole batch as received; it is written without a copy.
            header: its header, as `LogValidator.result` returned it.
            leader_epoch: of this leader; never below that of an earlier append.
            now_ms: log clock.

        Raises:
            KafkaError: OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
                TRANSACTION_COORDINATOR_FENCED, RECORD_LIST_TOO_LARGE.
            StorageError: the batch could not be written; the log is as it was.
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
                    return Appended(known.base_offset, known.last_offset, known.timestamp, True)
        base = self.log_end_offset
        last = base + header.last_offset_delta
        segment = self.active
        if (
            segment is None
            or segment.size + length > config.segment_bytes
            or header.max_timestamp > segment.roll_at_ms
            or last - segment.base_offset > RELATIVE_OFFSET_MAX
            or self.offline is not None
            or self.refusal is not None
        ):
            self._check_fits(length)
            segment = self._segment_for(length, last, header.max_timestamp, now_ms)
        written = placed(batch, header, base, leader_epoch)
        segment.append(written, length, last, header.max_timestamp)
        if leader_epoch != self.epochs.latest:
            assert leader_epoch > self.epochs.latest, "an earlier leader appends"
            self.epochs.assign(leader_epoch, base)
        # The order of these three lines lets a sync run in another thread: the bytes are written
        # before they are announced, and announced before they are counted.
        if not segment.file.dirty:
            self._announce(segment)
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
        return Appended(base, last, header.max_timestamp if stamped else -1, False)

    def _announce(self, segment: Segment) -> None:
        segment.file.dirty = True
        self._intact = False
        self._changed[self] = None
        self.pending.must_sync(segment.file)

    def append_replicated(self, batches: memoryview, *, now_ms: int) -> int:
        """Append batches as a follower; offsets and epochs are the leader's.

        Returns the new log end offset. A batch of which we have everything is skipped. One that is
        larger than `segment_bytes` gets a segment of its own: the leader has accepted it, perhaps
        under another setting. Offsets that the leader has compacted away are missing here too.

        Raises:
            KafkaError: CORRUPT_MESSAGE for a wrong CRC, OFFSET_OUT_OF_RANGE for a batch that would
                leave offsets out of order.
            StorageError: as `append`.
        """
        for position, header in iter_headers(batches):
            if header.base_offset < self.log_end_offset:
                if header.last_offset < self.log_end_offset:
                    continue
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"batch {header.base_offset} to {header.last_offset} begins before "
                    f"{self.log_end_offset}",
                )
            if not check_crc(batches, position, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}")
            self._append_as_is(batches[position : position + header.size], header, now_ms)
        return self.log_end_offset

    def _append_as_is(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        length, last = len(batch), header.last_offset
        if header.base_offset > self.log_end_offset:
            # Recovery must expect it, also when the topic is not compacted any more.
            self.first_dirty_offset = max(self.first_dirty_offset, 0)
        segment = self.active
        if (
            segment is None
            or segment.size + length > self.config.segment_bytes
            or header.max_timestamp > segment.roll_at_ms
            or last - segment.base_offset > RELATIVE_OFFSET_MAX
            or self.offline is not None
            or self.refusal is not None
        ):
            segment = self._segment_for(length, last, header.max_timestamp, now_ms)
        segment.append([batch], length, last, header.max_timestamp)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        if not segment.file.dirty:
            self._announce(segment)
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
                f"a batch of {length} bytes, a segment takes {self.config.segment_bytes}",
            )

    def _segment_for(self, length: int, last: int, max_timestamp: int, now_ms: int) -> Segment:
        """Return the segment for a batch which the timestamps of the active one do not settle."""
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
        """Return True if a segment without times may take another batch, by the log clock."""
        if segment.created_ms < 0:
            segment.created_ms = now_ms
        return now_ms - segment.created_ms <= self._roll_after_ms(self.config, segment)

    def roll(self) -> Segment:
        """Begin a new segment at the log end, and seal the one before; returns the new one.

        An empty active segment stays. Raises StorageError.
        """
        old = self.active
        if old is not None and not old.size and old.base_offset == self.log_end_offset:
            return old
        if len(self.segments) == 1 and self.synced_offset <= self.segments[0].base_offset:
            # Or a power cut may keep the new name and lose this one, and the log begins too late.
            with self._offline_after_failed_sync():
                self.segments.sync_directory()
        segment = self.segments.begin(self.log_end_offset, self.segment_rules)
        if old is not None:
            self._save_producers()
        segment.roll_at_ms = FULL  # its first batch decides
        self.active = segment
        self._announce(segment)
        self.segments.distrust_names()
        return segment

    def _roll_after_ms(self, config: LogConfig, segment: Segment) -> int:
        return config.roll_after_ms(
            f"{directory_name(self.topic, self.partition)}/{segment.base_offset}"
        )

    def check_online(self) -> None:
        """Raise StorageError when the log is offline."""
        if self.offline is not None:
            raise StorageError(self.offline)

    def _check_accepting(self) -> None:
        self.check_online()
        if self.refusal is not None:
            raise WriteRefusedError(self.refusal)

    def fail(self, reason: str) -> None:
        """Take the log offline for good: it neither appends nor serves any more."""
        if self.offline is None:
            self.offline = reason
            if self.when_offline is not None:
                waiting(self.when_offline, self)

    @contextmanager
    def _offline_after_failed_sync(self) -> Iterator[None]:
        try:
            yield
        except SyncFailedError as error:
            self.fail(error.message)
            raise

    @contextmanager
    def damage_noted(self) -> Iterator[None]:
        """Go offline when what is read turns out to be damaged."""
        try:
            yield
        except CorruptLogError as error:
            self.fail(error.message)
            raise

    # -- producers and transactions

    def _check_marker(self, batch: memoryview, header: BatchHeader) -> Marker | None:
        marker = marker_of(batch)
        if self.active is not None:
            with self.damage_noted():
                # They are read now, because the append must not fail later.
                _ = self.active.aborted.entries
        if marker is not None:
            self.producers.check_marker(header, marker)
        return marker

    def reload_producers(self, now_ms: int) -> None:
        """Build the producer state anew: from the newest sound snapshot and the batches after it.

        So are the indexes of aborted transactions: what is durable of them is what was there when
        the snapshot was taken. Raises CorruptLogError.
        """
        start, self.producers = self.segments.snapshots.newest(
            self.log_start_offset, self.log_end_offset, now_ms
        )
        if self.producers.is_brief:
            self.producers.recall(self.segments.headers_before(start, RECALL_BYTES))
            self._changed[self] = None
            self.pending.settle([self.segments.snapshots.rewrite(self.producers, start)])
        unsure: list[Segment] = []
        if start < self.log_end_offset or not self._intact:
            unsure = self.segments.since(start)
        for segment in unsure:
            segment.aborted.forget_from(start)
        if start < self.log_end_offset:
            for segment, position, header in self.segments.headers_since(start):
                if header.producer_id >= 0:
                    batch = b""
                    if header.is_control:
                        batch = segment.batch(position, header.size, self.epochs)
                    replay(self.producers, segment.aborted, batch, header, now_ms)
        for segment in unsure[:-1]:  # sealed: nothing else will save what is known again
            self.pending.settle(segment.aborted.unsaved())
        self.producers.forget_ended(self.high_watermark)

    def _save_producers(self) -> None:
        """Queue a snapshot of the producers at the log end."""
        self._changed[self] = None
        self.pending.settle(self.segments.save_snapshot(self.producers, self.log_end_offset))

    def fence(self, producer_id: int) -> None:
        """As `ProducerStates.fence`, and remember it."""
        self.producers.fence(producer_id)
        self._intact = False
        if self.log_end_offset in self.segments.snapshots.offsets:
            self._changed[self] = None
            rewritten = self.segments.snapshots.rewrite(self.producers, self.log_end_offset)
            self.pending.settle([rewritten])
        else:
            self.save()

    # -- safety

    def sync(self) -> int:
        """Make everything appended so far survive a power cut; blocks.

        A worker thread may call it while the owner appends, one at a time per log. Returns the
        log end offset from before the sync began, for `synced`.

        Raises StorageError, and the log is offline from then on: what a failed sync left behind
        is unknown, and trying again would tell nothing.
        """
        offset = self.log_end_offset
        try:
            sync_together(self._files, self.pending.take_dirty())
        except StorageError as error:
            self.fail(error.message)
            raise
        return offset

    def synced(self, offset: int) -> None:
        """Take note that everything before `offset` survives a power cut."""
        if offset > self.synced_offset:
            assert offset <= self.log_end_offset, "more was synced than there is"
            self.synced_offset = offset
            self._changed[self] = None

    def advance_high_watermark(self, offset: int) -> None:
        """Let readers see everything before `offset`. It never goes back, nor beyond the end."""
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
        """The end of what read-committed readers see: the first open transaction, or the
        high watermark."""
        first = self.producers.first_unstable_offset
        if first is None or first > self.high_watermark:
            return self.high_watermark
        return max(first, self.log_start_offset)

    def unsettled(self) -> tuple[list[SyncItem], list[Segment | LogStartMark]]:
        """What a checkpoint makes durable before it names this log's `synced_offset`, and the
        files it removes after it has named `log_start_offset`."""
        if self.wants_saving:
            self.save()
        epochs = self.epochs
        if epochs.changed and self.segments.directory_exists and not self._batches_tell_the_epoch:
            path = f"{self.directory}/{LEADER_EPOCHS}"
            self.pending.settle([AtomicWrite(self._files, path, epochs.to_bytes())])
            epochs.changed, epochs.has_file = False, True
        return self.pending.take()

    @property
    def wants_saving(self) -> bool:
        """Whether a start after a crash would walk many records that nothing saved tells of."""
        return self.appended_bytes - self._saved_bytes >= SAVE_EVERY_BYTES

    @property
    def _is_short(self) -> bool:
        return len(self.segments) == 1 and self.segments.size <= SHORT_LOG_BYTES

    @property
    def _batches_tell_the_epoch(self) -> bool:
        """Whether the only epoch is read from a few batches as quickly as from a file of its own.

        Thousands of partitions that have just got their first record would write and sync one each.
        """
        return self._is_short and len(self.epochs) == 1 and not self.epochs.has_file

    @property
    def _batches_tell_all(self) -> bool:
        """Whether indexes and a snapshot of producers are not needed for the same reason.

        None are there, and nothing has to be known of batches that are not part of the log any more.
        """
        return (
            self._is_short
            and self.pending.is_bare
            and not self.segments.snapshots.offsets
            and self.segments[0].base_offset == self.log_start_offset
        )

    def note_change(self) -> None:
        """Let the next checkpoint say where the log stands."""
        self._changed[self] = None

    def put_back(self) -> None:
        """Take back what the last checkpoint did not do, because it failed."""
        self.pending.put_back()
        if self.pending.wants_checkpoint:
            self._changed[self] = None

    def save(self) -> None:
        """Queue what makes the next opening quick: indexes and producer state up to here."""
        self._saved_bytes = self.appended_bytes
        if self.active is not None:
            self.pending.settle(self.active.unsaved())
            self._save_producers()

    def close(self, *, clean: bool) -> bool:
        """Let go of all files; with `clean` everything is durable before.

        Returns whether that is so. What it queues for the next checkpoint completes the indexes; a
        short log goes without.
        """
        sound = clean and self.offline is None
        if sound:
            self._changed[self] = None  # the high watermark may have moved
            try:
                if self.active is not None:
                    self.active.file.cut_torn()  # before it is sealed, which closes the file
                    self._complete_active(self.active)
                self.synced(self.sync())
            except StorageError:
                sound = False
        for segment in self.segments:
            segment.close()
        self.active = None
        self.offline = self.offline or "the log is closed"
        return sound

    def _complete_active(self, segment: Segment) -> None:
        """Seal the active segment and save the producers, if a start needs more than the batches."""
        if not (self._intact or self._batches_tell_all):
            self.pending.settle(segment.seal())
            self._save_producers()

    # -- reading

    def read(self, offset: int, max_bytes: int, *, limit: int, at_least_one: bool = True) -> Slice:
        """Whole batches of one segment, from the one that contains `offset`.

        Parameters:
            offset: where to begin; in a gap the next batch is the first.
            max_bytes: how much to return at most.
            limit: offset to stop before: the high watermark, or the last stable offset.
            at_least_one: return the first batch even if it is larger than `max_bytes`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, when `offset` is before the log start or behind the
                log end.
            StorageError: the file cannot be read; CorruptLogError, and the log goes offline, for
                bytes that are not what was written.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{offset} is not within {self.log_start_offset} and {self.log_end_offset}",
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
            return self._read_sealed(offset, max_bytes, limit, at_least_one)
        except CorruptLogError as error:
            self.fail(error.message)
            raise

    def _read_sealed(self, offset: int, max_bytes: int, limit: int, at_least_one: bool) -> Slice:
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
        """Those of the topic; gaps stay when a topic is no longer compacted."""
        rules = self.config.segment_rules
        return rules._replace(gaps_allowed=rules.gaps_allowed or self.first_dirty_offset >= 0)

    @property
    def durable_offset(self) -> int:
        """What is before it will be there after a crash, or nothing will be."""
        return self.synced_offset if self._files.durable else self.log_end_offset

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Let a compacted segment take the place of sealed ones that follow each other.

        The old files go with the next checkpoint. Raises StorageError, and the log is as it was.
        """
        self.segments.replace(old, new)
        self._changed[self] = None

    # -- forgetting and cutting

    def configure(self, config: LogConfig) -> None:
        """Obey other settings from now on."""
        segment = self.active
        if segment is not None and segment.roll_at_ms >= 0:
            before = self._roll_after_ms(self.config, segment)
            segment.roll_at_ms += self._roll_after_ms(config, segment) - before
        self.config = config

    def apply_retention(self, now_ms: int) -> int:
        """Forget segments that are too old or too many, and idle producers.

        Returns how many segments are given up. The log start moves at once; the files go with the
        next checkpoint.

        Raises StorageError.
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
        # Nothing that readers have not been able to see yet.
        while count and self._end_of(count - 1) > self.high_watermark:
            count -= 1
        if count:
            self._start_at(self._end_of(count - 1))
        return count

    def expire_producers(self, now_ms: int) -> None:
        """Forget idle producers; a follower does no more than that, its leader applies retention."""
        self.producers.expire(now_ms, self.config.producer_expiration_ms)

    def _end_of(self, index: int) -> int:
        segments, after = self.segments, index + 1
        return segments[after].base_offset if after < len(segments) else self.log_end_offset

    def delete_records_before(self, offset: int) -> int:
        """Move the log start up to `offset`; returns the log start.

        The files of whole segments before it go with the next checkpoint, which also makes the
        new start durable.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, for an offset behind the high watermark.
            StorageError: the log is offline.
        """
        self.check_online()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{offset} is behind {self.high_watermark}"
            )
        if offset > self.log_start_offset:
            self._start_at(offset)
        return self.log_start_offset

    def _start_at(self, offset: int) -> None:
        """Move the log start, and give up the segments that lie before it as a whole."""
        if offset == self.log_end_offset and self.active is not None:
            self.roll()
        self.log_start_offset = offset
        self.epochs.truncate_start(offset)
        self._check_order()
        self.segments.drop_before(offset)
        if not self.segments.snapshots.offsets and self.segments[0].base_offset < offset:
            self.save()  # nothing but the batches that are gone has told of their producers
        self._changed[self] = None

    def truncate_to(self, offset: int, *, now_ms: int) -> None:
        """Cut away everything from `offset` on, with the epochs and producer state that it made.

        An offset within a batch cuts the whole batch. Not while a sync or checkpoint of this log
        runs. Durable on return.

        Raises StorageError: the disk takes nothing, and the log is as it was; or the cut broke off,
        and the log is offline.
        """
        self._check_accepting()
        if offset >= self.log_end_offset:
            return
        offset = max(offset, self.log_start_offset)
        segments = self.segments
        number = segments.number_of(offset)
        position, base = segments[number].find(offset)
        if base < self.log_start_offset:  # of the batch that the log begins within nothing stays
            self.restart_at(self.log_start_offset, now_ms=now_ms)
            return
        self._forget_from(min(base, offset))
        with self._all_or_offline():
            segments.snapshots.drop_after(self.log_end_offset)
            segments.cut_after(number)
            segment = segments[number]
            if segment is not self.active:
                self._activate(segment)
            segment.truncate(position)
            self._finish_cut(segment, now_ms)
        self._check_order()

    def restart_at(self, offset: int, *, now_ms: int) -> None:
        """Drop all records; the next one has `offset`. For a follower that is too far behind.

        Raises StorageError, as `truncate_to`.
        """
        self._check_accepting()
        self._forget_from(min(offset, self.log_start_offset))
        with self._all_or_offline():
            self.segments.snapshots.drop_after(self.log_end_offset)
            self.log_end_offset = self.log_start_offset = offset
            self.segments.cut_after(-1)
            self.active = None
            self._finish_cut(self.roll(), now_ms)
            self.high_watermark = offset
        self._check_order()

    def _forget_from(self, offset: int) -> None:
        """First step of a cut: nothing may go on claiming what is about to go.

        Raises StorageError, and the log is as it was: a disk that takes nothing shows here.
        """
        self.pending.settle_now()  # part of it is about what stays
        before = self.log_end_offset, self.synced_offset, self.high_watermark
        log_start_offset, first_dirty_offset = self.log_start_offset, self.first_dirty_offset
        self.log_end_offset = offset
        self.log_start_offset = min(log_start_offset, offset)
        self.synced_offset = min(self.synced_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.first_dirty_offset = min(first_dirty_offset, offset)
        # Before the bytes go: a checkpoint that names more than there is means damage.
        if self._lower_recovery_point is not None:
            try:
                self._lower_recovery_point(self)
            except StorageError:
                self.log_end_offset, self.synced_offset, self.high_watermark = before
                self.log_start_offset = log_start_offset
                self.first_dirty_offset = first_dirty_offset
                raise
        self.epochs.truncate_end(offset)

    @contextmanager
    def _all_or_offline(self) -> Iterator[None]:
        """The files are being cut: where that breaks off, they are not what the log takes them for."""
        try:
            yield
        except StorageError as error:
            self.fail(f"{error.message}; restart the server when the disk is writable")
            raise

    def _finish_cut(self, segment: Segment, now_ms: int) -> None:
        """Last step of a cut: make it durable, so that no old name comes back."""
        self._announce(segment)
        self.segments.distrust_names()
        self.synced(self.sync())
        self.epochs.changed = True
        self.reload_producers(now_ms)
