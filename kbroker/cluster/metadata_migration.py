"""Migration of cluster metadata between stores, while no node of the cluster runs."""

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


async def check_no_node_runs(store: MetadataStore) -> None:
    """Raise StorageError if nodes of the cluster run."""
    live = sorted(int(key.removeprefix(LIVE)) for key in (await store.range(LIVE)).entries)
    if live:
        raise StorageError(
            f"nodes {', '.join(map(str, live))} of this cluster run, or have crashed and their leases "
            "have not expired yet; stop them and retry"
        )


async def is_migrated(target: MetadataStore, cluster_id: str) -> bool:
    """Return True if a store has all metadata of a cluster.

    Raises:
        StorageError: The store belongs to another cluster.
    """
    meta = await entry_at(target, META)
    if meta is not None and meta.value["cluster_id"] != cluster_id:
        there = meta.value["cluster_id"]
        raise StorageError(
            f"the target contains another cluster, {there} instead of {cluster_id}; choose another name"
        )
    return meta is not None


async def copy_metadata(source: MetadataStore, target: MetadataStore, meta: Document) -> None:
    """Copy the metadata of a cluster to an empty store.

    Leftovers of an interrupted attempt are removed first. `META` marks the copy as complete and is
    written last. A target with `META` is left unchanged.

    Raises:
        StorageError: The target belongs to another cluster, or nodes run.
    """
    if await is_migrated(target, meta["cluster_id"]):
        return
    await check_no_node_runs(target)
    await remove_all(target)
    entries = (await source.range("")).entries
    kept = [(key, value) for key, value in _select_migrated(entries) if key not in (META, LEAVING)]
    for some in _split(kept):
        await target.transact(dict(some), compares={}, cause=CAUSE)
    if await target.transact({META: meta}, compares={META: ABSENT}, cause=CAUSE) is None:
        raise StorageError(
            "another process created a cluster in the target concurrently; choose another name"
        )


async def remove_all(store: MetadataStore) -> None:
    """Remove all entries of a store, and `LEAVING` last."""
    keys = [key for key in (await store.range("")).entries if key != LEAVING]
    for some in _split([*keys, LEAVING]):
        await store.transact(dict.fromkeys(some), compares={}, cause=CAUSE)


def _select_migrated(entries: Mapping[str, Entry]) -> Iterable[tuple[str, Document]]:
    """Yield the entries to copy, without registrations: broker epochs are revisions of one store."""
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


def _split(items: Iterable[T]) -> Iterator[Sequence[T]]:
    """Split items into batches that every store accepts."""
    left = iter(items)
    while part := [*islice(left, OPERATIONS_MAX)]:
        yield part
