"""The index files of a segment: by offset, by time, and of aborted transactions.

All numbers are big-endian; a "relative offset" is relative to the segment's base offset.

    .index      8 bytes an entry    relative offset int32, position int32
    .timeindex  12 bytes an entry   timestamp int64, relative offset int32
    .txnindex   34 bytes an entry   version int16 (0), producer id int64, first offset int64,
                                    last offset int64, last stable offset int64

An offset entry (42, 4096) means: the batch whose *last* record has offset 42 starts at byte 4096.
There is one entry for every `index_interval_bytes` of records. A time entry (1700000000000, 42)
means: the maximum timestamp so far is 1700000000000, in the batch whose last record has offset 42.
Timestamps and offsets increase strictly.

Crash safety: an index contains nothing that is not in its segment. It is kept in memory while its
segment grows, written later, checked when it is read, and rebuilt from the segment if it is wrong.
An index file that Kafka left open ends in zeros (Kafka preallocates it); reading stops there.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from .batches import Position

_TIME_ENTRY = struct.Struct(">qi")
_ABORTED = struct.Struct(">hqqqq")
OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = _TIME_ENTRY.size
ABORTED_ENTRY_SIZE = _ABORTED.size

# Maximum distance of an offset from the base offset of its segment.
RELATIVE_OFFSET_MAX = (1 << 31) - 1


class OffsetIndex:
    """A map from offset to position in one segment.

    `offsets` (relative) and `positions` (bytes) are parallel and increase strictly.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: Position) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def floor(self, relative_offset: int) -> int:
        """Return the index of the last entry at or before an offset, or -1."""
        return bisect_right(self.offsets, relative_offset) - 1

    def floor_position(self, position: Position) -> int:
        """Return the index of the last entry at or before a position, or -1."""
        return bisect_right(self.positions, position) - 1

    def position(self, slot: int) -> Position:
        """Return the position of the batch of an entry."""
        return Position(self.positions[slot])

    def truncate(self, position: Position) -> None:
        """Remove the entries of batches that start at or after `position`."""
        keep = bisect_right(self.positions, position - 1)
        del self.offsets[keep:], self.positions[keep:]

    def to_bytes(self, first: int = 0) -> bytes:
        """Return the entries from index `first` on, in the file format."""
        mixed = array("i", bytes(OFFSET_ENTRY_SIZE * (len(self.offsets) - first)))
        mixed[0::2] = self.offsets[first:]
        mixed[1::2] = self.positions[first:]
        if sys.byteorder == "little":
            mixed.byteswap()
        return mixed.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, segment_size: int) -> OffsetIndex | None:
        """Parse an index file.

        Returns:
            The index, or None if the file is damaged or has positions outside a segment of
                `segment_size` bytes.
        """
        mixed = array("i")
        if len(data) % OFFSET_ENTRY_SIZE:
            return None
        mixed.frombytes(data)
        if sys.byteorder == "little":
            mixed.byteswap()
        index = cls()
        index.offsets, index.positions = mixed[0::2], mixed[1::2]
        index._drop_unused()
        if not _is_increasing(index.offsets) or not _is_increasing(index.positions):
            return None
        if index.positions and not 0 <= index.positions[0] <= index.positions[-1] < segment_size:
            return None
        return index

    def _drop_unused(self) -> None:
        """Remove the zeros at the end of a preallocated file."""
        used = len(self.offsets)
        while used and not self.positions[used - 1] and not self.offsets[used - 1]:
            used -= 1
        del self.offsets[used:], self.positions[used:]


class TimeIndex:
    """A map from timestamp to offset in one segment.

    `timestamps` (ms) and `offsets` (relative) are parallel and increase strictly.
    """

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if its timestamp is higher than that of the last one."""
        if not self.timestamps or timestamp > self.timestamps[-1]:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def floor(self, timestamp: int) -> int:
        """Return the index of the last entry whose timestamp is not higher, or -1."""
        return bisect_right(self.timestamps, timestamp) - 1

    def truncate(self, relative_offset: int) -> None:
        """Remove the entries at or after an offset."""
        keep = bisect_right(self.offsets, relative_offset - 1)
        del self.timestamps[keep:], self.offsets[keep:]

    def to_bytes(self, first: int = 0) -> bytes:
        """Return the entries from index `first` on, in the file format."""
        pack = _TIME_ENTRY.pack
        pairs = zip(self.timestamps[first:], self.offsets[first:], strict=True)
        return b"".join([pack(timestamp, offset) for timestamp, offset in pairs])

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex | None:
        """Parse a time index file; None if it is damaged."""
        if len(data) % TIME_ENTRY_SIZE:
            return None
        used = len(data.rstrip(b"\0"))
        used += -used % TIME_ENTRY_SIZE  # an entry may end in zeros
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data[:used]):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        if not _is_increasing(index.timestamps) or not _is_increasing(index.offsets):
            return None
        return index


def _is_increasing(numbers: array[int]) -> bool:
    return all(map(int.__lt__, numbers, numbers[1:]))


class AbortedTransaction(NamedTuple):
    """An aborted transaction whose marker is in the segment.

    Offsets are absolute: first record, marker, and the last stable offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def to_bytes(self) -> bytes:
        return _ABORTED.pack(0, *self)


def aborted_from_bytes(data: bytes) -> list[AbortedTransaction] | None:
    """Parse a `.txnindex` file; None if it is damaged."""
    if len(data) % ABORTED_ENTRY_SIZE:
        return None
    entries = list(_ABORTED.iter_unpack(data))
    if any(version != 0 for version, *_ in entries):
        return None
    return [AbortedTransaction(*fields) for _, *fields in entries]


def aborted_bytes(entries: Iterable[AbortedTransaction]) -> bytes:
    """Return the content of a `.txnindex` file."""
    return b"".join(entry.to_bytes() for entry in entries)


def aborted_before(data: bytes, offset: int) -> list[AbortedTransaction]:
    """Return the entries with markers before `offset` from a `.txnindex` file with a torn end."""
    whole = len(data) - len(data) % ABORTED_ENTRY_SIZE
    entries: list[AbortedTransaction] = []
    for version, *fields in _ABORTED.iter_unpack(data[:whole]):
        entry = AbortedTransaction(*fields)
        after = entries[-1].last_offset if entries else -1
        is_increasing = (
            after < entry.last_offset < offset and entry.first_offset < entry.last_offset
        )
        if version != 0 or not is_increasing:
            break
        entries.append(entry)
    return entries
