"""The audit of one partition: facts about its batches, and each kind of damage."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.client.consumer import Fetched
from kbroker.pipelines.audit.findings import Findings, Kind
from kbroker.pipelines.audit.partition import PartitionAudit, PartitionFacts
from kbroker.pipelines.audit.rows import Gap, Reason
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import Marker, Record, encode_batch, end_transaction_marker

COUNT = 10


def data(
    offset: int,
    count: int = COUNT,
    *,
    producer_id: int = -1,
    sequence: int = -1,
    epoch: int = 0,
    transactional: bool = False,
    codec: Codec = Codec.NONE,
) -> bytes:
    records = [Record(b"k%d" % (offset + i), b"v", 1000 + offset + i) for i in range(count)]
    return encode_batch(
        records,
        base_offset=offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
        transactional=transactional,
    )


def compacted(*offsets: int) -> bytes:
    """Encode a batch as compaction leaves it."""
    records = [Record(b"k", b"v", 1000, offset=offset) for offset in offsets]
    return encode_batch(records, base_offset=offsets[0], keep_offsets=True)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return end_transaction_marker(
        Marker(commit, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp=0,
        base_offset=offset,
    )


class Audited:
    """An audit of batches that arrive in several responses."""

    def __init__(
        self,
        *answers: Sequence[bytes],
        end: int,
        begin: int = 0,
        compacted: bool = False,
        committed: bool = True,
        aborted: dict[int, list[int]] | None = None,
        log_start: int = 0,
    ) -> None:
        self.facts = PartitionFacts("t", 0, begin, begin, end)
        self.findings = Findings()
        audit = PartitionAudit(self.facts, self.findings, compacted=compacted, committed=committed)
        self.gaps: list[Gap] = []
        self.offsets: list[int] = []
        ends = [begin]
        for batches in answers:
            fetched = Fetched(("t", 0), b"".join(batches), aborted or {}, log_start, -1)
            for piece in audit.read(fetched):
                self.offsets += piece.rows.offsets
                self.gaps += piece.gaps
                ends.append(piece.end)
        last = audit.finish()
        self.gaps += last.gaps
        assert ends == sorted(ends)
        assert last.end == end

    @property
    def kinds(self) -> dict[Kind, int]:
        return dict(self.findings.counts)


def test_audit_of_intact_log_finds_no_problems() -> None:
    zstd = data(10, codec=Codec.ZSTD)
    found = Audited([data(0), zstd], [data(20)], end=30)
    facts = found.facts
    assert found.kinds == {}
    assert found.gaps == []
    assert found.offsets == list(range(30))
    assert (facts.records, facts.first_offset, facts.last_offset) == (30, 0, 29)
    assert (facts.first_timestamp, facts.last_timestamp) == (1000, 1029)
    assert facts.codecs == {"none": 2, "zstd": 1}
    assert facts.bytes == len(data(0)) + len(zstd) + len(data(20))
    assert facts.times_back == 0


def test_audit_counts_only_records_of_its_range() -> None:
    """Batches exceed both bounds: the log start and the end of the audit are inside batches."""
    found = Audited([data(0), data(10)], begin=3, end=15)
    assert found.offsets == list(range(3, 15))
    assert found.kinds == {}


def test_decreasing_timestamps_are_counted() -> None:
    found = Audited([data(10)], [data(20), data(30)], begin=10, end=40)
    assert found.facts.times_back == 0
    late = [encode_batch([Record(b"k", b"v", 1)], base_offset=20), data(21)]
    assert Audited([data(10)], late, begin=10, end=31).facts.times_back == 1


# -- explained gaps


def test_gaps_of_transactions_are_explained() -> None:
    log = [
        data(0, producer_id=1, sequence=0, transactional=True),
        data(10, producer_id=2, sequence=0, transactional=True),
        marker(20, 1, commit=False),
        marker(21, 2, commit=True),
        data(22, producer_id=1, sequence=10, transactional=True),
        marker(32, 1, commit=True),
    ]
    found = Audited(log, end=33, aborted={1: [0]})
    assert found.kinds == {}
    assert found.facts.records == 20
    assert found.facts.absent == {Reason.ABORTED: 10, Reason.CONTROL: 3}
    assert found.facts.producers == 2
    assert Gap(0, 10, Reason.ABORTED) in found.gaps
    everything = Audited(log, end=33, committed=False)
    assert everything.facts.records == 30
    assert everything.facts.absent == {Reason.CONTROL: 3}


def test_response_with_only_markers_is_explained() -> None:
    found = Audited([data(0)], [marker(10, 1, commit=True)], [data(11)], end=21)
    assert found.kinds == {}
    assert found.gaps == [Gap(10, 11, Reason.CONTROL)]


def test_compaction_gaps_in_and_between_batches_are_explained() -> None:
    log = [compacted(2, 5), compacted(7, 8, 20)]
    found = Audited(log, end=22, compacted=True)
    assert found.kinds == {}
    assert found.facts.absent == {Reason.COMPACTION: 17}


def test_log_start_that_advances_during_audit_is_explained() -> None:
    found = Audited([], [data(30)], end=40, log_start=30)
    assert found.kinds == {}
    assert found.facts.absent == {Reason.DELETED: 30}


# -- damage


def flipped(batch: bytes, at: int = -1) -> bytes:
    broken = bytearray(batch)
    broken[at] ^= 1
    return bytes(broken)


def test_batch_with_wrong_crc_is_found() -> None:
    found = Audited([data(0), flipped(data(10)), data(20)], end=30)
    assert found.kinds == {Kind.CRC: 1}
    assert found.offsets == [*range(10), *range(20, 30)]
    assert found.facts.absent == {Reason.DAMAGED: 10}
    assert "10 to 19" in found.findings.text()


def test_unreadable_records_with_valid_crc_are_found() -> None:
    """The CRC matches the damaged bytes: the producer damaged them."""
    import struct

    from crc32c import crc32c

    broken = bytearray(data(10))
    broken[61] = 0x7E  # the length of the first record
    broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
    found = Audited([data(0), bytes(broken), marker(20, 1, commit=True), data(21)], end=31)
    assert found.kinds == {Kind.DAMAGED: 1}
    assert found.offsets == [*range(10), *range(21, 31)]


@pytest.mark.parametrize(
    ("answers", "first", "count"),
    [
        ([[data(0), data(12)]], 10, 2),
        ([[data(0)], [data(12)]], 10, 2),
        ([[data(2, 20)]], 0, 2),
        ([[data(0, 21)]], 21, 1),
        ([[compacted(0, 1, 2, 4, 5), data(6, 16)]], 3, 1),
        ([], 0, 22),
    ],
)
def test_unexplained_gap_is_found(answers: list[list[bytes]], first: int, count: int) -> None:
    found = Audited(*answers, end=22)
    assert found.kinds == {Kind.GAP: count}
    assert found.findings.listed[0].offset == first


def test_repeated_batch_is_found() -> None:
    assert Audited([data(0), data(0), data(10)], end=20).kinds == {Kind.DAMAGED: 1}


def test_unreadable_rest_of_partition_is_one_finding() -> None:
    facts = PartitionFacts("t", 0, 0, 0, 50)
    findings = Findings()
    audit = PartitionAudit(facts, findings, compacted=False, committed=True)
    list(audit.read(Fetched(("t", 0), data(0), {}, 0, 10)))
    audit.report_unreadable("KAFKA_STORAGE_ERROR")
    audit.finish()
    assert findings.counts == {Kind.DAMAGED: 1}
    assert facts.absent == {Reason.DAMAGED: 40}


# -- sequences


def of_producer(offset: int, sequence: int, epoch: int = 0, count: int = COUNT) -> bytes:
    return data(offset, count, producer_id=7, sequence=sequence, epoch=epoch)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (of_producer(10, 10), ""),
        (of_producer(10, 0, epoch=1), ""),
        (of_producer(10, 0), "repeats sequence 0 after"),
        (of_producer(10, 13), "jumps from sequence 9 to 13"),
        (of_producer(10, 4, epoch=1), "jumps from sequence -1 to 4"),
    ],
)
def test_repeated_and_skipped_sequences_are_found(second: bytes, message: str) -> None:
    found = Audited([of_producer(0, 0), second], end=20)
    assert found.kinds == ({Kind.SEQUENCE: 1} if message else {})
    assert message in found.findings.text()


def test_sequences_wrap_and_start_at_any_number() -> None:
    top = 0x7FFFFFFF
    log = [of_producer(0, top - 14), of_producer(10, top - 4), of_producer(20, 5)]
    assert Audited(log, end=30).kinds == {}


def test_batch_of_fenced_producer_is_found() -> None:
    found = Audited([of_producer(0, 0, epoch=2), of_producer(10, 10, epoch=1)], end=20)
    assert "fenced" in found.findings.text()


def test_compacted_topic_allows_skipped_but_not_repeated_sequences() -> None:
    log = [of_producer(0, 0), of_producer(30, 30)]
    assert Audited(log, end=40, compacted=True).kinds == {}
    log.append(of_producer(40, 5))
    assert Audited(log, end=50, compacted=True).kinds == {Kind.SEQUENCE: 1}


def test_any_sequence_is_accepted_after_skipped_batches() -> None:
    broken = [of_producer(0, 0), flipped(of_producer(10, 10)), of_producer(20, 20)]
    found = Audited(broken, end=30)
    assert found.kinds == {Kind.CRC: 1}
    assert found.facts.producers == 1
    facts = PartitionFacts("t", 0, 0, 0, 40)
    findings = Findings()
    audit = PartitionAudit(facts, findings, compacted=False, committed=True)
    for batch, log_start, end in ((of_producer(0, 0), 0, 10), (of_producer(30, 30), 30, 40)):
        list(audit.read(Fetched(("t", 0), batch, {}, log_start, end)))
    assert not findings, findings.text()
    assert facts.absent == {Reason.DELETED: 20}
