"""The word of a supervisor that the process of a node has ended."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kbroker.cluster.node_checks import end_registration
from kbroker.data_dirs.data_directories import absolute_paths, lone_node
from kbroker.data_dirs.found_directories import found_directory
from kbroker.data_dirs.resize import locked
from kbroker.storage.errors import StorageError
from kbroker.storage.files import OsFiles

from .on_etcd import on_etcd


class Ended(NamedTuple):
    """`was_there` says that the cluster had not missed the node yet."""

    node_id: int
    was_there: bool


def end_node(address: str, directories: Sequence[str]) -> Ended:
    """Let a cluster know that the process is gone which had some data directories.

    Parameters: `address` is that of the cluster, `directories` are all data directories of one node. Raises
    ConfigError, and StorageError: they are of no node, or a process uses them.
    """
    files, paths = OsFiles(), absolute_paths(directories)
    node_id = lone_node(files, paths)
    found = [] if node_id is None else [found_directory(files, path, node_id) for path in paths]
    if node_id is None or None in found:
        raise StorageError(
            f"{' and '.join(paths)}: here is no node's data; name all its directories"
        )
    directories = [each.meta.directory_id for each in found if each is not None]
    with locked(files, paths):
        work = partial(end_registration, node_id=node_id, directories=directories)
        return Ended(node_id, on_etcd(address, work))
