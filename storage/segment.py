"""One `.log` file and its indexes: append, find, cut, check.

A segment holds the batches of a partition from its base offset on, one after the other. The newest
segment of a log is *active*: its file stays open and its indexes grow in memory. Older ones are
*sealed*: nothing of them is open; a read opens the file for as long as the range lives, and indexes
are loaded when they are asked for.

Positions that reads and syncs end at are remembered for a while (`mark`), so that a consumer at the
end of the log is served without looking anything up.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import (
    HEADER_SIZE,
    MAGIC,
    BatchHeader,
    FoundRecord,
    check_crc,
    read_header,
    read_records,
)

from .errors import CorruptLogError
from .files import Buffer, File, FileRange, Files
from .index import (
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    aborted_from_bytes,
)
from .naming import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, file_name
from .sync import FileWrite

NEVER = 1 << 62
"""A time (ms) that does not come."""

FULL = -2
"""A time that every batch is later than, even one without timestamps (-1)."""

RELATIVE_OFFSET_MAX = (1 << 31) - 1
_MARKS_MAX = 64
_SMALL_READ = 4 * 1024
_LARGE_READ = 256 * 1024

# base offset, batch length, magic, last offset delta
_PROBE = struct.Struct(">qi4xb6xi")
_PROBE_SIZE = _PROBE.size
_LENGTH_END = 12


class IndexLimits(NamedTuple):
    """How indexes grow: an entry for every `interval_bytes` of records, up to `index_bytes`."""

    interval_bytes: int
    index_bytes: int


class Segment:
    """The batches of one partition from `base_offset` up to the next segment.

    `size` is in bytes; `max_timestamp` is the greatest of all batches (ms, -1 for none).
    `dirty` says that bytes were appended after the last sync began.
    """

    __slots__ = (
        "_aborted",
        "_file",
        "_files",
        "_limits",
        "_marks",
        "_offsets",
        "_offsets_saved",
        "_path",
        "_sealed",
        "_since_index",
        "_times",
        "_times_saved",
        "_unverified",
        "base_offset",
        "dirty",
        "max_timestamp",
        "max_timestamp_offset",
        "roll_at_ms",
        "size",
    )

    def __init__(self, files: Files, folder: str, base_offset: int, limits: IndexLimits) -> None:
        self._files = files
        self._path = f"{folder}/{file_name(base_offset, '')}"
        self._limits = limits
        self._file: File | None = None
        self._sealed = True
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self._offsets_saved = 0  # entries that stand in the file already
        self._times_saved = 0
        self._since_index = 0
        self._marks: dict[int, int] = {}  # offset -> position, batch borders only
        self._unverified: list[tuple[int, int]] = []  # positions whose CRC was never checked
        self.base_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.roll_at_ms = NEVER
        self.dirty = False

    @classmethod
    def create(cls, files: Files, folder: str, base_offset: int, limits: IndexLimits) -> Segment:
        """A new, empty, active segment; its file is made at once."""
        segment = cls(files, folder, base_offset, limits)
        for suffix in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            files.remove(segment._path + suffix)  # of an earlier life that a crash brought back
        segment._file = files.open(segment.log_path, create=True)
        if segment._file.size:
            segment._file.truncate(0)
        segment._sealed = False
        segment._offsets, segment._times, segment._aborted = OffsetIndex(), TimeIndex(), []
        return segment

    @classmethod
    def load(cls, files: Files, folder: str, base_offset: int, limits: IndexLimits) -> Segment:
        """A sealed segment that exists; nothing but the size of its file is looked at."""
        segment = cls(files, folder, base_offset, limits)
        segment.size = files.size(segment.log_path)
        segment._unverified = [(0, segment.size)] if segment.size else []
        return segment

    def load_latest(self) -> None:
        """Find out `max_timestamp`: the last entry of the time index of a complete segment."""
        entry = self._last_entry(TIME_INDEX, TIME_ENTRY_SIZE)
        times = TimeIndex.from_bytes(entry) if entry else None
        self._set_latest(self.times if times is None else times)

    def _last_entry(self, suffix: str, entry_size: int) -> bytes | None:
        """The last entry of an index file; None when the whole file has to be looked at."""
        try:
            size = self._files.size(self._path + suffix)
            if not size or size % entry_size:
                return None
            entry = self._files.open(self._path + suffix).read(size - entry_size, entry_size)
        except FileNotFoundError:
            return None
        return entry if entry.strip(b"\0") else None

    @property
    def log_path(self) -> str:
        return self._path + LOG

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index, loaded or rebuilt when it is not in memory."""
        if self._offsets is None:
            self._load_indexes()
        assert self._offsets is not None
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index, loaded or rebuilt when it is not in memory."""
        if self._times is None:
            self._load_indexes()
        assert self._times is not None
        return self._times

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Transactions whose abort marker is in this segment, in order of their markers."""
        if self._aborted is None:
            try:
                data = self._files.read_bytes(self._path + TXN_INDEX)
            except FileNotFoundError:
                data = b""
            self._aborted = aborted_from_bytes(data) or []
        return self._aborted

    # --- writing --------------------------------------------------------------------------------

    def append(
        self, parts: Sequence[Buffer], length: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Add one batch of `length` bytes. Raises StorageError and changes nothing then."""
        assert self._file is not None
        assert self._offsets is not None
        position = self._file.append(parts)
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._since_index > self._limits.interval_bytes:
            self._index(last_offset, position)
        self._since_index += length
        self.size = position + length

    def _index(self, last_offset: int, position: int) -> None:
        assert self._offsets is not None
        assert self._times is not None
        self._offsets.append(last_offset - self.base_offset, position)
        self._index_latest()
        self._since_index = 0
        if (len(self._times) + 2) * TIME_ENTRY_SIZE > self._limits.index_bytes:
            self.roll_at_ms = FULL

    def _index_latest(self) -> None:
        assert self._times is not None
        if self.max_timestamp >= 0:
            self._times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def seal(self) -> list[FileWrite]:
        """End appending; returns the index writes that make the segment complete on disk."""
        self._index_latest()
        self._sealed = True
        if not self.dirty:
            self._close_file()
        return self.unsaved()

    def unsaved(self) -> list[FileWrite]:
        """Writes that bring the index files up to what is in memory."""
        writes = []
        if self._offsets is not None:
            at, self._offsets_saved = self._offsets_saved, len(self._offsets)
            data = self._offsets.to_bytes(at)
            path = self._path + OFFSET_INDEX
            writes.append(FileWrite(self._files, path, at * OFFSET_ENTRY_SIZE, data))
        if self._times is not None:
            at, self._times_saved = self._times_saved, len(self._times)
            data = self._times.to_bytes(at)
            path = self._path + TIME_INDEX
            writes.append(FileWrite(self._files, path, at * TIME_ENTRY_SIZE, data))
        if self._aborted:
            data = b"".join(entry.to_bytes() for entry in self._aborted)
            writes.append(FileWrite(self._files, self._path + TXN_INDEX, 0, data))
        return writes

    def prepare(self) -> None:
        """Part of a sync pass: what is appended from now on needs another one."""
        self.dirty = False

    def sync(self) -> None:
        """Make the bytes of this segment durable. Any thread may call it."""
        file = self._file
        if file is not None:
            file.sync()
            if self._sealed:
                self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def close(self) -> None:
        self._sealed = True
        self._close_file()

    def open_for_append(self) -> None:
        """Make a loaded segment the active one. Raises CorruptLogError."""
        self._file = self._files.open(self.log_path)
        self._sealed = False
        self._resume()

    def _resume(self) -> None:
        """Find out what `append` would know had it written the batches."""
        start, _ = self.begin_scan(self.base_offset + RELATIVE_OFFSET_MAX)
        for position, header in self.headers(start):
            self.scanned(position, header)

    def begin_scan(self, offset: int) -> tuple[int, int]:
        """Forget what the indexes say from `offset` on, so that `scanned` can say it anew.

        Returns position and offset of the batch to begin with, which is a little before `offset`.
        """
        if self._offsets is None or self._times is None:
            self._offsets, self._times = self._read_indexes() or (OffsetIndex(), TimeIndex())
        offsets, times = self._offsets, self._times
        slot = offsets.floor(offset - 1 - self.base_offset)
        start, start_offset, size = 0, self.base_offset, 0
        if slot >= 0:
            header = self._header_at(offsets.positions[slot])
            if header and header.last_offset == offsets.offsets[slot] + self.base_offset:
                size = header.size
                start, start_offset = offsets.positions[slot] + size, header.next_offset
        # A first entry that is wrong is of another life of this file, and so are the others.
        offsets.truncate(start)
        times.truncate(start_offset - self.base_offset)
        self._offsets_saved = min(self._offsets_saved, len(offsets))
        self._times_saved = min(self._times_saved, len(times))
        self._set_latest(times)
        self._since_index = size
        self._marks.clear()
        return start, start_offset

    def _header_at(self, position: int) -> BatchHeader | None:
        data = self._reader().read(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            return None
        header = read_header(data)
        sound = header.magic == MAGIC and HEADER_SIZE <= header.size <= self.size - position
        return header if sound else None

    def cut_file(self, position: int) -> None:
        """Cut the file of a segment that was scanned up to there; not durable yet."""
        file = self._files.open(self.log_path)
        try:
            file.truncate(position)
        finally:
            file.close()
        self.size = position
        self._unverified = [(a, min(b, position)) for a, b in self._unverified if a < position]

    def truncate(self, position: int, end_offset: int) -> None:
        """Cut at a batch border, whose offset is `end_offset`; the segment must be active."""
        assert self._file is not None
        self._file.truncate(position)
        self.size = position
        self.offsets.truncate(position)
        self._aborted = [entry for entry in self.aborted if entry.last_offset < end_offset]
        self._unverified = [(a, min(b, position)) for a, b in self._unverified if a < position]
        self._resume()

    def remove(self) -> None:
        """Remove all files of the segment, the records first."""
        self._close_file()
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX):
            self._files.remove(self._path + suffix)

    def release_indexes(self) -> None:
        """Drop the indexes of a sealed segment from memory once they are saved."""
        if self._sealed:
            self._offsets = self._times = None
            self._marks.clear()

    # --- reading --------------------------------------------------------------------------------

    def _reader(self) -> File:
        if self._file is not None:
            return self._file
        try:
            return self._files.open(self.log_path)
        except FileNotFoundError:
            raise CorruptLogError(self.log_path, 0, "it is missing") from None

    def range(self, position: int, size: int) -> FileRange:
        """Bytes between two batch borders, checked against their CRCs if that was not done yet.

        Raises CorruptLogError.
        """
        file = self._file or self._reader()
        if self._unverified:
            self._verify(file, position, position + size)
        return file.range(position, size)

    def mark(self, offset: int, position: int) -> None:
        """Remember that `offset` is where the batch at `position` begins."""
        marks = self._marks
        if len(marks) >= _MARKS_MAX:
            marks.clear()
        marks[offset] = position

    def find(self, offset: int) -> tuple[int, int]:
        """Position and base offset of the first batch that ends at or behind `offset`.

        Behind the last batch this is the size of the segment and `offset` itself.
        """
        position = self._marks.get(offset)
        if position is not None:
            return position, offset
        for _ in range(2):
            index = self.offsets
            slot = index.floor(offset - self.base_offset)
            start = index.positions[slot] if slot >= 0 else 0
            last_there = index.offsets[slot] if slot >= 0 else None
            for position, _size, base, last in self._probe(start):
                if last_there is not None and last - self.base_offset != last_there:
                    break  # the index is of another life of this file
                last_there = None
                if last >= offset:
                    return position, base
            else:
                return self.size, offset
            self.rebuild_indexes()
        raise CorruptLogError(self.log_path, start, "its index cannot be rebuilt")

    def cut(self, start: int, limit: int, *, at_least_one: bool) -> tuple[int, int]:
        """The last batch border at or before the position `limit`, and the offset there.

        With `at_least_one` it is at least the end of the batch at `start`.
        """
        slot = self.offsets.floor_position(limit)
        begin = max(start, self.offsets.positions[slot]) if slot >= 0 else start
        end, next_offset = begin, -1
        for position, size, base, last in self._probe(begin):
            if position + size > limit and not (at_least_one and position == start):
                return position, base
            end, next_offset = position + size, last + 1
        return end, next_offset

    def _probe(self, position: int) -> Iterator[tuple[int, int, int, int]]:
        """Walk from a batch border: position, size, base offset and last offset of each batch."""
        file = self._reader()
        end, chunk_at, chunk = self.size, 0, b""
        length_wanted = _SMALL_READ
        unpack = _PROBE.unpack_from
        while position < end:
            at = position - chunk_at
            if at + _PROBE_SIZE > len(chunk):
                chunk, chunk_at, at = file.read(position, length_wanted), position, 0
                length_wanted = _LARGE_READ
                if len(chunk) < _PROBE_SIZE:
                    raise CorruptLogError(self.log_path, position, "it ends within a batch")
            base, length, magic, delta = unpack(chunk, at)
            size = length + _LENGTH_END
            if magic != MAGIC or size < HEADER_SIZE or position + size > end:
                raise CorruptLogError(self.log_path, position, "no batch begins here")
            yield position, size, base, base + delta
            position += size

    def headers(self, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Walk from a batch border: position and header of each batch. Raises CorruptLogError."""
        file = self._reader()
        chunk_at, chunk = 0, b""
        for position, size, _base, _last in self._probe(start):
            at = position - chunk_at
            if at + HEADER_SIZE > len(chunk):
                wanted = _LARGE_READ if size < _LARGE_READ else HEADER_SIZE
                chunk, chunk_at, at = file.read(position, wanted), position, 0
            yield position, read_header(chunk, at)

    def batch(self, position: int, header: BatchHeader) -> bytes:
        """The bytes of one batch."""
        return self._reader().read(position, header.size)

    # --- times ----------------------------------------------------------------------------------

    def first_record_at_or_after(self, timestamp: int, start_offset: int) -> FoundRecord | None:
        """The first record from `start_offset` on whose time is at least `timestamp` (ms)."""
        start, _ = self.find(max(self._older_until(timestamp), start_offset))
        for position, header in self.headers(start):
            if header.max_timestamp < timestamp or header.is_control:
                continue
            for record in self._records(position, header):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return record
        return None

    def _older_until(self, timestamp: int) -> int:
        """An offset up to which, as the time index has it, everything is older."""
        for _ in range(2):
            slot = self.times.floor(timestamp - 1)
            if slot < 0:
                break
            reached = self.times.offsets[slot] + self.base_offset
            position, _base = self.find(reached)
            for _position, header in self.headers(position):
                if (header.last_offset, header.max_timestamp) == (
                    reached,
                    self.times.timestamps[slot],
                ):
                    return reached
                break
            self.rebuild_indexes()  # the index is of another life of this file
        return self.base_offset

    def latest_record(self) -> FoundRecord | None:
        """The first record with the greatest timestamp of this segment."""
        if self.max_timestamp < 0:
            return None
        start, _ = self.find(self.max_timestamp_offset)
        for position, header in self.headers(start):
            return max(self._records(position, header), key=lambda it: it.timestamp, default=None)
        return None

    def _records(self, position: int, header: BatchHeader) -> Iterator[FoundRecord]:
        try:
            for record in read_records(self.batch(position, header)):
                yield FoundRecord(record.offset, record.timestamp, header.leader_epoch)
        except KafkaError as error:
            raise CorruptLogError(self.log_path, position, str(error)) from error

    # --- checking -------------------------------------------------------------------------------

    def _verify(self, file: File, start: int, end: int) -> None:
        """Check the CRCs of what lies between two borders and was not checked yet."""
        rest: list[tuple[int, int]] = []
        for first, last in self._unverified:
            low, high = max(first, start), min(last, end)
            if low >= high:
                rest.append((first, last))
                continue
            self._check(file.read(low, high - low), low)
            rest += [(a, b) for a, b in ((first, low), (high, last)) if a < b]
        self._unverified = rest

    def _check(self, data: bytes, start: int) -> None:
        position = 0
        while position < len(data):
            reason = ""
            header = read_header(data, position) if len(data) - position >= HEADER_SIZE else None
            if header is None or header.size > len(data) - position or header.size < HEADER_SIZE:
                reason = "no batch begins here"
            elif not check_crc(data, position, header):
                reason = "a batch does not match its CRC"
            if header is None or reason:
                raise CorruptLogError(self.log_path, start + position, reason)
            position += header.size

    def verified(self, start: int, end: int) -> None:
        """Take note that somebody else checked the CRCs between two borders."""
        rest = [(a, min(b, start)) for a, b in self._unverified]
        rest += [(max(a, end), b) for a, b in self._unverified]
        self._unverified = sorted({(a, b) for a, b in rest if a < b})

    def scrub(self, bytes_max: int) -> int:
        """Check up to about `bytes_max` bytes that were not checked yet; returns how many."""
        if not self._unverified:
            return 0
        start, end = self._unverified[0]
        if end - start > bytes_max:
            end, _ = self.cut(start, start + bytes_max, at_least_one=True)
        self._verify(self._reader(), start, end)
        return end - start

    def end_offset(self) -> int:
        """The offset behind the last batch, found from the end of the index. Walks a few kB.

        Raises CorruptLogError when the file does not end with a batch.
        """
        entry = None
        if self._offsets is None:
            entry = self._last_entry(OFFSET_INDEX, OFFSET_ENTRY_SIZE)
        index = OffsetIndex.from_bytes(entry, self.size) if entry else self.offsets
        if index is not None:
            end = self._walk_to_end(index)
            if end is not None:
                return end
        self.rebuild_indexes()
        end = self._walk_to_end(self.offsets)
        if end is None:
            raise CorruptLogError(self.log_path, 0, "its offsets are out of order")
        return end

    def _walk_to_end(self, index: OffsetIndex) -> int | None:
        """The end offset; None when the last entry of the index is not right."""
        start = index.positions[-1] if len(index) else 0
        expected = index.offsets[-1] + self.base_offset if len(index) else None
        end = self.base_offset
        for _position, _size, _base, last in self._probe(start):
            if expected is not None and last != expected:
                return None
            expected = None
            end = last + 1
        return end

    # --- indexes --------------------------------------------------------------------------------

    def _load_indexes(self) -> None:
        found = self._read_indexes()
        if found is None:
            self.rebuild_indexes()
        else:
            self._offsets, self._times = found

    def _read_indexes(self) -> tuple[OffsetIndex, TimeIndex] | None:
        """The indexes as they are on disk; None when one is missing or damaged."""
        self._offsets_saved = self._times_saved = 0
        try:
            offsets = OffsetIndex.from_bytes(
                self._files.read_bytes(self._path + OFFSET_INDEX), self.size
            )
            times = TimeIndex.from_bytes(self._files.read_bytes(self._path + TIME_INDEX))
        except FileNotFoundError:
            return None
        if offsets is None or times is None:
            return None
        self._offsets_saved, self._times_saved = len(offsets), len(times)
        return offsets, times

    def rebuild_indexes(self) -> None:
        """Build both indexes anew from the batches. Raises CorruptLogError."""
        self._offsets, self._times = OffsetIndex(), TimeIndex()
        self._offsets_saved = self._times_saved = 0
        start, _ = self.begin_scan(self.base_offset)
        for position, header in self.headers(start):
            self.scanned(position, header)
        if self._sealed:
            self._index_latest()

    def scanned(self, position: int, header: BatchHeader) -> None:
        """Do for a batch that is in the file already what `append` does for a new one."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._since_index > self._limits.interval_bytes:
            self._index(header.last_offset, position)
        self._since_index += header.size

    def _set_latest(self, times: TimeIndex) -> None:
        self.max_timestamp, self.max_timestamp_offset = -1, self.base_offset
        if times.timestamps:
            self.max_timestamp = times.timestamps[-1]
            self.max_timestamp_offset = times.offsets[-1] + self.base_offset
