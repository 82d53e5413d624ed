"""A simulated metadata store whose clients see the faults of etcd and of a network.

`SharedTruth` is the store itself and always correct. Each node has a `SimulatedStore`, a client
that can be cut off. Its requests and responses can be slow, lost or late, its reads stale, and
its events delayed. Time is trio's virtual clock and all randomness comes from one generator, so
equal seeds give equal runs.
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
from kbroker.cluster.timed_lease import TimedLease, lease_time
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles

T = TypeVar("T")
Action = Callable[[], Awaitable[T]]

# Maximum number of revisions by which a stale read lags.
STALE_REVISIONS = 50


@dataclass(slots=True)
class StoreFaults:
    """Probability (0 to 1) of each fault, and latencies in seconds."""

    lost_requests: float = 0
    lost_responses: float = 0
    # Late requests arrive after the client's timeout.
    late_requests: float = 0
    stale_reads: float = 0
    late_events: float = 0
    # Leases that expire after up to twice their TTL, as after a leader election in etcd.
    late_expiry: float = 0
    # Maximum latency of one message.
    delay_seconds: float = 0.005
    late_seconds: float = 3
    # Timeout of a client's request.
    timeout_seconds: float = 1


@dataclass(slots=True)
class _Line:
    """Which directions between one client and the store are open."""

    requests: bool = True
    responses: bool = True


class SharedTruth:
    """The store behind all clients, and the network between.

    The task `run` must live as long as any client is used.
    """

    def __init__(self, random: Random, faults: StoreFaults | None = None) -> None:
        self.random = random
        self.faults = faults or StoreFaults()
        # All changes, for checks after a run.
        self.history: list[Change] = []
        # Number of faults that clients met, by fault.
        self.faults_met: Counter[str] = Counter()
        # Changes up to this revision are compacted; clients behind it get the difference.
        self.compacted = 0
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
        self._running = trio.Event()
        self._running.set()
        self.store.watch(self._on_change, after=0)

    def _open(self, files: MemFiles) -> LocalStore:
        return LocalStore(files, "truth/journal")

    def client(self, name: str) -> SimulatedStore:
        """Return a new client; clients of the same name are cut off together."""
        return SimulatedStore(self, name)

    async def run(self) -> None:
        """Deliver messages and expire leases, until cancelled."""
        while True:
            while self._agenda and self._agenda[0][0] <= trio.current_time():
                await self._running.wait()
                await heapq.heappop(self._agenda)[2]()
            with trio.move_on_at(self._agenda[0][0] if self._agenda else math.inf):
                await self._wake.wait()
            self._wake = trio.Event()

    def schedule(self, seconds: float, action: Action[None]) -> None:
        """Schedule an action that `run` performs in `seconds`."""
        due = trio.current_time() + seconds
        heapq.heappush(self._agenda, (due, next(self._numbers), action))
        self._wake.set()

    def pause(self) -> None:
        """Pause processing until `resume`, like an etcd whose processes are stopped."""
        self._running = trio.Event()

    async def resume(self, *, leases_first: bool) -> None:
        """Resume, and process the requests that arrived during the pause.

        Args:
            leases_first: End the expired leases before any request can renew them.
        """
        if leases_first:
            for lease in self._leases:
                await self._end_if_over(lease)
        self._running.set()

    # -- the network

    def cut(self, name: str, *, requests: bool = True, responses: bool = True) -> None:
        """Cut a client's requests, responses and events, or both directions."""
        self._lines[name] = _Line(requests=not requests, responses=not responses)

    def heal(self, name: str) -> None:
        """Heal a client's connection; lost messages stay lost."""
        self._lines.pop(name, None)
        self._healed.set()
        self._healed = trio.Event()

    def line(self, name: str) -> _Line:
        return self._lines.get(name) or _Line()

    async def reachable(self, name: str) -> None:
        """Wait until events get through to a client."""
        while not self.line(name).responses:
            await self._healed.wait()

    def draws(self, fault: str) -> bool:
        """Return True if this fault occurs now."""
        probability: float = getattr(self.faults, fault)
        happens = probability > 0 and self.random.random() < probability
        self.faults_met[fault] += happens
        return happens

    def delay(self, late: str, *, at_least: float = 0) -> float:
        """Return the latency of a message in seconds; `late` is the fault that makes it slow."""
        if self.draws(late):
            return at_least + self.random.uniform(0, self.faults.late_seconds)
        return self.random.uniform(0, self.faults.delay_seconds)

    def send(self, name: str, action: Action[T], response: _PendingResponse[T]) -> None:
        """Deliver a request to the store and its response to the client, or lose one of them."""

        async def arrive() -> None:
            if not self.line(name).requests:
                return
            try:
                result: T | StorageError = await action()
            except StorageError as error:
                result = error
            if not self.draws("lost_responses"):
                self.schedule(
                    self.random.uniform(0, self.faults.delay_seconds), respond_if_connected(result)
                )

        def respond_if_connected(result: T | StorageError) -> Action[None]:
            async def come_back() -> None:
                if self.line(name).responses:
                    response.give(result)

            return come_back

        if not self.draws("lost_requests"):
            given_up = self.faults.timeout_seconds
            self.schedule(self.delay("late_requests", at_least=given_up), arrive)

    # -- state of the store

    def _on_change(self, change: Change) -> None:
        self.history.append(change)
        entries = dict(self._past[-1].entries)
        _apply(entries, change)
        self._past.append(Snapshot(change.revision, entries))
        self.wake()

    @property
    def revision(self) -> int:
        return self.store.revision

    async def next_change(self) -> None:
        """Wait for a change or a new watcher."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake the waiters of `next_change`."""
        self._changed.set()
        self._changed = trio.Event()

    def compact(self, revision: int) -> None:
        """Compact: changes up to `revision` are no longer available one by one."""
        self.compacted = max(self.compacted, min(revision, self.revision))

    async def read(self, prefix: str, least: int) -> Snapshot:
        """Read the current entries or, on a stale read, older ones of revision `least` or later."""
        snapshot = self._past[-1]
        if self.draws("stale_reads"):
            snapshot = self.random.choice([each for each in self._past if each.revision >= least])
        found = {k: e for k, e in snapshot.entries.items() if k.startswith(prefix)}
        return Snapshot(snapshot.revision, found)

    def changes(self, after: int, to: int) -> Iterator[Change]:
        """Return the changes after revision `after`, up to `to`, for a watcher."""
        if after < self.compacted:
            yield from self._difference(after)
        else:
            yield from self.history[after:to]  # each raises the revision by 1

    def _difference(self, after: int) -> Iterator[Change]:
        """Return the keys deleted since a revision, then the entries created or changed since."""
        missed = self.history[after:]
        if len(missed) == 1:
            yield from missed
            return
        known: dict[str, Entry] = {}
        for change in self.history[:after]:
            _apply(known, change)
        deleted = {key for each in missed for key, entry in each.entries.items() if entry is None}
        deleted_keys = [key for key in known if key in deleted]
        new = {key: each for key, each in self._past[-1].entries.items() if each.revision > after}
        cause = "read again after a gap"
        if deleted_keys:
            yield Change(self.revision - 1, dict.fromkeys(deleted_keys), cause)
        yield Change(self.revision, new, cause)

    # -- leases

    async def grant(self, ttl_seconds: float, holder: str) -> TrueLease:
        inner = await self.store.grant(math.inf, holder=holder)
        lease = TrueLease(inner, max(1, math.ceil(ttl_seconds)), trio.current_time())
        self._leases.append(lease)
        self._expire_later(lease)
        return lease

    def _expire_later(self, lease: TrueLease) -> None:
        """Check a lease at most half a second after it expires, as etcd does."""
        extra = lease.ttl_seconds if self.draws("late_expiry") else 0
        due = lease.renewed + lease.ttl_seconds + extra + self.random.uniform(0, 0.5)

        async def expire() -> None:
            await self._end_if_over(lease)
            if self.store.has(lease.inner):
                self._expire_later(lease)

        self.schedule(due - trio.current_time(), expire)

    async def _end_if_over(self, lease: TrueLease) -> None:
        is_over = lease.renewed + lease.ttl_seconds <= trio.current_time()
        if is_over and self.store.has(lease.inner):
            self.faults_met["leases_ended"] += 1
            await self.store.end(lease.inner, f"lease of {lease.inner.holder} ended")


