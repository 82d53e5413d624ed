"""Histories of a broker under kill -9, and a checker for them: a pure function of events.

A history is a list of events in the order in which they happened. A client adds a request before it
sends it and the response after it arrives. So everything before a request was known when the
request was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

# A topic and a partition.
Place = tuple[str, int]


class Sent(NamedTuple):
    """A producer is about to send a value that is never sent again."""

    producer: int
    place: Place
    value: int


class Acked(NamedTuple):
    """The broker acknowledged a value at an offset.

    `offset` is None if librdkafka concluded from a later batch that this one was appended.
    """

    place: Place
    offset: int | None
    value: int


class Reading(NamedTuple):
    """A partition is about to be read."""

    place: Place


class Read(NamedTuple):
    """A partition was read from `begin` to its end; `records` are offsets and values.

    `log_start` and `end` are the earliest and the latest offset that the broker returned.
    """

    place: Place
    log_start: int
    begin: int
    end: int
    records: list[tuple[int, int]]


class Polled(NamedTuple):
    """A continuous consumer received its next `records`: offsets and values."""

    reader: str
    place: Place
    records: list[tuple[int, int]]


class Batch(NamedTuple):
    """A record batch in a segment file: its offsets and a digest of its bytes."""

    first: int
    last: int
    digest: bytes


class Dumped(NamedTuple):
    """The segment files of all replicas of a partition, by node, from `begin` on.

    When they were read, every replica had to contain everything below `high_watermark`.
    """

    place: Place
    begin: int
    high_watermark: int
    replicas: Mapping[int, list[Batch]]


class Killed(NamedTuple):
    """The broker was killed. `log_start` was checkpointed: the log start must not fall below it."""

    place: Place
    log_start: int


class Committing(NamedTuple):
    """A member of a group is about to commit an offset."""

    group: str
    place: Place
    offset: int


class Committed(NamedTuple):
    """The broker acknowledged a commit."""

    group: str
    place: Place
    offset: int


class Fetching(NamedTuple):
    """A client is about to request the committed offset."""

    group: str
    place: Place


class Fetched(NamedTuple):
    """The broker returned the committed offset, or -1."""

    group: str
    place: Place
    offset: int


Event = (
    Sent
    | Acked
    | Reading
    | Read
    | Polled
    | Dumped
    | Killed
    | Committing
    | Committed
    | Fetching
    | Fetched
)


class Finding(NamedTuple):
    """An anomaly; `kind` names its type in one word."""

    kind: str
    text: str


class _Partition:
    """The checker's state of one partition."""

    def __init__(self) -> None:
        self.acked: dict[int, int] = {}
        self.highest_acked = -1
        self.due = -1  # the highest offset that the current read must reach
        self.due_again = 0  # consumers had read everything below it when the read began
        self.log_start = 0
        self.read_to = 0
        self.read: dict[int, int] = {}
        self.offset_of: dict[int, int] = {}
        # Acknowledged values with an unknown offset, until they are read.
        self.unplaced: set[int] = set()
        # The values of `unplaced` that the current read must find.
        self.unplaced_due: set[int] = set()


class _Commits:
    """The checker's state of a group's offset in one partition; one member commits at a time."""

    def __init__(self) -> None:
        self.requested: set[int] = set()
        self.highest = -1
        self.due = -1


