"""What lies in the data directories of a broker, looked at from outside while the broker may run.

kbroker and Apache Kafka keep the same files. What a reader may rely on:

* Records up to the high watermark in `replication-offset-checkpoint` are whole, and stay. A running
  broker writes this file every few seconds, so what is younger is seen a little later. Behind it
  a batch may be torn: nothing there is looked at.
* Segments are appended to, removed from the front, and replaced by compaction, under the eyes of the
  reader. So places are offsets, never positions, and are found again in whatever is there.
* Indexes are behind, or missing, or wrong after a crash. They only save time: what they say is
  compared with the batch that they name.
"""

from __future__ import annotations

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


class FilesError(Exception):
    """The files cannot be read as they are; the message says what helps."""


def damaged(path: str, position: int, reason: str) -> FilesError:
    """Bytes below the high watermark are not what was written."""
    directory = path.rpartition("/")[0]
    return FilesError(
        f"{path} is damaged at byte {position} ({reason}). See how much of the partition is with: "
        f"kbroker log verify {directory} - and keep what is readable, while no broker runs on it, with: "
        f"kbroker log repair {directory}"
    )


@dataclass(frozen=True)
class DataDirectories:
    """The data directories of one broker (its log.dirs)."""

    paths: Sequence[str]

    def logs(self) -> dict[Partition, StoredLog]:
        """All partitions, as they are now.

        Raises:
            FilesError: a path is no data directory, or its checkpoints are damaged.
        """
        found: dict[Partition, StoredLog] = {}
        for path in self.paths:
            # In this order: what the high watermark covers is there when the directory is listed.
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
                f"{path} is no data directory of a broker, or of one that has just begun: it has no "
                f"{name}. Name what the broker has in --data-dir or log.dirs."
            ) from None
        if offsets is None:
            raise FilesError(
                f"{path}/{name} is damaged, so nobody knows up to where records are safe: start "
                "the broker on this directory, which checks them and writes the file anew."
            )
        return offsets


@dataclass(frozen=True)
class Stable:
    """What read_committed may see of a partition: everything before `end` that is not `aborted`."""

    end: int
    aborted: Sequence[AbortedTransaction]


