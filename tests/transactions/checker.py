"""A checker of transactional histories: a pure function from events to anomalies.

`judge` returns the verdict on a whole run, `check` only the anomalies, and `smallest` the few
events that show one anomaly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from .history import (
    BROKER,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Event,
    Operation,
    Place,
    to_json,
)
from .story import NEVER, Process, Send, Story, Transaction


class Kind(StrEnum):
    """The kinds of anomalies."""

    # A committed record is missing, or an acknowledged record is missing for read_uncommitted.
    LOST = "lost"
    # A read_committed consumer received a record of an aborted or unfinished transaction.
    ABORTED_READ = "aborted read"
    # A read_committed consumer received a record of an open transaction.
    DIRTY_READ = "dirty read"
    # Only a part of a transaction is committed.
    FRACTURED = "fractured"
    # One value is stored at two offsets.
    DUPLICATE = "duplicate"
    # An offset had two values, or a value is not at its acknowledged offset.
    INCONSISTENT = "inconsistent"
    # A consumer received a value that was never sent to this partition.
    PHANTOM = "phantom"
    # Records of a producer in one partition are not in the order in which they were sent.
    REORDERED = "reordered"
    # The last stable offset, or a read_committed consumer, is beyond an open transaction.
    PASSED = "passed"
    # A last stable offset or high watermark decreased.
    FELL = "fell"
    # The end of a transaction was acknowledged before its marker was in the log, or before the
    # last stable offset advanced.
    UNMARKED = "unmarked"
    # A group has an offset that only uncommitted transactions contained.
    OFFSETS_KEPT = "offsets kept"
    # A group lacks an offset that a committed transaction contained.
    OFFSETS_LOST = "offsets lost"
    # A committed input was transformed more than once.
    TWICE = "twice"
    # The group's offset is past a committed input that has no output.
    NEVER = "never"
    # A fenced process had a request accepted.
    ZOMBIE = "zombie"


class Minimum(NamedTuple):
    """The minimum number of operations that makes a verdict meaningful.

    A kill counts if a transaction was open: one of the killed client, or any for the broker.
    """

    commits: int = 0
    aborts: int = 0
    broker_kills: int = 0
    client_kills: int = 0


class Finding(NamedTuple):
    """An anomaly, and the events that show it."""

    kind: Kind
    text: str
    transactions: tuple[Transaction, ...]
    evidence: tuple[Event, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Verdict(NamedTuple):
    """All anomalies, the reasons why a history is insufficient, and its counts."""

    findings: list[Finding]
    refusals: list[str]
    had: Minimum


Check = Callable[[Story], Iterator[Finding]]


# -- records


def lost_records(story: Story) -> Iterator[Finding]:
    """Find records that a final read or a poll lacks."""
    for transaction in story.transactions.values():
        if transaction.committed < NEVER:
            for send in transaction.sends:
                yield from _missing_at_last(story, send, READ_COMMITTED)
    for send in story.sends.values():
        if send.acked:
            yield from _missing_at_last(story, send, READ_UNCOMMITTED)
    yield from _skipped_records(story)


def _missing_at_last(story: Story, send: Send, isolation: str) -> Iterator[Finding]:
    read = story.final.get((send.place, isolation))
    if send.failed or read is None:
        return
    if all(value != send.value for _, value in _records_near(read, send)):
        text = f"{_name(send)} is missing for {isolation}"
        yield Finding(Kind.LOST, text, (send.transaction,), (read,))


def _records_near(read: Event, send: Send) -> Iterable[tuple[int, int]]:
    """Return the records of a read that may contain a sent value."""
    if send.offset < 0:
        return read.records
    first = bisect_left(read.records, (send.offset, -1))
    return read.records[first : first + 1]


def _skipped_records(story: Story) -> Iterator[Finding]:
    """Find polls that skipped a record."""
    placed: defaultdict[Place, list[tuple[int, Send]]] = defaultdict(list)
    for send in story.sends.values():
        if send.offset >= 0:
            placed[send.place].append((send.offset, send))
    for rows in placed.values():
        rows.sort(key=lambda row: row[0])
    offsets = {place: [offset for offset, _ in rows] for place, rows in placed.items()}
    for fetch in story.fetches:
        if fetch.operation is not Operation.POLL or fetch.place not in placed:
            continue
        given = set(fetch.records)
        first = bisect_left(offsets[fetch.place], fetch.begin)
        after = bisect_left(offsets[fetch.place], fetch.end)
        for offset, send in placed[fetch.place][first:after]:
            is_due = fetch.isolation == READ_UNCOMMITTED or story.is_committed(send.transaction)
            if is_due and (offset, send.value) not in given:
                text = f"{_name(send)} was left out by a poll of {fetch.isolation}"
                yield Finding(Kind.LOST, text, (send.transaction,), (fetch,))


def uncommitted_reads(story: Story) -> Iterator[Finding]:
    """Find uncommitted records that read_committed consumers received."""
    for fetch in story.fetches:
        if fetch.isolation != READ_COMMITTED:
            continue
        for _, value in fetch.records:
            send = story.sends.get(value)
            if send is None or send.transaction.may_commit < fetch.time:
                continue
            transaction = send.transaction
            open_still = fetch.time < transaction.may_end
            kind = Kind.DIRTY_READ if open_still else Kind.ABORTED_READ
            state = "still open" if open_still else "not committed"
            text = f"{_name(send)} was read, but its transaction was {state}"
            yield Finding(kind, text, (transaction,), (fetch,))


def fractured_transactions(story: Story) -> Iterator[Finding]:
    """Find transactions of unknown outcome that are only partly visible."""
    for transaction in story.transactions.values():
        finals = [story.final.get((send.place, READ_COMMITTED)) for send in transaction.sends]
        if transaction.committed < NEVER or None in finals:
            continue
        seen = [send for send in transaction.sends if send.value in story.shown]
        if seen and len(seen) < len(transaction.sends):
            text = f"{transaction.name}: {len(seen)} of {len(transaction.sends)} are committed"
            yield Finding(Kind.FRACTURED, text, (transaction,))


def values_and_offsets(story: Story) -> Iterator[Finding]:
    """Find values at two offsets, offsets with two values, and values never sent."""
    at: dict[int, tuple[Place, int, Event]] = {}
    holds: dict[tuple[Place, int], tuple[int, Event]] = {}
    for fetch in story.fetches:
        for offset, value in fetch.records:
            send = story.sends.get(value)
            involved = (send.transaction,) if send else ()
            if send is None or send.place != fetch.place:
                text = f"{position_of(fetch.place, offset)} has {value}, which was not sent there"
                yield Finding(Kind.PHANTOM, text, involved, (fetch,))
                continue
            first = at.setdefault(value, (fetch.place, offset, fetch))
            if first[:2] != (fetch.place, offset):
                label = f"{position_of(*first[:2])} and at {position_of(fetch.place, offset)}"
                yield Finding(Kind.DUPLICATE, f"{value} is at {label}", involved, (first[2], fetch))
            elif send.acked and send.offset != offset:
                text = f"{_name(send)} was acknowledged there, but is at {offset}"
                yield Finding(Kind.INCONSISTENT, text, involved, (fetch,))
            other, seen = holds.setdefault((fetch.place, offset), (value, fetch))
            if other != value:
                text = f"{position_of(fetch.place, offset)} was {other} and is {value}"
                histories = (*involved, *_transactions(story, [other]))
                yield Finding(Kind.INCONSISTENT, text, histories, (seen, fetch))


def order_of_producers(story: Story) -> Iterator[Finding]:
    """Find records of a process that are stored out of order."""
    for (place, _), read in story.final.items():
        last: dict[Process, Send] = {}
        for _, value in read.records:
            send = story.sends.get(value)
            if send is None or send.place != place:
                continue
            before = last.setdefault(send.transaction.process, send)
            if send.invoked < before.invoked:
                text = f"{_name(send)} is behind {before.value}, which was sent later"
                yield Finding(Kind.REORDERED, text, (send.transaction, before.transaction), (read,))
            last[send.transaction.process] = send


# -- offsets of partitions


def passed_transactions(story: Story) -> Iterator[Finding]:
    """Find last stable offsets and read_committed consumers beyond an open transaction."""
    opened: defaultdict[Place, dict[Transaction, int]] = defaultdict(dict)
    for send in story.sends.values():
        if send.offset >= 0:
            first = opened[send.place].get(send.transaction, send.offset)
            opened[send.place][send.transaction] = min(first, send.offset)
    ranked = {place: sorted(rows.items(), key=lambda row: row[1]) for place, rows in opened.items()}
    starts = {place: [offset for _, offset in rows] for place, rows in ranked.items()}
    # For each offset, the transaction that began earlier and stayed open longest.
    longest = {
        place: list(accumulate((each for each, _ in rows), _later_end))
        for place, rows in ranked.items()
    }
    for event in [*story.samples[Operation.STABLE], *story.fetches]:
        stable = event.offset if event.operation is Operation.STABLE else event.end
        if event.isolation != READ_COMMITTED or event.place not in starts:
            continue
        below = bisect_left(starts[event.place], stable)
        if not below:
            continue
        transaction = longest[event.place][below - 1]
        if event.time < transaction.may_end:
            first = opened[event.place][transaction]
            text = f"{position_of(event.place, stable)} is beyond {first}, where {transaction.name} is open"
            yield Finding(Kind.PASSED, text, (transaction,), (event,))


def _later_end(one: Transaction, other: Transaction) -> Transaction:
    return other if other.may_end > one.may_end else one


def decreasing_offsets(story: Story) -> Iterator[Finding]:
    """Find last stable offsets and high watermarks below a value known at the request."""
    for operation in (Operation.STABLE, Operation.END):
        by_place: defaultdict[Place, list[Event]] = defaultdict(list)
        for sample in story.samples[operation]:
            before = by_place[sample.place]
            known = bisect_left(before, sample.since, key=lambda each: each.time)
            if known and sample.offset < before[known - 1].offset:
                highest = before[known - 1]
                text = f"the {operation} of {position_of(sample.place, highest.offset)} is {sample.offset}"
                yield Finding(Kind.FELL, text, (), (highest, sample))
            # The list is increasing, so its last known sample is the highest.
            if not before or sample.offset > before[-1].offset:
                before.append(sample)


def unmarked_ends(story: Story) -> Iterator[Finding]:
    """Find transactions whose end was acknowledged before the log contained their marker."""
    ended: defaultdict[Place, dict[Transaction, int]] = defaultdict(dict)
    for send in story.sends.values():
        if send.acked and send.transaction.answered < NEVER:
            last = ended[send.place].get(send.transaction, -1)
            ended[send.place][send.transaction] = max(last, send.offset)
    for place, rows in ended.items():
        ranked = [(last, transaction) for transaction, last in rows.items()]
        ranked.sort(key=lambda row: row[1].answered)
        times = [transaction.answered for _, transaction in ranked]
        highest = list(accumulate(ranked, _higher))
        for sample in story.samples[Operation.END]:
            known = bisect_left(times, sample.since)
            if sample.place != place or not known:
                continue
            last, transaction = highest[known - 1]
            if sample.offset < last + 2:
                text = (
                    f"{transaction.name} had ended, with a record at {position_of(place, last)}, "
                )
                text += f"when the end offset was {sample.offset}"
                yield Finding(Kind.UNMARKED, text, (transaction,), (sample,))


def unmoved_stable_offsets(story: Story) -> Iterator[Finding]:
    """Find last stable offsets that still point at a transaction acknowledged as ended."""
    placed = {(send.place, send.offset): send for send in story.sends.values()}
    for sample in story.samples[Operation.STABLE]:
        send = placed.get((sample.place, sample.offset))
        if send is not None and send.transaction.answered < sample.since:
            text = f"{send.transaction.name} had ended when the last stable offset was still "
            text += f"{position_of(sample.place, sample.offset)}"
            yield Finding(Kind.UNMARKED, text, (send.transaction,), (sample,))


def _higher(
    one: tuple[int, Transaction], other: tuple[int, Transaction]
) -> tuple[int, Transaction]:
    return other if other[0] > one[0] else one


# -- groups


class _Claims:
    """The offsets of one group and partition that transactions contain."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Transaction]] = []
        self.givers: defaultdict[int, list[Transaction]] = defaultdict(list)

    def add(self, offset: int, transaction: Transaction) -> None:
        self.rows.append((offset, transaction))
        self.givers[offset].append(transaction)

    def highest(self) -> tuple[list[int], list[tuple[int, Transaction]]]:
        """Return commit times, and the highest committed offset from each time on."""
        ended = [row for row in self.rows if row[1].committed < NEVER]
        ended.sort(key=lambda row: row[1].committed)
        highest = list(accumulate(ended, _higher))
        return [transaction.committed for _, transaction in ended], highest


