"""The contract of metadata stores, run on each store and on broken ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from kbroker.cluster.local_store import LocalStore
from kbroker.cluster.remote_store import RemoteStore
from kbroker.cluster.store import Change, Document, Entry, Watcher
from kbroker.cluster.store_link import Link
from kbroker.cluster.store_server import serve_client
from kbroker.storage.files import MemFiles

from ..simulation.store import SharedTruth, SimulatedStore, StoreFaults
from .contract import CHECKS, Check, World

# Faults of a slow network that delivers every response eventually.
SLOW = StoreFaults(
    stale_reads=0.5,
    late_events=0.2,
    late_expiry=0.2,
    late_seconds=1,
    delay_seconds=0.1,
    timeout_seconds=60,
)

CHECK_SECONDS_MAX = 1000

Build = Callable[[trio.Nursery], World]


def local(nursery: trio.Nursery, store_class: type[LocalStore] = LocalStore) -> World:
    """Return a store that all nodes of a process share."""
    files = MemFiles()
    files.mkdir("data")
    store = store_class(files, "data/journal")
    store.HISTORY_ENTRIES = 10
    nursery.start_soon(store.run)
    return World(lambda: store, lambda: None)


def simulated(
    nursery: trio.Nursery,
    faults: StoreFaults | None = None,
    seed: int = 1,
    truth_class: type[SharedTruth] = SharedTruth,
    client_class: type[SimulatedStore] = SimulatedStore,
) -> World:
    """Return a store behind a simulated network."""
    truth = truth_class(Random(seed), faults)
    nursery.start_soon(truth.run)

    def client() -> SimulatedStore:
        store = client_class(truth, "node")
        nursery.start_soon(store.run)
        return store

    return World(client, lambda: truth.compact(truth.revision))


def remote(nursery: trio.Nursery) -> World:
    """Return a store for clients in other processes."""
    truth = local(nursery).client()

    def client() -> RemoteStore:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(serve_client, truth, theirs)
        store = SoonForgets(Link(ours))
        nursery.start_soon(store.run)
        return store

    return World(client, lambda: None)


class SoonForgets(RemoteStore):
    HISTORY_ENTRIES = 10


STORES: dict[str, Build] = {
    "local": local,
    "remote": remote,
    "simulated": simulated,
    **{f"slow {seed}": partial(simulated, faults=SLOW, seed=seed) for seed in range(5)},
}


def run(check: Check, build: Build) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(CHECK_SECONDS_MAX):
                await check(build(nursery))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", CHECKS)
def test_store_fulfils_contract(name: str, store: str) -> None:
    run(CHECKS[name], STORES[store])


# Broken stores


class ComparesValues(LocalStore):
    """Broken store that compares values instead of revisions."""

    def __init__(self, files: MemFiles, path: str) -> None:
        super().__init__(files, path)
        self._values: dict[tuple[str, int], Document | None] = {}
        self.watch(self._note, after=self.revision)

    def _note(self, change: Change) -> None:
        for key, entry in change.entries.items():
            self._values[key, change.revision] = None if entry is None else entry.value

    def _is_at(self, key: str, revision: int) -> bool:
        entry = self._entries.get(key)
        return (entry.value if entry else None) == self._values.get((key, revision))


class SkipsHistory(LocalStore):
    """Broken store that delivers only future changes to a new watcher, not those since the read."""

    def watch(self, watcher: Watcher, *, after: int) -> None:
        super().watch(watcher, after=self.revision)


class SharedStoreThatComparesValues(SharedTruth):
    def _open(self, files: MemFiles) -> LocalStore:
        return ComparesValues(files, "truth/journal")


class ClientThatSkipsHistory(SimulatedStore):
    def watch(self, watcher: Watcher, *, after: int) -> None:
        super().watch(watcher, after=self._truth.revision)


class WritesKeyByKey(LocalStore):
    """Broken store that writes key by key instead of atomically."""

    async def transact(self, puts, *, compares, cause, lease=None):  # type: ignore[no-untyped-def]
        revision = None
        for key, value in puts.items():
            own = {key: compares[key]} if key in compares else {}
            done = await super().transact({key: value}, compares=own, cause=cause, lease=lease)
            revision = done or revision
        return revision


class DerivesRevisions(LocalStore):
    """Broken store that derives revisions from the existing entries."""

    def _commit(self, *arguments):  # type: ignore[no-untyped-def]
        self._revision = len(self._entries)
        return super()._commit(*arguments)


class KeepsLeasedEntries(LocalStore):
    def _attach(self, entries: object, lease: object) -> None:
        pass


class DeletesRewrittenEntries(LocalStore):
    """Broken store that deletes, with a lease, entries that were rewritten without the lease."""

    def _attach(self, entries, lease):  # type: ignore[no-untyped-def]
        if lease is not None:
            lease.keys.update(dict.fromkeys(entries))


class SharesCallerObjects(LocalStore):
    """Broken store that keeps the objects of the caller without copying them."""

    async def _commit(self, puts, cause, lease):  # type: ignore[no-untyped-def]
        revision = await super()._commit(puts, cause, lease)
        self._entries |= {key: Entry(value, revision) for key, value in puts.items()}
        return revision


BROKEN: dict[str, tuple[Build, str]] = {
    "compares by value": (
        partial(local, store_class=ComparesValues),
        "rewritten_equal_value_has_new_revision",
    ),
    "compares by value, with a network": (
        partial(simulated, truth_class=SharedStoreThatComparesValues),
        "rewritten_equal_value_has_new_revision",
    ),
    "watches without a revision": (
        partial(local, store_class=SkipsHistory),
        "watch_continues_after_read_without_gap",
    ),
    "watches without a revision, with a network": (
        partial(simulated, client_class=ClientThatSkipsHistory),
        "watch_continues_after_read_without_gap",
    ),
    "writes in parts": (
        partial(local, store_class=WritesKeyByKey),
        "transaction_is_atomic",
    ),
    "revisions come again": (
        partial(local, store_class=DerivesRevisions),
        "revision_is_not_reused_after_delete",
    ),
    "leases that keep entries": (
        partial(local, store_class=KeepsLeasedEntries),
        "lease_end_deletes_only_its_entries",
    ),
    "leases that take too much": (
        partial(local, store_class=DeletesRewrittenEntries),
        "entry_belongs_to_lease_of_last_write",
    ),
    "shares its caller's objects": (
        partial(local, store_class=SharesCallerObjects),
        "stored_value_is_independent_of_caller",
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_contract_detects_broken_store(defect: str) -> None:
    build, by = BROKEN[defect]
    with pytest.raises(BaseExceptionGroup) as raised:
        run(CHECKS[by], build)
    assert raised.group_contains(AssertionError)
