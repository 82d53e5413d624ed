"""Audit of one partition, from its batches as stored in the log."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import lt

from kbroker.client.consumer import Fetched, is_aborted_batch
from kbroker.protocol.compression import Codec
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import (
    NO_TIMESTAMP,
    TIMESTAMP_MIN,
    BatchHeader,
    Record,
    check_crc,
    iter_headers,
)

from .findings import Finding, Findings, Kind
from .rows import Gap, Piece, Reason, Rows
from .sequences import Sequences

# Minimum number of records per piece; the last batch may add more.
PIECE_RECORDS = 10_000

# Position of a batch in the fetched bytes, and its header.
Batch = tuple[int, BatchHeader]


@dataclass(slots=True)
class PartitionFacts:
    """Facts about the offsets from `begin` to `end` (exclusive); times in ms, sizes in bytes."""

    topic: str
    partition: int
    log_start: int
    begin: int
    end: int
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    # Records with an older timestamp than the record before.
    times_back: int = 0
    tombstones: int = 0
    without_key: int = 0
    with_headers: int = 0
    batches: int = 0
    bytes: int = 0
    # Batches by compression codec.
    codecs: Counter[str] = field(default_factory=Counter)
    # Number of distinct idempotent producer IDs.
    producers: int = 0
    # Offsets without a record, by reason.
    absent: Counter[Reason] = field(default_factory=Counter)
    # Offsets after `end` that read_committed consumers cannot read yet because of open
    # transactions.
    beyond_stable: int = 0


class PartitionAudit:
    """Audit that reads the batches of one partition in order.

    Args:
        facts: Partition and offset range; filled in by the audit.
        findings: Receives the findings.
        compacted: Gaps are explained by compaction.
        committed: Ignore records of aborted transactions.
    """

    def __init__(
        self, facts: PartitionFacts, findings: Findings, *, compacted: bool, committed: bool
    ) -> None:
        self.facts = facts
        self._findings = findings
        self._compacted = compacted
        self._committed = committed
        self._sequences = Sequences(gapless=not compacted)
        # Lower offsets are accounted for.
        self._next_offset = facts.begin
        # Batch headers below this offset have been read, or are known to be deleted.
        self._scanned = facts.begin
        self._batch_end = 0
        # Ranges from `_next` on without a record, with their reason.
        self._known_gaps: deque[Gap] = deque()
        self._latest = TIMESTAMP_MIN

    def read(self, fetched: Fetched) -> Iterator[Piece]:
        """Yield the records of a Fetch response in pieces of bounded size."""
        if fetched.log_start > self._scanned:
            self._add_gap(self._scanned, fetched.log_start, Reason.DELETED)
            self._sequences.skip()
        wanted = list(self._visible_batches(fetched))
        for rows in self._decoded(fetched.batches, wanted):
            yield self._make_piece(rows)
        yield self._empty_piece(self._scanned)

    def _decoded(self, batches: bytes, wanted: list[Batch]) -> Iterator[Rows]:
        """Yield the records of batches; small batches are combined."""
        records: list[Record] = []
        for position, header in wanted:
            try:
                batch = memoryview(batches)[position : position + header.size]
                for some in _pieces_of(batch, header):
                    records += some
                    if len(records) >= PIECE_RECORDS:
                        yield Rows.of(records)
                        records = []
            except KafkaError as error:
                what = f"the batch up to offset {header.last_offset} cannot be read ({error})"
                self._add_finding(Kind.DAMAGED, header.base_offset, what)
                self._add_gap(header.base_offset, header.next_offset, Reason.DAMAGED)
        yield Rows.of(records)

    def finish(self) -> Piece:
        """Account for the remaining offsets after the last batch."""
        self.facts.producers = self._sequences.producers
        return self._empty_piece(self.facts.end)

    def report_unreadable(self, why: str) -> None:
        """Report that the rest of the partition cannot be read."""
        self._add_finding(Kind.DAMAGED, self._next_offset, why)
        self._known_gaps.clear()
        self._add_gap(self._next_offset, self.facts.end, Reason.DAMAGED)

    # -- batches

    def _visible_batches(self, fetched: Fetched) -> Iterator[Batch]:
        """Yield the batches with visible records, and note the reason for other batches."""
        facts = self.facts
        for position, header in iter_headers(fetched.batches):
            if header.next_offset <= facts.begin:
                continue
            if header.base_offset >= facts.end:
                return
            if header.base_offset < self._batch_end:
                self._add_finding(
                    Kind.DAMAGED, header.base_offset, "the batch overlaps the offsets before it"
                )
                continue
            self._batch_end = self._scanned = header.next_offset
            facts.batches += 1
            facts.bytes += header.size
            if reason := self._check_batch(fetched, position, header):
                self._add_gap(header.base_offset, header.next_offset, reason)
            else:
                yield position, header

    def _check_batch(self, fetched: Fetched, position: int, header: BatchHeader) -> Reason | None:
        """Check a batch; return why its records are not visible, or None."""
        first = header.base_offset
        if not check_crc(fetched.batches, position, header):
            what = f"the batch of offsets {first} to {header.last_offset} does not match its CRC"
            self._add_finding(Kind.CRC, first, what)
            self._sequences.skip()
            return Reason.DAMAGED
        self.facts.codecs[_codec_name(header.codec)] += 1
        if not header.is_control and (wrong := self._sequences.check(header)):
            self._add_finding(Kind.SEQUENCE, first, wrong)
        batch = memoryview(fetched.batches)[position : position + header.size]
        try:
            is_aborted = is_aborted_batch(header, batch, fetched.aborted)
        except KafkaError as error:
            self._add_finding(Kind.DAMAGED, first, f"a control record cannot be read ({error})")
            return Reason.DAMAGED
        if header.is_control:
            return Reason.CONTROL
        return Reason.ABORTED if is_aborted and self._committed else None

    def _add_finding(self, kind: Kind, offset: int, what: str, count: int = 1) -> None:
        facts = self.facts
        self._findings.add(Finding(kind, facts.topic, what, facts.partition, offset, count))

    # -- records

    def _make_piece(self, decoded: Rows) -> Piece:
        """Update the facts with decoded records."""
        facts = self.facts
        rows = decoded.between(facts.begin, facts.end)
        if not rows.size:
            return Piece(rows, self._next_offset)
        offsets = rows.offsets
        if not all(map(lt, offsets, offsets[1:])):
            self._add_finding(
                Kind.DAMAGED, offsets[0], "offsets do not increase in the batches from here"
            )
        facts.records += rows.size
        if facts.first_offset is None:
            facts.first_offset = offsets[0]
        facts.last_offset = offsets[-1]
        facts.tombstones += rows.values.count(None)
        facts.without_key += rows.keys.count(None)
        facts.with_headers += rows.size - rows.headers.count(())
        self._count_timestamps(rows.timestamps)
        gaps = self._find_gaps(offsets)
        return Piece(rows, self._next_offset, gaps)

    def _count_timestamps(self, timestamps: list[int]) -> None:
        facts = self.facts
        if NO_TIMESTAMP in timestamps:
            timestamps = [each for each in timestamps if each != NO_TIMESTAMP]
            if not timestamps:
                return
        earliest, latest = min(timestamps), max(timestamps)
        if facts.first_timestamp is None or earliest < facts.first_timestamp:
            facts.first_timestamp = earliest
        if facts.last_timestamp is None or latest > facts.last_timestamp:
            facts.last_timestamp = latest
        facts.times_back += sum(map(lt, timestamps, [self._latest, *timestamps]))
        self._latest = timestamps[-1]

    # -- gaps

    def _find_gaps(self, offsets: list[int]) -> list[Gap]:
        """Account for the gaps before and between records, up to the last record."""
        first, end = self._next_offset, offsets[-1] + 1
        if end - first == len(offsets):
            self._next_offset = end
            return []
        gaps: list[Gap] = []
        for before, after in pairwise([first - 1, *offsets]):
            if after - before > 1:
                gaps += self._explain(before + 1, after)
        self._next_offset = end
        return gaps

    def _empty_piece(self, end: int) -> Piece:
        """Account for offsets up to `end`, which have no records."""
        end = min(end, self.facts.end)
        gaps = list(self._explain(self._next_offset, end)) if end > self._next_offset else []
        self._next_offset = max(self._next_offset, end)
        return Piece(Rows.of([]), self._next_offset, gaps)

    def _add_gap(self, first: int, end: int, reason: Reason) -> None:
        """Store the reason why offsets have no record."""
        self._scanned = max(self._scanned, end)
        insort(
            self._known_gaps, Gap(max(first, self._next_offset), min(end, self.facts.end), reason)
        )

    def _explain(self, first: int, end: int) -> Iterator[Gap]:
        """Yield the gaps in a range of offsets with their reasons."""
        while first < end:
            while self._known_gaps and self._known_gaps[0].end <= first:
                self._known_gaps.popleft()
            if self._known_gaps and self._known_gaps[0].first <= first:
                gap = Gap(first, min(end, self._known_gaps[0].end), self._known_gaps[0].reason)
            else:
                until = min(end, self._known_gaps[0].first) if self._known_gaps else end
                gap = Gap(first, until, self._report_unknown(first, until))
            self.facts.absent[gap.reason] += gap.end - gap.first
            yield gap
            first = gap.end

    def _report_unknown(self, first: int, end: int) -> Reason:
        if self._compacted:
            return Reason.COMPACTION
        count = end - first
        what = f"offsets {first} to {end - 1} have no record" if count > 1 else "no record"
        self._add_finding(Kind.GAP, first, f"{what}, for an unknown reason", count)
        return Reason.UNKNOWN


def _codec_name(codec: int) -> str:
    try:
        return Codec(codec).name.lower()
    except ValueError:
        return str(codec)


def _pieces_of(batch: memoryview, header: BatchHeader) -> Iterator[list[Record]]:
    """Yield the records of one batch in bounded pieces; none if the batch is corrupt.

    Raises KafkaError.
    """
    if header.record_count > PIECE_RECORDS:
        for _ in batch_records(batch, header):
            pass  # a batch that is corrupt at its end counts as corrupt as a whole
    records = batch_records(batch, header)
    while some := list(islice(records, PIECE_RECORDS)):
        yield some
