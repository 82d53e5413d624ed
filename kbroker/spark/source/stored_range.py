"""The records between two offsets of a partition, out of its segment files."""

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

CHUNK_BYTES = 2 * 1024 * 1024
LISTINGS_MAX = 10
"""How often the segments are listed anew because one of them vanished, before that is an error."""

_Places = list[tuple[int, BatchHeader]]


class _Chunk(NamedTuple):
    """Bytes of a file from `position` on, the batches to be read there, and the first offset."""

    position: int
    data: bytes
    places: _Places
    first: int


class StoredRange:
    """Reads the records from `start` to before `end`, which must not lie behind the safe end.

    Every batch is compared with its CRC. Control batches are left out, and so are the records of
    `aborted` transactions. Batches may begin before `start` and end behind `end`; the columns
    have only what lies between.

    `position` is the offset from which records are still to be read: behind a part that compaction has
    emptied it is `end` only when `columns` has come to its end, and below `end` then when the
    log ends earlier.
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
        """The records, in the order of their offsets.

        Raises:
            FilesError: something is damaged, or the files go faster than they can be read.
        """
        for base, file in self._segments():
            try:
                for chunk in self._chunks(base, file):
                    yield from self._columns(file, chunk)
            except CorruptLogError as error:
                raise damaged(error.path, error.position, error.reason) from None

    def _segments(self) -> Iterator[tuple[int, File]]:
        """The segments that hold the rest, one after the other.

        Compaction may put one in the place of several meanwhile; the new one is found in another
        listing then, under the name of the first.
        """
        for _ in range(LISTINGS_MAX):
            bases = self.log.bases()
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
            f"Segments of {self.log.directory} vanish while they are read: retention or compaction is "
            "faster than this reader. Read again, with more tasks (minPartitions) or a later start."
        )

    def _chunks(self, base: int, file: File) -> Iterator[_Chunk]:
        """Pieces of a segment, with the batches to be read in them."""
        position = self.log.find(file, base, self.position)
        wanted = CHUNK_BYTES
        while position is not None and position < file.size and self.position < self._end:
            first, data = self.position, file.read(position, wanted)
            places, used, missing = self._select(file, position, data)
            if missing and not used:
                if len(data) < wanted or wanted >= missing:
                    raise damaged(file.path, position, "it ends within a batch")
                wanted = missing
                continue
            yield _Chunk(position, data, places, first)
            position += used
            wanted = CHUNK_BYTES

    def _select(self, file: File, position: int, chunk: bytes) -> tuple[_Places, int, int]:
        """The batches of a chunk that are to be read, the bytes that were looked through, and the
        size of a batch that does not end in the chunk (0: all do)."""
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
                f"{file.path} holds messages of format {header.magic} at byte {position}, from "
                "before Kafka 0.11: read this topic over the wire (kafka.bootstrap.servers instead "
                "of path) from a broker that still converts them."
            )
        if header.magic != MAGIC or header.last_offset_delta < 0:
            raise damaged(file.path, position, "no batch begins here")
        if not HEADER_SIZE <= header.size <= file.size - position:
            raise damaged(file.path, position, "it ends within a batch")

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
            reason = f"a batch from there on: {error.message}"
            raise damaged(file.path, chunk.position, reason) from None
