"""Log compaction: keeps the last record of each key.

A log is clean up to its *first dirty offset*. A run reads the dirty part once to find the last
record of each key. Then it rewrites all closed segments from the log start, without the records
that a later one replaces. Small segments are merged. This module does not change the log: it writes
new segments next to the old ones, as `<offset>.log.cleaned`, and `storage.cleaning` swaps them in.

The rules are those of Kafka:

* A tombstone (null value) stays until its delete horizon, `delete_retention_ms` after the first run
  that read it, so that a reader who started at the beginning sees the deletion (KIP-534).
* Records of aborted transactions are removed. A transaction marker is removed after its own delete
  horizon if no record of its transaction is left. The index entry of an aborted transaction is
  removed one run before its marker.
* The last batch of each producer stays, empty if necessary: after a restart its sequence and epoch
  restore the producer state. The last batch of each new segment (in Kafka: of each run) also stays,
  because a segment must contain its end offset.
* Offsets, timestamps, leader epochs and codecs are unchanged. An unreadable batch is kept whole.

A `Compaction` only gets paths and numbers, so it may run in another process: closed segments do not
change. Its memory is the key map, whose size is limited, plus a few batches. If the map is full,
the run ends at the last complete batch in the map, and the rest of the log stays dirty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, TypeAlias, TypeVar

from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import INT64_MAX
from kbroker.protocol.records import BatchHeader, Marker, read_marker, read_records
from kbroker.protocol.rewriting import (
    BatchRewriter,
    RawRecord,
    decompress_records,
    raw_records,
    with_records,
    without_records,
)

from .batches import Position, read_batches
from .errors import StorageError
from .files import Buffer, Files
from .index import RELATIVE_OFFSET_MAX, AbortedTransaction
from .naming import CLEANED, LOG, file_name
from .segment import Segment, SegmentRules
from .sync import write_ahead

# Memory in bytes for one key of the map: digest, offset and dict entry, rounded up.
KEY_BYTES = 160
_DIGEST_BYTES = 16
# Value of an unknown offset.
NO_OFFSET = -1
# Maximum number of records of one batch that are kept as objects. Objects take far more memory
# than the bytes of the records, so larger batches are parsed again for each pass.
LISTED_RECORDS_MAX = 10_000
# Records to handle in one step (well under 5 ms).
RECORDS_PER_STEP = 1_000
# Bytes up to which a batch is compressed or decompressed within a step (about 1 ms).
CODEC_BYTES_PER_STEP = 64 * 1024
# Bytes after which a new segment is synced; small steps, because acks wait for the same disk.
SYNC_EVERY_BYTES = 512 * 1024


class Source(NamedTuple):
    """A closed segment at the time of planning; `end_offset` is the base of the next segment."""

    base_offset: int
    end_offset: int
    size: Position


class LastEntry(NamedTuple):
    """The last entry of a producer.

    Attributes:
        last_offset: Last offset of its last batch with a sequence. Without such a batch, offset of
            its last marker, or `NO_OFFSET` if unknown.
        epoch: Producer epoch.
    """

    last_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """The parameters of one compaction run.

    Attributes:
        directory: Directory of the log.
        sources: All segments up to the last one that may be compacted.
        first_dirty_offset: Offset before which the log is compacted.
        aborted: Aborted transactions that start in the sources.
        last_entries: Last entries of the known producers, by producer ID.
        now_ms: Current time of the log clock in ms.
        delete_retention_ms: Time in ms that tombstones are kept.
        segment_bytes: Maximum size of a segment in bytes.
        rules: Rules for the new segments.
        key_map_bytes: Memory limit of the key map in bytes.
        decompressed_max: Maximum decompressed size of a batch in bytes.
        max_record_bytes: Maximum size of one record of a compressed batch in bytes.
    """

    directory: str
    sources: tuple[Source, ...]
    first_dirty_offset: int
    aborted: tuple[AbortedTransaction, ...]
    last_entries: Mapping[int, LastEntry]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    rules: SegmentRules
    key_map_bytes: int
    decompressed_max: int
    max_record_bytes: int

    @property
    def size(self) -> int:
        """Total size of all sources in bytes."""
        return sum(source.size for source in self.sources)

    @property
    def end_offset(self) -> int:
        """Offset after the last source."""
        return self.sources[-1].end_offset


class CleanedSegment(NamedTuple):
    """A new segment and the segments that it replaces."""

    sources: tuple[Source, ...]
    size: int
    end_offset: int
    max_timestamp: int
    max_timestamp_offset: int


class CompactionResult(NamedTuple):
    """Result of a run.

    `segments` are the new segments that differ from their sources; the log is clean up to
    `end_offset`. `unreadable` counts batches that could not be parsed.
    """

    segments: tuple[CleanedSegment, ...]
    end_offset: int
    records_read: int
    records_kept: int
    bytes_kept: int
    unreadable: int


class KeyMap:
    """A map from each key to the offset of its last record, limited to `bytes_max` bytes.

    Keys shorter than a digest are stored as they are. The map contains the records from the first
    dirty offset up to `latest_offset`.
    """

    __slots__ = ("keys_max", "latest_offset", "offsets")

    def __init__(self, bytes_max: int, first_offset: int) -> None:
        self.keys_max = max(1, bytes_max // KEY_BYTES)
        self.offsets: dict[bytes, int] = {}
        self.latest_offset = first_offset - 1


def digest(key: bytes) -> bytes:
    """Return the map key for a record key: the key itself if it is short, else a digest."""
    if len(key) < _DIGEST_BYTES:
        return key
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


class _Transactions:
    """The transactions of a log while its batches and markers are read in order.

    Reading may start anywhere in the log, so an entry applies only to batches before its marker.
    """

    def __init__(self, aborted: tuple[AbortedTransaction, ...]) -> None:
        self._ahead = sorted(aborted, key=lambda entry: entry.first_offset, reverse=True)
        self._listed = {entry.last_offset for entry in aborted}
        self._aborting: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers with batches of their current transaction

    def is_aborted(self, header: BatchHeader) -> bool:
        """Record a data batch. Return True if its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        entry = self._aborting.get(header.producer_id)
        return entry is not None and header.last_offset < entry.last_offset

    def end(
        self, header: BatchHeader, marker: Marker | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """Process a transaction marker.

        Returns:
            True if no batch of its transaction is left, and the entry of the aborted transaction
            that it ends if a batch is left.
        """
        self._begin_up_to(header.last_offset)
        if marker is None:
            return False, None
        was_seen = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        if marker.commit:
            return not was_seen, None
        entry = self._aborting.pop(header.producer_id, None)
        matches = entry is not None and entry.last_offset == header.last_offset
        return not was_seen, entry if was_seen and matches else None

    def is_listed(self, header: BatchHeader) -> bool:
        """Return True if the aborted transaction index has an entry for a marker.

        A crash during a swap of segments can leave the old index next to the new segment.
        """
        return header.last_offset in self._listed

    def _begin_up_to(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            entry = self._ahead.pop()
            self._aborting[entry.producer_id] = entry


Batch = tuple[Buffer, BatchHeader]


# A call to run before the next step, or None. It may take long, but releases the GIL.
Work: TypeAlias = Callable[[], None] | None

Result = TypeVar("Result")
Steps: TypeAlias = Generator[Work, None, Result]


class _DecompressedBatch:
    """A batch with decompressed records in `data`, which are returned in chunks."""

    __slots__ = ("_header", "_listed", "data")

    def __init__(self, header: BatchHeader, data: bytes) -> None:
        self.data = data
        self._header = header
        self._listed: list[Sequence[RawRecord]] | None = None

    def check(self) -> Steps[None]:
        """Check that all records can be parsed. Raises KafkaError: CORRUPT_MESSAGE."""
        if self._header.record_count <= LISTED_RECORDS_MAX:
            listed: list[Sequence[RawRecord]] = []
            for chunk in self._parsed():
                listed.append(chunk)
                if len(chunk) == RECORDS_PER_STEP:
                    yield None
            self._listed = listed
            return
        for _ in self._parsed():
            yield None

    @property
    def chunks(self) -> Iterable[Sequence[RawRecord]]:
        """All records, in chunks."""
        return self._parsed() if self._listed is None else self._listed

    def _parsed(self) -> Iterator[Sequence[RawRecord]]:
        records = raw_records(self.data, self._header)
        while chunk := list(islice(records, RECORDS_PER_STEP)):
            yield chunk


class _Output:
    """A new segment that is being written from consecutive sources."""

    __slots__ = (
        "_last_dropped",
        "_segment_bytes",
        "_synced_bytes",
        "changed",
        "segment",
        "sources",
    )

    def __init__(self, files: Files, task: CompactionTask, base_offset: int) -> None:
        self.segment = Segment.create(
            files, task.directory, base_offset, task.rules, suffix=CLEANED
        )
        self.sources: list[Source] = []
        self.changed = False
        self._segment_bytes = task.segment_bytes
        self._synced_bytes = 0
        self._last_dropped: Batch | None = None

    def can_add(self, source: Source) -> bool:
        """Return True if the segment stays within its limits even if all of a source is kept."""
        return (
            self.segment.size + source.size <= self._segment_bytes
            and source.end_offset - self.segment.base_offset <= RELATIVE_OFFSET_MAX
        )

    def add(self, header: BatchHeader, batch: Buffer, kept: Batch | None) -> None:
        """Append the kept part of a batch, if any."""
        self.changed = self.changed or self._last_dropped is not None
        self._last_dropped = (batch, header) if kept is None else None
        if kept is not None:
            self._append(*kept)
            self.changed = self.changed or kept[1] is not header

    def _append(self, batch: Buffer, header: BatchHeader) -> None:
        segment = self.segment
        segment.append([batch], header.size, header.last_offset, header.max_timestamp)
        segment.file.dirty = True
        if segment.size - self._synced_bytes >= SYNC_EVERY_BYTES:
            self._synced_bytes = segment.size
            segment.file.sync()

    def close(self) -> None:
        """Append the last batch if it is missing, close the segment for appends, and sync it."""
        if self._last_dropped is not None:
            header = self._last_dropped[1]
            self._append(*(without_records(header) if header.record_count else self._last_dropped))
            self.changed = self.changed or header.record_count > 0
        self.changed = self.changed or len(self.sources) > 1
        write_ahead(self.segment.close_for_appends())
        self.segment.file.sync()

    def describe(self) -> CleanedSegment:
        segment = self.segment
        return CleanedSegment(
            tuple(self.sources),
            segment.size,
            segment.end_offset,
            segment.max_timestamp,
            segment.max_timestamp_offset,
        )


class Compaction:
    """A compaction run: `steps` does the work, then `result` returns its outcome.

    `steps` raises CorruptLogError for corrupt bytes, and StorageError or FileNotFoundError for
    failed file operations. Call `discard` in every case to remove the files that were written.
    """

    def __init__(self, files: Files, task: CompactionTask) -> None:
        self._files = files
        self._task = task
        self._map = KeyMap(task.key_map_bytes, task.first_dirty_offset)
        self._transactions = _Transactions(task.aborted)
        self._written: list[Segment] = []
        self._cleaned: list[CleanedSegment] = []
        self._records_read = self._records_kept = 0
        self._bytes_kept = 0
        self._unreadable = 0

    def steps(self) -> Iterator[Work]:
        """Do the work in short steps, however large a batch is.

        The caller may do something else between two steps. It must run the call that a step yields,
        in a thread if an event loop is waiting.
        """
        yield from self._map_keys()
        self._transactions = _Transactions(self._task.aborted)
        yield from self._write()

    @property
    def result(self) -> CompactionResult:
        return CompactionResult(
            tuple(self._cleaned),
            self._end_offset,
            self._records_read,
            self._records_kept,
            self._bytes_kept,
            self._unreadable,
        )

    def discard(self) -> None:
        """Remove the new segments. Raises StorageError."""
        for segment in self._written:
            segment.remove()

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        # Check the CRCs: rewritten batches get new ones, which must not hide corruption.
        path = f"{self._task.directory}/{file_name(source.base_offset, LOG)}"
        return read_batches(self._files, path, source.size)

    # -- first pass: map the keys

    def _map_keys(self) -> Steps[None]:
        first, key_map = self._task.first_dirty_offset, self._map
        for source in self._task.sources:
            if source.end_offset <= first:
                continue
            for header, batch in self._batches(source):
                if header.is_control:
                    self._transactions.end(header, _read_marker(batch))
                elif not self._transactions.is_aborted(header) and header.last_offset >= first:
                    is_mapped = yield from self._map_batch(header, batch)
                    if not is_mapped:
                        self._check_progress(header)
                        return
                key_map.latest_offset = header.last_offset
                yield None
            key_map.latest_offset = source.end_offset - 1

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> Steps[bool]:
        """Add the keys of a batch to the map. Return False if the map is full."""
        offsets, keys_max = self._map.offsets, self._map.keys_max
        first = self._task.first_dirty_offset
        opened = yield from self._open(header, batch)
        if opened is None:
            return True
        for chunk in opened.chunks:
            for record in chunk:
                if record.key is not None and record.offset >= first:
                    key = digest(record.key)
                    if len(offsets) >= keys_max and key not in offsets:
                        return False
                    offsets[key] = record.offset
            if len(chunk) == RECORDS_PER_STEP:
                yield None
        return True

    def _check_progress(self, header: BatchHeader) -> None:
        """Raise StorageError if the first batch has more keys than the map can hold.

        A batch cannot be compacted in part: a tombstone in it may hide an older value.
        """
        if self._map.latest_offset < self._task.first_dirty_offset:
            keys_max = self._map.keys_max
            raise StorageError(
                f"the batch at offset {header.base_offset} has more keys than the key map can hold "
                f"({keys_max}); increase log.cleaner.dedupe.buffer.size"
            )

    def _open(self, header: BatchHeader, batch: memoryview) -> Steps[_DecompressedBatch | None]:
        """Return a batch with decompressed records, or None if it cannot be parsed."""
        if header.codec == Codec.NONE:
            data = self._decompress(header, batch)
        else:
            data = yield from _run_in_caller(partial(self._decompress, header, batch))
        if data is None:
            return None
        opened = _DecompressedBatch(header, data)
        try:
            yield from opened.check()
        except KafkaError:
            return None
        yield from self._check_record_sizes(header, opened)
        return opened

    def _check_record_sizes(self, header: BatchHeader, opened: _DecompressedBatch) -> Steps[None]:
        """Raise StorageError if a record exceeds the topic's limit; Kafka does not compact either.

        The log stays dirty, so a run with a larger limit compacts the batch.
        """
        limit = self._task.max_record_bytes
        if header.codec == Codec.NONE or len(opened.data) <= limit:
            return
        for chunk in opened.chunks:
            largest = max(record.end - record.body for record in chunk)
            if largest > limit:
                raise StorageError(
                    f"the batch at offset {header.base_offset} has a record of {largest} bytes; "
                    f"increase max.decompressed.message.bytes ({limit}) of the topic"
                )
            yield None

    def _decompress(self, header: BatchHeader, batch: memoryview) -> bytes | None:
        """Return the records of a batch, or None if they are malformed.

        Raises:
            StorageError: The library of the codec is not installed.
        """
        try:
            return decompress_records(batch, header, self._task.decompressed_max)
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_COMPRESSION_TYPE:
                return None
            raise StorageError(f"the batch at offset {header.base_offset}: {error}") from None

    # -- second pass: write the new segments

    @property
    def _end_offset(self) -> int:
        return self._map.latest_offset + 1

    def _write(self) -> Steps[None]:
        output: _Output | None = None
        for source in self._task.sources:
            if source.base_offset >= self._end_offset:
                break
            if output is not None and not output.can_add(source):
                self._finish(output)
                output = None
            if output is None:
                output = _Output(self._files, self._task, source.base_offset)
                self._written.append(output.segment)
            output.sources.append(source)
            for header, batch in self._batches(source):
                kept = yield from self._kept_part(header, batch, output.segment.aborted.entries)
                output.add(header, batch, kept)
                self._count(header, kept)
                yield None
        if output is not None:
            self._finish(output)

    def _finish(self, output: _Output) -> None:
        output.close()
        if output.changed or self._has_stale_entries(output):
            self._cleaned.append(output.describe())
        else:
            self._written.pop().remove()

    def _has_stale_entries(self, output: _Output) -> bool:
        """Return True if the index of the sources has entries for removed transactions."""
        start, end = output.sources[0].base_offset, output.sources[-1].end_offset
        listed = sum(start <= entry.last_offset < end for entry in self._task.aborted)
        return listed > len(output.segment.aborted.entries)

    def _count(self, header: BatchHeader, kept: Batch | None) -> None:
        self._records_read += header.record_count
        if kept is not None:
            self._records_kept += kept[1].record_count
            self._bytes_kept += kept[1].size

    def _kept_part(
        self, header: BatchHeader, batch: memoryview, aborted: list[AbortedTransaction]
    ) -> Steps[Batch | None]:
        """Return the kept part of a batch and its header, or None if nothing is kept.

        The header is the same object if nothing changed. Entries of aborted transactions that are
        still needed are added to `aborted`.
        """
        if header.is_control:
            kept = yield from self._kept_marker(header, batch, aborted)
        elif self._transactions.is_aborted(header) or not header.record_count:
            kept = None
        elif header.base_offset > self._map.latest_offset:
            kept = batch, header
        else:
            kept = yield from self._kept_records(header, batch)
        if kept is None and self._is_last_entry(header):
            return without_records(header) if header.record_count else (batch, header)
        return kept

    def _kept_marker(
        self, header: BatchHeader, batch: memoryview, aborted: list[AbortedTransaction]
    ) -> Steps[Batch | None]:
        if not header.record_count:
            return None
        is_removable, entry = self._transactions.end(header, _read_marker(batch))
        if entry is not None:
            aborted.append(entry)
        if not is_removable:
            return batch, header
        horizon = header.delete_horizon
        if horizon is not None:
            # An entry without its marker would hide all later records of its producer.
            is_due = horizon <= self._task.now_ms and not self._transactions.is_listed(header)
            return None if is_due else (batch, header)
        opened = yield from self._open(header, batch)
        if opened is None:
            return batch, header
        records = chain.from_iterable(opened.chunks)
        return with_records(header, opened.data, records, delete_horizon=self._horizon)

    @property
    def _horizon(self) -> int:
        return min(self._task.now_ms + self._task.delete_retention_ms, INT64_MAX)

    def _kept_records(self, header: BatchHeader, batch: memoryview) -> Steps[Batch | None]:
        opened = yield from self._open(header, batch)
        if opened is None:
            self._unreadable += 1
            return batch, header
        horizon = header.delete_horizon
        is_live = self._live_predicate(keep_deletes=horizon is None or self._task.now_ms < horizon)
        count, has_tombstones = 0, False
        for chunk in opened.chunks:
            for record in filter(is_live, chunk):
                count += 1
                has_tombstones = has_tombstones or not record.has_value
            if len(chunk) == RECORDS_PER_STEP:
                yield None
        if not count:
            return None
        needs_horizon = has_tombstones and horizon is None
        if count == header.record_count and not needs_horizon:
            return batch, header
        rewriter = BatchRewriter(
            header, opened.data, delete_horizon=self._horizon if needs_horizon else None
        )
        for chunk in opened.chunks:
            rewriter.extend(filter(is_live, chunk))
            if len(chunk) == RECORDS_PER_STEP:
                yield None
        if rewriter.size > CODEC_BYTES_PER_STEP:
            return (yield from _run_in_caller(rewriter.finish))
        return rewriter.finish()

    def _live_predicate(self, *, keep_deletes: bool) -> Callable[[RawRecord], bool]:
        """Return a predicate that is True for records that no later record replaces."""
        latest, find = self._map.latest_offset, self._map.offsets.get

        def is_live(record: RawRecord) -> bool:
            return record.offset > latest or (
                record.key is not None
                and record.offset >= find(digest(record.key), NO_OFFSET)
                and (record.has_value or keep_deletes)
            )

        return is_live

    def _is_last_entry(self, header: BatchHeader) -> bool:
        """Return True if the state of the producer is restored from this batch."""
        entry = self._task.last_entries.get(header.producer_id)
        if entry is None:
            return False
        if entry.last_offset == NO_OFFSET:
            return header.is_control and header.producer_epoch == entry.epoch
        return header.last_offset == entry.last_offset


def _run_in_caller(call: Callable[[], Result]) -> Steps[Result]:
    """Let the caller of the steps run a slow call; return its result."""
    results: list[Result] = []
    yield lambda: results.append(call())
    return results[0]


def _read_marker(batch: memoryview) -> Marker | None:
    """Return the transaction marker of a control batch, or None if it cannot be parsed."""
    with suppress(KafkaError):
        for record in read_records(batch):
            return read_marker(record)
    return None
