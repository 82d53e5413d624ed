"""The checker: it reports the anomalies planted in a correct history, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .checker import Kind, Minimum, check, judge, report, smallest
from .history import (
    BROKER,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Event,
    Operation,
    Phase,
    Place,
    Recorder,
    from_json,
    load,
    to_json,
)

IN, SIDE, OUT = ("in", 0), ("side", 0), ("out", 0)
GROUP = "bank"
PRODUCER, TRANSFORMER, READER = "producer.1", "transformer.1", "reader"
# The gaps are the offsets of transaction markers.
LOGS: dict[Place, list[tuple[int, int]]] = {
    IN: [(0, 1), (2, 3), (4, 4)],
    SIDE: [(0, 2)],
    OUT: [(0, 101), (1, 104)],
}
ABORTED = {3}


class Script:
    """A history under construction; each event gets the next time."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(
        self, process: str, operation: Operation, phase: Phase = Phase.OK, **fields: Any
    ) -> int:
        time = len(self.events)
        fields.setdefault("since", time - 1)
        self.events.append(Event(time, process, operation, phase, **fields))
        return time

    def done(self, process: str, operation: Operation, **fields: Any) -> None:
        """Add a request and its response."""
        self.add(process, operation, Phase.INVOKED, **fields)
        self.add(process, operation, Phase.OK, **fields)

    def begin(self, process: str, name: str) -> None:
        self.add(process, Operation.BEGIN, transaction=name)

    def send(self, name: str, place: Place, offset: int, value: int, source: int = -1) -> None:
        process = PRODUCER if source < 0 else TRANSFORMER
        fields: dict[str, Any] = {"transaction": name, "place": place, "value": value}
        self.add(process, Operation.SEND, Phase.INVOKED, source=source, **fields)
        self.add(process, Operation.SEND, Phase.OK, offset=offset, **fields)

    def poll(self, place: Place, begin: int, end: int, isolation: str = READ_COMMITTED) -> None:
        """Add a poll from one offset to another with the visible records."""
        records = self._visible_records(place, begin, end, isolation)
        fields: dict[str, Any] = {"begin": begin, "end": end, "records": records}
        self.add(READER, Operation.POLL, place=place, isolation=isolation, **fields)

    def _visible_records(self, place: Place, begin: int, end: int, isolation: str) -> Any:
        hidden = ABORTED if isolation == READ_COMMITTED else ()
        rows = (row for row in LOGS[place] if begin <= row[0] < end)
        return tuple(row for row in rows if row[1] not in hidden)

    def sample(self, operation: Operation, place: Place, offset: int) -> None:
        isolation = READ_COMMITTED if operation is Operation.STABLE else ""
        group = GROUP if operation is Operation.COMMITTED else ""
        self.add(READER, operation, place=place, offset=offset, isolation=isolation, group=group)

    def read_all(self) -> None:
        for place, rows in LOGS.items():
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
                end = rows[-1][0] + 2
                fields: dict[str, Any] = {"place": place, "isolation": isolation}
                records = self._visible_records(place, 0, end, isolation)
                self.add(READER, Operation.READ, begin=0, end=end, records=records, **fields)


def correct_history() -> list[Event]:
    """Return three transactions of a producer, one of them aborted, and one of a transformer."""
    script = Script()
    script.done(PRODUCER, Operation.INIT, transactional_id="p")
    script.begin(PRODUCER, "T1")
    script.send("T1", IN, 0, 1)
    script.sample(Operation.STABLE, IN, 0)
    script.send("T1", SIDE, 0, 2)
    script.done(PRODUCER, Operation.COMMIT, transaction="T1")
    script.sample(Operation.STABLE, IN, 2)
    script.sample(Operation.END, IN, 2)
    script.begin(PRODUCER, "T2")
    script.send("T2", IN, 2, 3)
    script.poll(IN, 0, 1)
    script.poll(IN, 0, 3, READ_UNCOMMITTED)
    script.done(PRODUCER, Operation.ABORT, transaction="T2")
    script.begin(PRODUCER, "T3")
    script.send("T3", IN, 4, 4)
    script.done(PRODUCER, Operation.COMMIT, transaction="T3")
    script.poll(IN, 1, 5)
    script.done(TRANSFORMER, Operation.INIT, transactional_id="t")
    script.begin(TRANSFORMER, "T4")
    script.send("T4", OUT, 0, 101, source=1)
    script.send("T4", OUT, 1, 104, source=4)
    script.sample(Operation.COMMITTED, IN, -1)
    carried: dict[str, Any] = {"transaction": "T4", "group": GROUP, "place": IN, "offset": 5}
    script.done(TRANSFORMER, Operation.OFFSETS, **carried)
    script.done(TRANSFORMER, Operation.COMMIT, transaction="T4")
    script.sample(Operation.COMMITTED, IN, 5)
    script.sample(Operation.STABLE, IN, 6)
    script.sample(Operation.END, IN, 6)
    script.read_all()
    return script.events


