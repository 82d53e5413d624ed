"""Iteration over the batches of a slice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.protocol.primitives import Buffer
from kbroker.protocol.records import HEADER_SIZE, Record, encode_batch
from kbroker.storage.files import FileRange
from kbroker.storage.segment import Slice
from kbroker.storage.slice_batches import CHUNK_BYTES, part_of, slice_headers

SIZES = [(1, 10), (1, CHUNK_BYTES - 100), (3, 5), (1, 3 * CHUNK_BYTES), (1, 1), (200, 90), (1, 1)]


class Source:
    """A file that counts the bytes read from it."""

    fd = None
    path = "a.log"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes = 0

    def read(self, position: int, size: int) -> bytes:
        self.bytes += size
        return self.data[position : position + size]

    def parts(self, position: int, size: int) -> list[Buffer]:
        return [self.read(position, size)]


def batches() -> list[bytes]:
    return [encode_batch([Record(None, b"x" * size, 1)] * count) for count, size in SIZES]


@pytest.mark.parametrize("before", [0, 77])
@pytest.mark.parametrize("in_memory", [False, True])
def test_headers_of_a_slice_are_found(before: int, in_memory: bool) -> None:
    data = b"".join(batches())
    source = Source(bytes(before) + data)
    records = data if in_memory else FileRange(source, before, len(data))
    found = list(slice_headers(Slice(records, 0, 1, len(data))))
    positions = [sum(map(len, batches()[:number])) for number in range(len(SIZES))]
    assert [position for position, _ in found] == positions
    assert [header.size for _, header in found] == list(map(len, batches()))
    assert [header.record_count for _, header in found] == [count for count, _ in SIZES]


def test_headers_of_large_batches_are_read_alone() -> None:
    data = encode_batch([Record(None, b"x" * 100_000, 1)]) * 10
    source = Source(data)
    assert len(list(slice_headers(Slice(FileRange(source, 0, len(data)), 0, 1, len(data))))) == 10
    assert source.bytes == CHUNK_BYTES + 9 * HEADER_SIZE


@pytest.mark.parametrize("in_memory", [False, True])
def test_part_of_a_slice_is_returned(in_memory: bool, tmp_path: Path) -> None:
    source = Source(b"abcdefgh")
    part = part_of(b"cdefgh" if in_memory else FileRange(source, 2, 6), 1, 3)
    assert (part if isinstance(part, bytes) else part.read()) == b"def"
