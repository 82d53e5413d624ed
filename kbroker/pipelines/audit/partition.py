"""What one partition holds, from its batches as they lie in the log."""

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

PIECE_RECORDS = 10_000
"""Records of one piece, and as many more as the last batch of it has."""

Batch = tuple[int, BatchHeader]
"""Where a batch begins in what was fetched, and its header."""


@dataclass(slots=True)
class PartitionFacts:
    """What is known of the offsets from `begin` on and below `end`; times are ms, sizes bytes."""

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
    times_back: int = 0
    """Records that are older than the one before them."""
    tombstones: int = 0
    without_key: int = 0
    with_headers: int = 0
    batches: int = 0
    bytes: int = 0
    codecs: Counter[str] = field(default_factory=Counter)
    """Batches by codec."""
    producers: int = 0
    """Idempotent producers: different producer ids."""
    absent: Counter[Reason] = field(default_factory=Counter)
    """Offsets without a record, by why."""
    beyond_stable: int = 0
    """Offsets behind `end` that transactions in progress keep from readers of committed records."""


class PartitionAudit:
    """Reads the batches of one partition in order and takes note of what they are.

    Parameters: `facts` says which partition and which offsets; `compacted`: gaps are explained by
    compaction; `committed`: records of aborted transactions do not count.
    """

    def __init__(
        self, facts: PartitionFacts, findings: Findings, *, compacted: bool, committed: bool
    ) -> None:
        self.facts = facts
        self._findings = findings
        self._compacted = compacted
        self._committed = committed
        self._sequences = Sequences(gapless=not compacted)
        self._next = facts.begin
        """Offsets below are accounted for."""
        self._scanned = facts.begin
        """Headers of batches below have been seen, or are known to be deleted."""
        self._batch_end = 0
        self._known: deque[Gap] = deque()
        """Offsets from `_next` on that have no record, and why."""
        self._latest = TIMESTAMP_MIN

    def read(self, fetched: Fetched) -> Iterator[Piece]:
        """What an answer to a fetch holds, in pieces of bounded size."""
        if fetched.log_start > self._scanned:
            self._know(self._scanned, fetched.log_start, Reason.DELETED)
            self._sequences.skip()
        wanted = list(self._with_records(fetched))
        for rows in self._decoded(fetched.batches, wanted):
            yield self._piece(rows)
        yield self._empty_piece(self._scanned)

    def _decoded(self, batches: bytes, wanted: list[Batch]) -> Iterator[Rows]:
        """The records of batches, those of small ones together."""
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
                what = f"the batch to offset {header.last_offset} cannot be read ({error})"
                self._add(Kind.DAMAGED, header.base_offset, what)
                self._know(header.base_offset, header.next_offset, Reason.DAMAGED)
        yield Rows.of(records)

    def finish(self) -> Piece:
        """What is left to account for when everything has been read."""
        self.facts.producers = self._sequences.producers
        return self._empty_piece(self.facts.end)

    def unreadable(self, why: str) -> None:
        """Nothing more can be read of the partition."""
        self._add(Kind.DAMAGED, self._next, why)
        self._known.clear()
        self._know(self._next, self.facts.end, Reason.DAMAGED)

    # -- batches

    def _with_records(self, fetched: Fetched) -> Iterator[Batch]:
        """The batches whose records count; of the others it notes why they do not."""
        facts = self.facts
        for position, header in iter_headers(fetched.batches):
            if header.next_offset <= facts.begin:
                continue
            if header.base_offset >= facts.end:
                return
            if header.base_offset < self._batch_end:
                self._add(Kind.DAMAGED, header.base_offset, "a batch with offsets that were there")
                continue
            self._batch_end = self._scanned = header.next_offset
            facts.batches += 1
            facts.bytes += header.size
            if reason := self._without_records(fetched, position, header):
                self._know(header.base_offset, header.next_offset, reason)
            else:
                yield position, header

    def _without_records(
        self, fetched: Fetched, position: int, header: BatchHeader
    ) -> Reason | None:
        """Check a batch; returns why its records do not count, None when they do."""
        first = header.base_offset
        if not check_crc(fetched.batches, position, header):
            what = f"the batch of offsets {first} to {header.last_offset} does not match its CRC"
            self._add(Kind.CRC, first, what)
            self._sequences.skip()
            return Reason.DAMAGED
        self.facts.codecs[_codec_name(header.codec)] += 1
        if not header.is_control and (wrong := self._sequences.check(header)):
            self._add(Kind.SEQUENCE, first, wrong)
        batch = memoryview(fetched.batches)[position : position + header.size]
        try:
            is_aborted = is_aborted_batch(header, batch, fetched.aborted)
        except KafkaError as error:
            self._add(Kind.DAMAGED, first, f"a control record cannot be read ({error})")
            return Reason.DAMAGED
        if header.is_control:
            return Reason.CONTROL
        return Reason.ABORTED if is_aborted and self._committed else None

    def _add(self, kind: Kind, offset: int, what: str, count: int = 1) -> None:
        facts = self.facts
        self._findings.add(Finding(kind, facts.topic, what, facts.partition, offset, count))

    # -- records

    def _piece(self, decoded: Rows) -> Piece:
        """Take note of decoded records."""
        facts = self.facts
        rows = decoded.between(facts.begin, facts.end)
        if not rows.size:
            return Piece(rows, self._next)
        offsets = rows.offsets
        if not all(map(lt, offsets, offsets[1:])):
            self._add(Kind.DAMAGED, offsets[0], "offsets do not rise in the batches from here")
        facts.records += rows.size
        if facts.first_offset is None:
            facts.first_offset = offsets[0]
        facts.last_offset = offsets[-1]
        facts.tombstones += rows.values.count(None)
        facts.without_key += rows.keys.count(None)
        facts.with_headers += rows.size - rows.headers.count(())
        self._note_times(rows.timestamps)
        gaps = self._gaps(offsets)
        return Piece(rows, self._next, gaps)

    def _note_times(self, timestamps: list[int]) -> None:
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

    def _gaps(self, offsets: list[int]) -> list[Gap]:
        """Account for what lies in front of and between records, which reach to the last one."""
        first, end = self._next, offsets[-1] + 1
        if end - first == len(offsets):
            self._next = end
            return []
        gaps: list[Gap] = []
        for before, after in pairwise([first - 1, *offsets]):
            if after - before > 1:
                gaps += self._explained(before + 1, after)
        self._next = end
        return gaps

    def _empty_piece(self, end: int) -> Piece:
        """Account for offsets up to `end`, where there are no records."""
        end = min(end, self.facts.end)
        gaps = list(self._explained(self._next, end)) if end > self._next else []
        self._next = max(self._next, end)
        return Piece(Rows.of([]), self._next, gaps)

    def _know(self, first: int, end: int, reason: Reason) -> None:
        """Remember why there is no record at some offsets."""
        self._scanned = max(self._scanned, end)
        insort(self._known, Gap(max(first, self._next), min(end, self.facts.end), reason))

    def _explained(self, first: int, end: int) -> Iterator[Gap]:
        """Say for each offset of a gap why there is no record."""
        while first < end:
            while self._known and self._known[0].end <= first:
                self._known.popleft()
            if self._known and self._known[0].first <= first:
                gap = Gap(first, min(end, self._known[0].end), self._known[0].reason)
            else:
                until = min(end, self._known[0].first) if self._known else end
                gap = Gap(first, until, self._unknown(first, until))
            self.facts.absent[gap.reason] += gap.end - gap.first
            yield gap
            first = gap.end

    def _unknown(self, first: int, end: int) -> Reason:
        if self._compacted:
            return Reason.COMPACTION
        count = end - first
        what = f"offsets {first} to {end - 1} have no record" if count > 1 else "there is no record"
        self._add(Kind.GAP, first, f"{what}, and nothing explains it", count)
        return Reason.UNKNOWN


def _codec_name(codec: int) -> str:
    try:
        return Codec(codec).name.lower()
    except ValueError:
        return str(codec)


def _pieces_of(batch: memoryview, header: BatchHeader) -> Iterator[list[Record]]:
    """The records of one batch in bounded pieces; none of them if the batch cannot be read.

    Raises KafkaError.
    """
    if header.record_count > PIECE_RECORDS:
        for _ in batch_records(batch, header):
            pass  # a batch that is damaged at its end counts as damaged as a whole
    records = batch_records(batch, header)
    while some := list(islice(records, PIECE_RECORDS)):
        yield some
