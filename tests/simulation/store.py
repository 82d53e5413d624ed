"""A metadata store behind a bad network: what etcd and a network can do to its clients, by a seed.

`SharedTruth` is the store itself, and never wrong. Each node has a `SimulatedStore`, a client whose
requests and answers may be slow, lost or late, whose reads may be old, whose events come when they
come, and which may be cut off. All of it goes by trio's clock, which is a virtual one in a
simulation, and by one source of chance, so that a seed stands for a run.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Generic, TypeVar

import trio

from kbroker.cluster.local_store import LocalLease, LocalStore
from kbroker.cluster.store import (
    OPERATIONS_MAX,
    Change,
    Compacted,
    Document,
    Entry,
    Lease,
    OutcomeUnknown,
    Snapshot,
    StoreProblem,
    Watcher,
)
from kbroker.cluster.timed_lease import TimedLease
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles

T = TypeVar("T")
Action = Callable[[], Awaitable[T]]

STALE_REVISIONS = 50
"""How many revisions a read may lag behind."""


@dataclass(slots=True)
class StoreFaults:
    """How often a client meets what, from 0 to 1, and how slow the network is in seconds."""

    lost_requests: float = 0
    lost_answers: float = 0
    late_requests: float = 0
    """They arrive after their client has given up."""
    stale_reads: float = 0
    late_events: float = 0
    late_expiry: float = 0
    """Leases that live for up to twice their time, as after an election among etcd's members."""
    delay_seconds: float = 0.005
    """Of one message, at most."""
    late_seconds: float = 3
    timeout_seconds: float = 1
    """How long a client waits for an answer."""


@dataclass(slots=True)
class _Line:
    """What gets through between one client and the store."""

    requests: bool = True
    answers: bool = True