def _claims(story: Story) -> dict[tuple[str, Place], _Claims]:
    found: defaultdict[tuple[str, Place], _Claims] = defaultdict(_Claims)
    for transaction in story.transactions.values():
        for claim in transaction.claims:
            found[claim.group, claim.place].add(claim.offset, transaction)
    return found


def offsets_of_groups(story: Story) -> Iterator[Finding]:
    """Find group offsets that no committed transaction contained, or that are too low."""
    claims = _claims(story)
    highest = {key: each.highest() for key, each in claims.items()}
    for sample in story.samples[Operation.COMMITTED]:
        key = (sample.group, sample.place)
        if key not in claims:
            continue
        label = f"{sample.group} in {position_of(sample.place, sample.offset)}"
        givers = claims[key].givers.get(sample.offset, [])
        if sample.offset >= 0 and all(each.may_commit > sample.time for each in givers):
            text = f"{label}: no transaction had committed this offset"
            yield Finding(Kind.OFFSETS_KEPT, text, tuple(givers), (sample,))
        times, rows = highest[key]
        known = bisect_left(times, sample.since)
        if known and sample.offset < rows[known - 1][0]:
            due, transaction = rows[known - 1]
            text = f"{label}: {transaction.name} had committed {due}"
            yield Finding(Kind.OFFSETS_LOST, text, (transaction,), (sample,))


