"""Merge of several partitions into one stream in timestamp order."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from kbroker.protocol.records import Record

from .sources import Chunk, Chunks

CHUNK_RECORDS = 1_000


async def merge(streams: Sequence[Chunks]) -> Chunks:
    """Yield the records of several streams, at each step the one with the smallest timestamp.

    The order within a stream is kept, even if its timestamps decrease. For equal timestamps, the
    first stream wins, so the order is deterministic.
    """
    heads = [_Head(stream) for stream in streams]
    heap = [(head.timestamp, at) for at, head in enumerate(heads) if await head.fill()]
    heapify(heap)
    partitions: list[int | None] = []
    records: list[Record] = []
    while heap:
        _, at = heap[0]
        head = heads[at]
        partitions.append(head.partition)
        records.append(head.take())
        if head.has_more() or await head.fill():
            heapreplace(heap, (head.timestamp, at))
        else:
            heappop(heap)
        if len(records) >= CHUNK_RECORDS:
            yield Chunk(partitions, records)
            partitions, records = [], []
    if records:
        yield Chunk(partitions, records)


class _Head:
    """Next record of a stream, whose chunks have one partition each."""

    def __init__(self, stream: Chunks) -> None:
        self._stream = stream
        self._records: list[Record] = []
        self._next = 0
        self.partition: int | None = None

    async def fill(self) -> bool:
        """Read the next chunk; return False at the end."""
        chunk = await anext(self._stream, None)
        if chunk is None:
            return False
        self._records, self._next, self.partition = chunk.records, 0, chunk.partitions[0]
        return True

    def has_more(self) -> bool:
        return self._next < len(self._records)

    @property
    def timestamp(self) -> int:
        return self._records[self._next].timestamp

    def take(self) -> Record:
        self._next += 1
        return self._records[self._next - 1]