class SharedTruth:
    """The store that all clients ask, and the network in between.

    Resource handling: `run` is a task that must live as long as any client is used.
    """

    def __init__(self, random: Random, faults: StoreFaults | None = None) -> None:
        self.random = random
        self.faults = faults or StoreFaults()
        self.history: list[Change] = []
        """Every change there was, for whoever checks a run."""
        self.met: Counter[str] = Counter()
        """How often clients met which fault."""
        self.compacted = 0
        """Changes up to this revision are forgotten; clients behind it are given a difference."""
        files = MemFiles()
        files.mkdir("truth")
        self.store = self._open(files)
        self._past: deque[Snapshot] = deque([Snapshot(0, {})], maxlen=STALE_REVISIONS)
        self._agenda: list[tuple[float, int, Action[None]]] = []
        self._numbers = count()
        self._wake = trio.Event()
        self._changed = trio.Event()
        self._lines: dict[str, _Line] = {}
        self._healed = trio.Event()
        self._leases: list[TrueLease] = []
        self._goes_on = trio.Event()
        self._goes_on.set()
        self.store.watch(self._on_change, after=0)

    def _open(self, files: MemFiles) -> LocalStore:
        return LocalStore(files, "truth/journal")

    def client(self, name: str) -> SimulatedStore:
        """Give a new client; all of one name are cut off together."""
        return SimulatedStore(self, name)

    async def run(self) -> None:
        """Carry messages and end leases, until cancelled."""
        while True:
            while self._agenda and self._agenda[0][0] <= trio.current_time():
                await self._goes_on.wait()
                await heapq.heappop(self._agenda)[2]()
            with trio.move_on_at(self._agenda[0][0] if self._agenda else math.inf):
                await self._wake.wait()
            self._wake = trio.Event()

    def after(self, seconds: float, action: Action[None]) -> None:
        """Let `run` do something in `seconds`."""
        due = trio.current_time() + seconds
        heapq.heappush(self._agenda, (due, next(self._numbers), action))
        self._wake.set()

    def stand_still(self) -> None:
        """Process nothing until `go_on`, as an etcd whose processes are stopped."""
        self._goes_on = trio.Event()

    async def go_on(self, *, leases_first: bool) -> None:
        """Process the requests that came in the meantime.

        Args:
            leases_first: End the expired leases before any request can renew them.
        """
        if leases_first:
            for lease in self._leases:
                await self._end_if_over(lease)
        self._goes_on.set()

    # -- the network

    def cut(self, name: str, *, requests: bool = True, answers: bool = True) -> None:
        """Let nothing through from a client, to it, or both; events count as answers."""
        self._lines[name] = _Line(requests=not requests, answers=not answers)

    def heal(self, name: str) -> None:
        """Let everything through again; what was lost stays so."""
        self._lines.pop(name, None)
        self._healed.set()
        self._healed = trio.Event()

    def line(self, name: str) -> _Line:
        return self._lines.get(name) or _Line()

    async def reachable(self, name: str) -> None:
        """Wait until events get through to a client."""
        while not self.line(name).answers:
            await self._healed.wait()

    def meets(self, fault: str) -> bool:
        """Whether chance lets this fault happen now."""
        probability: float = getattr(self.faults, fault)
        happens = probability > 0 and self.random.random() < probability
        self.met[fault] += happens
        return happens

    def delay(self, late: str, *, at_least: float = 0) -> float:
        """How many seconds a message takes, `late` being the fault that makes it slow."""
        if self.meets(late):
            return at_least + self.random.uniform(0, self.faults.late_seconds)
        return self.random.uniform(0, self.faults.delay_seconds)

    def send(self, name: str, action: Action[T], answer: _Answer[T]) -> None:
        """Carry a request to the store and its answer back, or lose one of them."""

        async def arrive() -> None:
            if not self.line(name).requests:
                return
            try:
                result: T | StorageError = await action()
            except StorageError as error:
                result = error
            if not self.meets("lost_answers"):
                self.after(self.random.uniform(0, self.faults.delay_seconds), back(result))

        def back(result: T | StorageError) -> Action[None]:
            async def come_back() -> None:
                if self.line(name).answers:
                    answer.give(result)

            return come_back

        if not self.meets("lost_requests"):
            given_up = self.faults.timeout_seconds
            self.after(self.delay("late_requests", at_least=given_up), arrive)

    # -- what the store knows

    def _on_change(self, change: Change) -> None:
        self.history.append(change)
        entries = dict(self._past[-1].entries)
        _apply(entries, change)
        self._past.append(Snapshot(change.revision, entries))
        self.wake()

    @property
    def revision(self) -> int:
        return self.store.revision

    async def something_new(self) -> None:
        """Wait for a change, or for a watcher."""
        await self._changed.wait()

    def wake(self) -> None:
        """End what waits for something new."""
        self._changed.set()
        self._changed = trio.Event()

    def forget(self, revision: int) -> None:
        """Compact: nobody can be told the changes up to `revision` one by one any more."""
        self.compacted = max(self.compacted, min(revision, self.revision))

    async def read(self, prefix: str, least: int) -> Snapshot:
        """Read entries of now, or by chance of a while ago, but of revision `least` or newer."""
        snapshot = self._past[-1]
        if self.meets("stale_reads"):
            snapshot = self.random.choice([each for each in self._past if each.revision >= least])
        found = {k: e for k, e in snapshot.entries.items() if k.startswith(prefix)}
        return Snapshot(snapshot.revision, found)

    def changes(self, after: int, to: int) -> Iterator[Change]:
        """What a watcher that knows revision `after` is told, up to revision `to`."""
        if after < self.compacted:
            yield from self._difference(after)
        else:
            yield from self.history[after:to]  # each raises the revision by 1

    def _difference(self, after: int) -> Iterator[Change]:
        """What is gone since a revision, also where it is there anew, then what is new."""
        missed = self.history[after:]
        if len(missed) == 1:
            yield from missed
            return
        known: dict[str, Entry] = {}
        for change in self.history[:after]:
            _apply(known, change)
        deleted = {key for each in missed for key, entry in each.entries.items() if entry is None}
        gone = [key for key in known if key in deleted]
        new = {key: each for key, each in self._past[-1].entries.items() if each.revision > after}
        cause = "read again after a gap"
        if gone:
            yield Change(self.revision - 1, dict.fromkeys(gone), cause)
        yield Change(self.revision, new, cause)

    # -- leases

    async def grant(self, ttl_seconds: float, holder: str) -> TrueLease:
        inner = await self.store.grant(math.inf, holder=holder)
        lease = TrueLease(inner, max(1, math.ceil(ttl_seconds)), trio.current_time())
        self._leases.append(lease)
        self._expire_later(lease)
        return lease

    def _expire_later(self, lease: TrueLease) -> None:
        """Look at a lease half a second at most after its end, as etcd does."""
        extra = lease.ttl_seconds if self.meets("late_expiry") else 0
        due = lease.renewed + lease.ttl_seconds + extra + self.random.uniform(0, 0.5)

        async def expire() -> None:
            await self._end_if_over(lease)
            if self.store.has(lease.inner):
                self._expire_later(lease)

        self.after(due - trio.current_time(), expire)

    async def _end_if_over(self, lease: TrueLease) -> None:
        is_over = lease.renewed + lease.ttl_seconds <= trio.current_time()
        if is_over and self.store.has(lease.inner):
            self.met["leases_ended"] += 1
            await self.store.end(lease.inner, f"lease of {lease.inner.holder} ended")


@dataclass(slots=True)
class TrueLease:
    """A lease as the store knows it: `inner` has no end of its own."""

    inner: LocalLease
    ttl_seconds: float
    renewed: float

    async def keep_alive(self) -> bool:
        self.renewed = trio.current_time()
        return await self.inner.keep_alive()


