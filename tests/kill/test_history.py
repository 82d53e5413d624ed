"""The checker of the kill test reports what is planted, and nothing else."""

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


def sound() -> list[Event]:
    """Ten values of two producers in two partitions, all acked and read; two commits."""
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
    """The sound history with the read of one partition changed."""
    return [
        change(event) if isinstance(event, Read) and event.place == place else event
        for event in sound()
    ]


def kinds(history: list[Event]) -> set[str]:
    return {finding.kind for finding in check(history, {"trimmed"})}


def records(read: Read, change: Callable[[list[tuple[int, int]]], object]) -> Read:
    """The read with its records changed in place."""
    copy = list(read.records)
    change(copy)
    return read._replace(records=copy)


def test_a_sound_history_has_no_findings() -> None:
    assert check(sound(), {"trimmed"}) == []


def test_a_record_in_doubt_may_be_there_or_not() -> None:
    sent = Sent(0, PLACE, 5000)
    assert kinds([*sound(), sent, Reading(PLACE), Read(PLACE, 0, 10, 10, [])]) == set()
    assert kinds([*sound(), sent, Reading(PLACE), Read(PLACE, 0, 10, 11, [(10, 5000)])]) == set()


def test_what_is_acked_during_a_read_may_lie_behind_its_end() -> None:
    asked: list[Event] = [Sent(0, PLACE, 5000), Reading(PLACE)]
    assert kinds([*sound(), *asked, Acked(PLACE, 10, 5000), Read(PLACE, 0, 10, 10, [])]) == set()
    assert kinds(
        [*sound(), asked[0], Acked(PLACE, 10, 5000), asked[1], Read(PLACE, 0, 10, 10, [])]
    ) == {"lost"}


def test_a_lost_tail() -> None:
    history = changed(PLACE, lambda read: read._replace(end=9, records=read.records[:-1]))
    assert kinds(history) == {"lost"}


def test_a_lost_record_in_the_middle() -> None:
    history = changed(PLACE, lambda read: records(read, lambda rows: rows.pop(5)))
    assert kinds(history) == {"lost", "gap"}


def test_a_lost_record_whose_offset_another_one_has() -> None:
    def plant(read: Read) -> Read:
        return records(read, lambda rows: rows.__setitem__(5, (5, 4999)))

    history: list[Event] = [Sent(1, PLACE, 4999), *changed(PLACE, plant)]
    assert "lost" in kinds(history)


def test_a_lost_beginning() -> None:
    def plant(read: Read) -> Read:
        return read._replace(log_start=2, begin=2, records=read.records[2:])

    assert kinds(changed(PLACE, plant)) == {"lost"}
    # Where retention works that is no loss; what is missing above the log start is one.
    assert kinds(changed(OLD, lambda read: records(read, lambda rows: rows.pop(0)))) == {
        "lost",
        "gap",
    }


def test_a_doubled_record() -> None:
    def plant(read: Read) -> Read:
        return read._replace(end=11, records=[*read.records, (10, read.records[9][1])])

    assert kinds(changed(PLACE, plant)) == {"doubled"}


def test_a_moved_record() -> None:
    def plant(read: Read) -> Read:
        values = [value for _, value in read.records]
        values[4], values[5] = values[5], values[4]
        return read._replace(records=list(enumerate(values)))

    assert kinds(changed(PLACE, plant)) == {"moved"}


def test_records_out_of_order() -> None:
    history: list[Event] = [Sent(0, PLACE, 1), Sent(0, PLACE, 2), Reading(PLACE)]
    assert kinds([*history, Read(PLACE, 0, 0, 2, [(0, 2), (1, 1)])]) == {"reordered"}
    assert kinds([*history, Read(PLACE, 0, 0, 2, [(0, 1), (1, 2)])]) == set()


def test_a_record_that_changes_between_two_reads() -> None:
    again: list[Event] = [Sent(0, PLACE, 7000), Sent(0, PLACE, 7001), Reading(PLACE)]
    first = Read(PLACE, 0, 10, 11, [(10, 7000)])
    assert kinds([*sound(), *again, first, Reading(PLACE), first]) == set()
    second = first._replace(records=[(10, 7001)])
    assert kinds([*sound(), *again, first, Reading(PLACE), second]) == {"changed"}


def test_a_phantom() -> None:
    def plant(read: Read) -> Read:
        return read._replace(end=11, records=[*read.records, (10, 999_999)])

    assert kinds(changed(PLACE, plant)) == {"phantom"}
    assert kinds([*sound(), Acked(PLACE, 10, 888_888)]) == {"phantom"}


def test_a_record_of_another_partition_is_a_phantom() -> None:
    def plant(read: Read) -> Read:
        return read._replace(end=11, records=[*read.records, (10, 101)])

    assert kinds(changed(PLACE, plant)) == {"phantom"}


def test_an_offset_that_is_given_twice() -> None:
    assert "twice" in kinds([*sound(), Sent(0, PLACE, 6000), Acked(PLACE, 9, 6000)])


