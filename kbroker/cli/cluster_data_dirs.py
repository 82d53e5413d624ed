"""`kbroker cluster resize` and `migrate-metadata`: change data directories of a stopped server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click

from .output import say
from .target import fail

T = TypeVar("T")

CLUSTER_HELP = "Metadata store of the cluster, as for `kbroker serve --cluster`."
ADDRESS = "etcd://HOST:2379,.../NAME"
DIRECTORIES = click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True)
)


@click.command()
@click.option(
    "--nodes", type=click.IntRange(1), required=True, help="Number of nodes after the change."
)
@DIRECTORIES
def resize(directories: tuple[str, ...], nodes: int) -> None:
    """Change the number of nodes in the data directories of a stopped server. No records are lost.

    DIR are all directories of log.dirs.

    With more nodes, the partitions stay where they are. When the server runs, `kbroker cluster
    rebalance --replicas 3` spreads them, with three replicas of each.

    With --nodes 1, only the node that has all partitions stays. Move the partitions to one node
    first, with `kbroker cluster drain --allow-fewer-replicas` for each of the others.
    """
    import trio

    from kbroker.data_dirs.data_directories import absolute_paths
    from kbroker.data_dirs.resize import grow, shrink
    from kbroker.storage.files import OsFiles

    if nodes > 1:
        ids = call_or_exit(lambda: grow(OsFiles(), absolute_paths(directories), nodes))
        say(f"nodes {', '.join(map(str, ids))}; start them with: kbroker serve --nodes {nodes}")
        return
    node_id = call_or_exit(lambda: trio.run(shrink, OsFiles(), absolute_paths(directories)))
    option = "" if node_id == 1 else f" -o node.id={node_id}"
    say(f"node {node_id} has all partitions; start it with: kbroker serve{option}")


@click.command()
@click.option("--to", "target", metavar=ADDRESS, help="Move the metadata to this cluster on etcd.")
@click.option(
    "--from", "source", metavar=ADDRESS, help="Move the metadata of this cluster on etcd back."
)
@DIRECTORIES
def migrate_metadata(directories: tuple[str, ...], target: str | None, source: str | None) -> None:
    """Move the metadata of a stopped cluster from its data directories to etcd, or back.

    DIR are all directories of log.dirs. The number of nodes stays the same.

    After --to, start each node in its own process. A node can run on another machine if its
    directory is moved there.

    With --from, DIR must have the directories of all nodes: DIR/node-1 and so on. One server then
    runs all nodes.
    """
    if (target is None) == (source is None):
        raise click.UsageError("give either --to or --from")
    with _reported_migration(directories):
        nodes = call_or_exit(lambda: _migrate(directories, target, source))
    if target is None:
        count = f" --nodes {len(nodes)}" if len(nodes) > 1 else ""
        say(f"start the server with: kbroker serve{count} --data-dir {','.join(directories)}")
        return
    say("start each node with an address of its own:")
    for node_id, paths in nodes.items():
        arguments = f"--cluster {target} --node-id {node_id} --data-dir {','.join(paths)}"
        say(f"  kbroker serve {arguments}")


@contextmanager
def _reported_migration(directories: Sequence[str]) -> Iterator[None]:
    """If a migration to etcd ends early, print that no server starts before it is finished."""
    from kbroker.data_dirs.found_directories import LEAVING_JOURNAL

    try:
        yield
    except BaseException:
        if any(Path(each, LEAVING_JOURNAL).exists() for each in directories):
            say(
                "kbroker: the migration has begun, and no server starts on these directories; repeat "
                "the same command to finish it",
                err=True,
            )
        raise


def _migrate(
    directories: tuple[str, ...], target: str | None, source: str | None
) -> Mapping[int, Sequence[str]]:
    """Move the metadata to `target`, or from `source`, and return the directories of each node."""
    from functools import partial

    from kbroker.data_dirs.data_directories import absolute_paths
    from kbroker.data_dirs.metadata_migration import move_to_directories, move_to_store
    from kbroker.process.on_etcd import on_etcd
    from kbroker.storage.files import OsFiles

    work = move_to_directories if target is None else move_to_store
    address = source if target is None else target
    assert address is not None
    return on_etcd(address, partial(work, OsFiles(), absolute_paths(directories)))


def call_or_exit(work: Callable[[], T]) -> T:
    """Call `work`; if it fails, print the error and exit. On Ctrl+C, print how to continue."""
    from kbroker.protocol.errors import KafkaError

    try:
        return work()
    except KeyboardInterrupt:
        say("kbroker: interrupted; repeat the command to finish what it began", err=True)
        raise
    except ModuleNotFoundError as error:
        fail(f"a cluster on etcd needs {error.name}: pip install 'kbroker[cluster]'")
    except (KafkaError, ValueError) as error:
        fail(getattr(error, "message", None) or str(error))
