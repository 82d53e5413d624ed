"""`kbroker cluster node` and `link`: nodes of a server started with `--control-port`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .cluster_data_dirs import CLUSTER_HELP, DIRECTORIES, call_or_exit
from .confirmation import Change, Preview, count_of, destructive
from .control import Control, ask, control_options
from .lazy import CommandGroup
from .output import Column, format_options, say, show, table
from .settings import option
from .target import fail

if TYPE_CHECKING:
    from kbroker.process.ending import Ended

NODE = click.argument("node_id", metavar="ID", type=int)


@click.group(cls=CommandGroup)
def node() -> None:
    """Stop, crash and start nodes of one server; it must run with --control-port.

    `mark-dead` is for nodes that run in separate processes.
    """


@node.command("list")
@control_options
@format_options
def list_nodes(control: Control, output: str) -> None:
    """Show the nodes, with the number of partitions that each leads, and in which each is behind."""
    nodes: list[dict[str, object]] = ask(control, do="nodes")["nodes"]
    columns = [Column("id"), Column("state"), Column("address"), Column("controller")]
    columns += [Column("leads"), Column("behind")]
    show(output, nodes, lambda wide: table(columns, nodes, wide=wide))


@node.command()
@control_options
@NODE
def stop(control: Control, node_id: int) -> None:
    """Stop a node with a controlled shutdown: its leaderships move to other nodes first."""
    ask(control, do="stop_node", node=node_id)


@node.command()
@control_options
@NODE
def crash(control: Control, node_id: int) -> None:
    """Stop a node as if its process had been killed.

    Its connections are reset and it writes nothing more. Other nodes take over after its session
    expires.
    """
    ask(control, do="crash_node", node=node_id)


@node.command()
@control_options
@NODE
def start(control: Control, node_id: int) -> None:
    """Start a stopped node on its port, with its data."""
    ask(control, do="start_node", node=node_id)


@node.command()
@control_options
@click.option("--rack", help="Rack of the new node.  [default: the rack of the other nodes]")
def add(control: Control, rack: str | None) -> None:
    """Start one more node and print its ID. It has no partitions until some are moved to it."""
    say(ask(control, do="add_node", rack=rack)["node"])


@node.command()
@control_options
@NODE
@destructive
def remove(control: Control, node_id: int, change: Change) -> None:
    """Move all partitions away from a node, stop it, and delete it with its directory."""
    nodes: list[dict[str, object]] = ask(control, do="nodes")["nodes"]
    rows = [
        {"id": each["id"], "state": each["state"], "leads": each["leads"]}
        for each in nodes
        if each["id"] == node_id
    ]
    if not rows:
        valid = ", ".join(str(each["id"]) for each in nodes)
        fail(f"node {node_id} does not exist (valid: {valid})")
    lines = [
        f"node {node_id}: {each['state']}, leads {count_of(int(str(each['leads'])), 'partition')}"
        for each in rows
    ]
    question = f"Move all partitions away from node {node_id}, and delete its directory?"
    if not change.confirm(Preview(question, rows, lines)):
        return
    ask(control, do="remove_node", node=node_id)
    change.report(rows, lambda _: [f"node {node_id}: removed"])


@node.command()
@option(
    "--cluster",
    "address",
    metavar="etcd://HOST:2379,.../NAME",
    required=True,
    help=CLUSTER_HELP,
)
@DIRECTORIES
def mark_dead(address: str, directories: tuple[str, ...]) -> None:
    """End the lease of a node whose process has ended, in a cluster with metadata on etcd.

    The cluster then elects new leaders at once, without waiting until the lease expires. DIR are
    the node's data directories. The command fails while a process uses them. Run it from
    ExecStopPost= of the node's systemd unit.
    """

    def end() -> Ended:
        from kbroker.process.ending import end_node

        return end_node(address, directories)

    ended = call_or_exit(end)
    was = "is marked dead" if ended.was_registered else "was already marked dead"
    say(f"node {ended.node_id} {was}")


@click.group(cls=CommandGroup)
def link() -> None:
    """Cut network links between nodes of one server; it must run with --control-port."""


@link.command()
@control_options
@click.argument("source", type=int)
@click.argument("target", type=int)
@click.option(
    "--one-way",
    is_flag=True,
    help="Cut only requests from SOURCE to TARGET; the opposite direction works.",
)
def cut(control: Control, source: int, target: int, one_way: bool) -> None:
    """Partition the network between the nodes SOURCE and TARGET.

    A follower that cannot reach its leader falls behind. Client connections are not affected.
    """
    ask(control, do="cut_link", source=source, target=target, one_way=one_way)


@link.command()
@control_options
@click.argument("nodes", type=int, nargs=-1, metavar="[NODE NODE]")
def heal(control: Control, nodes: tuple[int, ...]) -> None:
    """Restore the link between two nodes, or all links if no nodes are given."""
    if len(nodes) not in (0, 2):
        raise click.UsageError("give both nodes of a link, or none to restore all links")
    ask(control, do="heal_links", **dict(zip(("source", "target"), nodes, strict=False)))
