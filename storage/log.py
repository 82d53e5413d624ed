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

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import (
    CONTROL_BIT,
    DEFAULT_RULES,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    FoundRecord,
    Marker,
    ProduceRules,
    check_crc,
    iter_headers,
    placed,
    read_marker,
    read_records,
)

from .checkpoints import partition_metadata_to_bytes
from .epochs import LeaderEpochs
from .errors import CorruptLogError, StorageError, WriteRefusedError
from .files import FileRange, Files
from .index import AbortedTransaction
from .naming import (
    CLEANED,
    LEADER_EPOCHS,
    OFFSET_INDEX,
    PARTITION_METADATA,
    REPLACES,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    folder_name,
)
from .open_segments import OpenSegments
from .producer_state import ProducerStates
from .retention import expired_segments
from .segment import FULL, NEVER, RELATIVE_OFFSET_MAX, Segment, SegmentRules
from .snapshots import Snapshots
from .sync import (
    AtomicWrite,
    Closing,
    FileSync,
    FolderSync,
    InOrder,
    Removal,
    SegmentRemoval,
    SyncItem,
    sync_in_order,
    sync_together,
)

SAVE_EVERY_BYTES = 16 * 1024 * 1024
"""After how many appended bytes indexes and producer state are saved within a segment."""

RECALL_BYTES = 4 * 1024 * 1024
"""How far back the log is asked which batches a producer wrote, where a snapshot does not say: much
more than producers have in flight."""

FOREVER_MS = (1 << 63) - 1
"""A time that does not pass."""

NEVER_COMPACTED = -1
"""The first dirty offset of a log that no run has touched."""

_LOADED_INDEXES_MAX = 8
_JITTER_STEP = 6_364_136_223_846_793_005  # makes 32 random bits enough for any range


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of a topic that its logs obey; bytes and milliseconds, -1 for no limit.

    `produce_rules` are not applied here: whoever validates a batch before `Log.append` does.
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    delete_retention_ms: int = 86_400_000
    producer_expiration_ms: int = 86_400_000
    produce_rules: ProduceRules = DEFAULT_RULES

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def segment_rules(self) -> SegmentRules:
        return SegmentRules(
            self.index_interval_bytes, self.segment_index_bytes, gaps_allowed=self.compacted
        )

    @property
    def segment_age_ms(self) -> int:
        """How much later than its first record a record of one segment may be."""
        if not self.compacted:
            return self.segment_ms
        return min(self.segment_ms, self.max_compaction_lag_ms)