@dataclass(slots=True)
class TrueLease:
    """A lease in the store; `inner` never expires by itself."""

    inner: LocalLease
    ttl_seconds: float
    renewed: float

    async def keep_alive(self) -> bool:
        self.renewed = trio.current_time()
        return await self.inner.keep_alive()


class SimulatedStore:
    """A node's client of the store, see `MetadataStore`."""

    def __init__(self, truth: SharedTruth, name: str) -> None:
        self._truth = truth
        self._name = name
        self._seen = 0
        self._delivered_to = 0
        self._delivery = trio.Event()
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
        snapshot = await self.request(lambda: self._truth.read(prefix, least))
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
        revision, newest = await self.request(apply)
        await self._await_delivery(newest, deadline)
        return revision

    async def _await_delivery(self, revision: int, deadline: float) -> None:
        """Wait until the watchers have received `revision`."""
        self._seen = max(self._seen, revision)
        with trio.move_on_at(deadline):
            while self._watchers and self._delivered_to < revision:
                await self._delivery.wait()
            return
        raise OutcomeUnknown(f"the watchers did not receive revision {revision} in time")

    async def request(self, action: Action[T]) -> T:
        """Run an action in the store and return its result. Raises its error, or OutcomeUnknown."""
        if self._closed:
            raise StorageError("this client of the metadata store is closed")
        response: _PendingResponse[T] = _PendingResponse()
        self._truth.send(self._name, action, response)
        with trio.move_on_after(self._truth.faults.timeout_seconds):
            return await response.wait()
        raise OutcomeUnknown("the metadata store did not respond in time")

    def watch(self, watcher: Watcher, *, after: int) -> None:
        if after < self._truth.compacted:
            raise Compacted(f"changes after revision {after} are compacted")
        self._watchers.append(_Watching(watcher, after))
        self._delivered_to = min(self._delivered_to, after)
        self._truth.wake()

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers = [each for each in self._watchers if each.watcher != watcher]

    async def grant(self, ttl_seconds: float, *, holder: str) -> Lease:
        if not ttl_seconds < math.inf:
            raise ValueError("lease TTL must be finite: this store cannot see its holder's process")
        asked_at = lease_time()
        lease = await self.request(lambda: self._truth.grant(ttl_seconds, holder))
        return _SimulatedLease(self, lease, asked_at)

    async def run(self) -> None:
        while True:
            while self._truth.revision <= self._delivered_to:
                await self._truth.next_change()
            newest = self._truth.revision
            await trio.sleep(self._truth.delay("late_events"))
            await self._truth.reachable(self._name)
            self._deliver(newest)

    def _deliver(self, newest: int) -> None:
        for each in tuple(self._watchers):
            for change in self._truth.changes(each.delivered_to, newest):
                each.delivered_to = change.revision
                each.watcher(change)
            each.delivered_to = max(each.delivered_to, newest)
        self._delivered_to = newest
        self._seen = max(self._seen, newest)
        self._delivery.set()
        self._delivery = trio.Event()

    async def aclose(self) -> None:
        """Close the client; requests in transit still reach the store."""
        self._closed = True
        self._watchers.clear()


@dataclass(slots=True, eq=False)
class _Watching:
    """A watcher and the last revision that it received."""

    watcher: Watcher
    delivered_to: int


class _SimulatedLease(TimedLease):
    """A node's handle of a lease."""

    def __init__(self, client: SimulatedStore, lease: TrueLease, granted_at: float) -> None:
        super().__init__(lease.inner.id, lease.ttl_seconds, granted_at)
        self._client = client
        self._lease = lease

    async def _renew(self) -> bool:
        return await self._client.request(self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._client.request(self._lease.inner.revoke)


class _PendingResponse(Generic[T]):
    """The pending response of a request."""

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
