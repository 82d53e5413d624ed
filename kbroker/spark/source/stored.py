"""Logs in the data directories of a broker, read by another process while the broker may run.

kbroker and Apache Kafka use the same files. A reader can rely on the following:

- Records up to the high watermark in `replication-offset-checkpoint` are complete and stay
  unchanged. A running broker writes this file every few seconds, so newer records become visible
  with a delay. Batches after it may be incomplete and are not read.
- Segments are appended to, deleted from the front, and replaced by compaction during the read. The
  reader therefore keeps offsets, never file positions.
- Indexes may lag, be missing, or be wrong after a crash. They only save time: each entry is checked
  against the batch that it points to.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from kbroker.protocol.record_stream import batch_records, first_record_since
from kbroker.protocol.records import BatchHeader, FoundRecord, read_marker
from kbroker.storage.batches import BEGINNING, Place, Position, walk, walk_headers
from kbroker.storage.checkpoints import Partition, offsets_from_bytes
from kbroker.storage.errors import CorruptLogError
from kbroker.storage.files import File, OsFiles
from kbroker.storage.index import AbortedTransaction, OffsetIndex, TimeIndex, aborted_before
from kbroker.storage.naming import (
    HIGH_WATERMARKS,
    LOG,
    LOG_STARTS,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_directory_name,
    parse_file_name,
)
from kbroker.storage.producer_state import ProducerStates
from kbroker.storage.snapshots import Snapshots

FILES = OsFiles(read_only=True)

# Number of directory listings, and the pause between them in seconds, before a compaction counts as
# interrupted.
SWAP_TRIES, SWAP_SECONDS = 20, 0.1


class FilesError(Exception):
    """The files cannot be read in their current state; the message names the next action."""


def damaged(path: str, position: int, reason: str) -> FilesError:
    """Return the error for corrupt bytes below the high watermark."""
    directory = path.rpartition("/")[0]
    return FilesError(
        f"{path} is corrupt at byte {position} ({reason}). To check the whole partition, run: "
        f"kbroker log verify {directory} - To keep its readable records, stop the broker and run: "
        f"kbroker log repair {directory}"
    )


@dataclass(frozen=True)
class DataDirectories:
    """The data directories of one broker (its log.dirs)."""

    paths: Sequence[str]

    def logs(self) -> dict[Partition, StoredLog]:
        """Return all current partitions.

        Raises:
            FilesError: A path is not a data directory, or its checkpoints are corrupt.
        """
        found: dict[Partition, StoredLog] = {}
        for path in self.paths:
            # Read the checkpoints first: the listing then has all records below the high watermark.
            ends = self._offsets(path, HIGH_WATERMARKS)
            starts = self._offsets(path, LOG_STARTS)
            for name in FILES.listdir(path):
                partition = parse_directory_name(name)
                if partition is not None and FILES.is_directory(f"{path}/{name}"):
                    directory = f"{path}/{name}"
                    end = ends.get(partition, 0)
                    found[partition] = StoredLog(directory, starts.get(partition, 0), end)
        return found

    def _offsets(self, path: str, name: str) -> dict[Partition, int]:
        try:
            offsets = offsets_from_bytes(FILES.read_bytes(f"{path}/{name}"), name)
        except FileNotFoundError:
            if name == LOG_STARTS:
                return {}
            raise FilesError(
                f"{path} is not a data directory of a broker, or the broker has just started: "
                f"{name} does not exist. Use the value of the broker's --data-dir or log.dirs."
            ) from None
        if offsets is None:
            raise FilesError(
                f"{path}/{name} is corrupt, so the high watermarks are unknown: start the broker "
                "on this directory; it recovers the logs and rewrites the file."
            )
        return offsets


@dataclass(frozen=True)
class Stable:
    """Part of a partition visible with read_committed: before `end` and not aborted."""

    end: int
    aborted: Sequence[AbortedTransaction]


@dataclass(frozen=True)
class StoredLog:
    """Directory of one partition, with the offsets that the checkpoints have for it."""

    directory: str
    checkpointed_start: int
    high_watermark: int

    @property
    def start(self) -> int:
        """First readable offset."""
        bases = self.segment_bases()
        return max(self.checkpointed_start, bases[0] if bases else self.high_watermark)

    def segment_bases(self) -> list[int]:
        """Return the base offsets of the current segments.

        A running broker replaces segments within a short time, which this method waits for.

        Raises:
            FilesError: A compaction was interrupted, so segments may be missing.
        """
        for left in reversed(range(SWAP_TRIES)):
            names = FILES.listdir(self.directory)
            if not any(name.endswith(LOG + SWAP) for name in names):
                numbered = filter(None, map(parse_file_name, names))
                return sorted(offset for offset, suffix in numbered if suffix == LOG)
            if left:
                time.sleep(SWAP_SECONDS)
        raise FilesError(
            f"{self.directory} contains an interrupted compaction: start the broker on this "
            "directory, which completes it."
        )

    # -- finding records

    def open_segment(self, base: int) -> File:
        """Open a segment file. Raises FileNotFoundError if it was deleted."""
        return FILES.open(f"{self.directory}/{file_name(base, LOG)}")

    def offset_index(self, base: int, size: int) -> OffsetIndex:
        """Return a segment's offset index; empty if it is missing or corrupt.

        Args:
            base: Base offset of the segment.
            size: Size of the segment in bytes.

        Returns:
            The index.
        """
        data = self._read_index(base, OFFSET_INDEX)
        return OffsetIndex.from_bytes(data, size) or OffsetIndex()

    def _read_index(self, base: int, suffix: str) -> bytes:
        try:
            return FILES.read_bytes(f"{self.directory}/{file_name(base, suffix)}")
        except FileNotFoundError:
            return b""

    def find(self, file: File, base: int, offset: int) -> Position | None:
        """Return the position of the first batch that ends at or after `offset`, or None.

        Args:
            file: The segment.
            base: Base offset of the segment.
            offset: Offset to find.

        Returns:
            The file position, or None if all batches end before `offset`.

        Raises:
            CorruptLogError: The segment is corrupt.
        """
        if offset <= base:
            return BEGINNING if file.size else None
        size = Position(file.size)
        index = self.offset_index(base, size)
        slot = index.floor(offset - base)
        if slot >= 0:
            position, last_offset = index.position(slot), index.offsets[slot] + base
            try:
                places = walk(file, position, size)
                if next(places).last_offset == last_offset:
                    return _first_ending_at_or_after(walk(file, position, size), offset)
            except CorruptLogError:
                pass  # the index may be wrong: scan the segment from its start
        return _first_ending_at_or_after(walk(file, BEGINNING, size), offset)

    def headers(self, start: int, end: int) -> Iterator[tuple[File, Position, BatchHeader]]:
        """Yield file, position and header of the batches with records between two offsets."""
        bases = self.segment_bases()
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            if start >= end or base >= end:
                return
            file = self.open_segment(base)
            position = self.find(file, base, start)
            if position is None:
                continue
            for at, header in walk_headers(file, position, Position(file.size)):
                if header.base_offset >= end:
                    return
                yield file, at, header
                start = header.next_offset
                if start >= end:  # later batches may be incomplete
                    return

    def extent(self, base: int, start: int, end: int) -> tuple[Position, Position, OffsetIndex]:
        """Return the approximate positions of an offset range in a segment, and the index.

        The index is not checked against the batches: use the result for estimates only.
        """
        size = Position(FILES.size(f"{self.directory}/{file_name(base, LOG)}"))
        index = self.offset_index(base, size)
        first, last = index.floor(start - base), index.floor(end - base)
        low = index.position(first) if first >= 0 else BEGINNING
        high = index.position(last + 1) if last + 1 < len(index) else size
        return low, high, index

    def split_offsets(self, start: int, end: int, bytes_wanted: int) -> Iterator[int]:
        """Yield offsets that split a range at batch boundaries into pieces of about `bytes_wanted`.

        The offsets come from the indexes. A wrong index leads to unequal pieces, but never to wrong
        records.
        """
        bases = [base for base in self.segment_bases() if base < end]
        gathered = 0
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            try:
                position, stop, index = self.extent(base, start, end)
            except FileNotFoundError:
                continue
            while gathered + stop - position > bytes_wanted:
                slot = index.floor_position(position + (bytes_wanted - gathered))
                slot = max(slot, index.floor_position(position) + 1)
                if slot >= len(index):
                    break
                position, gathered = index.position(slot), 0
                cut = index.offsets[slot] + base + 1
                if start < cut < end:
                    yield cut
            gathered += max(stop - position, 0)

    def size(self, start: int, end: int) -> int:
        """Return the approximate size in bytes of the records between two offsets."""
        total = 0
        bases = [base for base in self.segment_bases() if base < end]
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            with suppress(FileNotFoundError):
                low, high, _ = self.extent(base, start, end)
                total += max(high - low, 0)
        return total

    # -- transactions

    @cached_property
    def stable(self) -> Stable:
        """Last stable offset and aborted transactions.

        They are computed from the newest producer snapshot and the headers of later batches.
        """
        end = max(self.high_watermark, self.start)
        names = filter(None, map(parse_file_name, FILES.listdir(self.directory)))
        known = sorted(offset for offset, suffix in names if suffix == SNAPSHOT)
        start, producers = Snapshots(FILES, self.directory, known).newest(self.start, end, 0)
        aborted: list[AbortedTransaction] = []
        for base in self.segment_bases():
            if base < start:
                aborted += aborted_before(self._read_index(base, TXN_INDEX), start)
        for file, position, header in self.headers(start, end):
            if header.producer_id >= 0:
                aborted += _aborted_by(producers, file, position, header)
        first_open = producers.first_open_offset
        return Stable(end if first_open is None else max(first_open, self.start), aborted)

    # -- times

    def first_at_or_after(self, timestamp: int, end: int) -> FoundRecord | None:
        """Return the first record before offset `end` that is not older than `timestamp` (ms)."""
        log_start = self.start
        bases = self.segment_bases()
        for number, base in enumerate(bases):
            range_end = min(end, bases[number + 1] if number + 1 < len(bases) else end)
            older = self._older_until(base, timestamp)
            for file, position, header in self.headers(max(older, log_start, base), range_end):
                if header.max_timestamp < timestamp:
                    continue
                batch = file.read(position, header.size)
                steps = first_record_since(batch, header, timestamp, start_offset=log_start)
                found = next(filter(None, steps), None)
                if found is not None:
                    return found if found.offset < end else None
        return None

    def _older_until(self, base: int, timestamp: int) -> int:
        """Return an offset below which all records are older, according to the time index."""
        index = TimeIndex.from_bytes(self._read_index(base, TIME_INDEX)) or TimeIndex()
        slot = index.floor(timestamp - 1)
        if slot < 0:
            return base
        reached = index.offsets[slot] + base
        for _, _, header in self.headers(reached, reached + 1):
            if (header.last_offset, header.max_timestamp) == (reached, index.timestamps[slot]):
                return reached
        return base


def _first_ending_at_or_after(places: Iterator[Place], offset: int) -> Position | None:
    return next((place.position for place in places if place.last_offset >= offset), None)


def _aborted_by(
    producers: ProducerStates, file: File, position: int, header: BatchHeader
) -> list[AbortedTransaction]:
    """Update the producer state with a batch, and return the transaction that it aborts, if any."""
    base = header.base_offset
    if not header.is_control:
        producers.update(header, base, 0)
        return []
    record = next(batch_records(file.read(position, header.size), header), None)
    marker = read_marker(record) if record is not None else None
    ended = producers.end_transaction(header, marker, base, 0) if marker is not None else None
    if ended is None or not ended.aborted:
        return []
    return [AbortedTransaction(ended.producer_id, ended.first_offset, base, base)]
