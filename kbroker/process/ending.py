"""Removal of the registration of a node whose process has ended, on behalf of a supervisor."""

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
    """Outcome: the node's ID, and True if the cluster still had its registration."""

    node_id: int
    was_registered: bool


def end_node(address: str, directories: Sequence[str]) -> Ended:
    """Remove the registration of the node that had some log directories.

    Args:
        address: Address of the cluster's etcd.
        directories: All log directories of the node.

    Returns:
        The node, and whether it was registered.

    Raises:
        ConfigError: The address is invalid.
        StorageError: The directories belong to no node, or a process uses them.
    """
    files, paths = OsFiles(), absolute_paths(directories)
    node_id = lone_node(files, paths)
    found = [] if node_id is None else [found_directory(files, path, node_id) for path in paths]
    if node_id is None or None in found:
        raise StorageError(
            f"{' and '.join(paths)}: found no node's data; name all log directories of the node"
        )
    directories = [each.meta.directory_id for each in found if each is not None]
    with locked(files, paths):
        work = partial(end_registration, node_id=node_id, directories=directories)
        return Ended(node_id, on_etcd(address, work))
