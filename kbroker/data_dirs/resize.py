"""Changes of the number of nodes in the data directories of a stopped server.

A node that is alone has its logs beside the journal of the metadata; of several, each has a directory
of its own there. To change from one to the other, files are moved; nothing in them changes. What is
to be moved is written down first. From then on the new state counts: whoever opens the directory next
finishes what a crash broke off, and before it nothing was moved.
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

NOTE = ".moving"
"""The file that says what is to be moved, in the first directory."""
HALFWAY = ".moved"
"""The directory that becomes a node's, or was: a partition may have the name of a node's directory."""
STAYING = (METADATA_JOURNAL, JOURNAL_END, JOURNAL_RESERVE, NOTE, f"{NOTE}.tmp", HALFWAY, LOCK)
"""Files that are not moved with the logs of a node."""


class Plan(NamedTuple):
    """What is to become of data directories: node `node_id` gets a directory of its own, or loses it.

    `others` are the nodes that come into being with it.
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
    """Let a stopped cluster have so many nodes; returns their ids.

    Parameters: `paths` are all data directories. Raises StorageError: a broker runs on them, there is
    nothing in them, or they have so many nodes already.
    """
    finish(files, paths)
    with locked(files, paths):
        ids = sorted(node_directories(files, paths))
        alone = lone_node(files, paths)
        if alone is not None:
            ids = [alone]
        if not ids:
            raise StorageError(
                f"{' and '.join(paths)}: there is no data; start with `kbroker serve --nodes {nodes}`"
            )
        if nodes <= len(ids):
            raise StorageError(f"{' and '.join(paths)}: here are {len(ids)} nodes already")
        new = [*range(ids[-1] + 1, ids[-1] + 1 + nodes - len(ids))]
        if alone is None:
            _make_directories(files, paths, new)
        else:
            _note_and_apply(files, Plan(True, list(paths), alone, new))
        return [*ids, *new]


async def shrink(files: Files, paths: Sequence[str]) -> int:
    """Let a stopped cluster be the one node that has all partitions; returns its id.

    Raises StorageError: a broker runs on the directories, several nodes have partitions, or there is
    one node only.
    """
    finish(files, paths)
    with locked(files, paths):
        ids = node_directories(files, paths)
        if not ids:
            raise StorageError(f"{' and '.join(paths)}: there are no nodes with directories here")
        stays = await _the_one(files, paths, sorted(ids))
        _check_nothing_is_lost(files, paths, ids - {stays})
        _note_and_apply(files, Plan(False, list(paths), stays))
        return stays


async def _the_one(files: Files, paths: Sequence[str], ids: Sequence[int]) -> int:
    """The node that has all partitions; the others are forgotten."""
    journal = next(
        (f"{path}/{METADATA_JOURNAL}" for path in paths if _has_journal(files, path)), ""
    )
    if not journal:
        raise StorageError(f"{' and '.join(paths)}: there is no {METADATA_JOURNAL}")
    store = LocalStore(files, journal)
    try:
        cluster = await Cluster.open(store)
        homes: dict[int, list[str]] = {}
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                for node_id in partition.replicas:
                    homes.setdefault(node_id, []).append(f"{topic.name}-{partition.index}")
        if len(homes) > 1:
            said = "; ".join(f"node {i} has {len(homes[i])}" for i in sorted(homes))
            raise StorageError(
                f"partitions are on several nodes ({said}); start the cluster, move all to one node "
                "with `kbroker cluster drain --allow-fewer-replicas` and try again"
            )
        stays = next(iter(homes), ids[0])
        for node_id in cluster.node_ids:
            if node_id != stays:
                await cluster.unregister(node_id, cause=f"all partitions are on node {stays}")
        return stays
    finally:
        await store.aclose()


def _check_nothing_is_lost(files: Files, paths: Sequence[str], node_ids: Iterable[int]) -> None:
    """Raise StorageError if directories that are to be removed hold records."""
    for node_id in sorted(node_ids):
        for path in paths:
            directory = node_directory(path, node_id)
            names = directories_with_records(files, directory)
            if names:
                raise StorageError(
                    f"{directory} would be removed, and holds {', '.join(names[:3])}, which the metadata "
                    "does not place there; move them away, or remove them if their records are not "
                    "needed, and try again"
                )