Wanted = Callable[[Event], bool]


def step(operation: Operation, phase: Phase = Phase.OK, **fields: Any) -> Wanted:
    """Return a predicate that matches events by their fields."""
    wanted = {"operation": operation, "phase": phase, **fields}
    return lambda event: all(getattr(event, name) == each for name, each in wanted.items())


def without(events: list[Event], *unwanted: Wanted) -> list[Event]:
    left = [event for event in events if not any(each(event) for each in unwanted)]
    assert len(left) < len(events)
    return left


def changed(events: list[Event], wanted: Wanted, **fields: Any) -> list[Event]:
    """Change the last matching event."""
    at = max(index for index, event in enumerate(events) if wanted(event))
    return [*events[:at], events[at]._replace(**fields), *events[at + 1 :]]


def inserted(events: list[Event], before: Wanted, *new: Event) -> list[Event]:
    """Insert events before the first match, and renumber all times."""
    at = next(index for index, event in enumerate(events) if before(event))
    rows = [*events[:at], *new, *events[at:]]
    return [
        event._replace(time=time, since=-1 if event.since < 0 else time - 1)
        for time, event in enumerate(rows)
    ]


def kinds(events: list[Event]) -> set[Kind]:
    """Return the kinds of all anomalies; check that the smallest history of each shows it."""
    found = check(events)
    for finding in found:
        small = smallest(events, finding)
        assert finding.kind in {each.kind for each in check(small)}, finding
        assert set(map(_key, small)) <= set(map(_key, events))
    return {finding.kind for finding in found}


def _key(event: Event) -> tuple[int, str, Operation]:
    return event.time, event.process, event.operation


def read_of(place: Place, isolation: str) -> Wanted:
    return step(Operation.READ, place=place, isolation=isolation)


def test_correct_history_has_no_anomalies() -> None:
    assert check(correct_history()) == []
    had = Minimum(commits=3, aborts=1)
    assert judge(correct_history(), had) == ([], [], had)


def test_order_of_events_does_not_matter() -> None:
    assert check(correct_history()[::-1]) == []


# Planted


def test_missing_record_is_lost() -> None:
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        history = changed(correct_history(), read_of(SIDE, isolation), records=())
        assert kinds(history) == {Kind.LOST}


def test_record_skipped_by_poll_is_lost() -> None:
    committed = step(Operation.POLL, isolation=READ_COMMITTED)
    assert kinds(changed(correct_history(), committed, records=())) == {Kind.LOST}
    assert kinds(changed(correct_history(), committed, records=(), begin=3, end=4)) == set()
    uncommitted = step(Operation.POLL, isolation=READ_UNCOMMITTED)
    assert kinds(changed(correct_history(), uncommitted, records=((0, 1),))) == {Kind.LOST}


def test_missing_record_without_acknowledgement_is_lost_if_committed() -> None:
    unsure = without(correct_history(), step(Operation.SEND, value=2))
    assert kinds(unsure) == set()
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        unsure = changed(unsure, read_of(SIDE, isolation), records=())
    assert kinds(unsure) == {Kind.LOST}


def test_aborted_record_in_read_committed_poll_is_aborted_read() -> None:
    poll = step(Operation.POLL, begin=1)
    assert kinds(changed(correct_history(), poll, records=((2, 3), (4, 4)))) == {Kind.ABORTED_READ}
    rows = tuple(LOGS[IN])
    assert kinds(changed(correct_history(), read_of(IN, READ_COMMITTED), records=rows)) == {
        Kind.ABORTED_READ,
        Kind.NEVER,
    }


