"""Loads the log of a partition from disk, after a clean shutdown or after a crash.

After a clean shutdown all data is durable and complete: only the end of each segment is checked.
After a crash the *recovery point*, the checkpointed offset of the last successful sync, divides the
log:

* **Before it** every byte was on disk. Any error there is corruption, not an effect of the crash.
  The log is not opened, nothing is truncated, and the error names the file and position.
* **After it** any sector may be missing. Batches are checked one by one, and the first bad one ends
  the log. If valid batches follow it, the truncated bytes are kept in a `.corrupt` file next to the
  segment, because some may have been acknowledged since the checkpoint.

The data before the log end is synced before the log is used. After a process crash it may be in the
page cache only, and consumers must not read records that a power failure could remove.

Recovery can itself crash at any point and be restarted: it first copies the bytes to keep, then
truncates, then syncs the rest.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from kbroker.protocol.records import HEADER_SIZE, MAGIC, BatchHeader, check_crc, read_header

from .batches import BEGINNING, Position, read_batches
from .checkpoints import Offsets
from .cleaning import replaced_from_bytes
from .epochs import UNDEFINED, LeaderEpochs
from .errors import CorruptLogError
from .files import Files
from .index import RELATIVE_OFFSET_MAX
from .log import Log
from .log_start_marks import LogStartMark
from .naming import (
    CLEANED,
    CORRUPT,
    LEADER_EPOCHS,
    LOG,
    LOG_START,
    OFFSET_INDEX,
    REPLACES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    file_name,
    parse_file_name,
)
from .segment import Segment, SegmentRules
from .snapshots import Snapshots
from .sync import sync_file

logger = logging.getLogger(__name__)

_READ_SIZE = 1024 * 1024
# Suffixes of files that are valid without a segment at their offset.
_KEPT = (SNAPSHOT, LOG_START)
_LEFTOVERS = (".tmp", ".deleted", CLEANED)


@dataclass(slots=True)
class QuarantinedData:
    """Data after the log end that was moved aside.

    Attributes:
        records: Number of records in its valid batches.
        end: Offset after the last of these records.
        paths: Files that hold the data.
    """

    records: int = 0
    end: int = 0
    paths: list[str] = field(default_factory=list)

    def count_batches(self, data: bytes) -> bool:
        """Return True if `data` contains valid batches anywhere, and count their records.

        The offsets of these batches may be lower than the log end. A crash leaves no such batches,
        but the file may have been replaced with the file of another segment.
        """
        before = self.records
        at = data.find(MAGIC, 16)
        while at >= 0 and at - 16 + HEADER_SIZE <= len(data):
            header = read_header(data, at - 16)
            if _is_plausible(header, len(data) - at + 16) and check_crc(data, at - 16, header):
                self.records += header.record_count
                self.end = max(self.end, header.next_offset)
                at = data.find(MAGIC, at + header.size)
            else:
                at = data.find(MAGIC, at + 1)
        return self.records > before


def load_log(
    files: Files,
    log: Log,
    known: Offsets,
    *,
    clean: bool,
    now_ms: int,
    durable: bool = False,
    quarantined: QuarantinedData | None = None,
) -> None:
    """Load a log from its directory.

    Args:
        files: File system of the directory.
        log: New log of a partition whose directory exists.
        known: Checkpointed offsets.
        clean: True after a clean shutdown: all data is durable and complete.
        now_ms: Current time of the log clock in ms; last-seen time of all producers.
        durable: True if all data of the previous owner was synced since.
        quarantined: Set for a repair. All truncated bytes are then kept, even without valid
            batches, and described here.

    Raises:
        CorruptLogError: Durable bytes are damaged or missing.
        StorageError: A file cannot be read or written.
    """
    log.first_dirty_offset = known.first_dirty
    directory = _Directory(files, log.directory, log.segment_rules)
    directory.clean_up(known.log_start)
    if quarantined is not None and directory.move_replaced_aside(quarantined):
        log.first_dirty_offset = max(log.first_dirty_offset, 0)  # the compacted segment has gaps
    log.pending.is_bare = directory.is_bare
    segments = [
        Segment.load(files, log.directory, base, log.segment_rules) for base in directory.bases
    ]
    for segment in segments:
        segment.seen_ms = now_ms  # the time of the last write is unknown
    snapshots = Snapshots(files, log.directory, directory.snapshots)
    with segments[-1].file.held_open() if segments else nullcontext():
        end = _adopt_segments(
            files,
            log,
            segments,
            snapshots,
            known,
            directory.marks,
            clean=clean,
            durable=durable,
            quarantined=quarantined,
        )
        log.reload_producers(now_ms)
    if log.pending.needs_checkpoint or log.needs_saving or end != known.recovery_point:
        log.note_change()


def _adopt_segments(
    files: Files,
    log: Log,
    segments: list[Segment],
    snapshots: Snapshots,
    known: Offsets,
    marks: list[LogStartMark],
    *,
    clean: bool,
    durable: bool,
    quarantined: QuarantinedData | None,
) -> int:
    """Check the segments and pass them to the log; return its end offset."""
    _check_log_start(files, log, segments, known, marks)
    for mark in marks:
        log.pending.schedule_removal(mark)
    log_start = max(known.log_start, segments[0].base_offset if segments else 0)
    recovered_bytes = 0
    if clean:
        end = _check_clean(log, segments, known)
        log.epochs = _read_epochs(files, log.directory, segments, log_start, end)
    else:
        recovery = _Recovery(files, log, segments, known, durable=durable, quarantined=quarantined)
        end = recovery.run()
        log.epochs, recovered_bytes = recovery.epochs, recovery.recovered_bytes
        log.segments.close_for_appends(recovery.scanned[:-1])
        if not durable:
            log.segments.schedule_all_directory_syncs()
        # A repair rebuilds the indexes of aborted transactions from scratch.
        if snapshots.drop_after(end if quarantined is None else log_start):
            log.segments.sync_directory()  # before new records reuse their offsets
    _warn_of_lost_end(log, end, known)
    end = max(end, log_start)
    log.epochs.truncate_end(end)
    log.epochs.truncate_start(log_start)
    log.adopt(
        segments,
        snapshots,
        log_start,
        end,
        known.high_watermark,
        intact=clean,
        recovered_bytes=recovered_bytes,
    )
    return end


class _Directory:
    """The files of a partition directory, by type."""

    def __init__(self, files: Files, path: str, rules: SegmentRules) -> None:
        self._files = files
        self._path = path
        self._rules = rules
        self._list()

    def _list(self) -> None:
        self._names = self._files.listdir(self._path)
        numbered = [(name, parse_file_name(name)) for name in self._names]
        self._numbered = [(name, *parsed) for name, parsed in numbered if parsed]
        self.bases = self._offsets(LOG)
        self.snapshots = self._offsets(SNAPSHOT)
        self.marks = [LogStartMark(self._files, self._path, at) for at in self._offsets(LOG_START)]

    @property
    def is_bare(self) -> bool:
        """True if there are no index files."""
        return not any(kind in (OFFSET_INDEX, TIME_INDEX) for _, _, kind in self._numbered)

    def _offsets(self, suffix: str) -> list[int]:
        return sorted(offset for _, offset, kind in self._numbered if kind == suffix)

    def clean_up(self, log_start: int) -> None:
        """Remove files that a crash left behind.

        These are temporary files, segments before the log start, index files without a segment, and
        segments that compaction has replaced.

        Raises CorruptLogError.
        """
        self._finish_swaps()
        for base in self._offsets(REPLACES):
            if base in self.bases:
                self._finish_replacing(base)
        while len(self.bases) > 1 and self.bases[1] <= log_start:
            self.bases.pop(0)
        kept = set(self.bases)
        for name, offset, suffix in self._numbered:
            if suffix == REPLACES or (suffix not in _KEPT and offset not in kept):
                self._files.remove(f"{self._path}/{name}")
        for name in self._names:
            if name.endswith(_LEFTOVERS):
                self._files.remove(f"{self._path}/{name}")

    def _finish_replacing(self, base: int) -> None:
        """Remove the segments that the compacted segment at `base` replaces, if it is complete."""
        path = f"{self._path}/{file_name(base, REPLACES)}"
        found = replaced_from_bytes(self._files.read_bytes(path))
        if found is None:
            return
        end, replaced = found
        segment = Segment.load(self._files, self._path, base, self._rules)
        if segment.find_end() != end:
            return
        self._files.sync_dir(self._path)  # make its name durable before the others are removed
        self.bases = [each for each in self.bases if each not in replaced]
        for offset in replaced:
            Segment(self._files, self._path, offset, self._rules).remove()
        # Before the `.replaces` file is removed.
        self._files.sync_dir(self._path)

    def move_replaced_aside(self, quarantined: QuarantinedData) -> bool:
        """Move segments aside that lie within a valid one, for a repair.

        Compaction had replaced them, and a failing disk restored them. If they stayed, the log
        would end before them.

        Returns:
            True if there was such a segment.

        Raises:
            StorageError: A file cannot be read or renamed.
        """
        covering, end, found = None, 0, False
        for base in tuple(self.bases):
            segment = Segment.load(self._files, self._path, base, self._rules)
            try:
                own_end = segment.find_end()
                is_within = covering is not None and base < end and own_end <= end
                if is_within and covering is not None and _has_valid_batches(self._files, covering):
                    self._move_aside(segment, quarantined)
                    found = True
                    continue
            except CorruptLogError:
                break  # the later scan ends the log here
            covering, end = segment, own_end
        if found:
            self._files.sync_dir(self._path)
        return found

    def _move_aside(self, segment: Segment, quarantined: QuarantinedData) -> None:
        path = segment.log_path + CORRUPT
        self._files.rename(segment.log_path, path)
        segment.remove_indexes()
        quarantined.paths.append(path)
        self.bases.remove(segment.base_offset)

    def _finish_swaps(self) -> None:
        """Finish swaps of compacted segments that Apache Kafka had started.

        A `.swap` file is complete and durable; the segments that it replaces may be deleted
        already.
        """
        swaps = [name for name in self._names if name.endswith(LOG + SWAP)]
        for name in swaps:
            base = int(name.removesuffix(LOG + SWAP))
            swapped = Segment.load(self._files, self._path, base, self._rules, suffix=SWAP)
            end = swapped.find_end()
            for offset in self.bases:
                if base < offset < end:
                    Segment(self._files, self._path, offset, self._rules).remove()
            Segment(self._files, self._path, base, self._rules).remove_indexes()
            for path in swapped.index_paths:
                if self._files.exists(path):
                    self._files.rename(path, path.removesuffix(SWAP))
            self._files.sync_dir(self._path)
            self._files.rename(swapped.log_path, swapped.log_path.removesuffix(SWAP))
            self._files.sync_dir(self._path)
        if swaps:
            self._list()


def _saved_epochs(files: Files, directory: str) -> LeaderEpochs | None:
    """Return the leader epochs from their file, or None if it is missing or damaged."""
    with suppress(FileNotFoundError):
        return LeaderEpochs.from_bytes(files.read_bytes(f"{directory}/{LEADER_EPOCHS}"))
    return None


def _read_epochs(
    files: Files, directory: str, segments: list[Segment], log_start: int, end: int
) -> LeaderEpochs:
    """Return the leader epochs between two offsets, from their file or else from the batches.

    The file may be missing, damaged, or start later than the log.
    """
    epochs, saved = LeaderEpochs(), _saved_epochs(files, directory)
    epochs.has_file = files.exists(f"{directory}/{LEADER_EPOCHS}")
    if saved is not None and saved.entries:
        _warn_of_earlier_start(directory, segments, log_start, saved.entries[0][1])
    entries = [entry for entry in saved.entries if entry[1] < end] if saved is not None else []
    if not _entries_agree(segments, entries, log_start):
        entries = []
    known_from = entries[0][1] if entries else end
    if known_from > log_start:
        for segment, position, header in _headers(segments, known_from):
            if header.leader_epoch < epochs.latest:
                reason = f"leader epoch {header.leader_epoch} after {epochs.latest}"
                raise CorruptLogError(segment.log_path, position, reason)
            if header.leader_epoch > epochs.latest:
                epochs.assign(header.leader_epoch, header.base_offset)
    for epoch, start in entries:
        epochs.assign(epoch, start)
    epochs.changed = epochs.entries != entries
    return epochs


def _warn_of_earlier_start(
    directory: str, segments: list[Segment], log_start: int, saved_start: int
) -> None:
    """Warn if the log starts before its first saved leader epoch, which moves with the log start.

    Batches of old formats precede all epochs and have none.
    """
    if not segments or saved_start <= log_start:
        return
    first = segments[0].header_at(BEGINNING)
    if first is not None and first.leader_epoch >= 0:
        logger.warning(
            "%s starts at offset %d, although it started at offset %d when its leader epochs were "
            "saved: deleted records may be served again; if the log start checkpoint was damaged or "
            "replaced, move the log start with `kbroker topic trim`",
            directory,
            log_start,
            saved_start,
        )


def _entries_agree(segments: list[Segment], entries: list[tuple[int, int]], log_start: int) -> bool:
    """Return True if the batches around the start of each epoch have the expected epochs.

    The file has no checksum, and later batches are checked against it.
    """
    batches = _EpochsOfBatches(segments)
    before = None
    for epoch, start in entries:
        # Compaction may have removed the last offsets of an epoch.
        if before is not None and start > log_start and batches.at(start - 1) not in (None, before):
            return False
        if batches.at(start) not in (None, epoch):
            return False
        before = epoch
    return True


class _EpochsOfBatches:
    """The leader epochs of batches, looked up at increasing offsets.

    Each look-up continues where the previous one ended. Every start after a crash adds an epoch,
    and an unclosed segment has no index, so separate look-ups could each walk the whole segment.
    """

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._number = -1
        self._position = BEGINNING

    def at(self, offset: int) -> int | None:
        """Return the leader epoch of the batch that contains `offset`, or None."""
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            return None
        segment = self._segments[number]
        known = self._position if number == self._number else BEGINNING
        self._number = number
        self._position, _ = segment.find(offset, known)
        header = segment.header_at(self._position)
        return header.leader_epoch if header and header.base_offset <= offset else None


def _headers(segments: list[Segment], end: int) -> Iterator[tuple[Segment, Position, BatchHeader]]:
    """Yield segment, position and header of the batches before `end`; later bytes may be torn."""
    for segment in segments:
        if segment.base_offset >= end:
            return
        for position, header in segment.headers():
            yield segment, position, header
            if header.next_offset >= end:
                return


def _check_segment_ends(segments: list[Segment], end_offset: int, gaps_allowed: bool) -> None:
    """Check that each segment ends where the next one starts, and the last at `end_offset`.

    This also loads the latest timestamps. It reads only the last few kB of each segment.
    """
    starts = [segment.base_offset for segment in segments[1:]] + [end_offset]
    for segment, wanted in zip(segments, starts, strict=False):
        with segment.file.held_open():
            end = segment.find_end()
            if end > wanted or (end < wanted and not gaps_allowed):
                raise CorruptLogError(
                    segment.log_path,
                    segment.size,
                    f"it ends at offset {end}, but the log continues at {wanted}",
                )
            segment.load_latest()


def _check_log_start(
    files: Files, log: Log, segments: list[Segment], known: Offsets, marks: list[LogStartMark]
) -> None:
    """Raise CorruptLogError if records are missing before the first segment.

    Records are missing if some were synced from the log start on. Otherwise the log was restarted
    at a later offset (by a follower that was too far behind), and a crash came before the
    checkpoint. Apache Kafka does not checkpoint a log start that is the base of a segment, but its
    leader epochs start there. On a full disk, a log start mark replaces the checkpoint.
    """
    if not segments or not segments[0].base_offset > known.log_start < known.recovery_point:
        return
    if any(mark.offset >= segments[0].base_offset for mark in marks):
        return
    saved = _saved_epochs(files, log.directory)
    if saved is None or not saved.entries or saved.entries[0][1] < segments[0].base_offset:
        path = f"{log.directory}/{file_name(known.log_start, LOG)}"
        reason = (
            f"it is missing: the log starts at offset {known.log_start}, but its first segment starts "
            f"at {segments[0].base_offset}"
        )
        raise CorruptLogError(path, 0, reason)


def _warn_of_lost_end(log: Log, end: int, known: Offsets) -> None:
    """Warn about records that consumers could read before and cannot read now."""
    if end < known.high_watermark:
        logger.warning(
            "%s ends at offset %d, although consumers could read up to offset %d: %d records are "
            "lost; if the cause was not a power failure with flush.policy=os or interval, stop the "
            "server and restore the directory from a backup",
            log.directory,
            end,
            known.high_watermark - 1,
            known.high_watermark - end,
        )


def _check_clean(log: Log, segments: list[Segment], known: Offsets) -> int:
    """Return the end offset of a log after a clean shutdown; load the segments' latest times."""
    if not segments:
        if known.recovery_point > known.log_start:
            path = f"{log.directory}/{file_name(known.log_start, LOG)}"
            raise CorruptLogError(
                path, 0, f"it is missing, but offset {known.recovery_point} was synced"
            )
        return known.log_start
    last = segments[-1]
    _check_segment_ends(segments[:-1], last.base_offset, log.segment_rules.gaps_allowed)
    end = last.find_end()
    if end < known.recovery_point:
        reason = f"it ends at offset {end}, but offset {known.recovery_point} was synced"
        raise CorruptLogError(last.log_path, last.size, reason)
    return end


