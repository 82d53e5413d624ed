"""Migration of the metadata of a stopped cluster from its data directories to etcd, or back.

The journal is renamed before it is copied, so that no server starts on a part of it. After an
interruption, the same command continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.cluster import LocalStore, MetadataStore
from kbroker.cluster.keys import LEAVING, META, NODES
from kbroker.cluster.local_store import clean_end_path
from kbroker.cluster.metadata_migration import (
    CAUSE,
    check_no_node_runs,
    copy_metadata,
    is_migrated,
    remove_all,
)
from kbroker.cluster.store import Document
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files

from .data_directories import (
    JOURNAL_RESERVE,
    known_cluster,
    lone_node,
    node_directories,
    node_directory,
)
from .found_directories import JOURNAL_END, LEAVING_JOURNAL, METADATA_JOURNAL, SEEN_REVISION
from .resize import finish, locked

# Name under which the migrated journal is kept; kbroker does not read it.
MIGRATED_JOURNAL = METADATA_JOURNAL + ".migrated"


async def move_to_store(
    files: Files, paths: Sequence[str], target: MetadataStore
) -> Mapping[int, Sequence[str]]:
    """Move the metadata of data directories to another store.

    Args:
        files: The file system.
        paths: All data directories of the cluster.
        target: The store.

    Returns:
        The directories of each node.

    Raises:
        StorageError: A server uses the directories, they are empty, or the target contains another
            cluster.
    """
    finish(files, paths)
    with locked(files, paths):
        nodes, cluster_id = _nodes_in(files, paths)
        await is_migrated(target, cluster_id)  # raises before anything is changed
        directory = _directory_with(files, paths, METADATA_JOURNAL, LEAVING_JOURNAL)
        leaving = f"{directory}/{LEAVING_JOURNAL}"
        if not files.exists(leaving):
            files.rename(f"{directory}/{METADATA_JOURNAL}", leaving)
            files.remove(f"{directory}/{JOURNAL_END}")
            files.sync_dir(directory)
        source = LocalStore(files, leaving)
        try:
            await copy_metadata(source, target, (await source.range(META)).entries[META].value)
        finally:
            await source.aclose()
        files.rename(leaving, f"{directory}/{MIGRATED_JOURNAL}")
        if files.exists(f"{directory}/{JOURNAL_RESERVE}"):
            files.remove(f"{directory}/{JOURNAL_RESERVE}")
        files.sync_dir(directory)
        return nodes


async def move_to_directories(
    files: Files, paths: Sequence[str], source: MetadataStore
) -> Mapping[int, Sequence[str]]:
    """Move the metadata of a cluster back to the data directories of all its nodes.

    Args:
        files: The file system.
        paths: All data directories of the cluster.
        source: The store.

    Returns:
        The directories of each node.

    Raises:
        StorageError: Nodes run, or the directory of a node is missing.
    """
    with locked(files, paths):
        nodes, cluster_id = _nodes_in(files, paths)
        entries = (await source.range("")).entries
        mark = entries.get(META) or entries.get(LEAVING)
        if mark is None or mark.value["cluster_id"] != cluster_id:
            existing = "no cluster" if mark is None else f"cluster {mark.value['cluster_id']}"
            raise StorageError(
                f"the store contains {existing}, the directories belong to {cluster_id}; use matching ones"
            )
        await check_no_node_runs(source)
        missing = {int(key.removeprefix(NODES)) for key in entries if key.startswith(NODES)}
        missing -= nodes.keys()
        if missing:
            wanted = " and ".join(node_directory(paths[0], each) for each in sorted(missing))
            raise StorageError(f"the directories of some nodes are missing; copy them to {wanted}")
        if META in entries:
            _check_no_journal(files, paths)
            leaves = {META: None, LEAVING: mark.value}
            compares = {META: entries[META].revision}
            if await source.transact(leaves, compares=compares, cause=CAUSE) is None:
                raise StorageError("the cluster changed during the migration; try again")
        if not _journals(files, paths):
            await _write_journal(files, paths[0], source, mark.value)
        for path in (path for some in nodes.values() for path in some):
            if files.exists(f"{path}/{SEEN_REVISION}"):  # the revision belongs to the old etcd
                files.remove(f"{path}/{SEEN_REVISION}")
        await remove_all(source)
        return nodes


def _journals(files: Files, paths: Sequence[str]) -> list[str]:
    journals = [f"{path}/{METADATA_JOURNAL}" for path in paths]
    return [path for path in journals if files.exists(path)]


def _check_no_journal(files: Files, paths: Sequence[str]) -> None:
    """Raise StorageError if there is a journal before the migration begins: it is an older state."""
    if journals := _journals(files, paths):
        raise StorageError(
            f"{journals[0]} already exists, but the store contains the metadata; move this file away "
            "and retry"
        )


async def _write_journal(
    files: Files, directory: str, source: MetadataStore, meta: Document
) -> None:
    """Write the journal under a temporary name, and rename it when it is complete."""
    journal, temporary = f"{directory}/{METADATA_JOURNAL}", f"{directory}/{METADATA_JOURNAL}.tmp"
    if files.exists(temporary):
        files.remove(temporary)
    target = LocalStore(files, temporary)
    try:
        await copy_metadata(source, target, meta)
    finally:
        await target.aclose()
    files.remove(clean_end_path(temporary))
    files.remove(f"{directory}/{JOURNAL_END}")
    files.rename(temporary, journal)
    files.sync_dir(directory)


def _nodes_in(files: Files, paths: Sequence[str]) -> tuple[Mapping[int, Sequence[str]], str]:
    """Return the directories of each node and the cluster ID. Raises StorageError."""
    single_node = lone_node(files, paths)
    if single_node is not None:
        nodes: dict[int, list[str]] = {single_node: [*paths]}
    else:
        ids = sorted(node_directories(files, paths))
        nodes = {each: [node_directory(path, each) for path in paths] for each in ids}
    every = [path for some in nodes.values() for path in some]
    cluster_id = known_cluster(files, every)
    if cluster_id is None:
        raise StorageError(f"{' and '.join(paths)}: the directories contain no data of a cluster")
    return nodes, cluster_id


def _directory_with(files: Files, paths: Sequence[str], *names: str) -> str:
    for path in paths:
        if any(files.exists(f"{path}/{name}") for name in names):
            return path
    raise StorageError(f"{' and '.join(paths)}: there is no {names[0]}")