@dataclass(frozen=True)
class StoredLog:
    """One partition's directory, with the log start and the high watermark of the checkpoints."""

    directory: str
    checkpointed_start: int
    high_watermark: int

    @property
    def start(self) -> int:
        """The first offset that may be read."""
        bases = self.bases()
        return max(self.checkpointed_start, bases[0] if bases else self.high_watermark)

    def bases(self) -> list[int]:
        """The first offsets of the segments that are there now.

        Raises:
            FilesError: a compaction was interrupted, and segments may be missing.
        """
        names = FILES.listdir(self.directory)
        if any(name.endswith(LOG + SWAP) for name in names):
            raise FilesError(
                f"{self.directory} was left in the middle of a compaction: start the broker on this "
                "directory, which finishes it."
            )
        numbered = filter(None, map(parse_file_name, names))
        return sorted(offset for offset, suffix in numbered if suffix == LOG)

    # -- finding records

    def open_segment(self, base: int) -> File:
        """Open the records of a segment. Raises FileNotFoundError when it is gone."""
        return FILES.open(f"{self.directory}/{file_name(base, LOG)}")

    def offset_index(self, base: int, size: int) -> OffsetIndex:
        """The index beside a segment of `size` bytes; empty when it is missing or damaged."""
        data = self._beside(base, OFFSET_INDEX)
        return OffsetIndex.from_bytes(data, size) or OffsetIndex()

    def _beside(self, base: int, suffix: str) -> bytes:
        try:
            return FILES.read_bytes(f"{self.directory}/{file_name(base, suffix)}")
        except FileNotFoundError:
            return b""

    def find(self, file: File, base: int, offset: int) -> Position | None:
        """Where the first batch begins that ends at or behind `offset`; None when there is none.

        Parameters: `file` is the segment at `base`. Raises CorruptLogError.
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
                    return _first_ending_behind(walk(file, position, size), offset)
            except CorruptLogError:
                pass  # the index may be to blame
        return _first_ending_behind(walk(file, BEGINNING, size), offset)

    def headers(self, start: int, end: int) -> Iterator[tuple[File, Position, BatchHeader]]:
        """File, position and header of the batches with records between two offsets."""
        bases = self.bases()
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
                if start >= end:  # what follows may be torn
                    return

    def extent(self, base: int, start: int, end: int) -> tuple[Position, Position, OffsetIndex]:
        """About where the records between two offsets lie in a segment, and its index.

        Nothing is compared with the batches: this is for estimates.
        """
        size = Position(FILES.size(f"{self.directory}/{file_name(base, LOG)}"))
        index = self.offset_index(base, size)
        first, last = index.floor(start - base), index.floor(end - base)
        low = index.position(first) if first >= 0 else BEGINNING
        high = index.position(last + 1) if last + 1 < len(index) else size
        return low, high, index

    def cuts(self, start: int, end: int, bytes_wanted: int) -> Iterator[int]:
        """Offsets that cut a range into pieces of about `bytes_wanted`, between batches.

        They are taken from the indexes; a wrong one makes unequal pieces and no wrong ones.
        """
        bases = [base for base in self.bases() if base < end]
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
        """About how many bytes the records between two offsets take."""
        total = 0
        bases = [base for base in self.bases() if base < end]
        for base in bases[max(bisect_right(bases, start) - 1, 0) :]:
            with suppress(FileNotFoundError):
                low, high, _ = self.extent(base, start, end)
                total += max(high - low, 0)
        return total

    # -- transactions

    @cached_property
    def stable(self) -> Stable:
        """The last stable offset and the aborted transactions, from the newest producer snapshot
        and the headers of the batches behind it."""
        end = max(self.high_watermark, self.start)
        names = filter(None, map(parse_file_name, FILES.listdir(self.directory)))
        known = sorted(offset for offset, suffix in names if suffix == SNAPSHOT)
        start, producers = Snapshots(FILES, self.directory, known).newest(self.start, end, 0)
        aborted: list[AbortedTransaction] = []
        for base in self.bases():
            if base < start:
                aborted += aborted_before(self._beside(base, TXN_INDEX), start)
        for file, position, header in self.headers(start, end):
            if header.producer_id >= 0:
                aborted += _ended_by(producers, file, position, header)
        first_open = producers.first_open_offset
        return Stable(end if first_open is None else max(first_open, self.start), aborted)

    # -- times

    def first_at_or_after(self, timestamp: int, end: int) -> FoundRecord | None:
        """The first record before the offset `end` whose time is at least `timestamp` (ms)."""
        log_start = self.start
        bases = self.bases()
        for number, base in enumerate(bases):
            behind = min(end, bases[number + 1] if number + 1 < len(bases) else end)
            older = self._older_until(base, timestamp)
            for file, position, header in self.headers(max(older, log_start, base), behind):
                if header.max_timestamp < timestamp:
                    continue
                batch = file.read(position, header.size)
                steps = first_record_since(batch, header, timestamp, start_offset=log_start)
                found = next(filter(None, steps), None)
                if found is not None:
                    return found if found.offset < end else None
        return None

    def _older_until(self, base: int, timestamp: int) -> int:
        """An offset up to which everything in a segment is older, as its time index has it."""
        index = TimeIndex.from_bytes(self._beside(base, TIME_INDEX)) or TimeIndex()
        slot = index.floor(timestamp - 1)
        if slot < 0:
            return base
        reached = index.offsets[slot] + base
        for _, _, header in self.headers(reached, reached + 1):
            if (header.last_offset, header.max_timestamp) == (reached, index.timestamps[slot]):
                return reached
        return base


def _first_ending_behind(places: Iterator[Place], offset: int) -> Position | None:
    return next((place.position for place in places if place.last_offset >= offset), None)


def _ended_by(
    producers: ProducerStates, file: File, position: int, header: BatchHeader
) -> list[AbortedTransaction]:
    """Take a producer's batch into its state; returns the transaction that it aborts, if it does."""
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
