"""`kbroker cluster grow` and `shrink`: how many nodes a stopped server's data folders have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from .output import say
from .target import fail

T = TypeVar("T")

FOLDERS = click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True)
)


@click.command()
@click.option("--to", "nodes", type=click.IntRange(2), required=True, help="How many nodes.")
@FOLDERS
def grow(folders: tuple[str, ...], nodes: int) -> None:
    """Let the data folder of a stopped server have more nodes; nothing in it is lost.

    DIR are all folders of log.dirs. The partitions stay where they are; when the server runs,
    `kbroker cluster rebalance --replicas 3` spreads them, with three copies of each.
    """
    from kbroker.folders.data_folders import absolute_paths
    from kbroker.folders.growth import grow as grow_folders
    from kbroker.storage.files import OsFiles

    ids = _or_fail(lambda: grow_folders(OsFiles(), absolute_paths(folders), nodes))
    say(f"nodes {', '.join(map(str, ids))}; start them with: kbroker serve --nodes {nodes}")


@click.command()
@FOLDERS
def shrink(folders: tuple[str, ...]) -> None:
    """Let a stopped server have one node again: the one that has all partitions.

    DIR are all folders of log.dirs. Move the partitions to one node before, with `kbroker cluster
    drain --fewer-replicas` for each of the others.
    """
    import trio

    from kbroker.folders.data_folders import absolute_paths
    from kbroker.folders.growth import shrink as shrink_folders
    from kbroker.storage.files import OsFiles

    node_id = _or_fail(lambda: trio.run(shrink_folders, OsFiles(), absolute_paths(folders)))
    option = "" if node_id == 1 else f" -o node.id={node_id}"
    say(f"node {node_id} has all partitions; start it with: kbroker serve{option}")


def _or_fail(work: Callable[[], T]) -> T:
    from kbroker.protocol.errors import KafkaError

    try:
        return work()
    except (KafkaError, ValueError) as error:
        fail(getattr(error, "message", None) or str(error))