def test_output_of_uncommitted_input_is_aborted_read() -> None:
    output = step(Operation.SEND, Phase.INVOKED, value=104)
    assert kinds(changed(correct_history(), output, source=3)) == {Kind.ABORTED_READ, Kind.NEVER}


def test_record_of_open_transaction_in_poll_is_dirty_read() -> None:
    early = Event(0, READER, Operation.POLL, place=IN, isolation=READ_COMMITTED)
    early = early._replace(begin=0, end=1, records=((0, 1),))
    commit = step(Operation.COMMIT, Phase.INVOKED, transaction="T1")
    assert kinds(inserted(correct_history(), commit, early)) == {Kind.DIRTY_READ, Kind.PASSED}
    response = step(Operation.COMMIT, transaction="T1")
    assert kinds(inserted(correct_history(), response, early)) == set()


def test_partly_visible_transaction_is_fractured() -> None:
    unsure = without(correct_history(), step(Operation.COMMIT, transaction="T1"))
    assert kinds(unsure) == set()
    changed_read = changed(unsure, read_of(SIDE, READ_COMMITTED), records=())
    assert kinds(changed_read) == {Kind.FRACTURED}


def test_record_at_two_offsets_is_duplicate() -> None:
    history = correct_history()
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        history = changed(history, read_of(SIDE, isolation), records=((0, 2), (2, 2)))
    assert kinds(history) == {Kind.DUPLICATE}


def test_record_at_another_offset_is_duplicate_or_inconsistent() -> None:
    history = changed(correct_history(), read_of(SIDE, READ_UNCOMMITTED), records=((1, 2),))
    assert kinds(history) == {Kind.DUPLICATE}
    acked = step(Operation.SEND, value=2)
    assert kinds(changed(correct_history(), acked, offset=1)) == {Kind.LOST, Kind.INCONSISTENT}


def test_offset_with_two_values_is_inconsistent() -> None:
    poll = step(Operation.POLL, isolation=READ_UNCOMMITTED)
    history = changed(correct_history(), poll, records=((0, 4), (2, 3)))
    assert Kind.INCONSISTENT in kinds(history)


def test_record_never_sent_is_phantom() -> None:
    rows = ((0, 2), (1, 999))
    assert kinds(changed(correct_history(), read_of(SIDE, READ_UNCOMMITTED), records=rows)) == {
        Kind.PHANTOM
    }
    rows = ((0, 2), (2, 4))
    assert Kind.PHANTOM in kinds(
        changed(correct_history(), read_of(SIDE, READ_UNCOMMITTED), records=rows)
    )


def test_records_out_of_order_are_reordered() -> None:
    history = without(correct_history(), step(Operation.SEND, place=OUT))
    assert kinds(history) == set()
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        history = changed(history, read_of(OUT, isolation), records=((0, 104), (1, 101)))
    assert kinds(history) == {Kind.REORDERED}


def test_last_stable_offset_beyond_open_transaction_is_reported() -> None:
    first = step(Operation.STABLE, offset=0)
    history = [event._replace(offset=1) if first(event) else event for event in correct_history()]
    assert kinds(history) == {Kind.PASSED}


def test_poll_beyond_open_transaction_is_reported() -> None:
    poll = Event(0, READER, Operation.POLL, place=IN, isolation=READ_COMMITTED, begin=1, end=3)
    abort = step(Operation.ABORT, Phase.INVOKED)
    assert kinds(inserted(correct_history(), abort, poll)) == {Kind.PASSED}
    assert kinds(inserted(correct_history(), step(Operation.ABORT), poll)) == set()


def test_fenced_or_timed_out_transaction_may_have_ended() -> None:
    abort = step(Operation.ABORT, Phase.INVOKED)
    poll = Event(0, READER, Operation.POLL, place=IN, isolation=READ_COMMITTED, begin=1, end=3)
    rival = Event(0, "producer.2", Operation.INIT, Phase.INVOKED, transactional_id="p")
    assert kinds(inserted(correct_history(), abort, rival, poll)) == set()
    init = step(Operation.INIT, Phase.INVOKED, transactional_id="p")
    invoked = next(event.time for event in correct_history() if abort(event))
    late = [*correct_history()[:invoked], poll._replace(time=10_000_000)]
    assert kinds(late) == {Kind.PASSED}
    assert kinds(changed(late, init, timeout_ms=5)) == set()


