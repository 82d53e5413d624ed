"""The data directories of the nodes of one process: log directories and the metadata journal."""

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
    METADATA_JOURNAL,
    NODE_DIRECTORY,
    NODE_FILES,
    FoundDirectory,
    check_is_ours,
    found_directory,
    stray_directories,
)

JOURNAL_RESERVE = METADATA_JOURNAL + RESERVE


@dataclass(frozen=True, slots=True)
class DataDirectories:
    """The data directories of a process.

    A single node has its logs directly in these directories. Several nodes have a subdirectory each
    (`node-1` and so on) in each directory. The journal is in one of the directories.

    Attributes:
        files: The file system.
        paths: Absolute paths.
        known: IDs of the nodes that have a subdirectory in one of `paths`.
        alone: The single node whose logs are directly in `paths`, or None.
    """

    files: Files
    paths: Sequence[str]
    known: frozenset[int]
    single_node: int | None

    def of_node(self, node_id: int) -> list[str]:
        """Return the log directories of a node."""
        if node_id == self.single_node:
            return [*self.paths]
        above = self.paths if self.single_node is None else _joined_paths(self.paths)
        return [node_directory(path, node_id) for path in above]

    def is_in_use(self, path: str) -> bool:
        """Return True if a node has stored something in the directory at `path`."""
        return any(name in NODE_FILES for name in self.files.listdir(path)) or any(
            self.files.is_directory(f"{path}/{directory_name(*key)}")
            for key in partitions_among(self.files.listdir(path))
        )

    def forget(self, node_id: int) -> list[str]:
        """Remove the directories of a node that was removed from the cluster.

        Returns:
            Paths that were kept, because they contain records that the metadata does not list.

        Raises:
            StorageError: A directory cannot be removed.
        """
        paths = self.of_node(node_id) if node_id != self.single_node else []
        kept = [path for path in paths if stray_directories(self.files, path)]
        for path in paths:
            if path not in kept:
                self.files.rmtree(path)
        return kept

    def node_ids(self, first: int, nodes: int | None) -> list[int]:
        """Return the nodes to run: nodes with directories, and new nodes up to `nodes`.

        IDs without a directory are used first, so a node whose disk was replaced keeps its ID.

        Args:
            first: ID of the first node of a new cluster.
            nodes: Number of nodes, or None for those with directories.

        Raises:
            StorageError: The directories contain more nodes, or a node with a lower ID.
        """
        if not self.known:
            return [*range(first, first + (nodes or 1))]
        ids = sorted(self.known)
        found_text = f"{' and '.join(self.paths)}: found nodes {', '.join(map(str, ids))}"
        if ids[0] < first:
            raise StorageError(f"{found_text}; start with node.id={ids[0]}")
        if nodes is not None and nodes < len(ids):
            raise StorageError(
                f"{found_text}; start with --nodes {len(ids)}, and remove nodes with "
                "`kbroker cluster node remove` or `kbroker cluster resize --nodes 1`"
            )
        free = (each for each in count(first) if each not in self.known)
        return sorted([*ids, *islice(free, max((nodes or 0) - len(ids), 0))])

    def inspect(self, node_id: int) -> list[FoundDirectory]:
        """Return the existing directories of a node, without writing anything.

        Raises:
            StorageError: The node cannot be started on them.
        """
        for path in self.paths:
            check_is_ours(self.files, path)
        each_one = [found_directory(self.files, path, node_id) for path in self.of_node(node_id)]
        found = [each for each in each_one if each is not None]
        if found:
            check_together(found)
        return found

    def open_logs(self, node_id: int, cluster_id: str | None, nodes: int) -> LogDirectories:
        """Open the log directories of a node; new directories join the cluster of the others.

        Args:
            node_id: The node.
            cluster_id: Cluster ID if all directories are new; None generates one.
            nodes: Number of nodes that share the file descriptors of this process.

        Raises:
            StorageError: A directory cannot be used.
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
                manager.close(clean=manager.clean)  # keep the state of its last stop
            raise

    def open_store(
        self, found: Iterable[FoundDirectory], *, in_thread: InThread | None = None
    ) -> LocalStore:
        """Open the metadata journal in one of the directories, or a new one in the first directory.

        The store writes nothing before the first change.

        Args:
            found: The existing directories of all nodes.
            in_thread: See `LocalStore`.

        Raises:
            StorageError: The journal is damaged, there are several journals, or there are partitions
                without a journal. Nodes would remove these partitions, which belong to no topic.
        """
        for path in self.paths:
            if self.files.exists(f"{path}/{LEAVING_JOURNAL}"):
                raise StorageError(
                    f"{path}: the metadata is being migrated to another store; finish the migration with "
                    "the same `kbroker cluster migrate-metadata --to` as before"
                )
        existing = self._journals()
        if len(existing) > 1:
            raise StorageError(
                f"found several metadata journals, {' and '.join(existing)}; move all but one away"
            )
        partitions = sum(len(each.partitions) for each in found)
        if not existing and partitions:
            raise StorageError(
                f"{' and '.join(self.paths)}: found {partitions} partitions, but no {METADATA_JOURNAL} "
                "with their topics; add its directory to log.dirs, or restore it from a backup"
            )
        path = existing[0] if existing else f"{self.paths[0]}/{METADATA_JOURNAL}"
        return LocalStore(self.files, path, in_thread=in_thread)

    def check_has_no_store(self) -> None:
        """Raise StorageError if the directories contain metadata, which must be in etcd only."""
        if existing := self._journals() or [f"{self.paths[0]}/node-{each}" for each in self.known]:
            raise StorageError(
                f"{existing[0]} belongs to a cluster with metadata in its data directory, not in etcd; start it without "
                "--cluster, or migrate it with `kbroker cluster migrate-metadata --to`"
            )

    def _journals(self) -> list[str]:
        journals = [f"{path}/{METADATA_JOURNAL}" for path in self.paths]
        return [path for path in journals if self.files.exists(path) and self.files.size(path)]


def absolute_paths(data_dir: str | Sequence[str]) -> list[str]:
    """Return the given directories as absolute paths, without duplicates.

    Clients see these paths, and use them to move replicas between log directories.
    """
    given = (data_dir,) if isinstance(data_dir, str) else data_dir
    return list(dict.fromkeys(Path(each).absolute().as_posix() for each in given))


def known_cluster(files: Files, paths: Iterable[str]) -> str | None:
    """Return the cluster ID of the first directory that has one."""
    meta = _meta(files, paths)
    return meta.cluster_id if meta else None


def lone_node(files: Files, paths: Iterable[str]) -> int | None:
    """Return the ID of the single node that has its logs directly in `paths`."""
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
    """Determine how the nodes are stored in `paths`, to start them there.

    Args:
        files: The file system.
        paths: The data directories.
        nodes: Number of nodes, or None for the existing ones.
        first: ID of a single node, or of the first node of a new cluster.

    Raises:
        StorageError: A path is a file, or the directories contain a single node although several are
            requested.
    """
    for path in paths:
        if files.exists(path) and not files.is_directory(path):
            raise StorageError(f"{path} is a file; set a directory with --data-dir")
    known = node_directories(files, paths)
    wanted = nodes or 1
    has_single_node = known_cluster(files, paths) is not None
    if has_single_node and wanted > 1 and files.durable:
        raise StorageError(
            f"{' and '.join(paths)}: the directories belong to a single node; convert them for {wanted} "
            f"nodes with `kbroker cluster resize --nodes {wanted} {' '.join(paths)}`"
        )
    if has_single_node and not files.durable:
        known = node_directories(files, _joined_paths(paths)) | {first}
    is_single = has_single_node or (not known and wanted == 1)
    return DataDirectories(files, paths, known, first if is_single else None)


def _joined_paths(paths: Iterable[str]) -> list[str]:
    """Return the in-memory directories of nodes that join a single node."""
    return [f"{path}.joined" for path in paths]


def node_directory(path: str, node_id: int) -> str:
    """Return the directory of one of several nodes in the data directory `path`."""
    return f"{path}/node-{node_id}"


def node_directories(files: Files, paths: Iterable[str]) -> frozenset[int]:
    """Return the IDs of the nodes that have a subdirectory in one of `paths`."""
    return frozenset(
        int(match[1])
        for path in paths
        for match in map(NODE_DIRECTORY.fullmatch, files.listdir(path))
        if match and _is_of_a_node(files, f"{path}/{match[0]}")
    )


def _is_of_a_node(files: Files, path: str) -> bool:
    """Return True if a directory belongs to a node, even if it lacks `meta.properties`."""
    if files.exists(f"{path}/{META_PROPERTIES}"):
        return True
    return files.is_directory(path) and not NODE_FILES.isdisjoint(files.listdir(path))
