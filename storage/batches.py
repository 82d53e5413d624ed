"""Iteration over the batches of a segment file, with different levels of checks.

The CRC of a batch covers all but its first 17 bytes: base offset, length, leader epoch and magic.
These are checked against the next batch (length), the previous batch (offset) and the leader epoch
history.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.protocol.records import HEADER_SIZE, MAGIC, BatchHeader, check_crc, read_header

from .epochs import UNDEFINED, LeaderEpochs
from .errors import CorruptLogError
from .files import File, Files

# Bytes of the first read, and of later reads.
_SMALL_READ = 4 * 1024
_LARGE_READ = 256 * 1024

# base offset, batch length, magic, last offset delta
_PROBE = struct.Struct(">qi4xb6xi")
_PROBE_SIZE = _PROBE.size
_LENGTH_END = 12

if TYPE_CHECKING:

    class Position(int):
        """A byte position in a segment file, as a type distinct from record offsets.

        It exists for type checkers only; at run time it is `int`, without overhead. A position plus
        a size is a position; with `NewType` each sum would need a call.
        """

        def __add__(self, size: int, /) -> Position: ...

else:
    Position = int

# Position of the first batch of a segment.
BEGINNING = Position(0)


class Place(NamedTuple):
    """The position and size of a batch in bytes, and the offsets of its first and last record."""

    position: Position
    size: int
    base_offset: int
    last_offset: int


def walk(file: File, position: Position, end: Position) -> Iterator[Place]:
    """Yield the batches between two batch boundaries, reading only a few header fields.

    Raises CorruptLogError if a batch is invalid or offsets decrease.
    """
    chunk_at, chunk = 0, b""
    length_wanted = _SMALL_READ
    unpack = _PROBE.unpack_from
    next_offset = 0
    base: int  # the type of `unpack` results is Any
    while position < end:
        at = position - chunk_at
        if at + _PROBE_SIZE > len(chunk):
            chunk, chunk_at, at = file.read(position, length_wanted), position, 0
            length_wanted = _LARGE_READ
            if len(chunk) < _PROBE_SIZE:
                raise CorruptLogError(file.path, position, "the file ends within a batch")
        base, length, magic, delta = unpack(chunk, at)
        size = length + _LENGTH_END
        if magic != MAGIC or size < HEADER_SIZE or position + size > end or delta < 0:
            raise CorruptLogError(file.path, position, "no valid batch header")
        if base < next_offset:
            raise CorruptLogError(
                file.path, position, f"expected offset {next_offset}, found {base}"
            )
        next_offset = base + delta + 1
        yield Place(position, size, base, base + delta)
        position += size


def walk_headers(
    file: File, position: Position, end: Position
) -> Iterator[tuple[Position, BatchHeader]]:
    """Yield position and complete header of each batch between two boundaries (`walk`)."""
    chunk_at, chunk = 0, b""
    for place in walk(file, position, end):
        at = place.position - chunk_at
        if at + HEADER_SIZE > len(chunk):
            wanted = _LARGE_READ if place.size < _LARGE_READ else HEADER_SIZE
            chunk, chunk_at, at = file.read(place.position, wanted), place.position, 0
        yield place.position, read_header(chunk, at)


class Batches(NamedTuple):
    """The batches of a segment file up to the position `size`."""

    file: File
    size: Position

    def walk(self, position: Position = BEGINNING) -> Iterator[Place]:
        """Yield the batches from a boundary on (`walk`)."""
        return walk(self.file, position, self.size)

    def headers(self, position: Position = BEGINNING) -> Iterator[tuple[Position, BatchHeader]]:
        """Yield position and header of each batch from a boundary on. Raises CorruptLogError."""
        return walk_headers(self.file, position, self.size)

    def header_at(self, position: Position) -> BatchHeader | None:
        """Return the header at a position, or None if there is no valid one."""
        data = self.file.read(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            return None
        header = read_header(data)
        is_valid = header.magic == MAGIC and HEADER_SIZE <= header.size <= self.size - position
        return header if is_valid else None


def read_batches(
    files: Files, path: str, end: Position
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield header and bytes of each batch up to a boundary, after checking its CRC.

    A view stays valid, but keeps a chunk of at least `_LARGE_READ` bytes alive.

    Raises CorruptLogError.
    """
    file = files.open(path)
    try:
        chunk_at, chunk = 0, b""
        for place in walk(file, BEGINNING, end):
            at = place.position - chunk_at
            if at + place.size > len(chunk):
                wanted = max(_LARGE_READ, place.size)
                chunk, chunk_at, at = file.read(place.position, wanted), place.position, 0
            header = read_header(chunk, at)
            if not check_crc(chunk, at, header):
                raise CorruptLogError(path, place.position, "a batch does not match its CRC")
            yield header, memoryview(chunk)[at : at + place.size]
    finally:
        file.close()


def check_batches(
    file: File, start: Position, end: Position, epochs: LeaderEpochs, *, gaps_allowed: bool
) -> tuple[int, int]:
    """Check all properties of the batches between two boundaries.

    Args:
        file: Segment file.
        start: First byte.
        end: End position.
        epochs: Leader epochs of the log.
        gaps_allowed: True if compaction may have removed offsets.

    Returns:
        The offset of the first record and the offset after the last one.

    Raises:
        CorruptLogError: A batch is invalid.
    """
    data = file.read(start, end - start)
    position, first, next_offset = 0, -1, -1
    while position < len(data):
        header = read_header(data, position) if len(data) - position >= HEADER_SIZE else None
        if header is None or not HEADER_SIZE <= header.size <= len(data) - position:
            raise CorruptLogError(file.path, start + position, "no valid batch header")
        reason = _find_fault(data, position, header, next_offset, epochs, gaps_allowed)
        if reason:
            raise CorruptLogError(file.path, start + position, reason)
        if first < 0:
            first = header.base_offset
        next_offset = header.next_offset
        position += header.size
    return first, next_offset


def _find_fault(
    data: bytes,
    position: int,
    header: BatchHeader,
    expected: int,
    epochs: LeaderEpochs,
    gaps_allowed: bool,
) -> str:
    if header.magic != MAGIC or not check_crc(data, position, header):
        return "a batch does not match its CRC"
    base = header.base_offset
    if expected >= 0 and (base < expected or (base > expected and not gaps_allowed)):
        return f"expected offset {expected}, found {base}"
    epoch = epochs.epoch_at(base)
    if epoch not in (UNDEFINED, header.leader_epoch):
        return f"leader epoch {header.leader_epoch}, expected {epoch}"
    return ""


class Intervals:
    """Disjoint ranges of positions of a file, in order."""

    __slots__ = ("_ranges",)

    def __init__(self, size: Position) -> None:
        self._ranges = [(BEGINNING, size)] if size else []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def first(self) -> tuple[Position, Position]:
        return self._ranges[0]

    def overlaps(self, start: Position, end: Position) -> bool:
        return any(low < end and start < high for low, high in self._ranges)

    def remove(self, start: Position, end: Position) -> None:
        remaining = [(low, min(high, start)) for low, high in self._ranges]
        remaining += [(max(low, end), high) for low, high in self._ranges]
        self._ranges = sorted({(low, high) for low, high in remaining if low < high})
