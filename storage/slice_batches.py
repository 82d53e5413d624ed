"""Iteration over the batches of a `Slice`, and sub-ranges of its records."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.protocol.records import HEADER_SIZE, BatchHeader, read_header

from .files import FileRange
from .segment import Slice

# Bytes to read at once while batches are small.
CHUNK_BYTES = 1 << 14


def slice_headers(found: Slice) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position within the slice and header of each batch; reads little more than headers.

    Raises StorageError if the file cannot be read.
    """
    records = found.records
    position, chunk_at, chunk = 0, 0, b""
    wanted = CHUNK_BYTES
    while position < found.size:
        at = position - chunk_at
        if at + HEADER_SIZE > len(chunk):
            chunk_at, at = position, 0
            if isinstance(records, bytes):
                chunk = records[position : position + wanted]
            else:
                size = min(wanted, records.length - position)
                chunk = records.source.read(records.position + position, size)
        header = read_header(chunk, at)
        yield position, header
        position += header.size
        wanted = CHUNK_BYTES if header.size < CHUNK_BYTES else HEADER_SIZE


def part_of(records: FileRange | bytes, start: int, size: int) -> FileRange | bytes:
    """Return `size` bytes of the records from `start` on; a file range is not read."""
    if isinstance(records, bytes):
        return records[start : start + size]
    return FileRange(records.source, records.position + start, size)
