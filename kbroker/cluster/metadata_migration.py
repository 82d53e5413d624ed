"""Migration of a cluster's metadata from one store to another, while none of its nodes runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from kbroker.storage.errors import StorageError

from .keys import CONTROLLER_ALIVE, LEAVING, LIVE, META, PARTITIONS, READY, TOPICS
from .registrations import NO_EPOCH
from .store import ABSENT, OPERATIONS_MAX, Document, Entry, MetadataStore, entry_at

CAUSE = "moved to another store"

T = TypeVar("T")


async def check_nobody_runs(store: MetadataStore) -> None:
    """Raise StorageError when nodes of a cluster run."""
    live = sorted(int(key.removeprefix(LIVE)) for key in (await store.range(LIVE)).entries)
    if live:
        raise StorageError(
            f"nodes {', '.join(map(str, live))} of this cluster run, or have crashed and are not "
            "missed yet; stop them, and try again"
        )


async def is_migrated(target: MetadataStore, cluster_id: str) -> bool:
    """Return True if a store already has all metadata of a cluster.

    Raises StorageError: it has another cluster.
    """
    meta = await entry_at(target, META)
    if meta is not None and meta.value["cluster_id"] != cluster_id:
        there = meta.value["cluster_id"]
        raise StorageError(
            f"there is a cluster already, {there}, and this is {cluster_id}; name another one"
        )
    return meta is not None


async def copy_metadata(source: MetadataStore, target: MetadataStore, meta: Document) -> None:
    """Copy all of a cluster's metadata to a store that has none.

    What an attempt left there that was broken off is removed first, and `META`, which makes it a
    cluster, comes last: a target that has it already has all. Raises StorageError: it has another one.
    """
    if await is_migrated(target, meta["cluster_id"]):
        return
    await check_nobody_runs(target)
    await remove_all(target)
    entries = (await source.range("")).entries
    kept = [(key, value) for key, value in _migrated(entries) if key not in (META, LEAVING)]
    for some in _parts(kept):
        await target.transact(dict(some), compares={}, cause=CAUSE)
    if await target.transact({META: meta}, compares={META: ABSENT}, cause=CAUSE) is None:
        raise StorageError("somebody made a cluster there at the same moment; name another one")


async def remove_all(store: MetadataStore) -> None:
    """Remove everything that a store has, the mark that it is left behind at the end."""
    keys = [key for key in (await store.range("")).entries if key != LEAVING]
    for some in _parts([*keys, LEAVING]):
        await store.transact(dict.fromkeys(some), compares={}, cause=CAUSE)


def _migrated(entries: Mapping[str, Entry]) -> Iterable[tuple[str, Document]]:
    """What is worth keeping: revisions are of one store, so nobody's registration holds."""
    for key, (value, _) in entries.items():
        if key.startswith(PARTITIONS):
            yield key, value | {"leader_registration": NO_EPOCH}
        elif key.startswith(TOPICS):
            yield key, value | {"placed": [*_without_epochs(value.get("placed", ()))]}
        elif not key.startswith((LIVE, READY)) and key != CONTROLLER_ALIVE:
            yield key, value


def _without_epochs(placed: Iterable[Document]) -> Iterator[Document]:
    for each in placed:
        yield each | {"ready": dict.fromkeys(each["ready"], NO_EPOCH)}


def _parts(items: Iterable[T]) -> Iterator[Sequence[T]]:
    """As many as every store takes at once."""
    left = iter(items)
    while part := [*islice(left, OPERATIONS_MAX)]:
        yield part
