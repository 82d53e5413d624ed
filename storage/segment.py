"""One segment of a log: its `.log` file, appends to it, and reads of what it holds.

A segment holds the batches of a partition from its base offset on, one after the other. The newest
segment of a log is *active*: its indexes grow in memory, and its file stays open while it is in use.
Older ones are *sealed*: nothing of them is open, and their indexes are loaded when they are asked for.

Positions that reads and syncs end at are remembered for a while (`mark`), so that a consumer at the
end of the log is served without looking anything up.

What belongs to a segment has owners of its own: its file (`segment_file`), the indexes that say where
batches are (`segment_indexes`), the aborted transactions (`aborted_index`), and what was looked
through for damage (`segment_checks`). What was read from disk is not believed: indexes are built anew
when they turn out to be wrong, and bytes are looked through before they are served for the first time
(what this process wrote needs neither).
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
from .segment_indexes import Latest, SegmentIndexes, WrongIndexError
from .sync import SyncItem

NEVER = 1 << 62
"""A time (ms) that does not come."""

FULL = -2
"""A time that every batch is later than, even one without timestamps (-1)."""

UNTIMED = -3
"""For a segment whose first batch has no timestamp. Its age counts from `created_ms`, as in Kafka, so
each append compares the clock."""

_FAR_BEHIND = Position(1 << 62)
"""A position that no file reaches."""

_MARKS_MAX = 64
FEW_BYTES = 64 * 1024

Found = TypeVar("Found")


class SegmentRules(NamedTuple):
    """What a segment has to know of its topic.

    Its indexes get an entry for every `index_interval_bytes` of records and have at most
    `index_bytes`. `gaps_allowed`: compaction may have removed batches.
    """

    index_interval_bytes: int
    index_bytes: int
    gaps_allowed: bool


class Slice(NamedTuple):
    """Whole batches read from a log.

    `first_offset` is that of the first batch, which may lie before the offset that was asked for;
    reading goes on at `next_offset`. `size` is in bytes; without records it is 0.
    """

    records: FileRange | bytes
    first_offset: int
    next_offset: int
    size: int


class Segment:
    """The batches of one partition from `base_offset` up to the next segment.

    `size` is in bytes; `end_offset` is behind the last record; `max_timestamp` is the greatest of
    all batches (ms, -1 for none) and stands in the batch whose last record is
    `max_timestamp_offset`; `seen_ms` is when this broker last had to do with it, kept where there are
    no timestamps; a batch with a time after `roll_at_ms` belongs into another segment. `created_ms` is
    when this process first appended to it, -1 before that.
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
        self._marks: dict[int, Position] = {}  # by offset, batch borders only
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
        """A new, empty, active segment; its file is made at once.

        `suffix` ends the names of its files while it is not part of a log; `open_segments` bounds
        how many such files stay open, None for no bound.
        """
        segment = cls(files, directory, base_offset, rules, suffix)
        for path in segment.index_paths:
            files.remove(path)  # of an earlier life that a crash brought back
        segment.file.unseal(open_segments)
        segment.file.create()
        segment.indexes.begin()
        segment.aborted.begin()
        return segment

    @classmethod
    def load(
        cls, files: Files, directory: str, base_offset: int, rules: SegmentRules, suffix: str = ""
    ) -> Segment:
        """A sealed segment that exists; nothing but the size of its file is looked at."""
        segment = cls(files, directory, base_offset, rules, suffix)
        segment.size = Position(files.size(segment.log_path))
        segment.checks.distrust(segment.size)
        return segment

    @property
    def log_path(self) -> str:
        """The file of the records."""
        return self.file.path

    @property
    def index_paths(self) -> list[str]:
        """The files beside the records; not all of them need to exist."""
        return [*self.indexes.paths, self.aborted.path]

    @property
    def latest_ms(self) -> int:
        """How young the segment is: its greatest timestamp, or when it was seen without one."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.seen_ms

    # -- appending

    def append(
        self, parts: Sequence[Buffer], length: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Add one batch of `length` bytes. Raises StorageError and changes nothing then."""
        file = self.file.opened or self.file.keep_open(self.size)
        assert file.size == self.size, "the file does not end where its segment does"
        assert last_offset >= self.end_offset, "offsets do not rise"
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

    def seal(self) -> list[SyncItem]:
        """End appending; returns the index writes that make the segment complete on disk."""
        self.indexes.add_latest(self._latest)
        self.file.seal()
        return self.unsaved()

    def unsaved(self) -> list[SyncItem]:
        """Writes that bring the index files up to what is in memory."""
        return self.indexes.unsaved() + self.aborted.unsaved()

    def close(self) -> None:
        """Give up the open file; ranges that are alive keep it."""
        self.file.is_sealed = True
        self.file.close()

    def remove(self) -> None:
        """Remove all files of the segment, the records first."""
        self.file.close()
        self._files.remove(self.log_path)
        self.remove_indexes()

    def remove_indexes(self) -> None:
        """Remove the files of the indexes."""
        for path in self.index_paths:
            self._files.remove(path)

    def load_cleaned(self, end_offset: int, max_timestamp: int, max_timestamp_offset: int) -> None:
        """Get a segment that compaction has just written ready for `take_place`."""
        self.end_offset = end_offset
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset
        self._with_indexes(lambda batches: self.indexes.load(batches.size))
        _ = self.aborted.entries
        self.checks.checked(BEGINNING, self.size)

    def take_place(self) -> None:
        """Put the records of a segment with a suffix under their name, over what is there.

        The indexes must be in memory (`load_cleaned`). They follow with `unsaved`; until then the
        files beside the records are those of what was there before, which no look-up believes.
        Raises StorageError.
        """
        assert self.indexes.in_memory
        assert self.aborted.in_memory
        self._files.rename(self.log_path, self._path + LOG)
        self.file.path = self._path + LOG
        self.indexes.take_place()
        self.aborted.take_place()

    # -- going on with what is there

    def open_for_append(self, open_segments: OpenSegments | None = None) -> None:
        """Make a loaded segment the active one; its file is opened by the first append.

        `open_segments` as for `create`. Raises CorruptLogError.
        """
        self._resume()
        self.file.unseal(open_segments)

    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch (ms); -1 without one."""
        header = self.header_at(BEGINNING)
        return header.max_timestamp if header is not None else -1

    def _resume(self) -> None:
        """Find out what `append` would know had it written the batches."""
        start, _ = self.begin_scan(self.base_offset + RELATIVE_OFFSET_MAX)
        for position, header in self.headers(start):
            self.scanned(position, header)

    def begin_scan(self, offset: int) -> tuple[Position, int]:
        """Forget what the indexes say from `offset` on, so that `scanned` can say it anew.

        Returns position and offset of the batch to begin with, which is a little before `offset`.
        """
        position, start_offset, since_index, latest = self.indexes.resume(self._batches(), offset)
        self.max_timestamp, self.max_timestamp_offset = latest
        self._since_index = since_index
        self.end_offset = start_offset
        self._marks.clear()
        return position, start_offset

    def scanned(self, position: Position, header: BatchHeader) -> None:
        """Do for a batch that is in the file already what `append` does for a new one."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._since_index > self._rules.index_interval_bytes:
            self._index(header.last_offset, position)
        self._since_index += header.size
        self.end_offset = header.next_offset

    def cut_file(self, position: Position) -> None:
        """Cut the file of a segment that was scanned up to there; not durable yet."""
        file = self.file.reader()
        file.truncate(position)
        self.size = position
        self.checks.checked(position, _FAR_BEHIND)

    def truncate(self, position: Position) -> None:
        """Cut at a batch border; the segment must be active.

        The file stays open for the sync that makes the cut durable.
        """
        file = self.file.opened or self.file.keep_open(self.size)
        file.truncate(position)
        self.size = position
        self.indexes.offsets.truncate(position)
        self.checks.checked(position, _FAR_BEHIND)
        self._resume()

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
        """Whole batches, from the one that contains `offset` and before the offset `limit`.

        `end_offset` is where the next segment begins; the rest as for `Log.read`. Raises
        CorruptLogError.
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
            stop, next_offset = self.cut(start, start + max_bytes, at_least_one=at_least_one)
            if stop == start:
                return Slice(b"", offset, offset, 0)
        self.mark(next_offset, stop)
        # An answer may have records of many partitions, each of which would keep a descriptor.
        few = self.file.opened is None and stop - start <= FEW_BYTES
        found = self.range(start, stop - start, epochs)
        return Slice(found.read() if few else found, first, next_offset, stop - start)

    def range(self, position: Position, size: int, epochs: LeaderEpochs) -> FileRange:
        """Bytes between two batch borders, looked through for damage if nobody did yet.

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
            lambda _: self.checks.look_through(
                batches, self.indexes, start, end, end_offset=self.end_offset, epochs=epochs
            )
        )

    def mark(self, offset: int, position: Position) -> None:
        """Remember that `offset` is where the batch at `position` begins."""
        marks = self._marks
        if len(marks) >= _MARKS_MAX:
            marks.clear()
        marks[offset] = position

    def find(self, offset: int, start: Position = BEGINNING) -> tuple[Position, int]:
        """Position and base offset of the first batch that ends at or behind `offset`.

        Behind the last batch this is the size of the segment and `offset` itself. `start` is a
        batch border that is known to lie at or before what is looked for.
        """
        position = self._marks.get(offset)
        if position is not None:
            return position, offset
        return self._with_indexes(lambda batches: self.indexes.find(batches, offset, start))

    def cut(self, start: Position, limit: Position, *, at_least_one: bool) -> tuple[Position, int]:
        """The last batch border at or before the position `limit`, and the offset there.

        With `at_least_one` it is at least the end of the batch at `start`.
        """
        return self._with_indexes(
            lambda batches: self.indexes.cut(batches, start, limit, at_least_one=at_least_one)
        )

    def headers(self, start: Position = BEGINNING) -> Iterator[tuple[Position, BatchHeader]]:
        """Walk from a batch border: position and header of each batch. Raises CorruptLogError."""
        return self._batches().headers(start)

    def header_at(self, position: Position) -> BatchHeader | None:
        """The header of the batch at a border; None behind the last one."""
        return self._batches().header_at(position)

    def batch(self, position: Position, size: int, epochs: LeaderEpochs) -> bytes:
        """The bytes of one batch. Raises CorruptLogError."""
        return self.range(position, size, epochs).read()

    def older_until(self, timestamp: int) -> int:
        """An offset up to which, as far as is known without a walk, everything is older (ms)."""
        return self._with_indexes(lambda batches: self.indexes.older_until(batches, timestamp))

    def _with_indexes(self, look: Callable[[Batches], Found]) -> Found:
        """Look something up; once more if the indexes turn out to be wrong."""
        try:
            return look(self._batches())
        except WrongIndexError:
            waiting(self.rebuild_indexes)
        try:
            return look(self._batches())
        except WrongIndexError:
            raise CorruptLogError(self.log_path, 0, "it changes while it is read") from None

    # -- what was there before

    def scrub(self, bytes_max: int, epochs: LeaderEpochs) -> int:
        """Look for damage in about `bytes_max` bytes that nobody looked at; returns how many."""
        unchecked = self.checks.first_unchecked
        if unchecked is None:
            return 0
        start, end = unchecked
        if end - start > bytes_max:
            end, _ = self.cut(start, start + bytes_max, at_least_one=True)
        self._check(self._batches(), start, end, epochs)
        return end - start

    def find_end(self) -> int:
        """Find `end_offset` of a loaded segment; walks the few kB behind the last index entry.

        Raises CorruptLogError when the file does not end with a batch.
        """
        self.end_offset = self._with_indexes(self.indexes.end)
        return self.end_offset

    def load_latest(self) -> None:
        """Find `max_timestamp` of a loaded segment; walks the few kB behind the last index entry.

        Raises CorruptLogError.
        """
        try:
            self.max_timestamp, self.max_timestamp_offset = self.indexes.latest(self._batches())
        except WrongIndexError:
            self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Build the offset and time index anew from the batches. Raises CorruptLogError."""
        end_offset = self.end_offset
        self.indexes.begin()
        self.begin_scan(self.base_offset)
        for position, header in self.headers():
            self.scanned(position, header)
        if self.file.is_sealed:
            self.indexes.add_latest(self._latest)
        self.end_offset = max(end_offset, self.end_offset)
        self.indexes.is_trusted = True

    def release_indexes(self) -> None:
        """Drop the indexes of a sealed segment from memory once they are saved."""
        if self.file.is_sealed:
            self.indexes.release()
            self._marks.clear()
