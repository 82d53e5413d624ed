"""The contract of metadata stores: checks that run on each store and on broken ones.

A check gets a `World` that creates clients. Depending on the world, clients share an object or
are connected to the store by a network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

import pytest
import trio

from kbroker.cluster.store import (
    ABSENT,
    OPERATIONS_MAX,
    Change,
    Compacted,
    Document,
    Entry,
    MetadataStore,
    Snapshot,
)

# Timeout for background work of a store: etcd ends leases late while its disk is slow.
WAIT_SECONDS = 60


@dataclass(slots=True)
class World:
    """An empty store."""

    # Function that returns a running client.
    client: Callable[[], MetadataStore]
    # Function that discards all past changes except at most the last ten.
    forget: Callable[[], None]


Check = Callable[[World], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def contract(check: Check) -> Check:
    """Register a check under the name of its function."""
    CHECKS[getattr(check, "__name__", "")] = check
    return check


async def put(
    store: MetadataStore, key: str, value: int | None, revision: int = ABSENT
) -> int | None:
    """Write or delete a key whose revision must be `revision`."""
    document: Document | None = None if value is None else {"n": value}
    return await store.transact({key: document}, compares={key: revision}, cause="test")


async def must_put(
    store: MetadataStore, key: str, value: int | None, revision: int = ABSENT
) -> int:
    done = await put(store, key, value, revision)
    assert done is not None, f"{key} is not at revision {revision}"
    return done


async def read(store: MetadataStore, newest: int) -> Snapshot:
    """Read all entries at revision `newest` or later, because reads may lag."""
    while True:
        snapshot = await store.range("")
        if snapshot.revision >= newest:
            return snapshot
        await trio.sleep(0.01)


class Copy:
    """A client's copy of the store, from one read and the changes after it."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.revision = 0
        self.entries: dict[str, Entry] = {}
        self.changes: list[Change] = []
        self._more = trio.Event()

    async def open(self) -> Copy:
        while True:
            await self.read()
            try:
                self.watch()
            except Compacted:
                continue
            return self

    async def read(self) -> None:
        snapshot = await self.store.range("")
        self.revision = snapshot.revision
        self.entries = dict(snapshot.entries)

    def watch(self) -> None:
        self.store.watch(self.on_change, after=self.revision)

    def on_change(self, change: Change) -> None:
        assert change.revision > self.revision, "a change came twice, or late"
        self.revision = change.revision
        self.changes.append(change)
        for key, entry in change.entries.items():
            if entry is None:
                self.entries.pop(key, None)
            else:
                assert entry.revision <= change.revision
                self.entries[key] = entry
        self._more.set()
        self._more = trio.Event()

    def revision_of(self, key: str) -> int:
        return self.entries[key].revision if key in self.entries else ABSENT

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until the copy has reached a revision."""
        with trio.fail_after(60):
            while self.revision < revision:
                await self._more.wait()


# Compare and set


@contract
async def failed_compare_changes_nothing(world: World) -> None:
    store, other = world.client(), world.client()
    first = await must_put(store, "a", 1)
    assert await put(other, "a", 2) is None
    assert await put(other, "missing", 2, first) is None
    assert (await read(store, first)).entries == {"a": ({"n": 1}, first)}
    second = await must_put(other, "a", 2, first)
    assert second > first
    assert await put(store, "a", 3, first) is None


@contract
async def rewritten_equal_value_has_new_revision(world: World) -> None:
    """A compare with the first revision must fail (ABA problem)."""
    store = world.client()
    first = await must_put(store, "a", 1)
    second = await must_put(store, "a", 1, first)
    assert second > first
    assert await put(store, "a", 2, first) is None
    assert await put(store, "a", 2, second) is not None


@contract
async def revision_is_not_reused_after_delete(world: World) -> None:
    store = world.client()
    first = await must_put(store, "a", 1)
    deleted = await must_put(store, "a", None, first)
    recreated = await must_put(store, "a", 1)
    assert first < deleted < recreated
    assert await put(store, "a", 2, first) is None
    assert await put(store, "a", 2, deleted) is None


@contract
async def transaction_is_atomic(world: World) -> None:
    store = world.client()
    copy = await Copy(world.client()).open()
    first = await must_put(store, "a", 1)
    changes: dict[str, Document | None] = {"a": None, "b": {"n": 2}, "c": {"n": 3}}
    refused = await store.transact(changes, compares={"a": first, "b": first}, cause="refused")
    assert refused is None
    done = await store.transact(changes, compares={"a": first, "b": ABSENT}, cause="done")
    assert done is not None
    await copy.wait_for_revision(done)
    assert copy.entries == {"b": ({"n": 2}, done), "c": ({"n": 3}, done)}
    assert [(each.revision, each.cause) for each in copy.changes][-1] == (done, "done")
    assert copy.changes[-1].entries == {
        "a": None,
        "b": Entry({"n": 2}, done),
        "c": Entry({"n": 3}, done),
    }
    assert (await read(store, done)).entries == copy.entries


@contract
async def concurrent_increments_are_not_lost(world: World) -> None:
    """Several clients increment by compare-and-set on their own copies."""
    copies = [await Copy(world.client()).open() for _ in range(3)]

    async def count(copy: Copy) -> None:
        done = 0
        while done < 5:
            number = copy.entries["n"].value["n"] if "n" in copy.entries else 0
            done += await put(copy.store, "n", number + 1, copy.revision_of("n")) is not None

    async with trio.open_nursery() as nursery:
        for copy in copies:
            nursery.start_soon(count, copy)
    newest = max(copy.revision for copy in copies)
    assert (await read(world.client(), newest)).entries["n"].value == {"n": 15}


@contract
async def transaction_accepts_operations_max(world: World) -> None:
    store = world.client()
    puts: dict[str, Document | None] = {str(n): {"n": n} for n in range(OPERATIONS_MAX)}
    done = await store.transact(puts, compares=dict.fromkeys(puts, ABSENT), cause="test")
    assert done is not None
    assert len((await read(store, done)).entries) == OPERATIONS_MAX


@contract
async def stored_value_is_independent_of_caller(world: World) -> None:
    store = world.client()
    document: Document = {"list": [1]}
    done = await store.transact({"a": document}, compares={}, cause="test")
    document["list"].append(2)
    assert done is not None
    assert (await read(store, done)).entries["a"].value == {"list": [1]}


# Reads


@contract
async def range_returns_keys_with_prefix(world: World) -> None:
    store = world.client()
    for key in ("a", "a/1", "a/2", "b"):
        newest = await must_put(store, key, 1)
    assert set((await store.range("a/")).entries) == {"a/1", "a/2"}
    assert (await store.range("c")).entries == {}
    assert (await store.range("")).revision == newest


@contract
async def read_is_not_older_than_known_revision(world: World) -> None:
    store, other = world.client(), world.client()
    revision = ABSENT
    for number in range(20):
        revision = await must_put(store, "a", number, revision)
        assert store.revision >= revision
        assert (await store.range("a")).entries["a"] == ({"n": number}, revision)
        known = other.revision
        assert (await other.range("")).revision >= known


# Watches


@contract
async def watch_continues_after_read_without_gap(world: World) -> None:
    copy, other = Copy(world.client()), world.client()
    first = await must_put(other, "a", 1)
    await copy.read()
    read_at = copy.revision  # its client may lag behind the first write
    second = await must_put(other, "b", 2)
    third = await must_put(other, "a", 3, first)
    copy.watch()
    fourth = await must_put(other, "d", 4)
    await copy.wait_for_revision(fourth)
    revisions = [each.revision for each in copy.changes]
    assert revisions == [each for each in (first, second, third, fourth) if each > read_at]
    assert copy.entries == {
        "a": ({"n": 3}, third),
        "b": ({"n": 2}, second),
        "d": ({"n": 4}, fourth),
    }


@contract
async def own_change_is_delivered_before_transact_returns(world: World) -> None:
    copy, other = await Copy(world.client()).open(), world.client()
    for number in range(20):
        await must_put(other, f"other/{number}", number)
        done = await must_put(copy.store, f"own/{number}", number)
        assert copy.revision >= done
        assert copy.entries[f"own/{number}"] == ({"n": number}, done)


@contract
async def conflicting_change_is_delivered_before_transact_fails(world: World) -> None:
    """A retry loop would otherwise compare with the old revision forever."""
    copy, other = await Copy(world.client()).open(), world.client()
    revision = ABSENT
    for number in range(20):
        known = copy.revision_of("a")
        revision = await must_put(other, "a", number, revision)
        if copy.revision_of("a") != known:
            continue  # already delivered
        assert await put(copy.store, "a", -1, known) is None
        assert copy.revision_of("a") == revision


@contract
async def watchers_of_one_client_get_same_changes(world: World) -> None:
    store = world.client()
    first, second = Copy(store), Copy(store)
    await first.read()
    await second.read()
    first.watch()
    done = await must_put(store, "a", 1)
    second.watch()
    newest = await must_put(store, "b", 2)
    await first.wait_for_revision(newest)
    await second.wait_for_revision(newest)
    assert first.changes == second.changes
    assert [each.revision for each in first.changes] == [done, newest]


@contract
async def removed_watcher_gets_no_changes(world: World) -> None:
    store = world.client()
    copy = await Copy(store).open()
    await must_put(store, "a", 1)
    store.unwatch(copy.on_change)
    await must_put(store, "b", 2)
    await trio.sleep(10)
    assert set(copy.entries) == {"a"}


@contract
async def watch_after_discarded_changes_raises_compacted(world: World) -> None:
    store = world.client()
    first = newest = await must_put(store, "a", 0)
    for number in range(1, 21):
        newest = await must_put(store, "a", number, newest)
    world.forget()
    with pytest.raises(Compacted):
        store.watch(lambda change: None, after=first - 1)
    copy = await Copy(store).open()
    assert copy.entries["a"] == ({"n": 20}, newest)


@contract
async def copies_converge(world: World) -> None:
    random = Random(1)
    copies = [await Copy(world.client()).open() for _ in range(3)]

    async def write(copy: Copy, numbers: list[int]) -> None:
        for number in numbers:
            key = f"k/{number % 5}"
            await put(copy.store, key, number if number % 3 else None, copy.revision_of(key))
            if number % 20 == 0:
                world.forget()

    async with trio.open_nursery() as nursery:
        for copy in copies:
            nursery.start_soon(write, copy, [random.randrange(100) for _ in range(30)])
    newest = max(copy.revision for copy in copies)
    end = await must_put(copies[0].store, "end", 1)
    assert end > newest
    for copy in copies:
        await copy.wait_for_revision(end)
    truth = (await read(copies[0].store, end)).entries
    assert truth
    assert [copy.entries for copy in copies] == [truth] * 3


# Leases


@contract
async def lease_end_deletes_only_its_entries(world: World) -> None:
    store = world.client()
    copy = await Copy(world.client()).open()
    lease = await store.grant(1, holder="node 1")
    assert lease.ttl_seconds >= 1
    await store.transact(
        {"live/1": {}, "ready/1": {}}, compares={"live/1": ABSENT}, cause="up", lease=lease
    )
    newest = await must_put(store, "stays", 1)
    await trio.sleep(2 * lease.ttl_seconds)
    with trio.move_on_after(WAIT_SECONDS):
        while len(copy.entries) > 1:  # noqa: ASYNC110  # the last deletion ends the wait
            await trio.sleep(0.05)
    assert set(copy.entries) == {"stays"}
    assert copy.revision > newest
    ends = [each for each in copy.changes if None in each.entries.values()]
    assert [(set(each.entries), each.cause) for each in ends] == [
        ({"live/1", "ready/1"}, "lease of node 1 ended")
    ]
    assert not await lease.keep_alive()


@contract
async def kept_alive_lease_does_not_expire(world: World) -> None:
    store = world.client()
    lease = await store.grant(1, holder="node 1")
    done = await store.transact({"live/1": {}}, compares={}, cause="up", lease=lease)
    assert done is not None
    for _ in range(20):
        await trio.sleep(lease.ttl_seconds / 3)
        assert await lease.keep_alive()
    assert set((await read(store, done)).entries) == {"live/1"}


@contract
async def holder_detects_possible_lease_expiry(world: World) -> None:
    """No request is needed, because the holder may be disconnected from the store."""
    store = world.client()
    lease = await store.grant(1, holder="node 1")
    assert not lease.may_be_over()
    for _ in range(5):
        await trio.sleep(lease.ttl_seconds / 3)
        assert await lease.keep_alive()
        assert not lease.may_be_over()
    await trio.sleep(2 * lease.ttl_seconds + 5)
    assert lease.may_be_over()
    assert not await lease.keep_alive()
    assert lease.may_be_over()


@contract
async def revoked_lease_ends_immediately(world: World) -> None:
    store = world.client()
    copy = await Copy(store).open()
    lease = await store.grant(60, holder="node 1")
    done = await store.transact({"live/1": {}}, compares={}, cause="up", lease=lease)
    assert done is not None
    await lease.revoke()
    await copy.wait_for_revision(done + 1)
    assert copy.entries == {}
    assert not await lease.keep_alive()
    await lease.revoke()
    await trio.sleep(1)
    after = [set(each.entries) for each in copy.changes if each.revision > done]
    assert after == [{"live/1"}]


@contract
async def put_with_expired_lease_fails(world: World) -> None:
    store = world.client()
    lease = await store.grant(1, holder="node 1")
    await lease.revoke()
    assert await store.transact({"a": {}}, compares={}, cause="late", lease=lease) is None
    done = await must_put(store, "b", 1)
    assert set((await read(store, done)).entries) == {"b"}


@contract
async def entry_belongs_to_lease_of_last_write(world: World) -> None:
    store = world.client()
    first = await store.grant(60, holder="first")
    second = await store.grant(60, holder="second")
    keys: dict[str, Document | None] = {key: {} for key in ("freed", "moved", "kept", "anew")}
    await store.transact(keys, compares={}, cause="test", lease=first)
    await store.transact({"freed": {}, "anew": None}, compares={}, cause="test")
    await store.transact({"anew": {}}, compares={}, cause="test")
    await store.transact({"moved": {}}, compares={}, cause="test", lease=second)
    await first.revoke()
    done = await must_put(store, "end", 1)
    assert set((await read(store, done)).entries) == {"freed", "anew", "moved", "end"}
    await second.revoke()
    done = await must_put(store, "end", 2, done)
    assert set((await read(store, done)).entries) == {"freed", "anew", "end"}


@contract
async def compare_detects_ended_lease(world: World) -> None:
    """A node whose lease has expired detects it by its first write."""
    store, other = world.client(), world.client()
    lease = await store.grant(1, holder="node 1")
    epoch = await store.transact({"live/1": {}}, compares={}, cause="up", lease=lease)
    assert epoch is not None
    await trio.sleep(2 * lease.ttl_seconds + 5)
    new_lease = await other.grant(1, holder="node 1")
    later = await other.transact(
        {"live/1": {}}, compares={"live/1": ABSENT}, cause="up again", lease=new_lease
    )
    assert later is not None
    assert await store.transact({"p": {}}, compares={"live/1": epoch}, cause="zombie") is None
