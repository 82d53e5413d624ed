"""A history put in order: processes, transactions, sends, and what readers saw of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from .history import BROKER, READ_COMMITTED, READ_UNCOMMITTED, Event, Operation, Phase, Place

NEVER = 1 << 63
"""A time that does not come."""


@dataclass(eq=False)
class Send:
    """A value on its way. `offset` is -1 until an acknowledgement or a reader has told it."""

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
    """A transaction carries an offset of a group."""

    group: str
    place: Place
    offset: int


@dataclass(eq=False)
class Transaction:
    """One transaction of a process. Times are those of events, or `NEVER`."""

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
        """From when it may be committed."""
        surely_aborted = self.aborted < NEVER and self.commit_failed
        return NEVER if surely_aborted else self.commit_invoked

    @property
    def may_end(self) -> int:
        """From when it may be over: its process asks for it, another one takes its id, or time."""
        return min(
            self.commit_invoked,
            self.abort_invoked,
            self.process.may_be_fenced(self.begun),
            self.begun + self.process.timeout,
        )

    @property
    def answered(self) -> int:
        """When its end was acknowledged."""
        return min(self.committed, self.aborted)


@dataclass(eq=False)
class Process:
    """A client in one of its lives."""

    name: str
    transactional_id: str = ""
    init_invoked: int = NEVER
    init_done: int = NEVER
    timeout: int = NEVER
    killed: int = NEVER
    rivals: list[Process] = field(default_factory=list)
    """All processes with its transactional id."""

    def may_be_fenced(self, since: int) -> int:
        """When, from `since` on, another process first asked for its transactional id."""
        times = (
            max(each.init_invoked, since)
            for each in self.rivals
            if each is not self and since < min(each.init_done, each.killed)
        )
        return min(times, default=NEVER)

    @property
    def fenced(self) -> int:
        """When a process that asked for its transactional id later was given it."""
        later = (each for each in self.rivals if each.init_invoked > self.init_done)
        return min((each.init_done for each in later if each is not self), default=NEVER)


class Story:
    """All that a history tells.

    Attributes:
        sends: by value.
        looks: everything that consumers were given, polls and last reads, in order of time.
        final: the last read of each place, for each isolation.
        samples: what was seen of last stable, end and committed offsets, in order of time. Those
            asked for while a node of the broker was paused are left out: it may not know yet that
            others lead.
        shown: the values that the last reads of committed records have.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.processes: dict[str, Process] = {}
        self.transactions: dict[str, Transaction] = {}
        self.sends: dict[int, Send] = {}
        self.looks: list[Event] = []
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
                self.looks.append(event)
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

    # -- what the checks ask

    def is_committed(self, transaction: Transaction) -> bool:
        """Whether it was acknowledged as committed, or readers were shown that it is."""
        if transaction.committed < NEVER:
            return True
        is_possible = transaction.may_commit < NEVER
        return is_possible and any(send.value in self.shown for send in transaction.sends)

    def places(self) -> set[Place]:
        """Every place that something was sent to."""
        return {send.place for send in self.sends.values()}

    def open_at(self, time: int) -> list[Transaction]:
        """Transactions of living processes whose end was not acknowledged yet."""
        return [
            each
            for each in self.transactions.values()
            if each.begun < time < min(each.answered, each.process.killed + 1)
        ]