def test_decreasing_last_stable_offset_is_reported() -> None:
    last = step(Operation.STABLE, offset=6)
    fallen = correct_history()[-1]._replace(
        operation=Operation.STABLE, time=1000, since=999, place=IN
    )
    fallen = fallen._replace(offset=5, records=(), isolation=READ_COMMITTED)
    assert kinds([*correct_history(), fallen]) == {Kind.FELL}
    assert kinds([*correct_history(), fallen._replace(offset=6)]) == set()
    assert kinds([*without(correct_history(), last), fallen]) == set()
    # A request sent before the higher offset was known may return a lower one.
    assert kinds([*correct_history(), fallen._replace(since=0)]) == set()


def test_decreasing_offset_is_allowed_while_node_is_paused() -> None:
    pause = Event(1000, BROKER, Operation.PAUSE)
    resume = Event(1003, BROKER, Operation.RESUME)
    fields: dict[str, Any] = {"place": IN, "offset": 5, "isolation": READ_COMMITTED}
    in_pause = Event(1004, READER, Operation.STABLE, since=1002, **fields)
    after = in_pause._replace(since=1003)
    assert kinds([*correct_history(), pause, resume, in_pause]) == set()
    assert kinds([*correct_history(), pause, resume, after]) == {Kind.FELL}


def test_end_acknowledged_before_marker_is_reported() -> None:
    first = step(Operation.END, offset=2)
    history = [event._replace(offset=1) if first(event) else event for event in correct_history()]
    assert kinds(history) == {Kind.UNMARKED}
    assert check(history, responds_after_markers=False) == []


def test_end_acknowledged_before_last_stable_offset_advances_is_reported() -> None:
    end = step(Operation.END, offset=2)
    fields: dict[str, Any] = {"operation": Operation.STABLE, "isolation": READ_COMMITTED}
    history = changed(correct_history(), end, offset=0, **fields)
    assert kinds(history) == {Kind.UNMARKED}
    assert kinds(changed(correct_history(), end, offset=2, **fields)) == set()
    assert check(history, responds_after_markers=False) == []


def test_offsets_of_aborted_transaction_are_reported() -> None:
    history = changed(
        correct_history(),
        step(Operation.COMMIT, Phase.INVOKED, transaction="T4"),
        operation=Operation.ABORT,
    )
    history = changed(history, step(Operation.COMMIT, transaction="T4"), operation=Operation.ABORT)
    history = changed(history, read_of(OUT, READ_COMMITTED), records=())
    assert kinds(history) == {Kind.OFFSETS_KEPT, Kind.NEVER}
    none = changed(history, step(Operation.COMMITTED), offset=-1)
    assert kinds(none) == set()


def test_offsets_of_open_transaction_are_reported() -> None:
    early = step(Operation.COMMITTED, offset=-1)
    history = [event._replace(offset=5) if early(event) else event for event in correct_history()]
    assert kinds(history) == {Kind.OFFSETS_KEPT}


def test_missing_offsets_of_committed_transaction_are_reported() -> None:
    history = changed(correct_history(), step(Operation.COMMITTED), offset=-1)
    assert kinds(history) == {Kind.OFFSETS_LOST}
    unsure = without(history, step(Operation.COMMIT, transaction="T4"))
    assert kinds(unsure) == {Kind.OFFSETS_LOST}


def test_input_with_two_outputs_is_reported() -> None:
    output = step(Operation.SEND, Phase.INVOKED, value=104)
    assert kinds(changed(correct_history(), output, source=1)) == {Kind.TWICE, Kind.NEVER}


def test_input_without_output_is_reported() -> None:
    history = without(
        correct_history(),
        step(Operation.SEND, value=104),
        step(Operation.SEND, Phase.INVOKED, value=104),
    )
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        history = changed(history, read_of(OUT, isolation), records=((0, 101),))
    assert kinds(history) == {Kind.NEVER}


