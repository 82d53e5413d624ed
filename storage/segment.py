"""One `.log` file and its indexes: append, find, cut, check.

A segment holds the batches of a partition from its base offset on, one after the other. The newest
segment of a log is *active*: its indexes grow in memory, and its file stays open from its first
append until it has been idle for long (see `open_segments`). Older ones are *sealed*: nothing of them
is open. Where no file is open, a read opens it for as long as the range lives; indexes are loaded
when they are asked for.

Positions that reads and syncs end at are remembered for a while (`mark`), so that a consumer at the
end of the log is served without looking anything up.

What was read from disk is not believed: an index entry is compared with the batch that it names,
and the index is built anew when they differ; bytes are looked through before they are served for
the first time (what this process wrote needs neither).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from kbroker.protocol.records import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    FoundRecord,
    read_header,
    read_records,
)

from .batches import Intervals, Place, check, walk, walk_headers
from .epochs import LeaderEpochs
from .errors import CorruptLogError, StorageError
from .files import Buffer, File, FileRange, Files
from .index import (
    ABORTED_ENTRY_SIZE,
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    aborted_before,
)
from .naming import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, file_name
from .open_segments import OpenSegments
from .sync import FileWrite, FolderSync, SyncItem

NEVER = 1 << 62
"""A time (ms) that does not come."""

FULL = -2
"""A time that every batch is later than, even one without timestamps (-1)."""

RELATIVE_OFFSET_MAX = (1 << 31) - 1
_MARKS_MAX = 64
_LATEST_WALK = 64 * 1024
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


class _WrongIndexError(Exception):
    """An index that was read from disk does not fit its segment."""


class Segment:
    """The batches of one partition from `base_offset` up to the next segment.

    `size` is in bytes; `end_offset` is behind the last record; `max_timestamp` is the greatest of
    all batches (ms, -1 for none) and stands in the batch whose last record is
    `max_timestamp_offset`; `seen_ms` is when this broker last had to do with it, kept where there are
    no timestamps; a batch with a time after `roll_at_ms` belongs into another segment.
    `dirty` says that bytes were appended after the last sync began.
    """

    __slots__ = (
        "_aborted",
        "_aborted_saved",
        "_aborted_torn",
        "_file",
        "_files",
        "_lost",
        "_marks",
        "_offsets",
        "_offsets_saved",
        "_open_segments",
        "_path",
        "_rules",
        "_sealed",
        "_since_index",
        "_suffix",
        "_syncing",
        "_times",
        "_times_saved",
        "_trusted",
        "_unchecked",
        "_used",
        "base_offset",
        "dirty",
        "end_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "roll_at_ms",
        "seen_ms",
        "size",
    )

    def __init__(
        self,
        files: Files,
        folder: str,
        base_offset: int,
        rules: SegmentRules,
        suffix: str = "",
    ) -> None:
        self._files = files
        self._path = f"{folder}/{file_name(base_offset, '')}"
        self._suffix = suffix
        self._rules = rules
        self._file: File | None = None
        self._open_segments: OpenSegments | None = None
        self._used = False  # since somebody last asked for its descriptor
        self._syncing = False  # in another thread, perhaps
        self._lost: StorageError | None = None  # why bytes may be lost that no sync has told of
        self._sealed = True
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self._offsets_saved = 0  # entries that stand in the file already
        self._times_saved = 0
        self._aborted_saved = 0
        self._aborted_torn = False  # behind them stands something else
        self._since_index = 0
        self._marks: dict[int, int] = {}  # offset -> position, batch borders only
        self._unchecked = Intervals(0)  # where nobody looked for damage yet
        self._trusted = True  # the indexes were made here, not read from disk
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.roll_at_ms = NEVER
        self.seen_ms = -1
        self.dirty = False

    @classmethod
    def create(
        cls,
        files: Files,
        folder: str,
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
        segment = cls(files, folder, base_offset, rules, suffix)
        for path in segment.index_paths:
            files.remove(path)  # of an earlier life that a crash brought back
        segment._open_segments = open_segments
        file = segment._keep_open(files.open(segment.log_path, create=True))
        if file.size:
            file.truncate(0)
        segment._sealed = False
        segment._offsets, segment._times, segment._aborted = OffsetIndex(), TimeIndex(), []
        return segment

    @classmethod
    def load(
        cls, files: Files, folder: str, base_offset: int, rules: SegmentRules, suffix: str = ""
    ) -> Segment:
        """A sealed segment that exists; nothing but the size of its file is looked at."""
        segment = cls(files, folder, base_offset, rules, suffix)
        segment.size = files.size(segment.log_path)
        segment._unchecked = Intervals(segment.size)
        return segment

    @property
    def log_path(self) -> str:
        return self._name(LOG)

    @property
    def index_paths(self) -> list[str]:
        """The files beside the records; not all of them need to exist."""
        return [self._name(kind) for kind in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)]

    def _name(self, kind: str) -> str:
        return self._path + kind + self._suffix

    @property
    def latest_ms(self) -> int:
        """How young the segment is: its greatest timestamp, or when it was seen without one."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.seen_ms

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index, loaded or rebuilt when it is not in memory."""
        if self._offsets is None:
            self._load_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index, loaded or rebuilt when it is not in memory."""
        if self._times is None:
            self._load_indexes()
        assert self._times is not None
        return self._times

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Transactions whose abort marker is in this segment, in order of their markers.

        Raises CorruptLogError: without the index what was aborted would look committed.
        """
        if self._aborted is None:
            data = self._read_aborted()
            found = aborted_before(data, self.base_offset + RELATIVE_OFFSET_MAX)
            if len(found) * ABORTED_ENTRY_SIZE != len(data):
                path, position = self._name(TXN_INDEX), len(found) * ABORTED_ENTRY_SIZE
                raise CorruptLogError(path, position, "no entry of an aborted transaction")
            self._aborted, self._aborted_saved = found, len(found)
        return self._aborted

    def forget_aborted(self, offset: int) -> None:
        """Forget the abort markers from `offset` on: a crash or a cut made what is known unsure."""
        data = self._read_aborted()
        self._aborted = aborted_before(data, offset)
        self._aborted_saved = len(self._aborted)
        self._aborted_torn = len(data) > self._aborted_saved * ABORTED_ENTRY_SIZE

    def _read_aborted(self) -> bytes:
        try:
            return self._files.read_bytes(self._name(TXN_INDEX))
        except FileNotFoundError:
            return b""

    # -- appending

    def append(
        self, parts: Sequence[Buffer], length: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Add one batch of `length` bytes. Raises StorageError and changes nothing then."""
        file = self._file or self._keep_open(self._files.open(self.log_path))
        position = file.append(parts)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_index > self._rules.index_interval_bytes:
            self._index(last_offset, position)
        self._since_index += length
        self.size = position + length
        self.end_offset = last_offset + 1

    def _index(self, last_offset: int, position: int) -> None:
        assert self._offsets is not None
        assert self._times is not None
        self._offsets.append(last_offset - self.base_offset, position)
        self._index_latest()
        self._since_index = 0
        if (len(self._offsets) + 2) * TIME_ENTRY_SIZE > self._rules.index_bytes:
            self.roll_at_ms = FULL

    def _index_latest(self) -> None:
        assert self._times is not None
        if self.max_timestamp >= 0:
            self._times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def seal(self) -> list[SyncItem]:
        """End appending; returns the index writes that make the segment complete on disk."""
        self._index_latest()
        self._sealed = True
        if self._is_durable():
            self._close_file()
        return self.unsaved()

    def unsaved(self) -> list[SyncItem]:
        """Writes that bring the index files up to what is in memory."""
        writes: list[SyncItem] = []
        if self._offsets is not None and self._times is not None:
            # Times first: where the offset index goes on, the time index must not end before.
            at, self._times_saved = self._times_saved, len(self._times)
            data = self._times.to_bytes(at)
            path = self._name(TIME_INDEX)
            writes.append(FileWrite(self._files, path, at * TIME_ENTRY_SIZE, data))
            at, self._offsets_saved = self._offsets_saved, len(self._offsets)
            data = self._offsets.to_bytes(at)
            path = self._name(OFFSET_INDEX)
            writes.append(FileWrite(self._files, path, at * OFFSET_ENTRY_SIZE, data))
        return writes + self.unsaved_aborted()

    def unsaved_aborted(self) -> list[SyncItem]:
        """The part of `unsaved` that is about aborted transactions."""
        aborted, at = self._aborted, self._aborted_saved
        if aborted is None or not (len(aborted) > at or self._aborted_torn):
            return []
        self._aborted_saved, self._aborted_torn = len(aborted), False
        data = b"".join(entry.to_bytes() for entry in aborted[at:])
        write = FileWrite(self._files, self._name(TXN_INDEX), at * ABORTED_ENTRY_SIZE, data)
        if at:
            return [write]
        # The name of a new file must be durable before something relies on it.
        return [write, FolderSync(self._files, self._path.rpartition("/")[0])]

    def sync(self) -> None:
        """Make durable what was appended until now. Any thread may call it. Raises StorageError."""
        # In this order: a segment that is not dirty is durable, or says that it is being synced.
        self._syncing = self._used = True
        self.dirty = False
        file = self._file
        if file is not None:
            file.sync()
        if self._lost is not None:
            raise self._lost
        self._syncing = False
        if self._sealed:
            self._close_file()

    def _is_durable(self) -> bool:
        """Whether nothing waits for a sync, not even for one that runs in another thread."""
        return not self.dirty and not self._syncing

    def let_go(self, *, at_once: bool) -> bool:
        """Close the file, which the next append opens again; returns whether it is closed.

        Unless it must be `at_once`, not when it was used since this was asked last, and not before
        a sync has made its bytes durable.
        """
        if not at_once and (self._used or not self._is_durable()):
            self._used = False
            return False
        if self.dirty:
            if not self._sync_apart():
                return False
        elif self._syncing:
            return False
        self._close_file()
        return True

    def _sync_apart(self) -> bool:
        """Sync without taking an error away from a sync pass in another thread: the system tells
        it once for each descriptor. Returns whether a descriptor was to be had."""
        try:
            file = self._files.open(self.log_path)
        except StorageError:
            return False
        try:
            file.sync()
        except StorageError as error:
            self._lost = error
        file.close()
        return True

    def _keep_open(self, file: File) -> File:
        self._file = file
        if self._open_segments is not None:
            self._open_segments.opened(self)
        return file

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
            if self._open_segments is not None:
                self._open_segments.closed(self)

    def close(self) -> None:
        """Give up the open file; ranges that are alive keep it."""
        self._sealed = True
        self._close_file()

    def remove(self) -> None:
        """Remove all files of the segment, the records first."""
        self._close_file()
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
        self._load_indexes()
        _ = self.aborted
        self.checked(0, self.size)

    def take_place(self) -> None:
        """Put the records of a segment with a suffix under their name, over what is there.

        The indexes must be in memory. They follow with `unsaved`; until then the files beside the
        records are those of what was there before, which no look-up believes. Raises StorageError.
        """
        assert self._offsets is not None
        assert self._times is not None
        assert self._aborted is not None
        self._files.rename(self.log_path, self._path + LOG)
        self._suffix = ""
        self._offsets_saved = self._times_saved = self._aborted_saved = 0

    # -- going on with what is there

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Open the file once for everything that is looked up meanwhile. Raises CorruptLogError."""
        self._file = self._reader()
        try:
            yield
        finally:
            self._close_file()

    def open_for_append(self, open_segments: OpenSegments | None = None) -> None:
        """Make a loaded segment the active one; its file is opened by the first append.

        `open_segments` as for `create`. Raises CorruptLogError.
        """
        self._resume()
        self._open_segments = open_segments
        self._sealed = False

    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch (ms); -1 without one."""
        header = self._header_at(0)
        return header.max_timestamp if header is not None else -1

    def _resume(self) -> None:
        """Find out what `append` would know had it written the batches."""
        start, _ = self.begin_scan(self.base_offset + RELATIVE_OFFSET_MAX)
        for position, header in self.headers(start):
            self.scanned(position, header)

    def begin_scan(self, offset: int) -> tuple[int, int]:
        """Forget what the indexes say from `offset` on, so that `scanned` can say it anew.

        Returns position and offset of the batch to begin with, which is a little before `offset`.
        """
        if self._offsets is None or self._times is None:
            self._offsets, self._times = self._read_indexes() or (OffsetIndex(), TimeIndex())
        offsets, times = self._offsets, self._times
        slot = offsets.floor(offset - 1 - self.base_offset)
        start, start_offset, size = 0, self.base_offset, 0
        if slot >= 0:
            header = self._header_at(offsets.positions[slot])
            if header and header.last_offset == offsets.offsets[slot] + self.base_offset:
                size = header.size
                start, start_offset = offsets.positions[slot] + size, header.next_offset
        # When one entry is of another life of this file, so may be all others.
        times.truncate(start_offset - self.base_offset)
        self._set_latest(times)
        if slot >= 0 and not self._latest_agrees(start):
            start, start_offset, size = 0, self.base_offset, 0
            times.truncate(0)
            self._set_latest(times)
        offsets.truncate(start)
        self._offsets_saved = min(self._offsets_saved, len(offsets))
        self._times_saved = min(self._times_saved, len(times))
        self._since_index = size
        self.end_offset = start_offset
        self._marks.clear()
        return start, start_offset

    def scanned(self, position: int, header: BatchHeader) -> None:
        """Do for a batch that is in the file already what `append` does for a new one."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._since_index > self._rules.index_interval_bytes:
            self._index(header.last_offset, position)
        self._since_index += header.size
        self.end_offset = header.next_offset

    def cut_file(self, position: int) -> None:
        """Cut the file of a segment that was scanned up to there; not durable yet."""
        file = self._reader()
        file.truncate(position)
        self.size = position
        self._unchecked.remove(position, NEVER)

    def truncate(self, position: int) -> None:
        """Cut at a batch border; the segment must be active.

        The file stays open for the sync that makes the cut durable.
        """
        file = self._file or self._keep_open(self._files.open(self.log_path))
        file.truncate(position)
        self.size = position
        self.offsets.truncate(position)
        self._unchecked.remove(position, NEVER)
        self._resume()

    # -- reading

    def _reader(self) -> File:
        if self._file is not None:
            return self._file
        try:
            return self._files.open(self.log_path)
        except FileNotFoundError:
            raise CorruptLogError(self.log_path, 0, "it is missing") from None

    def range(self, position: int, size: int, epochs: LeaderEpochs) -> FileRange:
        """Bytes between two batch borders, looked through for damage if nobody did yet.

        Raises CorruptLogError.
        """
        file = self._reader()
        self._used = True
        if self._unchecked:
            self._check(file, position, position + size, epochs)
        return file.range(position, size)

    def read(self, position: int, size: int, epochs: LeaderEpochs) -> FileRange | bytes:
        """As `range`, but the bytes themselves when they are few and no file is open for them.

        An answer may have records of many partitions, each of which would keep a descriptor.
        """
        few = self._file is None and size <= FEW_BYTES
        found = self.range(position, size, epochs)
        return found.read() if few else found

    def mark(self, offset: int, position: int) -> None:
        """Remember that `offset` is where the batch at `position` begins."""
        marks = self._marks
        if len(marks) >= _MARKS_MAX:
            marks.clear()
        marks[offset] = position

    def find(self, offset: int) -> tuple[int, int]:
        """Position and base offset of the first batch that ends at or behind `offset`.

        Behind the last batch this is the size of the segment and `offset` itself.
        """
        position = self._marks.get(offset)
        if position is not None:
            return position, offset
        return self._with_index(lambda: self._find(offset))

    def _find(self, offset: int) -> tuple[int, int]:
        for place in self._walk_from(self.offsets.floor(offset - self.base_offset)):
            if place.last_offset >= offset:
                return place.position, place.base_offset
        return self.size, offset

    def cut(self, start: int, limit: int, *, at_least_one: bool) -> tuple[int, int]:
        """The last batch border at or before the position `limit`, and the offset there.

        With `at_least_one` it is at least the end of the batch at `start`.
        """
        return self._with_index(lambda: self._cut(start, limit, at_least_one))

    def _cut(self, start: int, limit: int, at_least_one: bool) -> tuple[int, int]:
        slot = self.offsets.floor_position(limit)
        if slot >= 0 and self.offsets.positions[slot] > start:
            places = self._walk_from(slot)
        else:
            places = walk(self._reader(), start, self.size)
        end, next_offset = start, -1
        for position, size, base, last in places:
            if position + size > limit and not (at_least_one and position == start):
                return position, base
            end, next_offset = position + size, last + 1
        return end, next_offset

    def headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Walk from a batch border: position and header of each batch. Raises CorruptLogError."""
        return walk_headers(self._reader(), start, self.size)

    def batch(self, position: int, size: int, epochs: LeaderEpochs) -> bytes:
        """The bytes of one batch. Raises CorruptLogError."""
        return self.range(position, size, epochs).read()

    # -- times

    def first_record_at_or_after(
        self, timestamp: int, start_offset: int, epochs: LeaderEpochs
    ) -> FoundRecord | None:
        """The first record from `start_offset` on whose time is at least `timestamp` (ms)."""
        older = self._with_index(lambda: self._older_until(timestamp))
        start, _ = self.find(max(older, start_offset))
        for position, header in self.headers(start):
            if header.max_timestamp < timestamp or header.is_control:
                continue
            for record in self._records(position, header, epochs):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return record
        return None

    def _older_until(self, timestamp: int) -> int:
        """An offset up to which, as the time index has it, everything is older."""
        slot = self.times.floor(timestamp - 1)
        if slot < 0:
            return self.base_offset
        reached = self.times.offsets[slot] + self.base_offset
        if not self._trusted:
            header = self._header_at(self._find(reached)[0])
            entry = (reached, self.times.timestamps[slot])
            if header is None or (header.last_offset, header.max_timestamp) != entry:
                raise _WrongIndexError
        return reached

    def latest_record(self, epochs: LeaderEpochs) -> FoundRecord | None:
        """The first record with the greatest timestamp of this segment."""
        if self.max_timestamp < 0:
            return None
        start, _ = self.find(self.max_timestamp_offset)
        place = next(self.headers(start), None)
        if place is not None and not place[1].record_count:
            filled = (place for place in self.headers() if place[1].record_count)
            place = max(filled, key=lambda place: place[1].max_timestamp, default=None)
        if place is None:
            return None
        found = self._records(*place, epochs)
        return max(found, key=lambda record: record.timestamp, default=None)

    def _records(
        self, position: int, header: BatchHeader, epochs: LeaderEpochs
    ) -> Iterator[FoundRecord]:
        for record in read_records(self.batch(position, header.size, epochs)):
            yield FoundRecord(record.offset, record.timestamp, header.leader_epoch)

    # -- looking for damage

    def _check(self, file: File, start: int, end: int, epochs: LeaderEpochs) -> None:
        """Look for damage between two borders, unless that was done.

        What is looked at reaches from one index entry to another one: these say which offsets must
        be there.
        """
        if self._unchecked.overlaps(start, end):
            low, high = self._with_index(lambda: self._check_around(file, start, end, epochs))
            self._unchecked.remove(low, high)

    def _check_around(
        self, file: File, start: int, end: int, epochs: LeaderEpochs
    ) -> tuple[int, int]:
        positions = self.offsets.positions
        slot = self.offsets.floor_position(start)
        after = self.offsets.floor_position(end - 1) + 1
        low = positions[slot] if slot >= 0 else 0
        high = positions[after] if after < len(positions) else self.size
        gaps_allowed = self._rules.gaps_allowed
        first_due, behind_due = self._base_at(slot), self._base_at(after)
        try:
            first, behind = check(file, low, high, epochs, gaps_allowed=gaps_allowed)
            if first != first_due and not (gaps_allowed and slot < 0):
                raise CorruptLogError(self.log_path, low, f"offset {first}, not {first_due}")
            if behind > behind_due or (behind < behind_due and not gaps_allowed):
                reason = f"the batch before ends at {behind}, not at {behind_due}"
                raise CorruptLogError(self.log_path, high, reason)
        except CorruptLogError:
            if self._trusted:
                raise
            raise _WrongIndexError from None
        return low, high

    def _base_at(self, slot: int) -> int:
        """The base offset of the batch of an index entry; of the segment for -1; its end offset
        behind the last entry."""
        if slot < 0:
            return self.base_offset
        if slot == len(self.offsets):
            return self.end_offset
        header = self._header_at(self.offsets.positions[slot])
        if header is None:
            raise _WrongIndexError
        return self.offsets.offsets[slot] + self.base_offset - header.last_offset_delta

    def checked(self, start: int, end: int) -> None:
        """Take note that somebody else looked for damage between two borders."""
        self._unchecked.remove(start, end)

    def distrust(self) -> None:
        """Let all of a sealed segment be looked through once more."""
        self._unchecked = Intervals(self.size)

    @property
    def first_unchecked(self) -> tuple[int, int] | None:
        """The first positions between which nobody looked for damage; None without any."""
        return self._unchecked.first if self._unchecked else None

    def scrub(self, bytes_max: int, epochs: LeaderEpochs) -> int:
        """Look for damage in about `bytes_max` bytes that nobody looked at; returns how many."""
        if not self._unchecked:
            return 0
        start, end = self._unchecked.first
        if end - start > bytes_max:
            end, _ = self.cut(start, start + bytes_max, at_least_one=True)
        self._check(self._reader(), start, end, epochs)
        return end - start

    def find_end(self) -> int:
        """Find `end_offset` of a loaded segment; walks the few kB behind the last index entry.

        Raises CorruptLogError when the file does not end with a batch.
        """
        end = None
        entry = self._last_entry(OFFSET_INDEX, OFFSET_ENTRY_SIZE)
        last = OffsetIndex.from_bytes(entry, self.size) if entry and not self._offsets else None
        try:
            if last is not None:
                end = self._walk_to_end(last)
        except (_WrongIndexError, CorruptLogError):
            pass  # the entry may be to blame: the whole index tells
        if end is None:
            end = self._with_index(lambda: self._walk_to_end(self.offsets))
        self.end_offset = end
        return end

    def _walk_to_end(self, index: OffsetIndex) -> int:
        end = self.base_offset
        for place in self._walk_from(len(index) - 1, index):
            end = place.last_offset + 1
        return end

    # -- indexes

    def _with_index(self, look: Callable[[], Found]) -> Found:
        """Look something up; once more if the index turns out to be wrong."""
        try:
            return look()
        except _WrongIndexError:
            self.rebuild_indexes()
        try:
            return look()
        except _WrongIndexError:
            raise CorruptLogError(self.log_path, 0, "it changes while it is read") from None

    def _walk_from(self, slot: int, index: OffsetIndex | None = None) -> Iterator[Place]:
        """Walk from the batch of an index entry; from the beginning for -1."""
        if slot < 0:
            yield from walk(self._reader(), 0, self.size)
            return
        index = index or self.offsets
        places = walk(self._reader(), index.positions[slot], self.size)
        try:
            first = next(places, None)
        except CorruptLogError:
            if self._trusted:
                raise
            raise _WrongIndexError from None
        if first is None or first.last_offset != index.offsets[slot] + self.base_offset:
            raise _WrongIndexError
        yield first
        yield from places

    def _header_at(self, position: int) -> BatchHeader | None:
        data = self._reader().read(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            return None
        header = read_header(data)
        sound = header.magic == MAGIC and HEADER_SIZE <= header.size <= self.size - position
        return header if sound else None

    def load_latest(self) -> None:
        """Find `max_timestamp` of a loaded segment: the last entry of its time index, if the batch
        it names agrees, and the few kB behind that one."""
        entry = self._last_entry(TIME_INDEX, TIME_ENTRY_SIZE)
        times = TimeIndex.from_bytes(entry) if entry else None
        if times is None:
            self.rebuild_indexes()
            return
        self._set_latest(times)
        if not self._latest_agrees(self.size):
            self.rebuild_indexes()

    def _latest_agrees(self, end: int) -> bool:
        """Whether `max_timestamp` is right for the batches up to a position, as far as a short
        walk tells."""
        if self.max_timestamp < 0:
            return False
        seen = -1
        try:
            start = self._entry_position(self.max_timestamp_offset - self.base_offset)
            for position, header in walk_headers(self._reader(), start, end):
                if header.last_offset == self.max_timestamp_offset:
                    seen = header.max_timestamp
                elif header.max_timestamp > self.max_timestamp:
                    return False
                if position - start > _LATEST_WALK:
                    break
        except (CorruptLogError, FileNotFoundError):
            return False
        return seen == self.max_timestamp

    def _entry_position(self, relative_offset: int) -> int:
        """The position in the last index entry up to an offset, without loading the index."""
        if self._offsets is not None:
            slot = self._offsets.floor(relative_offset)
            return self._offsets.positions[slot] if slot >= 0 else 0
        file = self._files.open(self._name(OFFSET_INDEX))
        low, high = 0, file.size // OFFSET_ENTRY_SIZE
        position = 0
        while low < high:
            middle = (low + high) // 2
            entry = file.read(middle * OFFSET_ENTRY_SIZE, OFFSET_ENTRY_SIZE)
            if int.from_bytes(entry[:4], "big") <= relative_offset:
                position = int.from_bytes(entry[4:], "big")
                low = middle + 1
            else:
                high = middle
        return position

    def _last_entry(self, suffix: str, entry_size: int) -> bytes | None:
        """The last entry of an index file; None when the whole file has to be looked at."""
        try:
            size = self._files.size(self._name(suffix))
            if not size or size % entry_size:
                return None
            entry = self._files.open(self._name(suffix)).read(size - entry_size, entry_size)
        except FileNotFoundError:
            return None
        return entry if entry.strip(b"\0") else None

    def _set_latest(self, times: TimeIndex) -> None:
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        if times.timestamps:
            self.max_timestamp = times.timestamps[-1]
            self.max_timestamp_offset = times.offsets[-1] + self.base_offset

    def _load_indexes(self) -> None:
        found = self._read_indexes()
        if found is None:
            self.rebuild_indexes()
        else:
            self._offsets, self._times = found

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """The indexes as they are on disk; None when one is missing or damaged."""
        self._offsets_saved = self._times_saved = 0
        self._trusted = False
        try:
            offsets = OffsetIndex.from_bytes(
                self._files.read_bytes(self._name(OFFSET_INDEX)), self.size
            )
            times = TimeIndex.from_bytes(self._files.read_bytes(self._name(TIME_INDEX)))
        except FileNotFoundError:
            return None
        if offsets is None or times is None:
            return None
        self._offsets_saved, self._times_saved = len(offsets), len(times)
        return offsets, times

    def rebuild_indexes(self) -> None:
        """Build both indexes anew from the batches. Raises CorruptLogError."""
        end_offset = self.end_offset
        self._offsets, self._times = OffsetIndex(), TimeIndex()
        self._offsets_saved = self._times_saved = 0
        self.begin_scan(self.base_offset)
        for position, header in self.headers():
            self.scanned(position, header)
        if self._sealed:
            self._index_latest()
        self.end_offset = max(end_offset, self.end_offset)
        self._trusted = True

    def release_indexes(self) -> None:
        """Drop the indexes of a sealed segment from memory once they are saved."""
        if self._sealed:
            self._offsets = self._times = None
            self._marks.clear()