def _has_journal(files: Files, path: str) -> bool:
    return files.exists(f"{path}/{METADATA_JOURNAL}")


def finish(files: Files, paths: Sequence[str]) -> None:
    """Do what is left of a change that a crash broke off. Raises StorageError."""
    for path in paths:
        note = f"{path}/{NOTE}"
        if files.exists(note):
            plan = Plan.from_bytes(files.read_bytes(note))
            _check_place(plan, paths, note)
            with locked(files, plan.paths):
                _apply(files, plan)
            return


def _check_place(plan: Plan, paths: Sequence[str], note: str) -> None:
    """Raise StorageError for a plan about other places than these data directories and their nodes."""
    known = {Path(each).absolute() for each in paths}
    if not {Path(each).absolute() for each in plan.paths} <= known or not all(
        type(each) is int for each in (plan.node_id, *plan.others)
    ):
        raise StorageError(
            f"{note} is about {' and '.join(map(str, plan.paths))}, not about {' and '.join(paths)}: "
            "name all data directories of the broker, or move this file aside if they were never changed"
        )


def _note_and_apply(files: Files, plan: Plan) -> None:
    for path in plan.paths:
        if plan.grows:
            files.rmtree(f"{path}/{HALFWAY}")  # of a change that was never noted down
            files.mkdir(f"{path}/{HALFWAY}")
            files.sync_dir(path)
    files.write_atomic(f"{plan.paths[0]}/{NOTE}", plan.to_bytes())
    _apply(files, plan)


def _apply(files: Files, plan: Plan) -> None:
    for path in plan.paths:
        if plan.grows:
            _move_in(files, path, plan.node_id)
        else:
            _move_out(files, path, plan.node_id)
    if plan.grows:
        _make_directories(files, plan.paths, plan.others)
    files.remove(f"{plan.paths[0]}/{NOTE}")
    files.sync_dir(plan.paths[0])


def _move_in(files: Files, path: str, node_id: int) -> None:
    """Move what a lone node has to a directory of its own."""
    halfway = f"{path}/{HALFWAY}"
    if not files.exists(halfway):
        return  # it was done before
    _move_all(files, path, halfway)
    files.rename(halfway, node_directory(path, node_id))
    files.sync_dir(path)


def _move_out(files: Files, path: str, node_id: int) -> None:
    """Move what a node has in its directory to where a lone node has it."""
    own, halfway = node_directory(path, node_id), f"{path}/{HALFWAY}"
    if not files.exists(halfway):
        if not files.exists(f"{own}/{META_PROPERTIES}"):
            return  # it was done before
        for other in node_directories(files, [path]) - {node_id}:
            files.rmtree(node_directory(path, other))
        files.rename(own, halfway)
        files.sync_dir(path)
    _move_all(files, halfway, path)
    files.rmtree(halfway)
    files.sync_dir(path)


def _move_all(files: Files, source: str, target: str) -> None:
    for name in files.listdir(source):
        if name not in STAYING:
            files.rename(f"{source}/{name}", f"{target}/{name}")
    # What is in neither after a power cut would be lost: it is in the new one first.
    files.sync_dir(target)
    files.sync_dir(source)


def _make_directories(files: Files, paths: Sequence[str], ids: Sequence[int]) -> None:
    """Give nodes directories that are empty."""
    there = [
        node_directory(path, each) for path in paths for each in node_directories(files, [path])
    ]
    cluster_id = known_cluster(files, there)
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
    """Let nobody else use the directories meanwhile. Raises StorageError: somebody does."""
    directories = [*paths]
    directories += [
        node_directory(path, each) for path in paths for each in node_directories(files, [path])
    ]
    with contextlib.ExitStack() as held:
        for directory in directories:
            lock = files.lock(f"{directory}/{LOCK}")
            held.callback(lock.release)
        yield
