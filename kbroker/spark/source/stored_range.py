"""Reader of the records in an offset range of segment files."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import HEADER_SIZE, MAGIC, BatchHeader, check_crc, read_header
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.files import File
from kbroker.storage.index import AbortedTransaction

from .record_columns import RecordColumns, read_columns
from .stored import FilesError, StoredLog, damaged

# Bytes read from a segment file at once.
CHUNK_BYTES = 2 * 1024 * 1024
# Maximum number of directory listings per range; each vanished segment causes another one.
LISTINGS_MAX = 10

_Places = list[tuple[int, BatchHeader]]


class _Chunk(NamedTuple):
    """A piece of a segment file.

    Attributes:
        position: File position of the first byte.
        data: The bytes.
        places: Position in `data` and header of each batch to read.
        first: First offset to read.
    """

    position: int
    data: bytes
    places: _Places
    first: int


class StoredRange:
    """Reader of the records from offset `start` to `end` (exclusive, at most the safe end offset).

    The CRC of every batch is checked. Control batches and records of `aborted` transactions are
    skipped. Batches may start before `start` and end after `end`; the columns are cut to the range.

    Attributes:
        position: Offset of the next record to read. It may jump to `end` only when `columns` is
            exhausted, if compaction removed the last records. If it is below `end` then, the log
            ends earlier.
    """

    def __init__(
        self,
        log: StoredLog,
        start: int,
        end: int,
        aborted: Iterable[AbortedTransaction] = (),
        *,
        with_headers: bool = True,
    ) -> None:
        self.log = log
        self.position = start
        self._end = end
        self._with_headers = with_headers
        self._aborted: dict[int, list[AbortedTransaction]] = defaultdict(list)
        for each in aborted:
            self._aborted[each.producer_id].append(each)

    def columns(self) -> Iterator[RecordColumns]:
        """Yield the records in offset order.

        Raises:
            FilesError: A file is corrupt, or segments are deleted faster than they can be read.
        """
        for base, file in self._segments():
            try:
                for chunk in self._chunks(base, file):
                    yield from self._columns(file, chunk)
            except CorruptLogError as error:
                raise damaged(error.path, error.position, error.reason) from None

    def _segments(self) -> Iterator[tuple[int, File]]:
        """Yield the segments from the current position to the end.

        Compaction may replace several segments by one with the base offset of the first. If a
        segment has vanished, the directory is listed again.
        """
        for _ in range(LISTINGS_MAX):
            bases = self.log.segment_bases()
            for base in bases[max(bisect_right(bases, self.position) - 1, 0) :]:
                if self.position >= self._end or base >= self._end:
                    return
                try:
                    file = self.log.open_segment(base)
                except FileNotFoundError:
                    break
                yield base, file
            else:
                return
        raise FilesError(
            f"Segments of {self.log.directory} are deleted while they are read: retention or "
            "compaction is faster than this reader. Retry with more tasks (minPartitions) or a "
            "later start."
        )

    def _chunks(self, base: int, file: File) -> Iterator[_Chunk]:
        """Yield pieces of a segment with the batches to read."""
        position = self.log.find(file, base, self.position)
        wanted = CHUNK_BYTES
        while position is not None and position < file.size and self.position < self._end:
            first, data = self.position, file.read(position, wanted)
            places, used, missing = self._select(file, position, data)
            if missing and not used:
                if len(data) < wanted or wanted >= missing:
                    raise damaged(file.path, position, "the file ends within a batch")
                wanted = missing
                continue
            yield _Chunk(position, data, places, first)
            position += used
            wanted = CHUNK_BYTES

    def _select(self, file: File, position: int, chunk: bytes) -> tuple[_Places, int, int]:
        """Return the batches to read, the bytes scanned, and the size of an incomplete last batch.

        The size is 0 if all batches end in the chunk.
        """
        places: _Places = []
        at = 0
        while self.position < self._end and at < len(chunk):
            if at + HEADER_SIZE > len(chunk):
                return places, at, HEADER_SIZE
            header = read_header(chunk, at)
            self._check_header(file, position + at, header)
            if header.base_offset >= self._end:
                self.position = self._end
                break
            if at + header.size > len(chunk):
                return places, at, header.size
            if not check_crc(chunk, at, header):
                raise damaged(file.path, position + at, "a batch does not match its CRC")
            if header.last_offset >= self.position:
                if self._is_visible(header):
                    places.append((at, header))
                self.position = header.next_offset
            at += header.size
        return places, at, 0

    def _check_header(self, file: File, position: int, header: BatchHeader) -> None:
        if header.magic in (0, 1):
            raise FilesError(
                f"{file.path} contains messages of format {header.magic} at byte {position}, from "
                "before Kafka 0.11: read this topic over the wire (kafka.bootstrap.servers instead "
                "of path) from a broker that still converts them."
            )
        if header.magic != MAGIC or header.last_offset_delta < 0:
            raise damaged(file.path, position, "expected a record batch")
        if not HEADER_SIZE <= header.size <= file.size - position:
            raise damaged(file.path, position, "the file ends within a batch")

    def _is_visible(self, header: BatchHeader) -> bool:
        if header.is_control or not header.record_count:
            return False
        if not header.is_transactional:
            return True
        return not any(
            each.first_offset <= header.base_offset <= each.last_offset
            for each in self._aborted.get(header.producer_id, ())
        )

    def _columns(self, file: File, chunk: _Chunk) -> Iterator[RecordColumns]:
        try:
            for found in read_columns(chunk.data, chunk.places, with_headers=self._with_headers):
                yield found.between(chunk.first, self._end)
        except KafkaError as error:
            reason = f"in a batch at or after this position: {error.message}"
            raise damaged(file.path, chunk.position, reason) from None