def test_an_offset_below_one_that_was_known_before() -> None:
    history: list[Event] = [Sent(0, PLACE, 1), Acked(PLACE, 5, 1)]
    assert kinds([*history, Sent(0, PLACE, 2), Acked(PLACE, 4, 2)]) == {"inverted"}


def test_acked_value_without_offset_is_found_or_lost() -> None:
    events = [*sound(), Sent(0, PLACE, 6000), Acked(PLACE, None, 6000)]
    assert kinds(events) == set(), "it was acked after the last read began"
    found = Read(PLACE, 0, 10, 11, [(10, 6000)])
    assert kinds([*events, Reading(PLACE), found]) == set()
    assert kinds([*events, Reading(PLACE), Read(PLACE, 0, 10, 10, [])]) == {"lost"}


def test_a_log_start_that_falls() -> None:
    again = Read(OLD, 2, 10, 10, [])
    assert kinds([*sound(), Reading(OLD), again]) == {"start"}
    assert kinds([*sound(), Reading(OLD), again._replace(log_start=6)]) == set()


def test_a_log_start_that_falls_by_a_kill() -> None:
    read = Read(OLD, 3, 10, 10, [])
    assert kinds([*sound(), Killed(OLD, 3), Reading(OLD), read]) == set()
    assert kinds([*sound(), Killed(OLD, 3), Reading(OLD), read._replace(log_start=2)]) == {"start"}
    # A checkpoint may know more than any reader has seen; the next kill starts from there.
    assert kinds([*sound(), Killed(OLD, 6), Reading(OLD), read]) == {"start"}


def test_a_reader_that_leaves_something_out() -> None:
    sent = [Sent(0, PLACE, 5000 + i) for i in range(2)]
    history = [*sound(), *sent, Reading(PLACE), Read(PLACE, 0, 11, 12, [(11, 5001)])]
    assert kinds(history) == {"unread"}


@pytest.mark.parametrize("offset", [-1, 3, 5])
def test_a_lost_commit(offset: int) -> None:
    history = [*sound(), Fetching("g", PLACE), Fetched("g", PLACE, offset)]
    assert kinds(history) == {"commit"}


def test_a_commit_that_nobody_made() -> None:
    assert kinds([*sound(), Fetching("g", PLACE), Fetched("g", PLACE, 9)]) == {"commit"}


def test_a_commit_in_doubt_may_be_there_but_must_stay() -> None:
    fetching = Fetching("g", PLACE)
    doubt = [*sound(), Committing("g", PLACE, 9), fetching]
    assert kinds([*doubt, Fetched("g", PLACE, 6)]) == set()
    assert kinds([*doubt, Fetched("g", PLACE, 9)]) == set()
    assert kinds([*doubt, Fetched("g", PLACE, 9), fetching, Fetched("g", PLACE, 6)]) == {"commit"}


# -- several replicas


def polled(*records: tuple[int, int]) -> Polled:
    return Polled("reader", PLACE, list(records))


def test_a_reader_that_goes_on() -> None:
    rows = [(0, 1000), (1, 1), (2, 1002)]
    assert kinds([*sound(), polled(*rows[:2]), polled(rows[2])]) == set()
    assert kinds([*sound(), polled(rows[0]), polled(rows[2])]) == {"gap"}
    assert kinds([*sound(), polled(*rows), polled(rows[1])]) == {"gap"}
    assert kinds([*sound(), polled((0, 1))]) == {"changed", "doubled"}


def test_an_end_that_falls() -> None:
    """A record that was in doubt, but given to a reader, is committed."""
    doubt: list[Event] = [*sound(), Sent(0, PLACE, 5000), polled((10, 5000))]
    again = Read(PLACE, 0, 10, 10, [])
    assert kinds([*doubt, Reading(PLACE), again]) == {"fell"}
    assert kinds([*doubt[:-1], Reading(PLACE), doubt[-1], again]) == set()


def dumped(*lengths: int, high_watermark: int = 10, **changed: bytes) -> Dumped:
    """Replicas of batches of these lengths on nodes 1 and 2; `two` replaces the last of node 2."""
    ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
    batches = [
        Batch(end - length, end - 1, b"%d" % end) for end, length in zip(ends, lengths, strict=True)
    ]
    other = list(batches)
    if "two" in changed:
        other[-1] = other[-1]._replace(digest=changed["two"])
    return Dumped(PLACE, 0, high_watermark, {1: batches, 2: other})


def test_equal_replicas() -> None:
    assert kinds([*sound(), dumped(4, 6)]) == set()
    assert kinds([*sound(), dumped(4, 6, 5)]) == set()


def test_replicas_may_differ_beyond_the_high_watermark() -> None:
    assert kinds([*sound(), dumped(4, 6, 5, two=b"x")]) == set()
    assert kinds([*sound(), dumped(4, 6, two=b"x")]) == {"replicas"}


def test_a_replica_that_lacks_something() -> None:
    sound_dump = dumped(4, 6)
    rows = sound_dump.replicas[1]
    for lacking in ([], rows[:1], rows[1:]):
        dump = sound_dump._replace(replicas={1: rows, 2: lacking})
        assert "replicas" in kinds([*sound(), dump]), lacking
    assert kinds([*sound(), dumped(4, 5)]) == {"replicas"}
