"""`kbroker cluster grow` and `shrink`: how many nodes a stopped server's data folders have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import click

from .output import say
from .target import fail

T = TypeVar("T")

AS_OF_SERVE = "As of kbroker serve."
FOLDERS = click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(exists=True)
)
# Not from the environment: a server's KBROKER_CLUSTER is no order to carry its metadata.
CLUSTER = click.option(
    "--cluster", "address", metavar="etcd://HOST:2379,.../NAME", help=AS_OF_SERVE
)


@click.command()
@click.option("--to", "nodes", type=click.IntRange(2), help="How many nodes.")
@CLUSTER
@FOLDERS
def grow(folders: tuple[str, ...], nodes: int | None, address: str | None) -> None:
    """Let the data folder of a stopped server have more nodes; nothing in it is lost.

    DIR are all folders of log.dirs. The partitions stay where they are; when the server runs,
    `kbroker cluster rebalance --replicas 3` spreads them, with three copies of each.

    With --cluster the nodes stay as many as they are, and their metadata goes to etcd: each can be
    started in a process of its own then, on this machine or, with its folder, on another one.
    """
    if (nodes is None) == (address is None):
        raise click.UsageError("say --to or --cluster")
    if address is not None:
        _carry(address, folders, out=True)
        return
    from kbroker.folders.data_folders import absolute_paths
    from kbroker.folders.growth import grow as grow_folders
    from kbroker.storage.files import OsFiles

    assert nodes is not None
    ids = or_fail(lambda: grow_folders(OsFiles(), absolute_paths(folders), nodes))
    say(f"nodes {', '.join(map(str, ids))}; start them with: kbroker serve --nodes {nodes}")


@click.command()
@CLUSTER
@FOLDERS
def shrink(folders: tuple[str, ...], address: str | None) -> None:
    """Let a stopped server have one node again: the one that has all partitions.

    DIR are all folders of log.dirs. Move the partitions to one node before, with `kbroker cluster
    drain --fewer-replicas` for each of the others.

    With --cluster the nodes stay as many as they are, and their metadata comes back from etcd: DIR has
    the folders of all of them, DIR/node-1 and so on, and one server runs them.
    """
    if address is not None:
        _carry(address, folders, out=False)
        return
    import trio

    from kbroker.folders.data_folders import absolute_paths
    from kbroker.folders.growth import shrink as shrink_folders
    from kbroker.storage.files import OsFiles

    node_id = or_fail(lambda: trio.run(shrink_folders, OsFiles(), absolute_paths(folders)))
    option = "" if node_id == 1 else f" -o node.id={node_id}"
    say(f"node {node_id} has all partitions; start it with: kbroker serve{option}")


def _carry(address: str, folders: tuple[str, ...], *, out: bool) -> None:
    """Carry the metadata to etcd, or back, and say how nodes are started then."""
    from functools import partial

    from kbroker.folders.carrying import carry_in, carry_out
    from kbroker.folders.data_folders import absolute_paths
    from kbroker.storage.files import OsFiles

    def carry() -> Mapping[int, Sequence[str]]:
        from kbroker.process.on_etcd import on_etcd

        work = carry_out if out else carry_in
        return on_etcd(address, partial(work, OsFiles(), absolute_paths(folders)))

    nodes = or_fail(carry)
    if not out:
        count = f" --nodes {len(nodes)}" if len(nodes) > 1 else ""
        say(f"start the server with: kbroker serve{count} --data-dir {','.join(folders)}")
        return
    say("start each node with an address of its own:")
    for node_id, paths in nodes.items():
        words = f"--cluster {address} --node-id {node_id} --data-dir {','.join(paths)}"
        say(f"  kbroker serve {words}")


def or_fail(work: Callable[[], T]) -> T:
    """Do something, or say what is wrong and exit."""
    from kbroker.protocol.errors import KafkaError

    try:
        return work()
    except ModuleNotFoundError as error:
        fail(f"--cluster needs {error.name}: pip install 'kbroker[cluster]'")
    except (KafkaError, ValueError) as error:
        fail(getattr(error, "message", None) or str(error))