class SimulatedStore:
    """What one node has of the store; see `MetadataStore`."""

    def __init__(self, truth: SharedTruth, name: str) -> None:
        self._truth = truth
        self._name = name
        self._seen = 0
        self._heard_to = 0
        self._heard = trio.Event()
        self._watchers: list[_Watching] = []
        self._closed = False

    @property
    def revision(self) -> int:
        return self._seen

    @property
    def problem(self) -> StoreProblem | None:
        return None

    async def range(self, prefix: str) -> Snapshot:
        least = self._seen
        snapshot = await self.ask(lambda: self._truth.read(prefix, least))
        self._seen = max(self._seen, snapshot.revision)
        return snapshot

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        if max(len(puts), len(compares)) > OPERATIONS_MAX:
            raise ValueError(f"a transaction has at most {OPERATIONS_MAX} puts or compares")
        truth = self._truth
        puts, compares = json.loads(json.dumps([dict(puts), dict(compares)]))

        async def apply() -> tuple[int | None, int]:
            done = await truth.store.transact(puts, compares=compares, cause=cause, lease=lease)
            return done, truth.revision

        deadline = trio.current_time() + truth.faults.timeout_seconds
        revision, newest = await self.ask(apply)
        await self._hear(newest, deadline)
        return revision

    async def _hear(self, revision: int, deadline: float) -> None:
        """Wait until the watchers have heard of `revision`."""
        self._seen = max(self._seen, revision)
        with trio.move_on_at(deadline):
            while self._watchers and self._heard_to < revision:
                await self._heard.wait()
            return
        raise OutcomeUnknown(f"the change of revision {revision} was not heard of in time")

    async def ask(self, action: Action[T]) -> T:
        """Let the store do something. Raises what it raises, and OutcomeUnknown."""
        if self._closed:
            raise StorageError("this client of the metadata store is closed")
        answer: _Answer[T] = _Answer()
        self._truth.send(self._name, action, answer)
        with trio.move_on_after(self._truth.faults.timeout_seconds):
            return await answer.wait()
        raise OutcomeUnknown("the metadata store did not answer in time")

    def watch(self, watcher: Watcher, *, after: int) -> None:
        if after < self._truth.compacted:
            raise Compacted(f"changes after revision {after} are forgotten")
        self._watchers.append(_Watching(watcher, after))
        self._heard_to = min(self._heard_to, after)
        self._truth.wake()

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers = [each for each in self._watchers if each.watcher != watcher]

    async def grant(self, ttl_seconds: float, *, holder: str) -> Lease:
        if not ttl_seconds < math.inf:
            raise ValueError("a lease here has an end: this store cannot see its holder's process")
        asked_at = trio.current_time()
        lease = await self.ask(lambda: self._truth.grant(ttl_seconds, holder))
        return _SimulatedLease(self, lease, asked_at)

    async def run(self) -> None:
        while True:
            while self._truth.revision <= self._heard_to:
                await self._truth.something_new()
            newest = self._truth.revision
            await trio.sleep(self._truth.delay("late_events"))
            await self._truth.reachable(self._name)
            self._deliver(newest)

    def _deliver(self, newest: int) -> None:
        for each in tuple(self._watchers):
            for change in self._truth.changes(each.heard_to, newest):
                each.heard_to = change.revision
                each.watcher(change)
            each.heard_to = max(each.heard_to, newest)
        self._heard_to = newest
        self._seen = max(self._seen, newest)
        self._heard.set()
        self._heard = trio.Event()

    async def aclose(self) -> None:
        """Stop; what is on its way to the store still arrives."""
        self._closed = True
        self._watchers.clear()


@dataclass(slots=True, eq=False)
class _Watching:
    """A watcher, and the revision that it knows."""

    watcher: Watcher
    heard_to: int


class _SimulatedLease(TimedLease):
    """A node's handle of a lease."""

    def __init__(self, client: SimulatedStore, lease: TrueLease, granted_at: float) -> None:
        super().__init__(lease.inner.id, lease.ttl_seconds, granted_at)
        self._client = client
        self._lease = lease

    async def _renew(self) -> bool:
        return await self._client.ask(self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._client.ask(self._lease.inner.revoke)


class _Answer(Generic[T]):
    """A place for what comes back, if it does."""

    def __init__(self) -> None:
        self._came = trio.Event()
        self._result: T | StorageError

    def give(self, result: T | StorageError) -> None:
        self._result = result
        self._came.set()

    async def wait(self) -> T:
        await self._came.wait()
        if isinstance(self._result, StorageError):
            raise self._result
        return self._result


def _apply(entries: dict[str, Entry], change: Change) -> None:
    for key, entry in change.entries.items():
        if entry is None:
            entries.pop(key, None)
        else:
            entries[key] = entry
