"""Open the log of a partition that exists on disk, after a clean stop or after a crash.

After a clean stop everything is durable and complete, so only the end of each segment is looked at.
After a crash the *recovery point* divides the log (a checkpoint of an offset up to which a sync had
succeeded):

* **Below it** every byte was on disk. What is wrong there is damage, not the crash: the log is not
  opened, nothing is cut, and the error names the place.
* **From it on** any sector may be missing. Batches are checked one by one and the first bad one
  ends the log. When sound batches follow it, the bytes that are cut away are kept in a `.corrupt`
  file beside the segment, because some of them may have been acknowledged since the checkpoint.

What then lies before the end is made durable before the log is used: after a crash of the process
alone it is in the system's memory only, and readers must not see what a power cut could take back.

A crash during recovery is no special case. Each step leaves a directory from which recovery starts
again: first the bytes to keep are copied, then they are cut, then the rest is synced.
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
_KEPT = (SNAPSHOT, LOG_START)
"""Files that say something without a segment at their offset."""
_LEFTOVERS = (".tmp", ".deleted", CLEANED)


@dataclass(slots=True)
class Cut:
    """What stood behind the end of a log and was put aside.

    `records` are those of its sound batches, `end` is the offset behind the last of them.
    """

    records: int = 0
    end: int = 0
    paths: list[str] = field(default_factory=list)

    def find(self, data: bytes) -> bool:
        """Return True if sound batches can be found anywhere in `data`, and count their records.

        They may have lower offsets than the log's end: no crash leaves such batches, but somebody
        may have put the file of another segment there.
        """
        before = self.records
        at = data.find(MAGIC, 16)
        while at >= 0 and at - 16 + HEADER_SIZE <= len(data):
            header = read_header(data, at - 16)
            if _plausible(header, len(data) - at + 16) and check_crc(data, at - 16, header):
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
    cut: Cut | None = None,
) -> None:
    """Give a new log what its directory holds.

    Parameters:
        files: the file system.
        log: the log of a partition whose directory exists.
        known: what the checkpoints say.
        clean: the broker stopped properly, so that everything is durable and complete.
        now_ms: log clock; producers that are found count as seen now.
        durable: all that the last owner wrote was made durable since.
        cut: keep all bytes that are cut, not only those before sound batches, and say here what
            they are.

    Raises:
        CorruptLogError: bytes that were durable are damaged or missing.
        StorageError: the system refuses.
    """
    log.first_dirty_offset = known.first_dirty
    directory = _Directory(files, log.directory, log.segment_rules)
    directory.tidy(known.log_start)
    if cut is not None and directory.set_replaced_aside(cut):
        log.first_dirty_offset = max(log.first_dirty_offset, 0)  # what replaced them has gaps
    log.pending.is_bare = directory.is_bare
    segments = [
        Segment.load(files, log.directory, base, log.segment_rules) for base in directory.bases
    ]
    for segment in segments:
        segment.seen_ms = now_ms  # when its file was written nobody knows
    snapshots = Snapshots(files, log.directory, directory.snapshots)
    with segments[-1].file.held_open() if segments else nullcontext():
        end = _take_over(
            files,
            log,
            segments,
            snapshots,
            known,
            directory.marks,
            clean=clean,
            durable=durable,
            cut=cut,
        )
        log.reload_producers(now_ms)
    if log.pending.wants_checkpoint or log.wants_saving or end != known.recovery_point:
        log.note_change()


def _take_over(
    files: Files,
    log: Log,
    segments: list[Segment],
    snapshots: Snapshots,
    known: Offsets,
    marks: list[LogStartMark],
    *,
    clean: bool,
    durable: bool,
    cut: Cut | None,
) -> int:
    """Find out what the segments hold, and give it to the log; returns its end offset."""
    _check_first(files, log, segments, known, marks)
    for mark in marks:
        log.pending.schedule_removal(mark)
    log_start = max(known.log_start, segments[0].base_offset if segments else 0)
    recovered_bytes = 0
    if clean:
        end = _check_clean(log, segments, known)
        log.epochs = _read_epochs(files, log.directory, segments, log_start, end)
    else:
        recovery = _Recovery(files, log, segments, known, durable=durable, cut=cut)
        end = recovery.run()
        log.epochs, recovered_bytes = recovery.epochs, recovery.recovered_bytes
        log.segments.complete(recovery.scanned[:-1])
        if not durable:
            log.segments.distrust_all_names()
        # A repair believes nothing, and so builds the indexes of aborted transactions anew.
        if snapshots.drop_after(end if cut is None else log_start):
            log.segments.sync_directory()  # for good, before other records take their offsets
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
    """The files of a partition's directory, sorted out."""

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
        """Whether there are no indexes beside the records."""
        return not any(kind in (OFFSET_INDEX, TIME_INDEX) for _, _, kind in self._numbered)

    def _offsets(self, suffix: str) -> list[int]:
        return sorted(offset for _, offset, kind in self._numbered if kind == suffix)

    def tidy(self, log_start: int) -> None:
        """Remove what a crash left: temporary files, segments below the log start, lone indexes,
        segments that a compacted one has replaced.

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
        """Remove the segments that the one at `base` stands for, if it took its place."""
        path = f"{self._path}/{file_name(base, REPLACES)}"
        found = replaced_from_bytes(self._files.read_bytes(path))
        if found is None:
            return
        end, replaced = found
        segment = Segment.load(self._files, self._path, base, self._rules)
        if segment.find_end() != end:
            return
        self._files.sync_dir(self._path)  # its name, before the others go
        self.bases = [each for each in self.bases if each not in replaced]
        for offset in replaced:
            Segment(self._files, self._path, offset, self._rules).remove()
        # Before the file that says so goes.
        self._files.sync_dir(self._path)

    def set_replaced_aside(self, cut: Cut) -> bool:
        """Move segments aside that lie within a sound one, for a repair.

        Compaction has replaced them, and a failing disk has brought them back. With them every
        record behind them would be out of service. Return True if there was one.

        Raises StorageError.
        """
        covering, end, found = None, 0, False
        for base in tuple(self.bases):
            segment = Segment.load(self._files, self._path, base, self._rules)
            try:
                own_end = segment.find_end()
                is_within = covering is not None and base < end and own_end <= end
                if is_within and covering is not None and _is_sound(self._files, covering):
                    self._set_aside(segment, cut)
                    found = True
                    continue
            except CorruptLogError:
                break  # the scan ends the log there
            covering, end = segment, own_end
        if found:
            self._files.sync_dir(self._path)
        return found

    def _set_aside(self, segment: Segment, cut: Cut) -> None:
        path = segment.log_path + CORRUPT
        self._files.rename(segment.log_path, path)
        segment.remove_indexes()
        cut.paths.append(path)
        self.bases.remove(segment.base_offset)

    def _finish_swaps(self) -> None:
        """Put segments in their place that Apache Kafka had compacted when it was stopped.

        A `.swap` file is whole and durable; the segments that it replaces may be gone already.
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
    """Return the leader epochs of their file; None if it is missing or damaged."""
    with suppress(FileNotFoundError):
        return LeaderEpochs.from_bytes(files.read_bytes(f"{directory}/{LEADER_EPOCHS}"))
    return None


