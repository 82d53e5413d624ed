"""The offset and time index of one segment, in memory and on disk.

The indexes grow as batches are appended, are saved later, and are loaded on demand. A look-up walks
at most a few kB from the batch of an index entry.

Loaded indexes are not trusted: each entry that is used is compared with its batch. InvalidIndexError
means that an entry differs from its batch, or that there is no index. The segment then rebuilds its
indexes and retries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .batches import BEGINNING, Batches, Place, Position
from .errors import CorruptLogError
from .files import Files
from .index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from .naming import OFFSET_INDEX, TIME_INDEX
from .sync import FileWrite, SyncItem

# Maximum number of bytes to walk to verify the latest timestamp.
_LATEST_WALK = 64 * 1024


class InvalidIndexError(Exception):
    """An index is missing, or does not fit its segment."""


class Latest(NamedTuple):
    """The maximum timestamp of a segment (ms, -1 for none), and the last offset of its batch."""

    timestamp: int
    offset: int


class Resumed(NamedTuple):
    """The end of the indexed part of a segment.

    Attributes:
        position: Position of the first batch that is not covered.
        offset: Offset of that batch.
        bytes_since_entry: Bytes since the last index entry.
        latest: Maximum timestamp before that batch.
    """

    position: Position
    offset: int
    bytes_since_entry: int
    latest: Latest


class SegmentIndexes:
    """The offset and time index of one segment.

    `is_trusted` is True if they were built by this process, not loaded from disk.

    Args:
        files: File system of the directory.
        path: Path of the segment files without the file extension.
        base_offset: Base offset of the segment.
        suffix: End of the file names while the segment is not part of a log.
    """

    __slots__ = (
        "_base_offset",
        "_files",
        "_offsets",
        "_offsets_saved",
        "_path",
        "_suffix",
        "_times",
        "_times_saved",
        "is_trusted",
    )

    def __init__(self, files: Files, path: str, base_offset: int, suffix: str) -> None:
        self._files = files
        self._path = path
        self._base_offset = base_offset
        self._suffix = suffix
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._offsets_saved = 0  # number of entries that are in the file
        self._times_saved = 0
        self.is_trusted = True

    @property
    def paths(self) -> list[str]:
        """Paths of the index files, which may not exist."""
        return [self._file_path(OFFSET_INDEX), self._file_path(TIME_INDEX)]

    def _file_path(self, kind: str) -> str:
        return self._path + kind + self._suffix

    @property
    def in_memory(self) -> bool:
        return self._offsets is not None

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index, which must be in memory."""
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index, which must be in memory."""
        assert self._times is not None
        return self._times

    # -- memory and disk

    def start_empty(self) -> None:
        """Start with empty indexes, ignoring the files."""
        self._offsets, self._times = OffsetIndex(), TimeIndex()
        self._offsets_saved = self._times_saved = 0

    def add(self, last_offset: int, position: Position, latest: Latest) -> None:
        """Add entries for a batch, given by its last offset and position."""
        self.offsets.append(last_offset - self._base_offset, position)
        self.add_latest(latest)

    def add_latest(self, latest: Latest) -> None:
        """Add an entry for the maximum timestamp to the time index."""
        if latest.timestamp >= 0:
            self.times.append(latest.timestamp, latest.offset - self._base_offset)

    def load(self, segment_size: int) -> None:
        """Load the indexes. Raises InvalidIndexError if one is missing or damaged."""
        if self._offsets is not None:
            return
        self._offsets_saved = self._times_saved = 0
        self.is_trusted = False
        try:
            offsets = OffsetIndex.from_bytes(
                self._files.read_bytes(self._file_path(OFFSET_INDEX)), segment_size
            )
            times = TimeIndex.from_bytes(self._files.read_bytes(self._file_path(TIME_INDEX)))
        except FileNotFoundError:
            raise InvalidIndexError from None
        if offsets is None or times is None:
            raise InvalidIndexError
        self._offsets, self._times = offsets, times
        self._offsets_saved, self._times_saved = len(offsets), len(times)

    def release(self) -> None:
        """Drop the saved indexes from memory."""
        self._offsets = self._times = None

    def unsaved(self) -> list[SyncItem]:
        """Return the writes that save the indexes from memory."""
        if self._offsets is None:
            return []
        # Times first: the time index must never end before the offset index.
        at, self._times_saved = self._times_saved, len(self.times)
        data, path = self.times.to_bytes(at), self._file_path(TIME_INDEX)
        times = FileWrite(self._files, path, at * TIME_ENTRY_SIZE, data)
        at, self._offsets_saved = self._offsets_saved, len(self.offsets)
        data, path = self.offsets.to_bytes(at), self._file_path(OFFSET_INDEX)
        return [times, FileWrite(self._files, path, at * OFFSET_ENTRY_SIZE, data)]

    def move_to_final_name(self) -> None:
        """Use the final file names; the indexes are not saved under them yet."""
        self._suffix = ""
        self._offsets_saved = self._times_saved = 0

    # -- appending to a loaded segment

    def resume(self, batches: Batches, offset: int) -> Resumed:
        """Drop the entries from `offset` on, and return the end of the remaining indexed part."""
        try:
            self.load(batches.size)
        except InvalidIndexError:
            self._offsets, self._times = OffsetIndex(), TimeIndex()
        offsets, times = self.offsets, self.times
        slot = offsets.floor(offset - 1 - self._base_offset)
        start, start_offset, size = BEGINNING, self._base_offset, 0
        if slot >= 0:
            header = batches.header_at(offsets.position(slot))
            if header and header.last_offset == offsets.offsets[slot] + self._base_offset:
                size = header.size
                start, start_offset = offsets.position(slot) + size, header.next_offset
        # If one entry is from an earlier file of this name, all others may be too.
        times.truncate(start_offset - self._base_offset)
        latest = self._last_of(times)
        if slot >= 0 and not self._matches_batches(latest, batches._replace(size=start)):
            start, start_offset, size = BEGINNING, self._base_offset, 0
            times.truncate(0)
            latest = self._last_of(times)
        offsets.truncate(start)
        self._offsets_saved = min(self._offsets_saved, len(offsets))
        self._times_saved = min(self._times_saved, len(times))
        return Resumed(start, start_offset, size, latest)

    def _last_of(self, times: TimeIndex) -> Latest:
        if not times.timestamps:
            return Latest(-1, self._base_offset)
        return Latest(times.timestamps[-1], times.offsets[-1] + self._base_offset)

    def _matches_batches(self, latest: Latest, batches: Batches) -> bool:
        """Return True if the maximum timestamp matches the batches of a short walk."""
        if latest.timestamp < 0:
            return False
        seen = -1
        try:
            start = self._position_before(latest.offset - self._base_offset)
            for position, header in batches.headers(start):
                if header.last_offset == latest.offset:
                    seen = header.max_timestamp
                elif header.max_timestamp > latest.timestamp:
                    return False
                if position - start > _LATEST_WALK:
                    break
        except (CorruptLogError, FileNotFoundError):
            return False
        return seen == latest.timestamp

    def _position_before(self, relative_offset: int) -> Position:
        """Return the position of the last entry up to an offset, without loading the index."""
        if self._offsets is not None:
            slot = self._offsets.floor(relative_offset)
            return self._offsets.position(slot) if slot >= 0 else BEGINNING
        file = self._files.open(self._file_path(OFFSET_INDEX))
        low, high = 0, file.size // OFFSET_ENTRY_SIZE
        position = BEGINNING
        while low < high:
            middle = (low + high) // 2
            entry = file.read(middle * OFFSET_ENTRY_SIZE, OFFSET_ENTRY_SIZE)
            if int.from_bytes(entry[:4], "big") <= relative_offset:
                position = Position.from_bytes(entry[4:], "big")
                low = middle + 1
            else:
                high = middle
        return position

    def _last_entry(self, kind: str, entry_size: int) -> bytes | None:
        """Return the last entry of an index file, or None if the whole file must be read."""
        try:
            size = self._files.size(self._file_path(kind))
            if not size or size % entry_size:
                return None
            entry = self._files.open(self._file_path(kind)).read(size - entry_size, entry_size)
        except FileNotFoundError:
            return None
        return entry if entry.strip(b"\0") else None

    # -- look-ups; they raise InvalidIndexError and CorruptLogError

    def latest(self, batches: Batches) -> Latest:
        """Return the maximum timestamp from the last entry, after comparing it with its batch."""
        entry = self._last_entry(TIME_INDEX, TIME_ENTRY_SIZE)
        times = TimeIndex.from_bytes(entry) if entry else None
        if times is None:
            raise InvalidIndexError
        latest = self._last_of(times)
        if not self._matches_batches(latest, batches):
            raise InvalidIndexError
        return latest

    def end(self, batches: Batches) -> int:
        """Return the end offset from the last entry and the few kB after it."""
        entry = self._last_entry(OFFSET_INDEX, OFFSET_ENTRY_SIZE)
        last = OffsetIndex.from_bytes(entry, batches.size) if entry and not self._offsets else None
        if last is not None:
            try:
                return self._end(batches, last)
            except (InvalidIndexError, CorruptLogError):
                pass  # the entry may be wrong: try the whole index
        self.load(batches.size)
        return self._end(batches, self.offsets)

    def _end(self, batches: Batches, index: OffsetIndex) -> int:
        end = self._base_offset
        for place in self._walk_from(len(index) - 1, index, batches):
            end = place.last_offset + 1
        return end

    def find(
        self, batches: Batches, offset: int, start: Position = BEGINNING
    ) -> tuple[Position, int]:
        """Return position and base offset of the first batch that ends at or after `offset`.

        Without such a batch, return the size of the segment and `offset`. `start` is a batch
        boundary at or before the result.
        """
        self.load(batches.size)
        index = self.offsets
        slot = index.floor(offset - self._base_offset)
        if slot >= 0 and index.position(slot) > start:
            places = self._walk_from(slot, index, batches)
        else:
            places = batches.walk(start)
        for place in places:
            if place.last_offset >= offset:
                return place.position, place.base_offset
        return batches.size, offset

    def find_boundary(
        self, batches: Batches, start: Position, limit: Position, *, at_least_one: bool
    ) -> tuple[Position, int]:
        """Return the last batch boundary at or before position `limit`, and its offset.

        With `at_least_one` the boundary is at least the end of the batch at `start`.
        """
        self.load(batches.size)
        index = self.offsets
        slot = index.floor_position(limit)
        if slot >= 0 and index.positions[slot] > start:
            places = self._walk_from(slot, index, batches)
        else:
            places = batches.walk(start)
        end, next_offset = start, -1
        for position, size, base, last in places:
            if position + size > limit and not (at_least_one and position == start):
                return position, base
            end, next_offset = position + size, last + 1
        return end, next_offset

    def _walk_from(self, slot: int, index: OffsetIndex, batches: Batches) -> Iterator[Place]:
        """Yield the batches from the batch of entry `slot` on; for slot -1, yield all batches."""
        if slot < 0:
            yield from batches.walk()
            return
        places = batches.walk(index.position(slot))
        try:
            first = next(places, None)
        except CorruptLogError:
            if self.is_trusted:
                raise
            raise InvalidIndexError from None
        if first is None or first.last_offset != index.offsets[slot] + self._base_offset:
            raise InvalidIndexError
        yield first
        yield from places

    def offset_before_timestamp(self, batches: Batches, timestamp: int) -> int:
        """Return an offset before which the time index shows only records before `timestamp`."""
        self.load(batches.size)
        times = self.times
        slot = times.floor(timestamp - 1)
        if slot < 0:
            return self._base_offset
        reached = times.offsets[slot] + self._base_offset
        if not self.is_trusted:
            header = batches.header_at(self.find(batches, reached)[0])
            entry = (reached, times.timestamps[slot])
            if header is None or (header.last_offset, header.max_timestamp) != entry:
                raise InvalidIndexError
        return reached

    def base_at(self, batches: Batches, slot: int) -> int:
        """Return the base offset of the batch of entry `slot`; for -1, that of the segment."""
        if slot < 0:
            return self._base_offset
        header = batches.header_at(self.offsets.position(slot))
        if header is None:
            raise InvalidIndexError
        return self.offsets.offsets[slot] + self._base_offset - header.last_offset_delta
