"""One segment of a log: appends to its `.log` file and reads from it.

A segment holds consecutive batches of a partition from its base offset on. The newest segment of a
log is *active*: its indexes grow in memory, and its file is open while in use. Older segments are
*closed* for appends: they have no open file, and their indexes are loaded on demand.

A segment remembers the positions where recent reads and syncs ended (`mark`), so that a consumer at
the log end is served without an index look-up.

Parts of a segment are in other modules: its file (`segment_file`), its offset and time index
(`segment_indexes`), its aborted transactions (`aborted_index`), and its checks for corruption
(`segment_checks`). Data from disk is not trusted. Wrong indexes are rebuilt, and bytes are checked
before they are first served, unless this process wrote them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from kbroker.protocol.records import BatchHeader

from .aborted_index import AbortedIndex
from .batches import BEGINNING, Batches, Position
from .cached import waiting
from .epochs import LeaderEpochs
from .errors import CorruptLogError
from .files import Buffer, FileRange, Files
from .index import RELATIVE_OFFSET_MAX, TIME_ENTRY_SIZE
from .naming import LOG, file_name
from .open_segments import OpenSegments
from .segment_checks import SegmentChecks
from .segment_file import SegmentFile
from .segment_indexes import InvalidIndexError, Latest, SegmentIndexes
from .sync import SyncItem

# A time in ms that never comes.
NEVER = 1 << 62

# A `roll_at_ms` before the timestamp of every batch, even of one without timestamps (-1).
FULL = -2

# A `roll_at_ms` for a segment whose first batch has no timestamp. Its age is measured from
# `created_ms`, as in Kafka, so each append compares the clock.
UNTIMED = -3

# A position after the end of any file.
_AFTER_ANY_FILE = Position(1 << 62)

_MARKS_MAX = 64
# Bytes up to which a read returns bytes instead of a range that keeps the file open.
FEW_BYTES = 64 * 1024

Found = TypeVar("Found")


class SegmentRules(NamedTuple):
    """Topic settings that a segment needs.

    Attributes:
        index_interval_bytes: Bytes of records between two index entries.
        index_bytes: Maximum size of an index in bytes.
        gaps_allowed: True if compaction may have removed offsets.
    """

    index_interval_bytes: int
    index_bytes: int
    gaps_allowed: bool


class Slice(NamedTuple):
    """Whole batches read from a log.

    Attributes:
        records: The batches.
        first_offset: Offset of the first batch, which may be before the requested offset.
        next_offset: Offset at which to continue reading.
        size: Size in bytes; 0 without records.
    """

    records: FileRange | bytes
    first_offset: int
    next_offset: int
    size: int


class Segment:
    """The batches of one partition from `base_offset` up to the next segment.

    Attributes:
        size: Size in bytes.
        end_offset: Offset after the last record.
        max_timestamp: Maximum timestamp of all batches in ms, -1 if there is none.
        max_timestamp_offset: Last offset of the batch with the maximum timestamp.
        roll_at_ms: A batch with a later timestamp needs a new segment.
        seen_ms: Time of the last append or load, used without timestamps.
        created_ms: Time of this process's first append, -1 before it.
    """

    __slots__ = (
        "_files",
        "_marks",
        "_path",
        "_rules",
        "_since_index",
        "aborted",
        "base_offset",
        "checks",
        "created_ms",
        "end_offset",
        "file",
        "indexes",
        "max_timestamp",
        "max_timestamp_offset",
        "roll_at_ms",
        "seen_ms",
        "size",
    )

    def __init__(
        self,
        files: Files,
        directory: str,
        base_offset: int,
        rules: SegmentRules,
        suffix: str = "",
    ) -> None:
        self._files = files
        self._path = f"{directory}/{file_name(base_offset, '')}"
        self._rules = rules
        self._since_index = 0  # bytes
        self._marks: dict[int, Position] = {}  # by offset; batch boundaries only
        self.file = SegmentFile(files, self._path + LOG + suffix)
        self.indexes = SegmentIndexes(files, self._path, base_offset, suffix)
        self.aborted = AbortedIndex(files, self._path, base_offset, suffix)
        self.checks = SegmentChecks(BEGINNING, gaps_allowed=rules.gaps_allowed)
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = BEGINNING
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.roll_at_ms = NEVER
        self.seen_ms = -1
        self.created_ms = -1

    @classmethod
    def create(
        cls,
        files: Files,
        directory: str,
        base_offset: int,
        rules: SegmentRules,
        suffix: str = "",
        *,
        open_segments: OpenSegments | None = None,
    ) -> Segment:
        """Create a new, empty, active segment and its file.

        Args:
            files: File system of the directory.
            directory: Directory of the log.
            base_offset: Offset of the first record.
            rules: Settings of the topic.
            suffix: End of the file names while the segment is not part of a log.
            open_segments: Limits how many active files stay open; None for no limit.
        """
        segment = cls(files, directory, base_offset, rules, suffix)
        for path in segment.index_paths:
            files.remove(path)  # restored by a crash after a deletion
        segment.file.open_for_appends(open_segments)
        segment.file.create()
        segment.indexes.start_empty()
        segment.aborted.start_empty()
        return segment

    @classmethod
    def load(
        cls, files: Files, directory: str, base_offset: int, rules: SegmentRules, suffix: str = ""
    ) -> Segment:
        """Load an existing closed segment; this reads only the size of its file."""
        segment = cls(files, directory, base_offset, rules, suffix)
        segment.size = Position(files.size(segment.log_path))
        segment.checks.mark_unchecked(segment.size)
        return segment

    @property
    def log_path(self) -> str:
        """Path of the `.log` file."""
        return self.file.path

    @property
    def index_paths(self) -> list[str]:
        """Paths of the index files, which may not all exist."""
        return [*self.indexes.paths, self.aborted.path]

    @property
    def latest_ms(self) -> int:
        """Time of the newest record in ms: the maximum timestamp, or else `seen_ms`."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.seen_ms

    # -- appending

    def append(
        self, parts: Sequence[Buffer], length: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Append one batch of `length` bytes. Raises StorageError and then changes nothing."""
        file = self.file.opened or self.file.keep_open(self.size)
        assert file.size == self.size, "the file size differs from the segment size"
        assert last_offset >= self.end_offset, "offsets must increase"
        position = self.size
        file.append(parts)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_index > self._rules.index_interval_bytes:
            self._index(last_offset, position)
        self._since_index += length
        self.size = position + length
        self.end_offset = last_offset + 1

    def _index(self, last_offset: int, position: Position) -> None:
        indexes = self.indexes
        indexes.add(last_offset, position, self._latest)
        self._since_index = 0
        if (len(indexes.offsets) + 2) * TIME_ENTRY_SIZE > self._rules.index_bytes:
            self.roll_at_ms = FULL

    @property
    def _latest(self) -> Latest:
        return Latest(self.max_timestamp, self.max_timestamp_offset)

    def close_for_appends(self) -> list[SyncItem]:
        """Close the segment for appends; return the index writes that complete it on disk."""
        self.indexes.add_latest(self._latest)
        self.file.close_for_appends()
        return self.unsaved()

    def unsaved(self) -> list[SyncItem]:
        """Return the writes that save the indexes from memory."""
        return self.indexes.unsaved() + self.aborted.unsaved()

    def close(self) -> None:
        """Close the file; existing ranges keep it open."""
        self.file.is_closed_for_appends = True
        self.file.close()

    def remove(self) -> None:
        """Remove all files of the segment, the records first."""
        self.file.close()
        self._files.remove(self.log_path)
        self.remove_indexes()

    def remove_indexes(self) -> None:
        """Remove the index files."""
        for path in self.index_paths:
            self._files.remove(path)

    def load_cleaned(self, end_offset: int, max_timestamp: int, max_timestamp_offset: int) -> None:
        """Load a segment that compaction has just written, for `move_to_final_name`."""
        self.end_offset = end_offset
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset
        self._with_indexes(lambda batches: self.indexes.load(batches.size))
        _ = self.aborted.entries
        self.checks.mark_checked(BEGINNING, self.size)

    def move_to_final_name(self) -> None:
        """Rename a segment with a suffix to its final name, replacing the existing one.

        Its indexes must be in memory (`load_cleaned`); `unsaved` returns their writes. Until then
        the index files belong to the replaced segment, and no look-up uses them. Raises
        StorageError.
        """
        assert self.indexes.in_memory
        assert self.aborted.in_memory
        self._files.rename(self.log_path, self._path + LOG)
        self.file.path = self._path + LOG
        self.indexes.move_to_final_name()
        self.aborted.move_to_final_name()

    # -- appending to a loaded segment

    def open_for_append(self, open_segments: OpenSegments | None = None) -> None:
        """Make a loaded segment the active one; the first append opens its file.

        `open_segments` is as in `create`. Raises CorruptLogError.
        """
        self._restore_append_state()
        self.file.open_for_appends(open_segments)

    def first_timestamp(self) -> int:
        """Return the maximum timestamp of the first batch in ms, or -1."""
        header = self.header_at(BEGINNING)
        return header.max_timestamp if header is not None else -1

    def _restore_append_state(self) -> None:
        """Restore the state of `append` from the batches after the last index entry."""
        start, _ = self.begin_scan(self.base_offset + RELATIVE_OFFSET_MAX)
        for position, header in self.headers(start):
            self.add_scanned(position, header)

    def begin_scan(self, offset: int) -> tuple[Position, int]:
        """Drop the index entries from `offset` on, so that `add_scanned` can add them again.

        Returns:
            Position and offset of the batch to start with, a little before `offset`.
        """
        position, start_offset, since_index, latest = self.indexes.resume(self._batches(), offset)
        self.max_timestamp, self.max_timestamp_offset = latest
        self._since_index = since_index
        self.end_offset = start_offset
        self._marks.clear()
        return position, start_offset

    def add_scanned(self, position: Position, header: BatchHeader) -> None:
        """Update indexes and offsets for a batch in the file, as `append` does for a new one."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._since_index > self._rules.index_interval_bytes:
            self._index(header.last_offset, position)
        self._since_index += header.size
        self.end_offset = header.next_offset

    def truncate_file(self, position: Position) -> None:
        """Truncate the file of a segment that was scanned up to `position`; not durable yet."""
        file = self.file.reader()
        file.truncate(position)
        self.size = position
        self.checks.mark_checked(position, _AFTER_ANY_FILE)

    def truncate(self, position: Position) -> None:
        """Truncate an active segment at a batch boundary.

        The file stays open for the sync that makes the truncation durable.
        """
        file = self.file.opened or self.file.keep_open(self.size)
        file.truncate(position)
        self.size = position
        self.indexes.offsets.truncate(position)
        self.checks.mark_checked(position, _AFTER_ANY_FILE)
        self._restore_append_state()

    # -- reading

    def _batches(self) -> Batches:
        return Batches(self.file.reader(), self.size)

    def slice(
        self,
        offset: int,
        max_bytes: int,
        limit: int,
        end_offset: int,
        epochs: LeaderEpochs,
        at_least_one: bool,
    ) -> Slice:
        """Read whole batches, from the one that contains `offset` up to the offset `limit`.

        `end_offset` is the base offset of the next segment; the other parameters are those of
        `Log.read`. Raises CorruptLogError.
        """
        start, first = self.find(offset)
        if limit >= end_offset:
            stop, next_offset = self.size, end_offset
        else:
            stop, _ = self.find(limit)
            next_offset = limit
        if start >= stop:
            return Slice(b"", offset, next_offset, 0)
        if stop - start > max_bytes:
            stop, next_offset = self.find_boundary(
                start, start + max_bytes, at_least_one=at_least_one
            )
            if stop == start:
                return Slice(b"", offset, offset, 0)
        self.mark(next_offset, stop)
        # A response may contain many partitions: do not hold a file descriptor for each.
        few = self.file.opened is None and stop - start <= FEW_BYTES
        found = self.range(start, stop - start, epochs)
        return Slice(found.read() if few else found, first, next_offset, stop - start)

    def range(self, position: Position, size: int, epochs: LeaderEpochs) -> FileRange:
        """Return the bytes between two batch boundaries, after checking them for corruption.

        Raises CorruptLogError.
        """
        file = self.file.reader()
        self.file.used = True
        if self.checks.unchecked:
            self._check(Batches(file, self.size), position, position + size, epochs)
        return file.range(position, size)

    def _check(
        self, batches: Batches, start: Position, end: Position, epochs: LeaderEpochs
    ) -> None:
        self._with_indexes(
            lambda _: self.checks.check_range(
                batches, self.indexes, start, end, end_offset=self.end_offset, epochs=epochs
            )
        )

    def mark(self, offset: int, position: Position) -> None:
        """Remember that the batch with base offset `offset` starts at `position`."""
        marks = self._marks
        if len(marks) >= _MARKS_MAX:
            marks.clear()
        marks[offset] = position

    def find(self, offset: int, start: Position = BEGINNING) -> tuple[Position, int]:
        """Return position and base offset of the first batch that ends at or after `offset`.

        After the last batch, return the size of the segment and `offset` itself. `start` is a batch
        boundary at or before the result.
        """
        position = self._marks.get(offset)
        if position is not None:
            return position, offset
        return self._with_indexes(lambda batches: self.indexes.find(batches, offset, start))

    def find_boundary(
        self, start: Position, limit: Position, *, at_least_one: bool
    ) -> tuple[Position, int]:
        """Return the last batch boundary at or before position `limit`, and its offset.

        With `at_least_one` the boundary is at least the end of the batch at `start`.
        """
        return self._with_indexes(
            lambda batches: self.indexes.find_boundary(
                batches, start, limit, at_least_one=at_least_one
            )
        )

    def headers(self, start: Position = BEGINNING) -> Iterator[tuple[Position, BatchHeader]]:
        """Yield position and header of each batch from a boundary on. Raises CorruptLogError."""
        return self._batches().headers(start)

    def header_at(self, position: Position) -> BatchHeader | None:
        """Return the header of the batch at a boundary, or None after the last one."""
        return self._batches().header_at(position)

    def batch(self, position: Position, size: int, epochs: LeaderEpochs) -> bytes:
        """Return the bytes of one batch. Raises CorruptLogError."""
        return self.range(position, size, epochs).read()

    def offset_before_timestamp(self, timestamp: int) -> int:
        """Return an offset before which the index shows only records before `timestamp` (ms)."""
        return self._with_indexes(
            lambda batches: self.indexes.offset_before_timestamp(batches, timestamp)
        )

    def _with_indexes(self, lookup: Callable[[Batches], Found]) -> Found:
        """Run a look-up; rebuild wrong indexes and retry once."""
        try:
            return lookup(self._batches())
        except InvalidIndexError:
            waiting(self.rebuild_indexes)
        try:
            return lookup(self._batches())
        except InvalidIndexError:
            raise CorruptLogError(self.log_path, 0, "it changed while it was read") from None

    # -- loaded data

    def scrub(self, bytes_max: int, epochs: LeaderEpochs) -> int:
        """Check about `bytes_max` unchecked bytes for corruption; return the number of bytes."""
        unchecked = self.checks.first_unchecked
        if unchecked is None:
            return 0
        start, end = unchecked
        if end - start > bytes_max:
            end, _ = self.find_boundary(start, start + bytes_max, at_least_one=True)
        self._check(self._batches(), start, end, epochs)
        return end - start

    def find_end(self) -> int:
        """Find `end_offset` of a loaded segment; walks the few kB after the last index entry.

        Raises CorruptLogError if the file does not end with a batch.
        """
        self.end_offset = self._with_indexes(self.indexes.end)
        return self.end_offset

    def load_latest(self) -> None:
        """Find `max_timestamp` of a loaded segment; walks the few kB after the last index entry.

        Raises CorruptLogError.
        """
        try:
            self.max_timestamp, self.max_timestamp_offset = self.indexes.latest(self._batches())
        except InvalidIndexError:
            self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Rebuild the offset and time index from the batches. Raises CorruptLogError."""
        end_offset = self.end_offset
        self.indexes.start_empty()
        self.begin_scan(self.base_offset)
        for position, header in self.headers():
            self.add_scanned(position, header)
        if self.file.is_closed_for_appends:
            self.indexes.add_latest(self._latest)
        self.end_offset = max(end_offset, self.end_offset)
        self.indexes.is_trusted = True

    def release_indexes(self) -> None:
        """Drop the indexes of a closed segment from memory once they are saved."""
        if self.file.is_closed_for_appends:
            self.indexes.release()
            self._marks.clear()