class _Recovery:
    """Crash recovery of one log: a scan of the batches after the recovery point."""

    def __init__(
        self,
        files: Files,
        log: Log,
        segments: list[Segment],
        known: Offsets,
        *,
        durable: bool,
        quarantined: QuarantinedData | None,
    ) -> None:
        self._files = files
        self._log = log
        self._segments = segments
        self._durable = durable
        self._quarantined = quarantined
        self._point = known.recovery_point
        self._log_start = max(known.log_start, segments[0].base_offset if segments else 0)
        self._gaps_allowed = log.segment_rules.gaps_allowed
        self.epochs = LeaderEpochs()
        self.scanned: list[Segment] = []
        self.recovered_bytes = 0

    def run(self) -> int:
        """Find the log end, truncate the bytes after it, and sync the rest.

        Returns:
            The log end offset.
        """
        segments = self._segments
        bases = [segment.base_offset for segment in segments]
        first = max(bisect_right(bases, self._point) - 1, 0)
        self._check_durable_segments(first)
        # Before any look-up in the first segment: its index must not point to batches after the
        # recovery point.
        starts = [
            segment.begin_scan(max(self._point, segment.base_offset))
            for segment in segments[first:]
        ]
        self.epochs = _read_epochs(
            self._files, self._log.directory, segments, self._log_start, self._point
        )
        end, is_truncated = max(self._point, self._log_start), False
        for number in range(first, len(segments)):
            segment = segments[number]
            if number > first and not self._follows(segment, end):
                position = segments[number - 1].size
                self._truncate_after(number - 1, position, end)
                is_truncated = True
                break
            self.scanned.append(segment)
            end, position = self._scan(segment, *starts[number - first])
            if position < segment.size:
                self._truncate_after(number, position, end)
                is_truncated = True
                break
        if is_truncated or (end > self._point and not self._durable):
            for segment in self._segments[first:]:
                sync_file(self._files, segment.log_path)
            self._files.sync_dir(self._log.directory)
            self._files.sync_dir(self._log.directory.rpartition("/")[0])
        return end

    def _check_durable_segments(self, first: int) -> None:
        """Check that all segments up to the one with the recovery point exist."""
        segments = self._segments
        if segments:
            _check_segment_ends(segments[:first], segments[first].base_offset, self._gaps_allowed)
        elif self._point > self._log_start:
            path = f"{self._log.directory}/{file_name(self._log_start, LOG)}"
            raise CorruptLogError(path, 0, f"it is missing, but offset {self._point} was synced")

    def _follows(self, segment: Segment, end: int) -> bool:
        base = segment.base_offset
        return base == end or (base > end and self._gaps_allowed)

    def _scan(self, segment: Segment, start: Position, offset: int) -> tuple[int, Position]:
        """Check and index the batches from position `start`, which has the given offset.

        Returns:
            Offset and position after the last valid batch.
        """
        position = start
        for header in self._valid_batches(segment, start, offset):
            segment.add_scanned(position, header)
            if header.base_offset >= self._point and header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            position += header.size
            offset = header.next_offset
        if offset < self._point:
            raise CorruptLogError(
                segment.log_path,
                position,
                f"no valid batch at offset {offset}, but offset {self._point} was synced",
            )
        segment.checks.mark_checked(start, position)
        self.recovered_bytes += position - start
        return offset, position

    def _valid_batches(
        self, segment: Segment, position: Position, offset: int
    ) -> Iterator[BatchHeader]:
        file = self._files.open(segment.log_path)
        highest = segment.base_offset + RELATIVE_OFFSET_MAX
        chunk, chunk_at = b"", position
        try:
            while position + HEADER_SIZE <= segment.size:
                if position - chunk_at + HEADER_SIZE > len(chunk):
                    chunk, chunk_at = file.read(position, _READ_SIZE), position
                header = read_header(chunk, position - chunk_at)
                if not _is_plausible(header, segment.size - position):
                    return
                gap = header.base_offset - offset
                if gap < 0 or (gap and not self._gaps_allowed):
                    return
                if header.base_offset < self._point and not self._is_known_epoch(header):
                    return
                if header.last_offset > highest:
                    return
                if position - chunk_at + header.size > len(chunk):
                    chunk, chunk_at = file.read(position, max(_READ_SIZE, header.size)), position
                if not check_crc(chunk, position - chunk_at, header):
                    return
                yield header
                position += header.size
                offset = header.next_offset
        finally:
            file.close()

    def _is_known_epoch(self, header: BatchHeader) -> bool:
        known = self.epochs.epoch_at(header.base_offset)
        return known in (UNDEFINED, header.leader_epoch)

    def _truncate_after(self, number: int, position: Position, end: int) -> None:
        """End the log in segment `number` at `position`; keep truncated bytes with batches."""
        assert end >= self._point, "the truncation removes synced records"
        segment = self._segments[number]
        keep_all = self._quarantined is not None
        quarantined = self._quarantined or QuarantinedData()
        tail = _read_from(self._files, segment.log_path, position)
        if quarantined.count_batches(tail) or (tail and keep_all):
            path = f"{segment.log_path}.{position}{CORRUPT}"
            self._files.write_atomic(path, tail)
            quarantined.paths.append(path)
        for later in self._segments[number + 1 :]:
            data = _read_from(self._files, later.log_path, BEGINNING)
            if quarantined.count_batches(data) or (data and keep_all):
                path = later.log_path + CORRUPT
                self._files.rename(later.log_path, path)
                quarantined.paths.append(path)
            later.remove()
        del self._segments[number + 1 :]
        segment.truncate_file(position)
        if position == 0:
            segment.remove_indexes()
        if quarantined.paths:
            logger.warning(
                "%s: truncated at offset %d after a corrupt or missing batch; moved %d later "
                "unsynced records to %s",
                self._log.directory,
                end,
                quarantined.records,
                f"{quarantined.paths[0]} and {len(quarantined.paths) - 1:,} other files"
                if len(quarantined.paths) > 1
                else quarantined.paths[0],
            )
        elif tail:
            logger.info(
                "%s: truncated %d torn bytes at offset %d", self._log.directory, len(tail), end
            )


def _has_valid_batches(files: Files, segment: Segment) -> bool:
    """Return True if the CRCs of all batches of a segment are valid."""
    try:
        for _ in read_batches(files, segment.log_path, segment.size):
            pass
    except CorruptLogError:
        return False
    return True


def _read_from(files: Files, path: str, position: Position) -> bytes:
    file = files.open(path)
    try:
        return file.read(position, file.size - position)
    finally:
        file.close()


def _is_plausible(header: BatchHeader, size_max: int) -> bool:
    return (
        header.magic == MAGIC
        and HEADER_SIZE <= header.size <= size_max
        and header.last_offset_delta >= 0
    )
