"""The batches within what was read from a log, and a part of them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.protocol.records import HEADER_SIZE, BatchHeader, read_header

from .files import FileRange
from .segment import Slice

CHUNK_BYTES = 1 << 14
"""Read at once where batches are small."""


def slice_headers(found: Slice) -> Iterator[tuple[int, BatchHeader]]:
    """Position within the slice and header of each batch; little more than that is read.

    Raises StorageError when the file cannot be read.
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
    """`size` bytes of records from a position on, not read if they were not."""
    if isinstance(records, bytes):
        return records[start : start + size]
    return FileRange(records.source, records.position + start, size)