def fenced_history(before: Wanted) -> list[Event]:
    """Return the correct history in which another process takes the producer's ID."""
    fields: dict[str, Any] = {"operation": Operation.INIT, "transactional_id": "p"}
    invoked = Event(0, "producer.2", phase=Phase.INVOKED, **fields)
    return inserted(correct_history(), before, invoked, invoked._replace(phase=Phase.OK))


def test_accepted_record_of_fenced_producer_is_reported() -> None:
    history = fenced_history(step(Operation.SEND, Phase.INVOKED, value=3))
    assert kinds(history) == {Kind.ZOMBIE}
    sent = step(Operation.SEND, Phase.INVOKED, value=4)
    refused = without(
        fenced_history(sent),
        step(Operation.SEND, value=4),
        lambda event: event.transaction == "T3" and event.operation is Operation.COMMIT,
    )
    # It is in the log although it was never acknowledged.
    assert kinds(refused) == {Kind.ZOMBIE, Kind.ABORTED_READ}


@pytest.mark.parametrize(("operation", "name"), [(Operation.COMMIT, "T3"), (Operation.ABORT, "T2")])
def test_accepted_end_of_fenced_producer_is_reported(operation: Operation, name: str) -> None:
    assert kinds(fenced_history(step(operation, Phase.INVOKED, transaction=name))) == {Kind.ZOMBIE}
    answered = fenced_history(step(operation, transaction=name))
    assert [finding for finding in check(answered) if name in finding.text] == []


# Refusals


def test_history_below_minimum_is_refused() -> None:
    minimum = Minimum(commits=4, aborts=2, broker_kills=1, client_kills=1)
    assert judge(correct_history(), minimum).refusals == [
        "too few commits: 3 of 4",
        "too few aborts: 1 of 2",
        "too few broker kills: 0 of 1",
        "too few client kills: 0 of 1",
    ]


def test_only_kills_during_transactions_count() -> None:
    dead = Event(0, BROKER, Operation.KILL)
    idle = inserted(correct_history(), step(Operation.BEGIN, transaction="T1"), dead)
    assert judge(idle, Minimum()).had.broker_kills == 0
    busy = inserted(correct_history(), step(Operation.SEND, value=1), dead, dead)
    assert judge(busy, Minimum()).had.broker_kills == 2
    end = step(Operation.COMMIT, transaction="T4")
    client = inserted(correct_history(), end, dead._replace(process=TRANSFORMER))
    client = without(client, end)
    assert judge(client, Minimum()).had == Minimum(commits=2, aborts=1, client_kills=1)
    late = [*correct_history(), Event(1000, TRANSFORMER, Operation.KILL)]
    assert judge(late, Minimum()).had.client_kills == 0


def test_history_without_final_reads_is_refused() -> None:
    history = without(
        correct_history(), read_of(SIDE, READ_COMMITTED), step(Operation.COMMITTED, offset=5)
    )
    assert judge(history, Minimum()).refusals == [
        "no last read of side-0, read_committed",
        "no final committed offset of bank in in-0",
    ]


# Files and reports


def test_events_round_trip_through_files(tmp_path: Path) -> None:
    assert [from_json(to_json(event)) for event in correct_history()] == correct_history()
    paths = [tmp_path / name for name in ("one", "other")]
    recorders = [Recorder(path, path.name) for path in paths]
    for number in range(6):
        recorders[number % 2].write(Operation.BEGIN, transaction=str(number))
    for recorder in recorders:
        recorder.close()
    with paths[0].open("a") as file:
        file.write('{"time": 1')  # an incomplete line, as during a write
    history = load(paths)
    assert [event.transaction for event in history] == list("012345")
    assert [event.process for event in history] == ["one", "other"] * 3


def test_report_shows_smallest_history() -> None:
    history = changed(correct_history(), read_of(SIDE, READ_COMMITTED), records=())
    text = report(history, judge(history, Minimum(commits=9)))
    assert "refused: too few commits: 3 of 9" in text
    assert "lost: 2 at side-0@0 of T1 is missing for read_committed" in text
    events = [from_json(line) for line in text.splitlines() if line.startswith("{")]
    assert {event.transaction for event in events} == {"", "T1"}
    assert len(events) < len(history) / 2
