"""The checker of the kill test: it reports planted anomalies, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .history import (
    Acked,
    Batch,
    Committed,
    Committing,
    Dumped,
    Event,
    Fetched,
    Fetching,
    Killed,
    Polled,
    Read,
    Reading,
    Sent,
    check,
)

PLACE = ("kept", 0)
OLD = ("trimmed", 0)


def correct_history() -> list[Event]:
    """Return an acknowledged and read history: ten values of two producers, and two commits."""
    history: list[Event] = []
    for place, base in ((PLACE, 0), (OLD, 100)):
        for i in range(10):
            value = base + i if i % 2 else base + 1000 + i
            history += [Sent(i % 2, place, value), Acked(place, i, value)]
        records = [(i, base + i if i % 2 else base + 1000 + i) for i in range(10)]
        start = 4 if place == OLD else 0
        history += [Reading(place), Read(place, start, start, 10, records[start:])]
    for offset in (3, 6):
        history += [Committing("g", PLACE, offset), Committed("g", PLACE, offset)]
        history += [Fetching("g", PLACE), Fetched("g", PLACE, offset)]
    return history


def changed(place: tuple[str, int], change: Callable[[Read], Event]) -> list[Event]:
    """Return the correct history with a changed read of one partition."""
    return [
        change(event) if isinstance(event, Read) and event.place == place else event
        for event in correct_history()
    ]


def kinds(history: list[Event]) -> set[str]:
    return {finding.kind for finding in check(history, {"trimmed"})}


def records(read: Read, change: Callable[[list[tuple[int, int]]], object]) -> Read:
    """Return the read with changed records."""
    copy = list(read.records)
    change(copy)
    return read._replace(records=copy)


def test_correct_history_has_no_anomalies() -> None:
    assert check(correct_history(), {"trimmed"}) == []


def test_unacknowledged_record_may_be_stored_or_not() -> None:
    sent = Sent(0, PLACE, 5000)
    assert kinds([*correct_history(), sent, Reading(PLACE), Read(PLACE, 0, 10, 10, [])]) == set()
    assert (
        kinds([*correct_history(), sent, Reading(PLACE), Read(PLACE, 0, 10, 11, [(10, 5000)])])
        == set()
    )


def test_record_acknowledged_during_read_may_be_beyond_its_end() -> None:
    setup: list[Event] = [Sent(0, PLACE, 5000), Reading(PLACE)]
    assert (
        kinds([*correct_history(), *setup, Acked(PLACE, 10, 5000), Read(PLACE, 0, 10, 10, [])])
        == set()
    )
    assert kinds(
        [*correct_history(), setup[0], Acked(PLACE, 10, 5000), setup[1], Read(PLACE, 0, 10, 10, [])]
    ) == {"lost"}


def test_missing_last_record_is_lost() -> None:
    history = changed(PLACE, lambda read: read._replace(end=9, records=read.records[:-1]))
    assert kinds(history) == {"lost"}


def test_missing_middle_record_is_reported_as_lost_and_gap() -> None:
    history = changed(PLACE, lambda read: records(read, lambda rows: rows.pop(5)))
    assert kinds(history) == {"lost", "gap"}


def test_record_replaced_by_another_is_lost() -> None:
    def plant(read: Read) -> Read:
        return records(read, lambda rows: rows.__setitem__(5, (5, 4999)))

    history: list[Event] = [Sent(1, PLACE, 4999), *changed(PLACE, plant)]
    assert "lost" in kinds(history)


def test_missing_first_records_are_lost() -> None:
    def plant(read: Read) -> Read:
        return read._replace(log_start=2, begin=2, records=read.records[2:])

    assert kinds(changed(PLACE, plant)) == {"lost"}
    # With retention only records above the log start count as lost.
    assert kinds(changed(OLD, lambda read: records(read, lambda rows: rows.pop(0)))) == {
        "lost",
        "gap",
    }


def test_record_stored_twice_is_doubled() -> None:
    def plant(read: Read) -> Read:
        return read._replace(end=11, records=[*read.records, (10, read.records[9][1])])

    assert kinds(changed(PLACE, plant)) == {"doubled"}


def test_record_at_other_offset_is_moved() -> None:
    def plant(read: Read) -> Read:
        values = [value for _, value in read.records]
        values[4], values[5] = values[5], values[4]
        return read._replace(records=list(enumerate(values)))

    assert kinds(changed(PLACE, plant)) == {"moved"}


def test_records_out_of_order_are_reordered() -> None:
    history: list[Event] = [Sent(0, PLACE, 1), Sent(0, PLACE, 2), Reading(PLACE)]
    assert kinds([*history, Read(PLACE, 0, 0, 2, [(0, 2), (1, 1)])]) == {"reordered"}
    assert kinds([*history, Read(PLACE, 0, 0, 2, [(0, 1), (1, 2)])]) == set()


def test_record_that_differs_between_reads_is_changed() -> None:
    setup: list[Event] = [Sent(0, PLACE, 7000), Sent(0, PLACE, 7001), Reading(PLACE)]
    first = Read(PLACE, 0, 10, 11, [(10, 7000)])
    assert kinds([*correct_history(), *setup, first, Reading(PLACE), first]) == set()
    second = first._replace(records=[(10, 7001)])
    assert kinds([*correct_history(), *setup, first, Reading(PLACE), second]) == {"changed"}


def test_record_never_sent_is_phantom() -> None:
    def plant(read: Read) -> Read:
        return read._replace(end=11, records=[*read.records, (10, 999_999)])

    assert kinds(changed(PLACE, plant)) == {"phantom"}
    assert kinds([*correct_history(), Acked(PLACE, 10, 888_888)]) == {"phantom"}


def test_record_of_another_partition_is_phantom() -> None:
    def plant(read: Read) -> Read:
        return read._replace(end=11, records=[*read.records, (10, 101)])

    assert kinds(changed(PLACE, plant)) == {"phantom"}


def test_offset_acknowledged_twice_is_reported() -> None:
    assert "twice" in kinds([*correct_history(), Sent(0, PLACE, 6000), Acked(PLACE, 9, 6000)])


def test_offset_below_earlier_acknowledgement_is_inverted() -> None:
    history: list[Event] = [Sent(0, PLACE, 1), Acked(PLACE, 5, 1)]
    assert kinds([*history, Sent(0, PLACE, 2), Acked(PLACE, 4, 2)]) == {"inverted"}


def test_acked_value_without_offset_is_found_or_lost() -> None:
    events = [*correct_history(), Sent(0, PLACE, 6000), Acked(PLACE, None, 6000)]
    assert kinds(events) == set(), "the value was acknowledged after the last read began"
    found = Read(PLACE, 0, 10, 11, [(10, 6000)])
    assert kinds([*events, Reading(PLACE), found]) == set()
    assert kinds([*events, Reading(PLACE), Read(PLACE, 0, 10, 10, [])]) == {"lost"}


def test_decreasing_log_start_is_reported() -> None:
    second_read = Read(OLD, 2, 10, 10, [])
    assert kinds([*correct_history(), Reading(OLD), second_read]) == {"start"}
    assert kinds([*correct_history(), Reading(OLD), second_read._replace(log_start=6)]) == set()


def test_kill_may_reset_log_start_to_checkpoint() -> None:
    read = Read(OLD, 3, 10, 10, [])
    assert kinds([*correct_history(), Killed(OLD, 3), Reading(OLD), read]) == set()
    assert kinds(
        [*correct_history(), Killed(OLD, 3), Reading(OLD), read._replace(log_start=2)]
    ) == {"start"}
    # A checkpoint may be ahead of what readers have seen; the next kill starts from there.
    assert kinds([*correct_history(), Killed(OLD, 6), Reading(OLD), read]) == {"start"}


def test_skipped_offsets_are_unread() -> None:
    sent = [Sent(0, PLACE, 5000 + i) for i in range(2)]
    history = [*correct_history(), *sent, Reading(PLACE), Read(PLACE, 0, 11, 12, [(11, 5001)])]
    assert kinds(history) == {"unread"}


@pytest.mark.parametrize("offset", [-1, 3, 5])
def test_lost_commit_is_reported(offset: int) -> None:
    history = [*correct_history(), Fetching("g", PLACE), Fetched("g", PLACE, offset)]
    assert kinds(history) == {"commit"}


def test_commit_never_requested_is_reported() -> None:
    assert kinds([*correct_history(), Fetching("g", PLACE), Fetched("g", PLACE, 9)]) == {"commit"}


def test_unacknowledged_commit_may_be_stored_but_must_stay() -> None:
    fetching = Fetching("g", PLACE)
    doubt = [*correct_history(), Committing("g", PLACE, 9), fetching]
    assert kinds([*doubt, Fetched("g", PLACE, 6)]) == set()
    assert kinds([*doubt, Fetched("g", PLACE, 9)]) == set()
    assert kinds([*doubt, Fetched("g", PLACE, 9), fetching, Fetched("g", PLACE, 6)]) == {"commit"}


# -- several replicas


def polled(*records: tuple[int, int]) -> Polled:
    return Polled("reader", PLACE, list(records))


def test_gap_or_change_of_continuous_consumer_is_reported() -> None:
    rows = [(0, 1000), (1, 1), (2, 1002)]
    assert kinds([*correct_history(), polled(*rows[:2]), polled(rows[2])]) == set()
    assert kinds([*correct_history(), polled(rows[0]), polled(rows[2])]) == {"gap"}
    assert kinds([*correct_history(), polled(*rows), polled(rows[1])]) == {"gap"}
    assert kinds([*correct_history(), polled((0, 1))]) == {"changed", "doubled"}


def test_end_below_read_offset_is_reported() -> None:
    """An unacknowledged record that a consumer received is committed."""
    doubt: list[Event] = [*correct_history(), Sent(0, PLACE, 5000), polled((10, 5000))]
    second_read = Read(PLACE, 0, 10, 10, [])
    assert kinds([*doubt, Reading(PLACE), second_read]) == {"fell"}
    assert kinds([*doubt[:-1], Reading(PLACE), doubt[-1], second_read]) == set()


def dumped(*lengths: int, high_watermark: int = 10, **changed: bytes) -> Dumped:
    """Return equal replicas on nodes 1 and 2 with batches of these lengths.

    `two` replaces the digest of the last batch of node 2.
    """
    ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
    batches = [
        Batch(end - length, end - 1, b"%d" % end) for end, length in zip(ends, lengths, strict=True)
    ]
    other = list(batches)
    if "two" in changed:
        other[-1] = other[-1]._replace(digest=changed["two"])
    return Dumped(PLACE, 0, high_watermark, {1: batches, 2: other})


def test_equal_replicas_have_no_anomalies() -> None:
    assert kinds([*correct_history(), dumped(4, 6)]) == set()
    assert kinds([*correct_history(), dumped(4, 6, 5)]) == set()


def test_replicas_may_differ_beyond_the_high_watermark() -> None:
    assert kinds([*correct_history(), dumped(4, 6, 5, two=b"x")]) == set()
    assert kinds([*correct_history(), dumped(4, 6, two=b"x")]) == {"replicas"}


def test_replica_with_missing_batches_is_reported() -> None:
    sound_dump = dumped(4, 6)
    rows = sound_dump.replicas[1]
    for lacking in ([], rows[:1], rows[1:]):
        dump = sound_dump._replace(replicas={1: rows, 2: lacking})
        assert "replicas" in kinds([*correct_history(), dump]), lacking
    assert kinds([*correct_history(), dumped(4, 5)]) == {"replicas"}