def _read_epochs(
    files: Files, directory: str, segments: list[Segment], log_start: int, end: int
) -> LeaderEpochs:
    """The leader epochs between two offsets: from their file, and where it says nothing from the
    batches. The file may be missing or damaged, or know a later log start than the log itself."""
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
    """Say that a log begins earlier than when its leader epochs were saved: the first of them moves
    with the log start. Batches of old formats, before all epochs, have none."""
    if not segments or saved_start <= log_start:
        return
    first = segments[0].header_at(BEGINNING)
    if first is not None and first.leader_epoch >= 0:
        logger.warning(
            "%s begins at offset %d, although it began at offset %d when its leader epochs were "
            "saved: deleted records may be served again; if the log start checkpoint was damaged or "
            "replaced, move the start with `kbroker topic trim`",
            directory,
            log_start,
            saved_start,
        )


def _entries_agree(segments: list[Segment], entries: list[tuple[int, int]], log_start: int) -> bool:
    """Whether the batches around the start of each epoch have the epochs that they should have.

    The file has no checksum, and batches are measured by what it says.
    """
    batches = _EpochsOfBatches(segments)
    before = None
    for epoch, start in entries:
        # The last offsets of an epoch may have been compacted away.
        if before is not None and start > log_start and batches.at(start - 1) not in (None, before):
            return False
        if batches.at(start) not in (None, epoch):
            return False
        before = epoch
    return True