class Checker:
    """An incremental checker of a history; see `check`.

    Args:
        trimmed: Topics with retention. All others must keep everything.
    """

    def __init__(self, trimmed: Collection[str] = ()) -> None:
        self.findings: list[Finding] = []
        self._trimmed = frozenset(trimmed)
        self._partitions: defaultdict[Place, _Partition] = defaultdict(_Partition)
        self._commits: defaultdict[tuple[str, Place], _Commits] = defaultdict(_Commits)
        self._positions: dict[tuple[str, Place], int] = {}
        # By value: partition, producer, and the highest offset acknowledged there before.
        self._sent: dict[int, tuple[Place, int, int]] = {}

    @property
    def acked(self) -> int:
        """Return the number of acknowledged values."""
        return sum(len(each.acked) for each in self._partitions.values())

    @property
    def commits(self) -> int:
        """Return the number of different requested commits."""
        return sum(len(each.requested) for each in self._commits.values())

    def feed(self, events: Iterable[Event]) -> None:
        """Check the next events."""
        for event in events:
            match event:
                case Sent(producer, place, value):
                    self._sent[value] = place, producer, self._partitions[place].highest_acked
                case Acked():
                    self._on_acked(event)
                case Reading(place):
                    partition = self._partitions[place]
                    partition.due = partition.highest_acked
                    partition.due_again = partition.read_to
                    partition.unplaced_due = set(partition.unplaced)
                case Read():
                    self._on_read(event)
                case Polled():
                    self._on_polled(event)
                case Dumped():
                    self._on_dumped(event)
                case Killed(place, log_start):
                    self._partitions[place].log_start = log_start
                case Committing(group, place, offset):
                    self._commits[group, place].requested.add(offset)
                case Fetching(group, place):
                    self._commits[group, place].due = self._commits[group, place].highest
                case Committed(group, place, offset) | Fetched(group, place, offset):
                    self._on_commit(event)

    def _report(self, kind: str, place: Place, text: str) -> None:
        self.findings.append(Finding(kind, f"{place[0]}-{place[1]}: {text}"))

    # -- acknowledgements

    def _on_acked(self, ack: Acked) -> None:
        place, offset, value = ack
        partition = self._partitions[place]
        sent_to, _, floor = self._sent.get(value, (None, 0, -1))
        if sent_to != place:
            self._report("phantom", place, f"ack of {value} at {offset}, which was not sent there")
        if offset is None:
            partition.unplaced.add(value)
            return
        if partition.acked.get(offset, value) != value:
            other = partition.acked[offset]
            self._report("twice", place, f"{offset} was given to {other} and to {value}")
        elif offset <= floor:
            self._report(
                "inverted", place, f"{value} got {offset}, but {floor} was given before it was sent"
            )
        partition.acked[offset] = value
        partition.highest_acked = max(partition.highest_acked, offset)

    # -- reads

    def _on_read(self, read: Read) -> None:
        partition = self._partitions[read.place]
        self._check_bounds(read, partition)
        lowest = max(read.begin, read.log_start)
        offsets = [offset for offset, _ in read.records]
        if offsets != list(range(lowest, read.end)):
            self._report("gap", read.place, f"{lowest} to {read.end} is {_spans(offsets)}")
        for offset, value in read.records:
            self._check_record(read.place, partition, offset, value)
        self._check_order(read)
        here = dict(read.records)
        for offset in range(lowest, read.end):
            acked = partition.acked.get(offset)
            if acked is not None and here.get(offset) != acked:
                self._check_missing(read.place, partition, offset, acked)
        self._check_unplaced(read.place, partition)
        partition.log_start = max(partition.log_start, read.log_start)
        partition.read_to = max(partition.read_to, read.end)

    def _check_unplaced(self, place: Place, partition: _Partition) -> None:
        """Check acknowledged values without offset. Retention may have deleted trimmed ones."""
        partition.unplaced -= partition.offset_of.keys()
        lost = partition.unplaced & partition.unplaced_due
        partition.unplaced -= lost
        if place[0] not in self._trimmed:
            for value in sorted(lost):
                self._report("lost", place, f"{value}, acked without an offset")

    def _on_polled(self, polled: Polled) -> None:
        partition = self._partitions[polled.place]
        at = self._positions.get((polled.reader, polled.place), polled.records[0][0])
        offsets = [offset for offset, _ in polled.records]
        after = at + len(offsets)
        if offsets != list(range(at, after)):
            text = f"{polled.reader} was at {at} and received {_spans(offsets)}"
            self._report("gap", polled.place, text)
        for offset, value in polled.records:
            self._check_record(polled.place, partition, offset, value)
        self._positions[polled.reader, polled.place] = offsets[-1] + 1
        partition.read_to = max(partition.read_to, offsets[-1] + 1)

    def _check_bounds(self, read: Read, partition: _Partition) -> None:
        place = read.place
        if read.log_start < partition.log_start:
            text = f"the log start fell from {partition.log_start} to {read.log_start}"
            self._report("start", place, text)
        if read.end < partition.due_again:
            text = f"consumers had read up to {partition.due_again}, but the end is {read.end}"
            self._report("fell", place, text)
        if read.begin > max(partition.read_to, read.log_start):
            self._report("unread", place, f"{partition.read_to} to {read.begin} was skipped")
        if place[0] not in self._trimmed and read.log_start > 0:
            self._report("lost", place, f"everything before {read.log_start}")
        if partition.due >= read.end:
            lost = [offset for offset in partition.acked if read.end <= offset <= partition.due]
            text = f"{len(lost)} acked, up to {partition.due}, but the end is {read.end}"
            self._report("lost", place, text)

    def _check_record(self, place: Place, partition: _Partition, offset: int, value: int) -> None:
        before = partition.read.setdefault(offset, value)
        if before != value:
            self._report("changed", place, f"{offset} was {before} and is {value}")
        first = partition.offset_of.setdefault(value, offset)
        if first != offset:
            self._report("doubled", place, f"{value} is at {first} and at {offset}")
        if self._sent.get(value, (None,))[0] != place:
            self._report("phantom", place, f"{value} at {offset} was not sent there")

    def _check_missing(self, place: Place, partition: _Partition, offset: int, value: int) -> None:
        found = partition.offset_of.get(value)
        if found is None or found == offset:
            self._report("lost", place, f"{value}, acked at {offset}")
        else:
            self._report("moved", place, f"{value}, acked at {offset}, is at {found}")

    def _check_order(self, read: Read) -> None:
        """Check that the values of each producer increase."""
        last: dict[int, int] = {}
        for offset, value in read.records:
            producer = self._sent.get(value, (None, -1))[1]
            if value < last.get(producer, value):
                text = f"{value} at {offset} is behind {last[producer]}"
                self._report("reordered", read.place, text)
            last[producer] = value

    # -- replicas

    def _on_dumped(self, dump: Dumped) -> None:
        """Check that all replicas have the same bytes up to the high watermark."""
        committed = {
            node: [batch for batch in batches if batch.first < dump.high_watermark]
            for node, batches in dump.replicas.items()
        }
        for node, batches in committed.items():
            self._check_replica(dump, node, batches)
        (first, like), *differing = committed.items()
        for node, batches in differing:
            for one, other in zip(like, batches, strict=False):
                if one != other:
                    text = f"nodes {first} and {node} differ from offset {min(one.first, other.first)} on"
                    self._report("replicas", dump.place, text)
                    break

    def _check_replica(self, dump: Dumped, node: int, batches: list[Batch]) -> None:
        """Check that a replica has all offsets from `begin` to the high watermark."""
        at = dump.begin
        for batch in batches:
            if batch.first != at:
                break
            at = batch.last + 1
        if at < dump.high_watermark:
            text = f"node {node} lacks offset {at}, the high watermark is {dump.high_watermark}"
            self._report("replicas", dump.place, text)

    # -- committed offsets

    def _on_commit(self, event: Committed | Fetched) -> None:
        group, place, offset = event
        commits = self._commits[group, place]
        is_fetch = isinstance(event, Fetched)
        if offset < (commits.due if is_fetch else commits.highest):
            text = f"{group} had committed {commits.highest}, but the offset is {offset}"
            self._report("commit", place, text)
        if offset >= 0 and offset not in commits.requested:
            self._report("commit", place, f"{group} never committed {offset}")
        commits.highest = max(commits.highest, offset)


def check(history: Iterable[Event], trimmed: Collection[str] = ()) -> list[Finding]:
    """Return all anomalies of a history.

    The rules:

    * No acknowledged record is lost, stored at another offset (moved), or stored twice (doubled).
    * No offset is assigned twice or changes its value.
    * A record's offset is above all offsets acknowledged before the record was sent.
    * Every value read was sent to this partition (otherwise it is a phantom).
    * Offsets have no gaps, and the records of a producer keep their order.
    * Committed offsets never decrease.
    * The log start never decreases, except that a kill may reset it to the checkpointed value.
      Records that retention had deleted then reappear.
    * The end offset that consumers see never decreases.
    * All replicas have the same bytes up to the high watermark.

    Args:
        history: All events, in order.
        trimmed: Topics with retention.
    """
    checker = Checker(trimmed)
    checker.feed(history)
    return checker.findings


def _spans(offsets: list[int]) -> str:
    """Format offsets as ranges: `3-7, 9-9`."""
    spans: list[list[int]] = []
    for offset in offsets:
        if spans and offset == spans[-1][1] + 1:
            spans[-1][1] = offset
        else:
            spans.append([offset, offset])
    return ", ".join(f"{first}-{last}" for first, last in spans[:20]) or "nothing"