def outputs_of_inputs(story: Story) -> Iterator[Finding]:
    """Find committed inputs without exactly one committed output."""
    outputs: defaultdict[int, list[Send]] = defaultdict(list)
    for send in story.sends.values():
        if send.source >= 0 and send.value in story.shown:
            outputs[send.source].append(send)
    last = {(each.group, each.place): each for each in story.samples[Operation.COMMITTED]}
    for (_, place), sample in last.items():
        read = story.final.get((place, READ_COMMITTED))
        for offset, value in read.records if read else ():
            made = outputs.pop(value, [])
            yield from _outputs_of_one(story, sample, offset, value, made)
    for source, made in outputs.items():
        for send in made:
            if source in story.sends and (story.sends[source].place, READ_COMMITTED) in story.final:
                text = f"{_name(send)} was made from {source}, which is not committed"
                involved = (send.transaction, *_transactions(story, [source]))
                yield Finding(Kind.ABORTED_READ, text, involved)


def _outputs_of_one(
    story: Story, sample: Event, offset: int, value: int, made: list[Send]
) -> Iterator[Finding]:
    description = f"{value} at {position_of(sample.place, offset)}"
    is_past = offset < sample.offset
    makers = tuple(dict.fromkeys(send.transaction for send in made))
    involved = (*_transactions(story, [value]), *makers)
    if len(made) > 1:
        text = f"{description} has the outputs {', '.join(str(send.value) for send in made)}"
        yield Finding(Kind.TWICE, text, involved, (sample,))
    if is_past and not made:
        yield Finding(
            Kind.NEVER,
            f"{description} has no output, but {sample.group} is at {sample.offset}",
            (
                *involved,
                *(send.transaction for send in story.sends.values() if send.source == value),
            ),
            (sample,),
        )
    if made and not is_past:
        text = f"{description} has an output, but {sample.group} is at {sample.offset}"
        yield Finding(Kind.OFFSETS_LOST, text, involved, (sample,))