class _EpochsOfBatches:
    """The epochs that batches carry, asked for at offsets that rise.

    Each look-up goes on where the one before ended: every start after a crash is an epoch, and a
    segment that was never closed has no index, so that many could walk it from its beginning.
    """

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._number = -1
        self._position = BEGINNING

    def at(self, offset: int) -> int | None:
        """The epoch of the batch that has `offset`; None when there is none."""
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
    """Of the batches before an offset. What stands behind it, and may be torn, is not looked at."""
    for segment in segments:
        if segment.base_offset >= end:
            return
        for position, header in segment.headers():
            yield segment, position, header
            if header.next_offset >= end:
                return


def _look_at_ends(segments: list[Segment], end_offset: int, gaps_allowed: bool) -> None:
    """Make sure that each segment reaches up to the next one, and the last up to `end_offset`.

    They know their latest times then. Only the last few kB of each segment are looked at.
    """
    starts = [segment.base_offset for segment in segments[1:]] + [end_offset]
    for segment, wanted in zip(segments, starts, strict=False):
        with segment.file.held_open():
            end = segment.find_end()
            if end > wanted or (end < wanted and not gaps_allowed):
                raise CorruptLogError(
                    segment.log_path,
                    segment.size,
                    f"it ends at offset {end}, the log goes on at {wanted}",
                )
            segment.load_latest()


def _check_first(
    files: Files, log: Log, segments: list[Segment], known: Offsets, marks: list[LogStartMark]
) -> None:
    """Raise CorruptLogError if records are missing before the first segment.

    They are if a sync had covered some from the log start on. Otherwise the log was begun at a later
    offset, as a follower does that is too far behind, and a crash came before the checkpoint. Apache
    Kafka checkpoints no log start at which a segment begins, but its leader epochs begin there. On a
    full disk, a mark is left before segments are deleted without a checkpoint.
    """
    if not segments or not segments[0].base_offset > known.log_start < known.recovery_point:
        return
    if any(mark.offset >= segments[0].base_offset for mark in marks):
        return
    saved = _saved_epochs(files, log.directory)
    if saved is None or not saved.entries or saved.entries[0][1] < segments[0].base_offset:
        path = f"{log.directory}/{file_name(known.log_start, LOG)}"
        reason = (
            f"it is missing: the log starts at offset {known.log_start}, and the first segment that is "
            f"there at {segments[0].base_offset}"
        )
        raise CorruptLogError(path, 0, reason)


def _warn_of_lost_end(log: Log, end: int, known: Offsets) -> None:
    """Say which records consumers could read before and cannot read now."""
    if end < known.high_watermark:
        logger.warning(
            "%s ends at offset %d, although consumers could read up to offset %d: %d records are "
            "gone; if that was not a power cut with flush.policy=os or interval, stop the server and "
            "restore the directory from a copy",
            log.directory,
            end,
            known.high_watermark - 1,
            known.high_watermark - end,
        )


def _check_clean(log: Log, segments: list[Segment], known: Offsets) -> int:
    """The end offset of a log that was closed properly; its segments know their latest times."""
    if not segments:
        if known.recovery_point > known.log_start:
            path = f"{log.directory}/{file_name(known.log_start, LOG)}"
            raise CorruptLogError(path, 0, f"it is missing, {known.recovery_point} was synced")
        return known.log_start
    last = segments[-1]
    _look_at_ends(segments[:-1], last.base_offset, log.segment_rules.gaps_allowed)
    end = last.find_end()
    if end < known.recovery_point:
        reason = f"it ends at offset {end}, {known.recovery_point} was synced"
        raise CorruptLogError(last.log_path, last.size, reason)
    return end


