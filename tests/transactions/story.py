"""A parsed history: processes, transactions, sent records, and the reads of consumers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from .history import BROKER, READ_COMMITTED, READ_UNCOMMITTED, Event, Operation, Phase, Place

# The time of an event that did not happen.
NEVER = 1 << 63


@dataclass(eq=False)
class Send:
    """A sent value. `offset` is -1 until an acknowledgement or a read reveals it."""

    value: int
    place: Place
    source: int
    invoked: int
    transaction: Transaction
    offset: int = -1
    acked: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Claim:
    """A group offset in a transaction."""

    group: str
    place: Place
    offset: int


@dataclass(eq=False)
class Transaction:
    """A transaction of a process. Times are those of events, or `NEVER`."""

    name: str
    process: Process
    begun: int
    sends: list[Send] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    commit_invoked: int = NEVER
    commit_failed: bool = False
    committed: int = NEVER
    abort_invoked: int = NEVER
    aborted: int = NEVER

    @property
    def may_commit(self) -> int:
        """Return the earliest time at which the transaction may be committed."""
        surely_aborted = self.aborted < NEVER and self.commit_failed
        return NEVER if surely_aborted else self.commit_invoked

    @property
    def may_end(self) -> int:
        """Return the earliest time at which it may have ended: requested, fenced or timed out."""
        return min(
            self.commit_invoked,
            self.abort_invoked,
            self.process.may_be_fenced(self.begun),
            self.begun + self.process.timeout,
        )

    @property
    def answered(self) -> int:
        """Return the time at which its end was acknowledged."""
        return min(self.committed, self.aborted)


@dataclass(eq=False)
class Process:
    """One process of a client."""

    name: str
    transactional_id: str = ""
    init_invoked: int = NEVER
    init_done: int = NEVER
    timeout: int = NEVER
    killed: int = NEVER
    # All processes with the same transactional ID.
    rivals: list[Process] = field(default_factory=list)

    def may_be_fenced(self, since: int) -> int:
        """Return the first time from `since` on at which another process requested this ID."""
        times = (
            max(each.init_invoked, since)
            for each in self.rivals
            if each is not self and since < min(each.init_done, each.killed)
        )
        return min(times, default=NEVER)

    @property
    def fenced(self) -> int:
        """Return the time at which a later process received this transactional ID."""
        later = (each for each in self.rivals if each.init_invoked > self.init_done)
        return min((each.init_done for each in later if each is not self), default=NEVER)


class Story:
    """The parsed content of a history.

    Attributes:
        sends: Sent records by value.
        fetches: Polls and final reads, in order of time.
        final: The final read of each partition, by isolation level.
        samples: Observed last stable offsets, high watermarks and committed offsets, in order of
            time. Samples taken while a broker node was paused are excluded: its metadata may be
            stale.
        shown: The values in the final reads of read_committed consumers.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.processes: dict[str, Process] = {}
        self.transactions: dict[str, Transaction] = {}
        self.sends: dict[int, Send] = {}
        self.fetches: list[Event] = []
        self.final: dict[tuple[Place, str], Event] = {}
        self.samples: defaultdict[Operation, list[Event]] = defaultdict(list)
        self.broker_kills: list[int] = []
        self._stale_until = -1
        for event in sorted(events, key=lambda event: event.time):
            self._take(event)
        self._tie_rivals()
        self.shown = {
            value
            for (_, isolation), read in self.final.items()
            if isolation == READ_COMMITTED
            for _, value in read.records
        }
        self._learn_offsets()

    def _take(self, event: Event) -> None:
        match event.operation:
            case Operation.INIT:
                self._take_init(event)
            case Operation.BEGIN:
                process = self._process(event.process)
                self.transactions[event.transaction] = Transaction(
                    event.transaction, process, event.time
                )
            case Operation.SEND:
                self._take_send(event)
            case Operation.OFFSETS | Operation.COMMIT | Operation.ABORT:
                self._take_step(event, self.transactions[event.transaction])
            case Operation.POLL | Operation.READ:
                self.fetches.append(event)
                if event.operation is Operation.READ:
                    self.final[event.place, event.isolation] = event
            case Operation.STABLE | Operation.END | Operation.COMMITTED:
                if event.since >= self._stale_until:
                    self.samples[event.operation].append(event)
            case Operation.KILL:
                self._process(event.process).killed = event.time
                if event.process == BROKER:
                    self.broker_kills.append(event.time)
            case Operation.PAUSE | Operation.RESUME if event.process == BROKER:
                is_pause = event.operation is Operation.PAUSE
                self._stale_until = NEVER if is_pause else event.time
            case Operation.PAUSE | Operation.RESUME:
                pass

    def _process(self, name: str) -> Process:
        return self.processes.setdefault(name, Process(name))

    def _take_init(self, event: Event) -> None:
        process = self._process(event.process)
        process.transactional_id = event.transactional_id
        if event.phase is Phase.INVOKED:
            process.init_invoked = min(process.init_invoked, event.time)
            process.timeout = event.timeout_ms * 1_000_000 if event.timeout_ms > 0 else NEVER
        elif event.phase is Phase.OK:
            process.init_done = event.time

    def _take_send(self, event: Event) -> None:
        if event.phase is Phase.INVOKED:
            transaction = self.transactions[event.transaction]
            send = Send(event.value, event.place, event.source, event.time, transaction)
            self.sends[event.value] = send
            transaction.sends.append(send)
            return
        send = self.sends[event.value]
        if event.phase is Phase.OK:
            send.offset, send.acked = event.offset, True
        send.failed = event.phase is Phase.FAIL

    def _take_step(self, event: Event, transaction: Transaction) -> None:
        match event.operation, event.phase:
            case Operation.OFFSETS, Phase.INVOKED:
                transaction.claims.append(Claim(event.group, event.place, event.offset))
            case Operation.COMMIT, Phase.INVOKED:
                transaction.commit_invoked = min(transaction.commit_invoked, event.time)
            case Operation.COMMIT, Phase.OK:
                transaction.committed = event.time
            case Operation.COMMIT, Phase.FAIL:
                transaction.commit_failed = True
            case Operation.ABORT, Phase.INVOKED:
                transaction.abort_invoked = min(transaction.abort_invoked, event.time)
            case Operation.ABORT, Phase.OK:
                transaction.aborted = event.time

    def _tie_rivals(self) -> None:
        by_id: defaultdict[str, list[Process]] = defaultdict(list)
        for process in self.processes.values():
            by_id[process.transactional_id].append(process)
            process.rivals = by_id[process.transactional_id] if process.transactional_id else []

    def _learn_offsets(self) -> None:
        for (place, isolation), read in self.final.items():
            if isolation == READ_UNCOMMITTED:
                for offset, value in read.records:
                    send = self.sends.get(value)
                    if send is not None and not send.acked and send.place == place:
                        send.offset = offset

    # -- queries

    def is_committed(self, transaction: Transaction) -> bool:
        """Return True if its commit was acknowledged or its records were visible to consumers."""
        if transaction.committed < NEVER:
            return True
        is_possible = transaction.may_commit < NEVER
        return is_possible and any(send.value in self.shown for send in transaction.sends)

    def places(self) -> set[Place]:
        """Return all partitions that received records."""
        return {send.place for send in self.sends.values()}

    def open_at(self, time: int) -> list[Transaction]:
        """Return the transactions of running processes whose end is not acknowledged."""
        return [
            each
            for each in self.transactions.values()
            if each.begun < time < min(each.answered, each.process.killed + 1)
        ]
