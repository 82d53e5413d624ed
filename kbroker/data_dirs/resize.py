"""Changes of the number of nodes in the data directories of a stopped server.

A single node has its logs beside the metadata journal. Several nodes have a subdirectory each. A
conversion moves files without changing them. It first writes a plan to a file, which commits the
conversion: after a crash, the next command or start finishes it. No file is moved before that commit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kbroker.cluster import Cluster, LocalStore
from kbroker.cluster.model import random_cluster_id
from kbroker.storage.checkpoints import MetaProperties, clean_marker
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files
from kbroker.storage.naming import CLEAN_SHUTDOWN, LOCK, META_PROPERTIES

from .data_directories import (
    JOURNAL_RESERVE,
    known_cluster,
    lone_node,
    node_directories,
    node_directory,
)
from .found_directories import JOURNAL_END, METADATA_JOURNAL, directories_with_records

# File with the plan, in the first directory.
PLAN_FILE = ".moving"
# Temporary name of a node's directory: a partition may be named like the final directory.
TEMPORARY_NAME = ".moved"
# Files that do not move with the logs of a node.
EXCLUDED_FILES = (
    METADATA_JOURNAL,
    JOURNAL_END,
    JOURNAL_RESERVE,
    PLAN_FILE,
    f"{PLAN_FILE}.tmp",
    TEMPORARY_NAME,
    LOCK,
)


class Plan(NamedTuple):
    """A conversion: node `node_id` gets its own subdirectory (`grows`), or loses it.

    `others` are the nodes that the conversion creates.
    """

    grows: bool
    paths: Sequence[str]
    node_id: int
    others: Sequence[int] = ()

    def to_bytes(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        return cls(**json.loads(data))


def grow(files: Files, paths: Sequence[str], nodes: int) -> list[int]:
    """Increase the number of nodes of a stopped cluster.

    Args:
        files: The file system.
        paths: All data directories.
        nodes: New number of nodes.

    Returns:
        The node IDs.

    Raises:
        StorageError: A broker uses the directories, they are empty, or they have as many nodes.
    """
    finish(files, paths)
    with locked(files, paths):
        ids = sorted(node_directories(files, paths))
        single_node = lone_node(files, paths)
        if single_node is not None:
            ids = [single_node]
        if not ids:
            raise StorageError(
                f"{' and '.join(paths)}: the directories are empty; start with `kbroker serve --nodes {nodes}`"
            )
        if nodes <= len(ids):
            raise StorageError(f"{' and '.join(paths)}: there are already {len(ids)} nodes")
        new = [*range(ids[-1] + 1, ids[-1] + 1 + nodes - len(ids))]
        if single_node is None:
            _make_directories(files, paths, new)
        else:
            _commit_and_apply(files, Plan(True, list(paths), single_node, new))
        return [*ids, *new]


async def shrink(files: Files, paths: Sequence[str]) -> int:
    """Convert a stopped cluster to the single node that has all partitions; return its ID.

    Raises:
        StorageError: A broker uses the directories, several nodes have partitions, or there is only
            one node.
    """
    finish(files, paths)
    with locked(files, paths):
        ids = node_directories(files, paths)
        if not ids:
            raise StorageError(f"{' and '.join(paths)}: found no directories of nodes")
        remaining_node = await _remove_other_nodes(files, paths, sorted(ids))
        _commit_and_apply(files, Plan(False, list(paths), remaining_node))
        return remaining_node


async def _remove_other_nodes(files: Files, paths: Sequence[str], ids: Sequence[int]) -> int:
    """Return the node that has all partitions, and remove all others from the metadata.

    Raises:
        StorageError: Several nodes have partitions, or a directory to remove contains records.
    """
    journal = next(
        (f"{path}/{METADATA_JOURNAL}" for path in paths if _has_journal(files, path)), ""
    )
    if not journal:
        raise StorageError(f"{' and '.join(paths)}: found no {METADATA_JOURNAL}")
    store = LocalStore(files, journal)
    try:
        cluster = await Cluster.open(store)
        replicas: dict[int, list[str]] = {}
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                for node_id in partition.replicas:
                    replicas.setdefault(node_id, []).append(f"{topic.name}-{partition.index}")
        if len(replicas) > 1:
            counts = "; ".join(f"node {i} has {len(replicas[i])}" for i in sorted(replicas))
            raise StorageError(
                f"partitions are on several nodes ({counts}); start the cluster, move all to one node "
                "with `kbroker cluster drain --allow-fewer-replicas` and retry"
            )
        remaining_node = next(iter(replicas), ids[0])
        # Before the metadata changes: a rejected conversion leaves all nodes as they are.
        _check_nothing_is_lost(files, paths, {*ids} - {remaining_node})
        for node_id in cluster.node_ids:
            if node_id != remaining_node:
                await cluster.unregister(
                    node_id, cause=f"all partitions are on node {remaining_node}"
                )
        return remaining_node
    finally:
        await store.aclose()


def _check_nothing_is_lost(files: Files, paths: Sequence[str], node_ids: Iterable[int]) -> None:
    """Raise StorageError if directories to remove contain records."""
    for node_id in sorted(node_ids):
        for path in paths:
            directory = node_directory(path, node_id)
            names = directories_with_records(files, directory)
            if names:
                raise StorageError(
                    f"{directory} would be removed, but contains {', '.join(names[:3])}, which the metadata "
                    "does not place there; move them away, or remove them if their records are not "
                    "needed, and retry"
                )


def _has_journal(files: Files, path: str) -> bool:
    return files.exists(f"{path}/{METADATA_JOURNAL}")


def finish(files: Files, paths: Sequence[str]) -> None:
    """Finish a conversion that was interrupted by a crash. Raises StorageError."""
    for path in paths:
        plan_file = f"{path}/{PLAN_FILE}"
        if files.exists(plan_file):
            plan = Plan.from_bytes(files.read_bytes(plan_file))
            _check_paths(plan, paths, plan_file)
            with locked(files, plan.paths):
                _apply(files, plan)
            return


def _check_paths(plan: Plan, paths: Sequence[str], plan_file: str) -> None:
    """Raise StorageError if a plan concerns other directories."""
    known = {Path(each).absolute() for each in paths}
    if not {Path(each).absolute() for each in plan.paths} <= known or not all(
        type(each) is int for each in (plan.node_id, *plan.others)
    ):
        raise StorageError(
            f"{plan_file} concerns {' and '.join(map(str, plan.paths))}, not {' and '.join(paths)}; "
            "provide all data directories of the broker, or move this file aside if they never changed"
        )


def _commit_and_apply(files: Files, plan: Plan) -> None:
    for path in plan.paths:
        if plan.grows:
            files.rmtree(f"{path}/{TEMPORARY_NAME}")  # left by an uncommitted conversion
            files.mkdir(f"{path}/{TEMPORARY_NAME}")
            files.sync_dir(path)
    files.write_atomic(f"{plan.paths[0]}/{PLAN_FILE}", plan.to_bytes())
    _apply(files, plan)


def _apply(files: Files, plan: Plan) -> None:
    for path in plan.paths:
        if plan.grows:
            _move_into_subdirectory(files, path, plan.node_id)
        else:
            _move_out_of_subdirectory(files, path, plan.node_id)
    if plan.grows:
        _make_directories(files, plan.paths, plan.others)
    files.remove(f"{plan.paths[0]}/{PLAN_FILE}")
    files.sync_dir(plan.paths[0])


def _move_into_subdirectory(files: Files, path: str, node_id: int) -> None:
    """Move the files of a single node to its own subdirectory."""
    temporary = f"{path}/{TEMPORARY_NAME}"
    if not files.exists(temporary):
        return  # already done
    _move_all(files, path, temporary)
    files.rename(temporary, node_directory(path, node_id))
    files.sync_dir(path)


def _move_out_of_subdirectory(files: Files, path: str, node_id: int) -> None:
    """Move the files of a node from its own directory to the data directory."""
    own, temporary = node_directory(path, node_id), f"{path}/{TEMPORARY_NAME}"
    if not files.exists(temporary):
        if not files.exists(f"{own}/{META_PROPERTIES}"):
            return  # already done
        for other in node_directories(files, [path]) - {node_id}:
            files.rmtree(node_directory(path, other))
        files.rename(own, temporary)
        files.sync_dir(path)
    _move_all(files, temporary, path)
    files.rmtree(temporary)
    files.sync_dir(path)


def _move_all(files: Files, source: str, target: str) -> None:
    for name in files.listdir(source):
        if name not in EXCLUDED_FILES:
            files.rename(f"{source}/{name}", f"{target}/{name}")
    # Sync the target first: a power failure could otherwise lose entries from both directories.
    files.sync_dir(target)
    files.sync_dir(source)


def _make_directories(files: Files, paths: Sequence[str], ids: Sequence[int]) -> None:
    """Create empty directories for nodes."""
    existing = [
        node_directory(path, each) for path in paths for each in node_directories(files, [path])
    ]
    cluster_id = known_cluster(files, existing)
    assert cluster_id is not None
    for node_id in ids:
        for path in paths:
            directory = node_directory(path, node_id)
            if not files.exists(f"{directory}/{META_PROPERTIES}"):
                files.mkdir(directory)
                files.write_atomic(f"{directory}/{CLEAN_SHUTDOWN}", clean_marker({}))
                meta = MetaProperties(cluster_id, node_id, random_cluster_id())
                files.write_atomic(f"{directory}/{META_PROPERTIES}", meta.to_bytes())
                files.sync_dir(path)


@contextlib.contextmanager
def locked(files: Files, paths: Sequence[str]) -> Iterator[None]:
    """Lock the directories, including those of the nodes. Raises StorageError if one is in use."""
    directories = [*paths]
    directories += [
        node_directory(path, each) for path in paths for each in node_directories(files, [path])
    ]
    with contextlib.ExitStack() as locks:
        for directory in directories:
            lock = files.lock(f"{directory}/{LOCK}")
            locks.callback(lock.release)
        yield
