"""Delivery state of a share partition: acquisition, acknowledgements, and random runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kbroker.coordinator import (
    Acknowledgement,
    Acquired,
    Acquirer,
    DeadLetters,
    DeliverySettings,
    LogBatch,
    PersisterStateBatch,
    RecordState,
    ShareDelivery,
    acquire,
    without_aborted,
)
from kbroker.coordinator.share import acquiring as share_acquiring
from kbroker.coordinator.share.delivery import ACCEPT, GAP, REJECT, RELEASE, RENEW
from kbroker.coordinator.share.dlq_records import CLIENT_REJECT, DELIVERY_COUNT_EXCEEDED
from kbroker.coordinator.share.in_flight import InFlightBatch, Run
from kbroker.protocol.errors import ErrorCode, KafkaError

from .world import play

AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 2, 3, 4
LOCK_MS = 1000


class Leader:
    """A delivery state, and a log from which members acquire records."""

    def __init__(self, start: int = 0, *states: PersisterStateBatch, **settings: Any) -> None:
        self.settings = DeliverySettings(**{"lock_ms": LOCK_MS} | settings)
        self.delivery = ShareDelivery(start, states, lambda: self.settings)
        self.now = 0

    def take(
        self,
        *log: tuple[int, int],
        member: str = "a",
        records_max: int = 500,
        batch_size: int = 500,
        is_exact: bool = False,
    ) -> list[tuple[int, int, int]]:
        acquirer = Acquirer(member, records_max, batch_size, is_exact)
        offset = self.delivery.next_offset()
        read = [LogBatch(*each) for each in log if each[1] >= offset]
        got = acquire(self.delivery, acquirer, offset, read, self.now)
        return [(each.first, each.last, each.deliveries) for each in got]

    def acknowledge(self, *rows: tuple[int, int, int | list[int]], member: str = "a") -> None:
        """Acknowledge records and persist the change."""
        acknowledgements = [
            Acknowledgement(f, l, [t] if isinstance(t, int) else t) for f, l, t in rows
        ]
        change = self.delivery.acknowledge(member, acknowledgements, self.now)
        self.delivery.confirm_change(change)

    def rejection_code(
        self, *rows: tuple[int, int, int | list[int]], member: str = "a"
    ) -> ErrorCode:
        before = self.runs()
        with pytest.raises(KafkaError) as refusal:
            self.acknowledge(*rows, member=member)
        assert self.runs() == before, "acknowledgements are applied all or none"
        return refusal.value.code

    def runs(self) -> list[tuple[int, int, int, int, str]]:
        found: list[tuple[int, int, int, int, str]] = []
        for batch in self.delivery.batches:
            for run in batch.runs:
                fields = (int(run.state), run.deliveries, run.member_id)
                if found and found[-1][2:] == fields and found[-1][1] + 1 == run.first:
                    found[-1] = (found[-1][0], run.last, *fields)
                else:
                    found.append((run.first, run.last, *fields))
        return found


def test_whole_batches_are_acquired() -> None:
    leader = Leader()
    log = (0, 9), (10, 19), (20, 29)
    assert leader.take(*log, records_max=5) == [(0, 9, 1)]
    assert leader.take(*log, records_max=15, batch_size=10) == [(10, 19, 1), (20, 29, 1)]
    assert leader.take(*log) == []


def test_strict_limit_is_not_exceeded() -> None:
    leader = Leader()
    assert leader.take((0, 9), records_max=3, is_exact=True) == [(0, 2, 1)]
    assert leader.take((0, 9), records_max=3, is_exact=True, member="b") == [(3, 5, 1)]
    assert leader.take((0, 9), records_max=300, is_exact=True) == [(6, 9, 1)]


def test_released_records_are_acquired_again() -> None:
    leader = Leader()
    leader.take((0, 9))
    leader.acknowledge((0, 4, ACCEPT), (5, 9, [RELEASE, REJECT, RELEASE, GAP, ACCEPT]))
    assert leader.take((0, 9), member="b") == [(5, 5, 2), (7, 7, 2)]
    assert leader.delivery.start_offset == 5


def test_records_with_pending_state_write_cannot_be_acquired() -> None:
    leader = Leader()
    leader.take((0, 9))
    change = leader.delivery.acknowledge("a", [Acknowledgement(0, 9, [RELEASE])], 0)
    assert leader.take((0, 9), member="b") == []
    leader.delivery.undo_change(change, 0)
    assert leader.runs() == [(0, 9, 1, 1, "a")]
    leader.acknowledge((0, 9, ACCEPT))
    assert leader.delivery.start_offset == 10


def test_lock_that_expired_during_failed_write_is_released() -> None:
    leader = Leader()
    leader.take((0, 9))
    change = leader.delivery.acknowledge("a", [Acknowledgement(0, 4, [ACCEPT])], 0)
    assert leader.delivery.expire(LOCK_MS).states == [PersisterStateBatch(5, 9, AVAILABLE, 1)]
    leader.delivery.undo_change(change, LOCK_MS)
    assert leader.take((0, 9), member="b") == [(0, 9, 2)]


def test_records_are_archived_at_delivery_limit() -> None:
    leader = Leader(deliveries_max=2)
    for deliveries in (1, 2):
        assert leader.take((0, 0)) == [(0, 0, deliveries)]
        leader.acknowledge((0, 0, RELEASE))
    assert leader.take((0, 0)) == []
    assert leader.delivery.start_offset == 1


def test_records_that_failed_often_are_acquired_in_small_numbers() -> None:
    leader = Leader(0, PersisterStateBatch(0, 15, AVAILABLE, 3), deliveries_max=5)
    assert leader.take((0, 15)) == [(0, 7, 4)]
    leader.acknowledge((0, 7, RELEASE))
    assert leader.take((0, 15)) == [(0, 0, 5)], "the last delivery contains one record"
    assert leader.take((0, 15)) == [(1, 1, 5)]


def test_renew_extends_lock() -> None:
    leader = Leader()
    leader.take((0, 9))
    leader.now = LOCK_MS // 2
    leader.acknowledge((0, 4, RENEW))
    assert leader.delivery.expire(LOCK_MS).states == [PersisterStateBatch(5, 9, AVAILABLE, 1)]
    assert leader.delivery.wake_at == leader.now + LOCK_MS
    leader.settings = DeliverySettings(renews=False)
    assert leader.rejection_code((0, 4, RENEW)) == ErrorCode.INVALID_RECORD_STATE


@pytest.mark.parametrize(
    ("rows", "member", "code"),
    [
        ([(0, 9, ACCEPT)], "b", ErrorCode.INVALID_RECORD_STATE),
        ([(0, 9, ACCEPT), (5, 5, ACCEPT)], "a", ErrorCode.INVALID_RECORD_STATE),
        ([(0, 0, ACCEPT), (10, 12, ACCEPT)], "a", ErrorCode.INVALID_REQUEST),
        ([(0, 10, ACCEPT)], "a", ErrorCode.INVALID_REQUEST),
        ([(0, 3, ACCEPT), (2, 4, [ACCEPT] * 3)], "a", ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_invalid_acknowledgement_is_rejected(
    rows: Sequence[tuple[int, int, int | list[int]]], member: str, code: ErrorCode
) -> None:
    leader = Leader()
    leader.take((0, 9))
    assert leader.rejection_code(*rows, member=member) == code


def test_acknowledgement_without_records_is_rejected() -> None:
    assert Leader().rejection_code((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
    assert Leader(5).delivery.acknowledge("a", [Acknowledgement(0, 4, [ACCEPT])], 0).states == []


def test_record_lock_limit_blocks_acquisition() -> None:
    leader = Leader(locks_max=10)
    assert leader.take((0, 9), (10, 19)) == [(0, 9, 1)]
    assert not leader.delivery.can_acquire()
    leader.acknowledge((3, 3, RELEASE))
    assert leader.take((0, 9), (10, 19)) == [(3, 3, 2)]
    leader.acknowledge((0, 9, ACCEPT))
    assert leader.take((0, 9), (10, 19)) == [(10, 19, 1)]


def test_new_leader_continues_with_persisted_states() -> None:
    states = PersisterStateBatch(2, 3, ACKNOWLEDGED, 1), PersisterStateBatch(6, 9, AVAILABLE, 1)
    leader = Leader(0, *states)
    assert leader.delivery.complete_count == 2
    assert leader.take((0, 15)) == [(0, 1, 1), (4, 5, 1), (6, 9, 2), (10, 15, 1)]


@pytest.mark.parametrize(
    "states",
    [
        [PersisterStateBatch(3, 4, AVAILABLE, 1)],
        [PersisterStateBatch(6, 5, AVAILABLE, 1)],
        [PersisterStateBatch(5, 7, AVAILABLE, 1), PersisterStateBatch(7, 9, AVAILABLE, 1)],
        [PersisterStateBatch(5, 7, 1, 1)],
        [PersisterStateBatch(5, 7, 77, 1)],
    ],
)
def test_invalid_persisted_states_are_rejected(states: list[PersisterStateBatch]) -> None:
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        Leader(5, *states)


def test_large_counts_are_clamped() -> None:
    leader = Leader(
        0,
        PersisterStateBatch(0, 2**40, ACKNOWLEDGED, 1),
        PersisterStateBatch(2**41, 2**41, 0, 2**15 - 1),
    )
    assert leader.delivery.complete_count == 0, "the start offset is after the records"
    leader = Leader(
        0,
        PersisterStateBatch(1, 2**40, ACKNOWLEDGED, 1),
        PersisterStateBatch(2**41, 2**41, 0, 2**15 - 1),
    )
    assert leader.delivery.complete_count == 2**31 - 1
    assert leader.take((2**41, 2**41))[0][2] == 2**15 - 1


def test_log_start_offset_archives_older_records() -> None:
    leader = Leader()
    leader.take((0, 9))
    leader.acknowledge((4, 9, RELEASE))
    leader.delivery.archive_before_log_start(6)
    assert leader.take((0, 9), (10, 19)) == [(6, 9, 2), (10, 19, 1)]
    leader.acknowledge((6, 19, ACCEPT))
    assert leader.delivery.expire(LOCK_MS).states == [PersisterStateBatch(0, 3, ARCHIVED, 1)]
    leader.delivery.move_start()
    assert leader.delivery.start_offset == 20


def test_compacted_records_are_skipped() -> None:
    leader = Leader(0, PersisterStateBatch(0, 9, AVAILABLE, 1))
    assert leader.take((5, 7), (12, 19)) == [(5, 9, 2), (10, 19, 1)]
    leader.acknowledge((5, 19, ACCEPT))
    assert leader.delivery.start_offset == 20


def test_aborted_transactions_are_archived() -> None:
    leader = Leader()
    got = [Acquired(*each) for each in leader.take((0, 4), (5, 9), (10, 10))]
    left = without_aborted(leader.delivery, got, [LogBatch(5, 9)])
    assert left == [Acquired(0, 4, 1), Acquired(10, 10, 1)]
    leader.acknowledge((0, 4, ACCEPT), (10, 10, GAP))
    assert leader.delivery.start_offset == 11


def test_leaving_member_releases_its_records() -> None:
    leader = Leader()
    leader.take((0, 4))
    leader.take((5, 9), member="b")
    leader.delivery.confirm_change(leader.delivery.release("a"))
    assert leader.runs() == [(0, 4, 0, 1, ""), (5, 9, 1, 1, "b")]
    assert leader.delivery.release("c").states == []


# -- dead-letter queue


def test_rejected_records_wait_for_dead_letter_queue() -> None:
    leader = Leader(has_dead_letter_queue=True)
    leader.take((0, 9))
    change = leader.delivery.acknowledge("a", [Acknowledgement(0, 9, [REJECT])], 0)
    assert change.states == [PersisterStateBatch(0, 9, ARCHIVING, 1)]
    leader.delivery.confirm_change(change)
    assert change.dead_letters == [DeadLetters(0, 9, 1, CLIENT_REJECT)]
    assert leader.delivery.start_offset == leader.delivery.complete_count == 0
    for first, last in ((0, 3), (4, 9)):
        archived = leader.delivery.archive_dead_letters(DeadLetters(first, last, 1, CLIENT_REJECT))
        assert archived.states == [PersisterStateBatch(first, last, ARCHIVED, 1)]
        assert not archived.dead_letters
    assert leader.delivery.move_start()
    assert leader.delivery.start_offset == 10


def test_gaps_and_accepted_records_do_not_go_to_dead_letter_queue() -> None:
    leader = Leader(has_dead_letter_queue=True)
    leader.take((0, 9))
    change = leader.delivery.acknowledge(
        "a", [Acknowledgement(0, 3, [GAP, ACCEPT, RELEASE, GAP])], 0
    )
    assert not change.dead_letters


def test_records_at_delivery_limit_go_to_dead_letter_queue() -> None:
    leader = Leader(
        0, PersisterStateBatch(0, 2, AVAILABLE, 1), has_dead_letter_queue=True, deliveries_max=2
    )
    leader.take((0, 0))
    leader.take((1, 1))
    leader.take((2, 2))
    released = leader.delivery.acknowledge("a", [Acknowledgement(0, 0, [RELEASE])], 0)
    assert released.dead_letters == [DeadLetters(0, 0, 2, DELIVERY_COUNT_EXCEEDED)]
    rejected = leader.delivery.acknowledge("a", [Acknowledgement(1, 1, [REJECT])], 0)
    assert rejected.dead_letters == [DeadLetters(1, 1, 2, CLIENT_REJECT)]
    expired = leader.delivery.expire(LOCK_MS)
    assert expired.dead_letters == [DeadLetters(2, 2, 2, DELIVERY_COUNT_EXCEEDED)]


def test_failed_write_of_rejection_leaves_records_acquired() -> None:
    leader = Leader(has_dead_letter_queue=True, deliveries_max=1)
    leader.take((0, 9))
    change = leader.delivery.acknowledge("a", [Acknowledgement(0, 9, [REJECT])], 0)
    leader.delivery.undo_change(change, LOCK_MS)
    assert leader.runs() == [(0, 9, 1, 1, "a")]
    assert leader.delivery.wake_at == LOCK_MS, "the lock expires at once"
    expired = leader.delivery.expire(LOCK_MS)
    assert expired.dead_letters == [DeadLetters(0, 9, 1, DELIVERY_COUNT_EXCEEDED)]


def test_loaded_state_returns_unwritten_dead_letters() -> None:
    leader = Leader(
        0,
        PersisterStateBatch(0, 1, ARCHIVING, 1),
        PersisterStateBatch(2, 2, ACKNOWLEDGED, 1),
        PersisterStateBatch(3, 3, ARCHIVING, 5),
        has_dead_letter_queue=False,
    )
    assert leader.delivery.unwritten_dead_letters() == [
        DeadLetters(0, 1, 1, CLIENT_REJECT),
        DeadLetters(3, 3, 5, DELIVERY_COUNT_EXCEEDED),
    ]
    assert leader.take((0, 3)) == []
    assert leader.delivery.start_offset == 0


# -- random runs


@pytest.mark.parametrize("seed", range(10))
def test_random_runs_finish_every_record(seed: int) -> None:
    play(seed, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_long_random_runs_finish_every_record(first: int) -> None:
    for seed in range(first, first + 100):
        play(seed)


def deliveries_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    def acquire_uncounted(self: Run, member_id: str, lock_until: int) -> None:
        real(self, member_id, lock_until)
        self.deliveries -= 1

    real = Run.acquire
    patch.setattr(Run, "acquire", acquire_uncounted)


def failed_writes_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ShareDelivery, "undo_change", lambda self, change, now: self.confirm_change(change)
    )


def gaps_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareDelivery, "gap_start", property(lambda self: None))


def delivery_limit_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareDelivery, "_state_after_failure", lambda self, run: RecordState.AVAILABLE)


def dead_letters_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShareDelivery, "unwritten_dead_letters", lambda self: [])


def dead_letters_are_archived_too_early(patch: pytest.MonkeyPatch) -> None:
    final = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED, RecordState.ARCHIVING
    patch.setattr(RecordState, "is_final", property(lambda self: self in final))


def pending_writes_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "is_free", property(lambda self: self.state is RecordState.AVAILABLE))


def runs_are_split_too_late(patch: pytest.MonkeyPatch) -> None:
    def runs_up_to_next_offset(self: InFlightBatch, first: int, last: int) -> Iterator[Run]:
        return real(self, first, last + 1)

    real = InFlightBatch.between
    patch.setattr(InFlightBatch, "between", runs_up_to_next_offset)


def last_record_of_batch_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def ranges_without_last_offset(self: Any, first: int, last: int) -> Iterator[tuple[int, int]]:
        yield from real(self, first, max(first, last - 1))

    real = share_acquiring._Acquisition._split
    patch.setattr(share_acquiring._Acquisition, "_split", ranges_without_last_offset)


@pytest.mark.parametrize(
    "bug",
    [
        deliveries_are_not_counted,
        failed_writes_are_kept,
        gaps_are_ignored,
        delivery_limit_is_ignored,
        dead_letters_are_forgotten,
        dead_letters_are_archived_too_early,
        pending_writes_are_ignored,
        runs_are_split_too_late,
        last_record_of_batch_is_dropped,
    ],
)
def test_planted_bug_is_detected(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[[pytest.MonkeyPatch], None]
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, KafkaError)):
        play_some()


def play_some() -> None:
    for seed in range(30):
        play(seed, 100)
