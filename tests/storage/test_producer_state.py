from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import TRANSACTIONAL_BIT, BatchHeader, Marker
from kbroker.storage import producer_state
from kbroker.storage.producer_state import Batch, ProducerStates

NOW = 1000
LAST = 0x7FFFFFFF

# Written by Apache Kafka 4.3.0: one producer after 15,128 single-record sequences.
KAFKA_SNAPSHOT = bytes.fromhex(
    "0001405fd1a600000001000000000000000000000000 3b17 0000000000003b17 000000ec"
    "0000018bcfe7b6e6 ffffffff ffffffffffffffff"
)


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return BatchHeader(0, 100, 0, 2, 0, 0, count - 1, NOW, NOW, producer_id, epoch, sequence, count)


def control(epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return header(-1, epoch=epoch, producer_id=producer_id)._replace(attributes=0x30)


class Log:
    """A minimal log, whose offsets advance by accepted records."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def write(self, batch: BatchHeader) -> int:
        """Return the base offset of the batch, or of the original batch for a retry."""
        known = self.states.check(batch)
        if known is not None:
            return known.base_offset
        base, self.end = self.end, self.end + batch.record_count
        self.states.update(batch, base, NOW)
        return base


def transactional(batch: BatchHeader) -> BatchHeader:
    return batch._replace(attributes=TRANSACTIONAL_BIT)


def rejection_code(log: Log, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        log.write(batch)
    return error.value.code


def test_fenced_producer_is_rejected() -> None:
    """The epoch is rejected, retries included. The next epoch starts at sequence 0."""
    log = Log()
    log.write(header(0))
    log.write(header(0, producer_id=8))
    log.states.fence(7)
    log.states.fence(9)
    for sequence in (0, 1):
        assert rejection_code(log, header(sequence)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert rejection_code(log, header(1, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.write(header(0, epoch=1)) == 2
    assert log.write(header(1, producer_id=8)) == 3
    assert log.states.get(9) is None


class TestSequences:
    def test_last_five_batches_are_retries(self) -> None:
        log = Log()
        for sequence in range(0, 14, 2):
            log.write(header(sequence, 2))
        for sequence in range(4, 14, 2):
            assert log.write(header(sequence, 2)) == sequence
        assert log.end == 14
        for sequence in (0, 2):
            assert (
                rejection_code(log, header(sequence, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            )

    @pytest.mark.parametrize(("first", "count"), [(0, 1), (2, 3), (1, 2), (5, 1), (7, 1)])
    def test_batch_that_is_neither_next_nor_known_is_rejected(self, first: int, count: int) -> None:
        log = Log()
        log.write(header(0, 2))
        log.write(header(2, 2))
        assert rejection_code(log, header(first, count)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_sequences_wrap_around(self) -> None:
        log = Log()
        log.write(header(LAST - 1, 1))
        log.write(header(LAST, 3))
        producer = log.states.get(7)
        assert producer is not None
        assert producer.batches[-1][:2] == (LAST, 1)
        assert log.write(header(2)) == 4
        assert log.write(header(LAST, 3)) == 1
        log = Log()
        log.write(header(LAST))
        assert log.write(header(0)) == 1

    def test_older_epoch_is_rejected_and_newer_starts_at_zero(self) -> None:
        log = Log()
        log.write(header(0, epoch=3))
        log.write(header(1, epoch=3))
        assert rejection_code(log, header(2, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        log.write(header(0, epoch=4))
        assert rejection_code(log, header(1, epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH, (
            "47 first"
        )
        assert log.write(header(0, epoch=4)) == 2
        assert log.write(header(1, epoch=4)) == 3

    def test_unknown_producers_may_start_at_any_sequence(self) -> None:
        log = Log()
        assert log.write(header(17)) == 0
        other = header(17, producer_id=8)
        with pytest.raises(KafkaError) as error:
            log.states.check_begins_at_zero(other)
        assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for known in (header(0, producer_id=8), header(18), header(-1, producer_id=8)):
            log.states.check_begins_at_zero(known)

    def test_batch_without_sequence_is_checked_by_epoch_only(self) -> None:
        log = Log()
        log.write(header(-1, epoch=2))
        log.write(header(-1, epoch=2))
        assert rejection_code(log, header(-1, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
        producer = log.states.get(7)
        assert producer is not None
        assert not producer.batches
        assert log.write(header(0, epoch=2)) == 2

    @given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.data())
    def test_retries_never_append(self, counts: list[int], data: st.DataObject) -> None:
        log = Log()
        sent: list[tuple[BatchHeader, int]] = []
        sequence = data.draw(st.sampled_from([0, LAST - 3]))
        for count in counts:
            batch = header(sequence, count)
            sent.append((batch, log.write(batch)))
            sequence = (sequence + count) & LAST
            for known, base in sent[-5:]:
                assert log.write(known) == base
        assert log.end == sum(counts)


class TestTransactions:
    def begin(self, states: ProducerStates, producer_id: int, offset: int) -> None:
        batch = header(0, producer_id=producer_id)._replace(attributes=0x10)
        states.update(batch, offset, NOW)

    def test_first_open_and_first_unstable_offset_are_tracked(self) -> None:
        states = ProducerStates()
        assert states.first_open_offset is None
        self.begin(states, 1, 10)
        self.begin(states, 2, 20)
        self.begin(states, 1, 30)
        assert states.first_open_offset == states.first_unstable_offset == 10
        ended = states.end_transaction(control(producer_id=1), Marker(False, 0), 40, NOW)
        assert ended == (1, 10, 40, True)
        assert states.first_open_offset == 20
        assert states.first_unstable_offset == 10
        states.forget_ended(40)
        assert states.first_unstable_offset == 10
        states.forget_ended(41)
        assert states.first_unstable_offset == 20

    def test_marker_without_a_transaction_ends_nothing(self) -> None:
        states = ProducerStates()
        assert states.end_transaction(control(epoch=5), Marker(True, 2), 0, NOW) is None
        producer = states.get(7)
        assert producer is not None
        assert (producer.epoch, producer.coordinator_epoch) == (5, 2)

    def test_marker_with_a_new_epoch_resets_sequences(self) -> None:
        log = Log()
        log.write(header(0, 3)._replace(attributes=0x10))
        log.states.end_transaction(control(epoch=1), Marker(True, 0), 3, NOW)
        assert rejection_code(log, header(3, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        log.write(header(0, epoch=1))

    def test_marker_with_the_same_epoch_keeps_sequences(self) -> None:
        log = Log()
        log.write(transactional(header(0, 3)))
        log.states.end_transaction(control(), Marker(True, 0), 3, NOW)
        assert log.write(transactional(header(0, 3))) == 0, "a late retry"
        assert not log.states.has_open_transaction(7, 0)
        log.write(transactional(header(3)))

    def test_open_transaction_belongs_to_producer_and_epoch(self) -> None:
        log = Log()
        log.write(header(0))
        assert not log.states.has_open_transaction(7, 0)
        log.write(transactional(header(0, epoch=1)))
        assert log.states.has_open_transaction(7, 1)
        for producer_id, epoch in ((7, 0), (7, 2), (8, 1)):
            assert not log.states.has_open_transaction(producer_id, epoch)
        log.states.end_transaction(control(epoch=1), Marker(True, 0), 3, NOW)
        assert not log.states.has_open_transaction(7, 1)

    def test_nontransactional_batch_within_a_transaction_is_invalid(self) -> None:
        log = Log()
        log.write(transactional(header(0)))
        for batch in (header(1), header(-1), header(0, epoch=1)):
            assert rejection_code(log, batch) == ErrorCode.INVALID_TXN_STATE
        assert rejection_code(log, header(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "45 first"
        assert log.write(header(0)) == 0, "a retry writes nothing"
        log.write(header(0, producer_id=8))
        log.write(transactional(header(1)))
        log.states.end_transaction(control(), Marker(False, 0), log.end, NOW)
        log.write(header(2))

    def test_late_marker_of_transactions_v2_is_rejected(self) -> None:
        """Each marker has a new epoch, so a late marker does not end a newer transaction."""
        log = Log()
        log.states.check_bumped_marker(control(epoch=1))
        log.write(transactional(header(0)))
        with pytest.raises(KafkaError) as error:
            log.states.check_bumped_marker(control())
        assert error.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
        log.states.check_bumped_marker(control(epoch=1))
        log.states.end_transaction(control(epoch=1), Marker(True, 0), 1, NOW)
        log.states.check_bumped_marker(control(epoch=1))  # a retry has no effect
        log.write(transactional(header(0, epoch=1)))
        with pytest.raises(KafkaError):
            log.states.check_bumped_marker(control(epoch=1))

    def test_marker_of_fenced_producer_or_coordinator_is_rejected(self) -> None:
        states = ProducerStates()
        states.check_marker(control(), Marker(True, 0))
        states.end_transaction(control(epoch=5), Marker(True, 2), 0, NOW)
        states.check_marker(control(epoch=5), Marker(True, 2))
        for batch, marker, code in (
            (control(epoch=4), Marker(True, 2), ErrorCode.INVALID_PRODUCER_EPOCH),
            (control(epoch=5), Marker(True, 1), ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ):
            with pytest.raises(KafkaError) as error:
                states.check_marker(batch, marker)
            assert error.value.code == code


class TestExpiry:
    def test_idle_producers_expire(self) -> None:
        states = ProducerStates()
        states.update(header(0, producer_id=1), 0, NOW)
        states.update(header(0, producer_id=2), 1, NOW + 50)
        states.update(header(0, producer_id=3)._replace(attributes=0x10), 2, NOW)
        assert states.expire(NOW + 99, 100) == 0
        assert states.expire(NOW + 100, 100) == 1
        assert sorted(producer_id for producer_id, _ in states) == [2, 3]
        assert len(states) == 2


def test_ended_transactions_are_counted_by_producer() -> None:
    states = ProducerStates()
    assert states.ended_transactions(1) == 0
    states.end_transaction(control(producer_id=1), Marker(True, 9), 300, NOW)
    states.end_transaction(control(producer_id=1), Marker(False, 9), 301, NOW)
    states.end_transaction(control(producer_id=2), Marker(True, 9), 302, NOW)
    states.update(header(0, 1, producer_id=1), 303, NOW)
    assert [states.ended_transactions(each) for each in (1, 2, 3)] == [2, 1, 0]


class TestSnapshot:
    def test_snapshot_of_kafka_is_read(self) -> None:
        states = ProducerStates.from_bytes(KAFKA_SNAPSHOT, NOW)
        assert states is not None
        producer = states.get(0)
        assert producer is not None
        assert list(producer.batches) == [
            Batch(0x3B17 - 0xEC, 0x3B17, 0x3B17 - 0xEC, 0x3B17, 0x18BCFE7B6E6)
        ]
        assert (producer.epoch, producer.next_sequence, producer.seen_ms) == (0, 0x3B18, NOW)
        assert states.has_newest_batches_only
        written = states.to_bytes()
        crc = slice(2, 6)
        assert written[crc] != KAFKA_SNAPSHOT[crc]
        assert written.startswith(KAFKA_SNAPSHOT[:2])
        assert written[6:].startswith(KAFKA_SNAPSHOT[6:])

    def test_snapshot_round_trip_keeps_every_field(self) -> None:
        states = ProducerStates()
        for number in range(7):
            states.update(
                header(LAST - 9 + 3 * number & LAST, 3, epoch=4, producer_id=1), number, NOW
            )
        states.update(header(0, 1, producer_id=2)._replace(attributes=0x10), 200, NOW)
        states.update(header(0, 1, producer_id=3)._replace(attributes=0x10), 150, NOW)
        states.end_transaction(control(producer_id=4), Marker(True, 9), 300, NOW)
        decoded = ProducerStates.from_bytes(states.to_bytes(), NOW)
        assert decoded is not None
        assert decoded.to_bytes() == states.to_bytes()
        assert not decoded.has_newest_batches_only
        assert decoded.first_open_offset == 150
        for producer_id, producer in states:
            other = decoded.get(producer_id)
            assert other is not None
            fields = [name for name in dir(producer) if name != "find" and name[0] != "_"]
            for name in set(fields) - {"markers"}:
                assert getattr(other, name) == getattr(producer, name), name

    def test_flipped_bit_in_a_snapshot_is_detected(self) -> None:
        for snapshot in (KAFKA_SNAPSHOT, self.snapshot_of_five_batches()):
            for position in range(len(snapshot)):
                for bit in range(8):
                    data = bytearray(snapshot)
                    data[position] ^= 1 << bit
                    assert ProducerStates.from_bytes(bytes(data), NOW) is None

    def test_truncated_snapshot_is_detected(self) -> None:
        for snapshot in (KAFKA_SNAPSHOT, self.snapshot_of_five_batches()):
            for end in range(len(snapshot)):
                assert ProducerStates.from_bytes(snapshot[:end], NOW) is None
            assert ProducerStates.from_bytes(snapshot + b"\0", NOW) is None

    def snapshot_of_five_batches(self) -> bytes:
        log = Log()
        for sequence in range(5):
            log.write(header(sequence))
        return log.states.to_bytes()


def test_snapshot_makes_few_calls_per_producer() -> None:
    """A client can cause a snapshot with each segment, so the step of the event loop must be short."""
    states = ProducerStates()
    for number in range(5 * 100):
        sequence, producer_id = divmod(number, 100)
        states.update(header(sequence, producer_id=producer_id), number, NOW)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        states.to_bytes()
    finally:
        sys.setprofile(None)
    made = calls.count("call") + calls.count("c_call")
    assert made <= 5 * 100 + 10, "more than one call for each batch"


def test_number_of_producers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently active producers are dropped, except those with open transactions."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 100)
    monkeypatch.setattr(producer_state, "_EVICTED_AT_ONCE", 10)
    states = ProducerStates()
    for producer_id in range(1000):
        data = header(0, producer_id=producer_id)
        if producer_id == 3:
            data = data._replace(attributes=TRANSACTIONAL_BIT)
        states.update(data, producer_id, producer_id)
        assert len(states) <= 100
    known = {producer_id for producer_id, _ in states}
    assert known == {3, *range(min(known - {3}), 1000)}
    assert len(known) > 90