# -- fenced processes


def zombies(story: Story) -> Iterator[Finding]:
    """Find requests of fenced processes that were accepted."""
    read = {value: fetch for fetch in story.fetches for _, value in fetch.records}
    for transaction in story.transactions.values():
        fenced = transaction.process.fenced
        for send in transaction.sends:
            if send.invoked > fenced and (send.acked or send.value in read):
                evidence = (read[send.value],) if send.value in read else ()
                text = f"{_name(send)} was accepted, but {transaction.process.name} was fenced"
                yield Finding(Kind.ZOMBIE, text, (transaction,), evidence)
        acked = [send for send in transaction.sends if send.acked]
        for description, invoked, answered in (
            ("commit", transaction.commit_invoked, transaction.committed),
            ("abort", transaction.abort_invoked, transaction.aborted),
        ):
            if acked and fenced < invoked and answered < NEVER:
                text = f"the {description} of {transaction.name} was accepted, but it was fenced"
                yield Finding(Kind.ZOMBIE, text, (transaction,))


# -- verdict

CHECKS: tuple[Check, ...] = (
    zombies,
    uncommitted_reads,
    passed_transactions,
    lost_records,
    fractured_transactions,
    values_and_offsets,
    order_of_producers,
    decreasing_offsets,
    offsets_of_groups,
    outputs_of_inputs,
)
CHECKS_OF_MARKERS: tuple[Check, ...] = (unmarked_ends, unmoved_stable_offsets)


def check(history: Iterable[Event], *, responds_after_markers: bool = True) -> list[Finding]:
    """Return all anomalies of a history.

    Args:
        history: All events, in any order.
        responds_after_markers: True if the broker writes the markers before it acknowledges the end
            of a transaction. Apache Kafka writes them later.
    """
    return _findings(Story(history), responds_after_markers)