class _Recovery:
    """One run over what may be torn."""

    def __init__(
        self,
        files: Files,
        log: Log,
        segments: list[Segment],
        known: Offsets,
        *,
        durable: bool,
        cut: Cut | None,
    ) -> None:
        self._files = files
        self._log = log
        self._segments = segments
        self._durable = durable
        self._cut = cut
        self._point = known.recovery_point
        self._log_start = max(known.log_start, segments[0].base_offset if segments else 0)
        self._gaps_allowed = log.segment_rules.gaps_allowed
        self.epochs = LeaderEpochs()
        self.scanned: list[Segment] = []
        self.recovered_bytes = 0

    def run(self) -> int:
        """Find the end of the log, cut what is behind it, make the rest durable.

        Returns the end offset.
        """
        segments = self._segments
        bases = [segment.base_offset for segment in segments]
        first = max(bisect_right(bases, self._point) - 1, 0)
        self._check_below(first)
        # Before anything is looked up in the first segment: its index must not lead into what is
        # behind the recovery point.
        starts = [
            segment.begin_scan(max(self._point, segment.base_offset))
            for segment in segments[first:]
        ]
        self.epochs = _read_epochs(
            self._files, self._log.directory, segments, self._log_start, self._point
        )
        end, cut = max(self._point, self._log_start), False
        for number in range(first, len(segments)):
            segment = segments[number]
            if number > first and not self._follows(segment, end):
                position = segments[number - 1].size
                self._cut_after(number - 1, position, end)
                cut = True
                break
            self.scanned.append(segment)
            end, position = self._scan(segment, *starts[number - first])
            if position < segment.size:
                self._cut_after(number, position, end)
                cut = True
                break
        if cut or (end > self._point and not self._durable):
            for segment in self._segments[first:]:
                sync_file(self._files, segment.log_path)
            self._files.sync_dir(self._log.directory)
            self._files.sync_dir(self._log.directory.rpartition("/")[0])
        return end

    def _check_below(self, first: int) -> None:
        """Everything up to the segment that holds the recovery point must be there."""
        segments = self._segments
        if segments:
            _look_at_ends(segments[:first], segments[first].base_offset, self._gaps_allowed)
        elif self._point > self._log_start:
            path = f"{self._log.directory}/{file_name(self._log_start, LOG)}"
            raise CorruptLogError(path, 0, f"it is missing, offset {self._point} was synced")

    def _follows(self, segment: Segment, end: int) -> bool:
        base = segment.base_offset
        return base == end or (base > end and self._gaps_allowed)

    def _scan(self, segment: Segment, start: Position, offset: int) -> tuple[int, Position]:
        """Check and index the batches from a position on, whose offset is given.

        Returns offset and position behind the last sound batch.
        """
        position = start
        for header in self._sound_batches(segment, start, offset):
            segment.scanned(position, header)
            if offset >= self._point and header.leader_epoch > self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            position += header.size
            offset = header.next_offset
        if offset < self._point:
            raise CorruptLogError(
                segment.log_path,
                position,
                f"no sound batch at offset {offset}, {self._point} was synced",
            )
        segment.checks.checked(start, position)
        self.recovered_bytes += position - start
        return offset, position

    def _sound_batches(
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
                if not _plausible(header, segment.size - position):
                    return
                gap = header.base_offset - offset
                if gap < 0 or (gap and not self._gaps_allowed):
                    return
                if offset < self._point and not self._is_known_epoch(header):
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

    def _cut_after(self, number: int, position: Position, end: int) -> None:
        """End the log in segment `number` at `position`; keep what may be worth something."""
        assert end >= self._point, "what was synced is cut"
        segment = self._segments[number]
        keep_all, cut = self._cut is not None, self._cut or Cut()
        tail = _read_from(self._files, segment.log_path, position)
        if cut.find(tail) or (tail and keep_all):
            path = f"{segment.log_path}.{position}{CORRUPT}"
            self._files.write_atomic(path, tail)
            cut.paths.append(path)
        for later in self._segments[number + 1 :]:
            data = _read_from(self._files, later.log_path, BEGINNING)
            if cut.find(data) or (data and keep_all):
                path = later.log_path + CORRUPT
                self._files.rename(later.log_path, path)
                cut.paths.append(path)
            later.remove()
        del self._segments[number + 1 :]
        segment.cut_file(position)
        if position == 0:
            segment.remove_indexes()
        if cut.paths:
            logger.warning(
                "%s ends at offset %d: a batch behind it is damaged. %d later records, which no "
                "sync is known to cover, are kept in %s",
                self._log.directory,
                end,
                cut.records,
                f"{cut.paths[0]} and {len(cut.paths) - 1:,} more files"
                if len(cut.paths) > 1
                else cut.paths[0],
            )
        elif tail:
            logger.info("%s: %d torn bytes cut at offset %d", self._log.directory, len(tail), end)


def _is_sound(files: Files, segment: Segment) -> bool:
    """Return True if every batch of a segment matches its CRC."""
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


def _plausible(header: BatchHeader, room: int) -> bool:
    return (
        header.magic == MAGIC
        and HEADER_SIZE <= header.size <= room
        and header.last_offset_delta >= 0
    )