class Appended(NamedTuple):
    """Where a batch stands. `log_append_time_ms` is -1 for batches with their own times.

    `duplicate`: it had been appended before. The offsets are those of the first time and, as in
    Kafka, the time is the greatest of that batch, whoever set it.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    duplicate: bool


class Slice(NamedTuple):
    """Whole batches read from a log.

    `first_offset` is that of the first batch, which may lie before the offset that was asked for;
    reading goes on at `next_offset`. `size` is in bytes; without records it is 0.
    """

    records: FileRange | bytes
    first_offset: int
    next_offset: int
    size: int


class Log:
    """The records of one partition.

    Open one through `LogManager`. Every method raises StorageError once the log is offline, which
    it goes for good when a sync fails or damage is found; `offline` then says why.
    """

    __slots__ = (
        "_bases",
        "_changed",
        "_data_dir",
        "_dirty",
        "_doomed",
        "_files",
        "_folder_exists",
        "_indexed",
        "_intact",
        "_lower_recovery_point",
        "_open_segments",
        "_saved_bytes",
        "_segments",
        "_snapshots",
        "_unsettled",
        "active",
        "appended_bytes",
        "config",
        "deleted",
        "epochs",
        "first_dirty_offset",
        "folder",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "partition",
        "producers",
        "refusal",
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
        folder: str | None = None,
        changed: dict[Log, None] | None = None,
        lower_recovery_point: Callable[[Log], None] | None = None,
        open_segments: OpenSegments | None = None,
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.folder = f"{data_dir}/{folder or folder_name(topic, partition)}"
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
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._folder_exists = False
        # Not durable yet. Appended to by the owner, emptied by whoever syncs: a deque, because its
        # append and popleft are atomic.
        self._dirty: deque[SyncItem] = deque()
        # What must be durable before the recovery point may move, but no ack waits for.
        self._unsettled: list[SyncItem] = []
        self._doomed: list[Segment] = []  # below the log start; removed after a checkpoint says so
        self._snapshots = Snapshots(files, self.folder)
        self._saved_bytes = 0
        self._intact = False  # everything is on disk that makes opening quick
        self._indexed: deque[Segment] = deque()  # sealed segments whose indexes are in memory
        # Shared with the manager: logs that its next checkpoint has to look at.
        self._changed = changed if changed is not None else {}
        self._lower_recovery_point = lower_recovery_point
        self._open_segments = open_segments

    def __repr__(self) -> str:
        return f"<Log {folder_name(self.topic, self.partition)} to {self.log_end_offset}>"

    def adopt(
        self,
        segments: list[Segment],
        snapshots: Snapshots,
        log_start: int,
        log_end: int,
        high_watermark: int,
        *,
        intact: bool,
    ) -> None:
        """Take over what was found on disk, all of it durable; the last segment is active.

        `intact`: it is complete as well, so that nothing has to be saved before something changes.
        """
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._snapshots = snapshots
        self._folder_exists = True
        if segments:
            self._activate(segments[-1])
        self._intact = intact
        self.log_start_offset = log_start
        self.log_end_offset = self.synced_offset = log_end
        self.high_watermark = max(log_start, min(high_watermark, log_end))

    def _activate(self, segment: Segment) -> None:
        """Go on appending to a segment that was loaded. Raises CorruptLogError."""
        segment.open_for_append(self._open_segments)
        first = segment.first_timestamp()
        if first >= 0:
            segment.roll_at_ms = first + self._roll_after_ms(self.config, segment)
        elif not segment.size:
            segment.roll_at_ms = FULL  # its first batch decides
        self.active = segment

    def distrust_names(self) -> None:
        """Let the next sync make names durable: the last owner may not have come to that."""
        self._must_sync(FolderSync(self._files, self.folder))
        self._must_sync(FolderSync(self._files, self._data_dir))

    def complete(self, segments: list[Segment]) -> None:
        """Queue the indexes of sealed segments that recovery built."""
        for segment in segments:
            self._unsettled += segment.seal()
            self._keep_indexes(segment)

    # -- appending

    def append(
        self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int
    ) -> Appended:
        """Append one validated batch as the leader, which gives it its offsets.

        Parameters:
            batch: the whole batch as received; it is written without a copy.
            header: its header, as `validate_produced` returned it.
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
            segment = self._next_segment(header.max_timestamp)
        segment.append(
            placed(batch, header, base, leader_epoch), length, last, header.max_timestamp
        )
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base)
        # The order of these three lines lets a sync run in another thread: the bytes are written
        # before they are announced, and announced before they are counted.
        if not segment.dirty:
            self._announce(segment)
        self.log_end_offset = last + 1
        self.appended_bytes += length
        if header.max_timestamp < 0:
            segment.seen_ms = now_ms
        if producer_id >= 0:
            if marker is None:
                self.producers.update(header, base, now_ms)
            else:
                self._end_transaction(segment, header, marker, base, now_ms)
        stamped = header.attributes & LOG_APPEND_TIME_BIT
        return Appended(base, last, header.max_timestamp if stamped else -1, False)

    def _announce(self, segment: Segment) -> None:
        segment.dirty = True
        self._intact = False
        self._changed[self] = None
        self._must_sync(segment)

    def _must_sync(self, item: SyncItem) -> None:
        if self._files.durable:
            self._dirty.append(item)

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
            segment = self._next_segment(header.max_timestamp)
        segment.append([batch], length, last, header.max_timestamp)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        if not segment.dirty:
            self._announce(segment)
        self.log_end_offset = last + 1
        self.appended_bytes += length
        if header.max_timestamp < 0:
            segment.seen_ms = now_ms
        self._replay(segment, batch, header, now_ms)

    def _check_fits(self, length: int) -> None:
        self._check_accepting()
        if length > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {length} bytes, a segment takes {self.config.segment_bytes}",
            )

    def _next_segment(self, max_timestamp: int) -> Segment:
        """An empty segment for a batch that does not belong into the active one."""
        self._check_accepting()
        segment = self.active
        if segment is None or segment.size:
            segment = self.roll()
        segment.roll_at_ms = NEVER
        if max_timestamp >= 0:
            segment.roll_at_ms = max_timestamp + self._roll_after_ms(self.config, segment)
        return segment

    def roll(self) -> Segment:
        """Begin a new segment at the log end, and seal the one before; returns the new one.

        An empty active segment stays. Raises StorageError.
        """
        old = self.active
        if old is not None and not old.size and old.base_offset == self.log_end_offset:
            return old
        if not self._folder_exists:
            self._create_folder()
        if len(self._segments) == 1 and self.synced_offset <= self._bases[0]:
            # Or a power cut may keep the new name and lose this one, and the log begins too late.
            self.sync_folder()
        segment = Segment.create(
            self._files,
            self.folder,
            self.log_end_offset,
            self.segment_rules,
            open_segments=self._open_segments,
        )
        if old is not None:
            self._unsettled += old.seal()
            self._keep_indexes(old)
            self._save_producers()
        segment.roll_at_ms = FULL  # its first batch decides
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment
        self._announce(segment)
        self._must_sync(FolderSync(self._files, self.folder))
        return segment

    def _roll_after_ms(self, config: LogConfig, segment: Segment) -> int:
        """How long records go into a segment. The jitter is the same after a restart, but another
        one for each partition and segment."""
        longest = config.segment_age_ms
        jitter_ms = min(config.segment_jitter_ms, longest)
        if jitter_ms <= 0:
            return longest
        name = f"{folder_name(self.topic, self.partition)}/{segment.base_offset}"
        return longest - crc32c(name.encode()) * _JITTER_STEP % jitter_ms

    def _create_folder(self) -> None:
        self._files.mkdir(self.folder)
        path = f"{self.folder}/{PARTITION_METADATA}"
        file = self._files.open(path, create=True)
        if file.size:
            file.truncate(0)
        file.append([partition_metadata_to_bytes(self.topic_id)])
        file.close()
        self._must_sync(FileSync(self._files, path))
        self._must_sync(FolderSync(self._files, self._data_dir))
        self._folder_exists = True

    def _check_online(self) -> None:
        if self.offline is not None:
            raise StorageError(self.offline)

    def _check_accepting(self) -> None:
        self._check_online()
        if self.refusal is not None:
            raise WriteRefusedError(self.refusal)

    def fail(self, reason: str) -> None:
        """Take the log offline for good: it neither appends nor serves any more."""
        if self.offline is None:
            self.offline = reason
            if self.when_offline is not None:
                self.when_offline(self)

    # -- producers and transactions

    def _check_marker(self, batch: memoryview, header: BatchHeader) -> Marker | None:
        marker = _marker_of(batch)
        if self.active is not None:
            with self._damage_noted():
                _ = self.active.aborted  # it is read now, because the append must not fail later
        if marker is not None:
            self.producers.check_marker(header, marker)
        return marker

    def _end_transaction(
        self, segment: Segment, header: BatchHeader, marker: Marker, base: int, now_ms: int
    ) -> None:
        ended = self.producers.end_transaction(header, marker, base, now_ms)
        if ended is None or not ended.aborted:
            return
        # What is stable right after the marker; tells readers where they may stop looking.
        stable = self.producers.first_open_offset
        if stable is None:
            stable = base + 1
        segment.aborted.append(
            AbortedTransaction(ended.producer_id, ended.first_offset, base, stable)
        )

    def _replay(
        self, segment: Segment, batch: memoryview | bytes, header: BatchHeader, now_ms: int
    ) -> None:
        """Take an accepted batch into the producer state."""
        if header.producer_id < 0:
            return
        if header.is_control:
            marker = _marker_of(batch)
            if marker is not None:
                self._end_transaction(segment, header, marker, header.base_offset, now_ms)
        else:
            self.producers.update(header, header.base_offset, now_ms)

    def reload_producers(self, now_ms: int) -> None:
        """Build the producer state anew: from the newest sound snapshot and the batches after it.

        So are the indexes of aborted transactions: what is durable of them is what was there when
        the snapshot was taken. Raises CorruptLogError.
        """
        start, self.producers = self._snapshots.newest(
            self.log_start_offset, self.log_end_offset, now_ms
        )
        if self.producers.is_brief:
            self.producers.recall(self._headers_before(start))
            self._changed[self] = None
            self._unsettled.append(self._snapshots.rewrite(self.producers, start))
        unsure: list[Segment] = []
        if start < self.log_end_offset or not self._intact:
            unsure = self._segments[max(bisect_right(self._bases, start) - 1, 0) :]
        for segment in unsure:
            segment.forget_aborted(start)
        for segment, position, header in self._headers_from(start):
            if header.producer_id >= 0:
                batch = (
                    segment.batch(position, header.size, self.epochs) if header.is_control else b""
                )
                self._replay(segment, batch, header, now_ms)
        for segment in unsure[:-1]:  # sealed: nothing else will save what is known again
            self._unsettled += segment.unsaved_aborted()
        self.producers.forget_ended(self.high_watermark)

    def _headers_from(self, offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        index = max(bisect_right(self._bases, offset) - 1, 0)
        for segment in self._segments[index:]:
            if offset >= self.log_end_offset:
                return
            start, _ = segment.find(offset) if offset > segment.base_offset else (0, 0)
            for position, header in segment.headers(start):
                yield segment, position, header

    def _headers_before(self, offset: int) -> Iterator[BatchHeader]:
        """Of the batches that end within the last `RECALL_BYTES` before an offset."""
        places: list[tuple[Segment, int]] = []
        left = RECALL_BYTES
        for segment in reversed(self._segments[: bisect_left(self._bases, offset)]):
            stop, _ = segment.find(offset)
            start, _ = segment.cut(0, max(stop - left, 0), at_least_one=False)
            places.append((segment, start))
            left -= stop - start
            if segment is not self.active:
                self._keep_indexes(segment)
            if left <= 0:
                break
        for segment, start in reversed(places):
            for _, header in segment.headers(start):
                if header.base_offset >= offset:
                    return
                yield header

    def _save_producers(self) -> None:
        """Queue a snapshot of the producers at the log end."""
        self._changed[self] = None
        self._unsettled += self._snapshots.save(self.producers, self.log_end_offset, self._bases)

    # -- safety

    @property
    def dirty(self) -> bool:
        """Whether something waits for a sync."""
        return bool(self._dirty)

    def take_dirty(self) -> list[SyncItem]:
        """What the next sync pass must make durable; nothing of it is dirty any more."""
        items = []
        dirty = self._dirty
        while dirty:
            items.append(dirty.popleft())
        return items

    def sync(self) -> int:
        """Make everything appended so far survive a power cut; blocks.

        A worker thread may call it while the owner appends, one at a time per log. Returns the
        log end offset from before the sync began, for `synced`.

        Raises StorageError, and the log is offline from then on: what a failed sync left behind
        is unknown, and trying again would tell nothing.
        """
        offset = self.log_end_offset
        try:
            sync_together(self._files, self.take_dirty())
        except StorageError as error:
            self.fail(str(error))
            raise
        return offset

    def synced(self, offset: int) -> None:
        """Take note that everything before `offset` survives a power cut."""
        if offset > self.synced_offset:
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

    def sync_folder(self) -> None:
        """Make the names of this log's files durable. Raises StorageError."""
        self._files.sync_dir(self.folder)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a new segment, or one to be removed, waits for a checkpoint."""
        return bool(self._unsettled or self._doomed)

    def unsettled(self) -> tuple[list[SyncItem], list[Segment]]:
        """What a checkpoint makes durable before it names this log's `synced_offset`, and the
        segments it removes after it has named `log_start_offset`."""
        if self.appended_bytes - self._saved_bytes >= SAVE_EVERY_BYTES:
            self.save()
        if self.epochs.changed and self._folder_exists:
            path = f"{self.folder}/{LEADER_EPOCHS}"
            self._unsettled.append(AtomicWrite(self._files, path, self.epochs.to_bytes()))
            self.epochs.changed = False
        items, self._unsettled = self._unsettled, []
        doomed, self._doomed = self._doomed, []
        return items, doomed

    def put_back(self, items: list[SyncItem], doomed: list[Segment]) -> None:
        """Take back what a checkpoint that failed did not come to."""
        if items or doomed:
            self._changed[self] = None
        self._unsettled[:0] = items
        self._doomed[:0] = doomed

    def save(self) -> None:
        """Queue what makes the next opening quick: indexes and producer state up to here."""
        self._saved_bytes = self.appended_bytes
        if self.active is not None:
            self._unsettled += self.active.unsaved()
            self._save_producers()

    def close(self, *, clean: bool) -> bool:
        """Let go of all files; with `clean` everything is durable before.

        Returns whether that is so. What it queues for the next checkpoint completes the indexes.
        """
        sound = clean and self.offline is None
        if sound:
            if self.active is not None and not self._intact:
                self._unsettled += self.active.seal()
                self._save_producers()
            try:
                self.synced(self.sync())
            except StorageError:
                sound = False
        for segment in self._segments:
            segment.close()
        self.active = None
        self.offline = self.offline or "the log is closed"
        return sound

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
                return self._read_segment(
                    segment, self.log_end_offset, offset, max_bytes, limit, at_least_one
                )
            return self._read_sealed(offset, max_bytes, limit, at_least_one)
        except CorruptLogError as error:
            self.fail(str(error))
            raise

    def _read_sealed(self, offset: int, max_bytes: int, limit: int, at_least_one: bool) -> Slice:
        index = bisect_right(self._bases, offset) - 1
        while index < len(self._segments) - 1 and offset < limit:
            segment, end = self._segments[index], self._bases[index + 1]
            self._keep_indexes(segment)
            found = self._read_segment(segment, end, offset, max_bytes, limit, at_least_one)
            if found.size or found.next_offset == offset:
                return found
            # The rest of this segment was compacted away.
            offset, index = max(offset, end), index + 1
        return self.read(offset, max_bytes, limit=limit, at_least_one=at_least_one)

    def _read_segment(
        self,
        segment: Segment,
        end_offset: int,
        offset: int,
        max_bytes: int,
        limit: int,
        at_least_one: bool,
    ) -> Slice:
        start, first = segment.find(offset)
        if limit >= end_offset:
            stop, next_offset = segment.size, end_offset
        else:
            stop, _ = segment.find(limit)
            next_offset = limit
        if start >= stop:
            return Slice(b"", offset, next_offset, 0)
        if stop - start > max_bytes:
            stop, next_offset = segment.cut(start, start + max_bytes, at_least_one=at_least_one)
            if stop == start:
                return Slice(b"", offset, offset, 0)
        segment.mark(next_offset, stop)
        return Slice(
            segment.read(start, stop - start, self.epochs), first, next_offset, stop - start
        )

    def _keep_indexes(self, segment: Segment) -> None:
        """Let a sealed segment have its indexes in memory, and the one used longest ago not."""
        indexed = self._indexed
        if segment not in indexed:
            indexed.append(segment)
            if len(indexed) > _LOADED_INDEXES_MAX:
                indexed.popleft().release_indexes()

    def offset_for_timestamp(self, timestamp_ms: int, *, limit: int) -> FoundRecord | None:
        """The first record whose time is at least `timestamp_ms`; None when it is not before
        the offset `limit`.

        Raises StorageError as `read`.
        """
        self._check_online()
        for segment in self._segments:
            if segment.max_timestamp < timestamp_ms:
                continue
            self._keep_indexes(segment)
            with self._damage_noted():
                found = segment.first_record_at_or_after(
                    timestamp_ms, self.log_start_offset, self.epochs
                )
            if found is not None:
                return found if found.offset < limit else None
        return None

    @contextmanager
    def _damage_noted(self) -> Iterator[None]:
        """Go offline when what is read turns out to be damaged."""
        try:
            yield
        except CorruptLogError as error:
            self.fail(str(error))
            raise

    def max_timestamp_offset(self) -> FoundRecord | None:
        """The first record with the greatest time; None without records or times."""
        self._check_online()
        # The latest batch of a segment may be one that compaction has emptied.
        latest: FoundRecord | None = None
        for segment in sorted(self._segments, key=lambda it: it.max_timestamp, reverse=True):
            if segment.max_timestamp <= (latest.timestamp if latest is not None else -1):
                break
            self._keep_indexes(segment)
            with self._damage_noted():
                found = segment.latest_record(self.epochs)
            if found is not None and (latest is None or found.timestamp > latest.timestamp):
                latest = found
        return latest

    def aborted_transactions(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Aborted transactions with records from `offset` and before `end_offset`, as pairs of
        producer id and first offset.

        Raises CorruptLogError, and the log goes offline.
        """
        found = []
        with self._damage_noted():
            for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
                for entry in segment.aborted:
                    if entry.last_offset >= offset and entry.first_offset < end_offset:
                        found.append((entry.producer_id, entry.first_offset))
                    if entry.last_stable_offset >= end_offset:
                        return found
        return found

    @property
    def size(self) -> int:
        """Bytes of all records."""
        return sum(segment.size for segment in self._segments)

    def scrub(self, bytes_max: int) -> int:
        """Check CRCs of stored batches that were not checked since the log was opened.

        Returns the number of bytes checked, 0 when nothing is left.

        Raises CorruptLogError, and the log goes offline.
        """
        self._check_online()
        segment = self._first_unchecked()
        if segment is None:
            return 0
        if segment is not self.active:
            self._keep_indexes(segment)
        with self._damage_noted():
            return segment.scrub(bytes_max, self.epochs)

    def _first_unchecked(self) -> Segment | None:
        return next((it for it in self._segments if it.first_unchecked is not None), None)

    def next_to_scrub(self) -> tuple[str, int] | None:
        """Path and position of what `scrub` checks next; None when nothing is left."""
        segment = self._first_unchecked()
        if segment is None or segment.first_unchecked is None:
            return None
        return segment.log_path, segment.first_unchecked[0]

    def scrub_again(self) -> None:
        """Let `scrub` check everything in sealed segments once more: disks forget."""
        for segment in self._segments:
            if segment is not self.active:
                segment.distrust()

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

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first."""
        return tuple(self._segments)

    def sealed_segments(self) -> Iterator[tuple[Segment, int]]:
        """All segments but the active one, each with the offset where the next begins."""
        return zip(self._segments, self._bases[1:], strict=False)

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Let a compacted segment take the place of sealed ones that follow each other.

        The old files go with the next checkpoint. Raises StorageError, and the log is as it was.
        """
        index = self._segments.index(old[0])
        replaced = self._held(old[0])
        new.take_place()
        new.seen_ms = max(segment.seen_ms for segment in old)
        end = index + len(old)
        for segment in old:
            segment.close()
            if segment in self._indexed:
                self._indexed.remove(segment)
        self._segments[index:end] = [new]
        self._bases[index:end] = [new.base_offset]
        self._keep_indexes(new)
        self._changed[self] = None
        self._unsettled.append(InOrder([*self._cleaning_up(old[1:], new), *replaced]))

    def _held(self, segment: Segment) -> list[SyncItem]:
        """Open the file of a segment, so that it outlives its name until the item is done.

        Giving back the room of a large file takes long, and whoever cleans up has the time.
        """
        with suppress(FileNotFoundError):  # then there is nothing to give back
            return [Closing(self._files.open(segment.log_path))]
        return []

    def _cleaning_up(self, old: Sequence[Segment], new: Segment) -> list[SyncItem]:
        """What is left to do when a compacted segment is in its place, in this order."""
        path = f"{self.folder}/{file_name(new.base_offset, '')}"
        folder = FolderSync(self._files, self.folder)
        items: list[SyncItem] = [folder, *new.unsaved()]
        if not new.aborted:
            items.append(Removal(self._files, path + TXN_INDEX))
        for segment in old:
            items.append(SegmentRemoval(segment))
            items += self._snapshots.drop(segment.base_offset)
        items.append(folder)
        leftovers = (OFFSET_INDEX + CLEANED, TIME_INDEX + CLEANED, TXN_INDEX + CLEANED, REPLACES)
        return items + [Removal(self._files, path + kind) for kind in leftovers]

    # -- forgetting and cutting

    def configure(self, config: LogConfig) -> None:
        """Obey other settings from now on."""
        segment = self.active
        if segment is not None and segment.roll_at_ms not in (NEVER, FULL):
            before = self._roll_after_ms(self.config, segment)
            segment.roll_at_ms += self._roll_after_ms(config, segment) - before
        self.config = config

    def apply_retention(self, now_ms: int) -> int:
        """Forget segments that are too old or too many, and idle producers.

        Returns how many segments are given up. The log start moves at once; the files go with the
        next checkpoint.

        Raises StorageError.
        """
        self._check_online()
        self.expire_producers(now_ms)
        if "delete" not in self.config.cleanup_policy:
            return 0
        count = expired_segments(
            [(it.size, it.latest_ms) for it in self._segments],
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
        return self._bases[index + 1] if index + 1 < len(self._bases) else self.log_end_offset

    def delete_records_before(self, offset: int) -> int:
        """Move the log start up to `offset`; returns the log start.

        The files of whole segments before it go with the next checkpoint, which also makes the
        new start durable.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, for an offset behind the high watermark.
            StorageError: the log is offline.
        """
        self._check_online()
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
        while len(self._bases) > 1 and self._bases[1] <= offset:
            base = self._bases.pop(0)
            segment = self._segments.pop(0)
            self._doomed.append(segment)
            if segment in self._indexed:
                self._indexed.remove(segment)
            self._unsettled += self._snapshots.drop(base)
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
        index = max(bisect_right(self._bases, offset) - 1, 0)
        position, base = self._segments[index].find(offset)
        self._forget_from(min(base, offset))
        with self._all_or_offline():
            self._snapshots.drop_after(self.log_end_offset)
            for segment in self._segments[index + 1 :]:
                segment.remove()
            del self._segments[index + 1 :], self._bases[index + 1 :]
            segment = self._segments[index]
            if segment is not self.active:
                self._activate(segment)
            segment.truncate(position)
            self._finish_cut(segment, now_ms)

    def restart_at(self, offset: int, *, now_ms: int) -> None:
        """Drop all records; the next one has `offset`. For a follower that is too far behind.

        Raises StorageError, as `truncate_to`.
        """
        self._check_accepting()
        self._forget_from(min(offset, self.log_start_offset))
        with self._all_or_offline():
            self._snapshots.drop_after(self.log_end_offset)
            self.log_end_offset = self.log_start_offset = offset
            for segment in self._segments:
                segment.remove()
            self._segments, self._bases, self.active = [], [], None
            self._finish_cut(self.roll(), now_ms)
            self.high_watermark = offset

    def _forget_from(self, offset: int) -> None:
        """First step of a cut: nothing may go on claiming what is about to go.

        Raises StorageError, and the log is as it was: a disk that takes nothing shows here.
        """
        while self._unsettled:  # part of it is about what stays
            sync_in_order(self._unsettled[:1])
            del self._unsettled[0]
        before = self.log_end_offset, self.synced_offset, self.high_watermark
        first_dirty_offset = self.first_dirty_offset
        self.log_end_offset = offset
        self.synced_offset = min(self.synced_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.first_dirty_offset = min(first_dirty_offset, offset)
        # Before the bytes go: a checkpoint that names more than there is means damage.
        if self._lower_recovery_point is not None:
            try:
                self._lower_recovery_point(self)
            except StorageError:
                self.log_end_offset, self.synced_offset, self.high_watermark = before
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
        self._indexed.clear()
        self._announce(segment)
        self._must_sync(FolderSync(self._files, self.folder))
        self.synced(self.sync())
        self.epochs.changed = True
        self.reload_producers(now_ms)


def _marker_of(batch: memoryview | bytes) -> Marker | None:
    for record in read_records(batch):
        return read_marker(record)
    return None