def _findings(story: Story, responds_after_markers: bool) -> list[Finding]:
    checks = [*CHECKS, *(CHECKS_OF_MARKERS if responds_after_markers else ())]
    return [finding for each in checks for finding in each(story)]


def judge(
    history: Iterable[Event], minimum: Minimum, *, responds_after_markers: bool = True
) -> Verdict:
    """Return the verdict on a whole run.

    Args:
        history: All events.
        minimum: The verdict refuses a history with smaller counts.
        responds_after_markers: See `check`.
    """
    story = Story(history)
    had = _count(story)
    refusals = [
        f"too few {name.replace('_', ' ')}: {count} of {wanted}"
        for name, count, wanted in zip(Minimum._fields, had, minimum, strict=True)
        if count < wanted
    ]
    return Verdict(_findings(story, responds_after_markers), [*refusals, *_unread(story)], had)


def _count(story: Story) -> Minimum:
    transactions = story.transactions.values()
    killed = [each for each in story.processes.values() if each.killed < NEVER and each.rivals]
    return Minimum(
        commits=sum(each.committed < NEVER for each in transactions),
        aborts=sum(each.aborted < NEVER for each in transactions),
        broker_kills=sum(bool(story.open_at(time)) for time in story.broker_kills),
        client_kills=sum(
            any(each.process is process for each in story.open_at(process.killed))
            for process in killed
        ),
    )


def _unread(story: Story) -> Iterator[str]:
    """Describe the partitions and groups without a final read after the last transaction."""
    last = max(
        (
            each.commit_invoked
            for each in story.transactions.values()
            if each.commit_invoked < NEVER
        ),
        default=-1,
    )
    for place in sorted(story.places()):
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            read = story.final.get((place, isolation))
            if read is None or read.since < last:
                yield f"no last read of {place[0]}-{place[1]}, {isolation}"
    for group, place in sorted(_claims(story)):
        samples = [
            each
            for each in story.samples[Operation.COMMITTED]
            if (each.group, each.place, each.since > last) == (group, place, True)
        ]
        if not samples:
            yield f"no final committed offset of {group} in {place[0]}-{place[1]}"


def smallest(history: Iterable[Event], finding: Finding) -> list[Event]:
    """Return the events of the transactions of an anomaly, of their rivals, and the evidence.

    Reads keep only relevant records, so that the result can be checked like a whole history.
    """
    events = sorted(history, key=lambda event: event.time)
    names = {each.name for each in finding.transactions}
    processes = {each.process for each in finding.transactions}
    rivals = {each.name for process in processes for each in [process, *process.rivals]}
    places = {send.place for each in finding.transactions for send in each.sends}
    places |= {event.place for event in finding.evidence}
    sent = {event.value for event in events if event.operation is Operation.SEND}
    values = {send.value for each in finding.transactions for send in each.sends}
    kept = [
        _drop_other_transactions(event, values, sent)
        for event in events
        if event.transaction in names
        or (event.process in rivals and event.operation in _LIVES)
        or (event.operation is Operation.READ and event.place in places)
        or event in finding.evidence
    ]
    span = range(kept[0].time, kept[-1].time) if kept else range(0)
    kills = [event for event in events if event.process == BROKER and event.time in span]
    return sorted([*kept, *kills], key=lambda event: event.time)


_LIVES = (Operation.INIT, Operation.PAUSE, Operation.RESUME, Operation.KILL)


def _drop_other_transactions(event: Event, values: set[int], sent: set[int]) -> Event:
    """Drop the records of other transactions; keep values never sent, they may be the anomaly."""
    records = [row for row in event.records if row[1] in values or row[1] not in sent]
    return event._replace(records=tuple(records))


def report(history: list[Event], verdict: Verdict, findings_max: int = 3) -> str:
    """Format a verdict, with the smallest history of the first anomalies."""
    lines = [f"refused: {text}" for text in verdict.refusals]
    first = "".join(f"; the first: {finding}" for finding in verdict.findings[:1])
    lines.append(f"{len(verdict.findings)} findings{first}; {verdict.had}")
    for finding in verdict.findings[:findings_max]:
        lines += ["", str(finding), *map(to_json, smallest(history, finding))]
    return "\n".join(lines)


# -- text


def position_of(place: Place, offset: int) -> str:
    return f"{place[0]}-{place[1]}@{offset}"


def _name(send: Send) -> str:
    return f"{send.value} at {position_of(send.place, send.offset)} of {send.transaction.name}"


def _transactions(story: Story, values: Iterable[int]) -> Iterator[Transaction]:
    """Return the transactions that sent the values."""
    return (story.sends[value].transaction for value in values if value in story.sends)
