"""`kbroker config log-level`: log levels of running brokers of any Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from .output import Column, format_options, reported_changes, show, table
from .target import Target, run, target_options

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.configs import Operation
    from kbroker.client.topic_details import Row

# Names of levels in Python that differ in Kafka.
_PYTHON_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}


@click.command("log-level")
@click.argument("levels", nargs=-1, metavar="[LOGGER=LEVEL]...")
@click.option(
    "--reset",
    "resets",
    multiple=True,
    metavar="LOGGER",
    help="Let this logger inherit the level of its parent; can be given several times.",
)
@click.option(
    "--node",
    type=click.IntRange(0),
    metavar="ID",
    help="Use only the broker with this node ID.  [default: all brokers]",
)
@format_options
@target_options
def log_level(
    target: Target, levels: tuple[str, ...], resets: tuple[str, ...], node: int | None, output: str
) -> None:
    """Show the log levels of running brokers, or change them until the brokers stop.

    LEVEL is TRACE, DEBUG, INFO, WARN, ERROR or FATAL. A level also applies to the loggers below,
    unless they have their own: kbroker.net=DEBUG changes kbroker.net.connection.
    """
    changes = _changes(levels, resets)

    async def work(cluster: ClusterClient) -> list[Row]:
        nodes = [node] if node is not None else await _nodes(cluster)
        rows = [row for each in nodes for row in await _levels(cluster, each)]
        if changes:
            await _alter(cluster, nodes, {row["logger"] for row in rows}, changes)
            rows = [row for each in nodes for row in await _levels(cluster, each)]
            rows = [row for row in rows if row["logger"] in changes]
        return rows

    rows = run(target, work)
    columns = [Column("node"), Column("logger"), Column("level")]
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


def _changes(
    levels: tuple[str, ...], resets: tuple[str, ...]
) -> dict[str, tuple[Operation, str | None]]:
    """Return the operation and the level by logger. Raises UsageError."""
    from kbroker.client.configs import Operation
    from kbroker.text.pairs import parse_pairs

    try:
        pairs = parse_pairs(levels)
    except ValueError:
        raise click.UsageError("write LOGGER=LEVEL, such as kbroker.net=DEBUG") from None
    changes: dict[str, tuple[Operation, str | None]] = {}
    for name, text in pairs.items():
        level = text.strip().upper()
        changes[name] = (Operation.SET, _PYTHON_LEVELS.get(level, level))
    return changes | {name: (Operation.DELETE, None) for name in resets}


async def _nodes(cluster: ClusterClient) -> list[int]:
    return sorted(each.node_id for each in (await cluster.metadata([])).brokers)


async def _levels(cluster: ClusterClient, node: int) -> list[Row]:
    """Return the level of each logger of a broker. Raises KafkaError."""
    from kbroker.client.configs import Resource, describe_configs

    name = str(node)
    found = (await describe_configs(cluster, Resource.BROKER_LOGGER, [name]))[name]
    return [{"node": node, "logger": each.name, "level": each.value} for each in sorted(found)]


async def _alter(
    cluster: ClusterClient,
    nodes: list[int],
    known: set[str],
    changes: Mapping[str, tuple[Operation, str | None]],
) -> None:
    """Change levels of brokers.

    Raises:
        ClientError: A logger does not exist.
        KafkaError: A broker rejects a change.
    """
    from kbroker.client.cluster import did_you_mean
    from kbroker.client.configs import Resource, alter_configs
    from kbroker.client.errors import ClientError

    for name in changes:
        if name not in known:
            raise ClientError(
                f"logger {name!r} does not exist{did_you_mean(name, known)}",
                hint="`kbroker config log-level` lists all loggers",
            )
    with reported_changes([f"broker {node}" for node in nodes]) as changed:
        for node in nodes:
            await alter_configs(cluster, Resource.BROKER_LOGGER, str(node), changes)
            changed.append(f"broker {node}")
