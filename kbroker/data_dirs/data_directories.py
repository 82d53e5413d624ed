"""Where the nodes of one process keep their data: directories of logs, and the journal of the metadata."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from kbroker.cluster import LocalStore
from kbroker.cluster.model import random_cluster_id
from kbroker.runtime.descriptors import shares
from kbroker.runtime.threads import InThread
from kbroker.storage.checkpoints import MetaProperties
from kbroker.storage.directories import LogDirectories, check_together
from kbroker.storage.errors import StorageError
from kbroker.storage.files import Files
from kbroker.storage.manager import LogManager, partitions_among
from kbroker.storage.naming import META_PROPERTIES, RESERVE, directory_name

from .found_directories import (
    LEAVING_JOURNAL,
    LEFT_BY_NODES,
    METADATA_JOURNAL,
    NODE_DIRECTORY,
    FoundDirectory,
    check_is_ours,
    found_directory,
    stray_directories,
)

JOURNAL_RESERVE = METADATA_JOURNAL + RESERVE


@dataclass(frozen=True, slots=True)
class DataDirectories:
    """The data directories of a process.

    A node that is alone has its logs in them; several have a directory each in every one of them,
    `node-1` and so on, and only the journal lies above.

    Parameters: `paths` are absolute; `known` are the ids of nodes that have a directory of their own
    there; `alone` is the node whose logs are not apart from the journal, None when there is none.
    """

    files: Files
    paths: Sequence[str]
    known: frozenset[int]
    alone: int | None

    def of_node(self, node_id: int) -> list[str]:
        """Where a node has its logs."""
        if node_id == self.alone:
            return [*self.paths]
        above = self.paths if self.alone is None else _beside(self.paths)
        return [node_directory(path, node_id) for path in above]

    def is_in_use(self, path: str) -> bool:
        """Return True if a node has stored something in the directory at `path`."""
        return any(name in LEFT_BY_NODES for name in self.files.listdir(path)) or any(
            self.files.is_directory(f"{path}/{directory_name(*key)}")
            for key in partitions_among(self.files.listdir(path))
        )

    def forget(self, node_id: int) -> list[str]:
        """Remove the directories of a node that is gone for good.

        Returns the paths of those that stay, because they hold records that the cluster does not
        know. Raises StorageError.
        """
        paths = self.of_node(node_id) if node_id != self.alone else []
        kept = [path for path in paths if stray_directories(self.files, path)]
        for path in paths:
            if path not in kept:
                self.files.rmtree(path)
        return kept

    def node_ids(self, first: int, nodes: int | None) -> list[int]:
        """Which nodes run: those that have directories, and the first ones that have none, up to `nodes`.

        So a node whose disk was replaced comes back under its id.

        Parameters: `first` is the id of the first node of a new cluster. Raises StorageError: there
        are more nodes in the directories, or one with a lower id.
        """
        if not self.known:
            return [*range(first, first + (nodes or 1))]
        ids = sorted(self.known)
        there = f"{' and '.join(self.paths)}: here are nodes {', '.join(map(str, ids))}"
        if ids[0] < first:
            raise StorageError(f"{there}; start with node.id={ids[0]}")
        if nodes is not None and nodes < len(ids):
            raise StorageError(
                f"{there}; start with --nodes {len(ids)}, and let nodes go with "
                "`kbroker cluster node remove` or `kbroker cluster resize --nodes 1`"
            )
        free = (each for each in count(first) if each not in self.known)
        return sorted([*ids, *islice(free, max((nodes or 0) - len(ids), 0))])

    def look(self, node_id: int) -> list[FoundDirectory]:
        """What is in a node's directories, without those that are new; nothing is written.

        Raises StorageError: the node cannot be started on them.
        """
        for path in self.paths:
            check_is_ours(self.files, path)
        each_one = [found_directory(self.files, path, node_id) for path in self.of_node(node_id)]
        found = [each for each in each_one if each is not None]
        if found:
            check_together(found)
        return found

    def open_logs(self, node_id: int, cluster_id: str | None, nodes: int) -> LogDirectories:
        """Open a node's directories; new ones become part of the cluster that the others belong to.

        Parameters: `cluster_id` is that of new directories, None for a random one; `nodes` is the
        number of nodes that share this process's descriptors. Raises StorageError.
        """
        paths = self.of_node(node_id)
        known = known_cluster(self.files, paths) or cluster_id or random_cluster_id()
        open_files_max = max(shares().logs // len(paths) // nodes, 1)
        managers: list[LogManager] = []
        try:
            for path in paths:
                fresh = MetaProperties(
                    node_id=node_id, cluster_id=known, directory_id=random_cluster_id()
                )
                manager = LogManager(
                    self.files,
                    path,
                    fresh,
                    guard=threading.Lock(),  # checkpoint jobs run in a worker thread
                    open_files_max=open_files_max if self.files.durable else None,
                )
                managers.append(manager)
            return LogDirectories(self.files, managers)
        except BaseException:
            for manager in managers:
                manager.close(clean=manager.clean)  # it stays as it was found
            raise

    def open_store(
        self, found: Iterable[FoundDirectory], *, in_thread: InThread | None = None
    ) -> LocalStore:
        """The journal of the directory that has one, whatever their order; else in the first one.

        Nothing is written before somebody changes something.

        Parameters: `found` are the directories of all nodes. Raises StorageError: it is damaged, there
        are two, or there is none but partitions. Those would belong to no topic then, and a node
        removes what belongs to none. `in_thread` is as of `LocalStore`.
        """
        for path in self.paths:
            if self.files.exists(f"{path}/{LEAVING_JOURNAL}"):
                raise StorageError(
                    f"{path}: the metadata was being moved to another store: finish it, with the "
                    "same `kbroker cluster migrate-metadata --to` as before"
                )
        there = self._journals()
        if len(there) > 1:
            raise StorageError(
                f"metadata is in {' and in '.join(there)}; move all but one of them away"
            )
        partitions = sum(len(each.partitions) for each in found)
        if not there and partitions:
            raise StorageError(
                f"{' and '.join(self.paths)}: there are {partitions} partitions, but no "
                f"{METADATA_JOURNAL} that knows their topics; add the directory that has it to "
                "log.dirs, or restore it from a copy"
            )
        path = there[0] if there else f"{self.paths[0]}/{METADATA_JOURNAL}"
        return LocalStore(self.files, path, in_thread=in_thread)

    def check_has_no_store(self) -> None:
        """Refuse directories whose metadata is in them, where it is to be elsewhere. Raises StorageError."""
        if there := self._journals() or [f"{self.paths[0]}/node-{each}" for each in self.known]:
            raise StorageError(
                f"{there[0]} is of a cluster that has its metadata in its own directory; start it without "
                "--cluster, or move it with `kbroker cluster migrate-metadata --to`"
            )

    def _journals(self) -> list[str]:
        journals = [f"{path}/{METADATA_JOURNAL}" for path in self.paths]
        return [path for path in journals if self.files.exists(path) and self.files.size(path)]


def absolute_paths(data_dir: str | Sequence[str]) -> list[str]:
    """The directories that were given, each once.

    In full: clients are told these paths, and name them when they move replicas.
    """
    given = (data_dir,) if isinstance(data_dir, str) else data_dir
    return list(dict.fromkeys(Path(each).absolute().as_posix() for each in given))


def known_cluster(files: Files, paths: Iterable[str]) -> str | None:
    """The id of the cluster that the first directory with any data belongs to."""
    meta = _meta(files, paths)
    return meta.cluster_id if meta else None


def lone_node(files: Files, paths: Iterable[str]) -> int | None:
    """The id of the node that has its logs in `paths` themselves."""
    meta = _meta(files, paths)
    return meta.node_id if meta else None


def _meta(files: Files, paths: Iterable[str]) -> MetaProperties | None:
    for path in paths:
        meta = f"{path}/{META_PROPERTIES}"
        if files.exists(meta):
            return MetaProperties.from_bytes(files.read_bytes(meta), meta)
    return None


def find_data_directories(
    files: Files, paths: Sequence[str], nodes: int | None, *, first: int
) -> DataDirectories:
    """Look how nodes have their data in `paths`, to start `nodes` of them there.

    Parameters: `nodes` None is as many as there are; `first` is the id of a node that is alone, or
    of the first one of a new cluster. Raises StorageError: a path is that of a file, or one node is
    there that was alone, and several are wanted.
    """
    for path in paths:
        if files.exists(path) and not files.is_directory(path):
            raise StorageError(f"{path} is a file; name a directory with --data-dir")
    known = node_directories(files, paths)
    wanted = nodes or 1
    alone = known_cluster(files, paths) is not None
    if alone and wanted > 1 and files.durable:
        raise StorageError(
            f"{' and '.join(paths)}: the node here was alone until now; let it become the first of "
            f"{wanted} with `kbroker cluster resize --nodes {wanted} {' '.join(paths)}`"
        )
    if alone and not files.durable:
        known = node_directories(files, _beside(paths)) | {first}
    is_alone = alone or (not known and wanted == 1)
    return DataDirectories(files, paths, known, first if is_alone else None)


def _beside(paths: Iterable[str]) -> list[str]:
    """Where nodes in memory have their directories that joined one that was alone."""
    return [f"{path}.joined" for path in paths]


def node_directory(path: str, node_id: int) -> str:
    """Where one of several nodes has its logs in the data directory `path`."""
    return f"{path}/node-{node_id}"


def node_directories(files: Files, paths: Iterable[str]) -> frozenset[int]:
    """The ids of the nodes that have a directory of their own in one of `paths`."""
    return frozenset(
        int(match[1])
        for path in paths
        for match in map(NODE_DIRECTORY.fullmatch, files.listdir(path))
        if match and _is_of_a_node(files, f"{path}/{match[0]}")
    )


def _is_of_a_node(files: Files, path: str) -> bool:
    """Return True if a directory is a node's, also if it lost the file that says so."""
    if files.exists(f"{path}/{META_PROPERTIES}"):
        return True
    return files.is_directory(path) and not LEFT_BY_NODES.isdisjoint(files.listdir(path))
