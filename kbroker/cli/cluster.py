"""`kbroker cluster`: brokers, what is wrong with partitions, disks, transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .cluster_folders import grow, shrink
from .cluster_moves import drain, forget, rebalance
from .cluster_node import link, node
from .cluster_quotas import quotas
from .output import Column, format_options, paragraphs, show, table
from .target import FAILED, Target, run, target_options
from .transactions import txn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.client.cluster import ClusterClient
    from kbroker.protocol.messages.metadata import MetadataResponse

NEARLY_FULL = 0.9
_MAKE_ROOM = (
    "make room (`kbroker topic trim`, shorter retention, a larger disk) or make the disk writable; "
    "the log of the broker names the cause"
)


@click.group()
def cluster() -> None:
    """Show brokers, what is wrong, disks, transactions and quotas; stop and start nodes."""


cluster.add_command(txn)
cluster.add_command(node)
cluster.add_command(link)
cluster.add_command(grow)
cluster.add_command(shrink)
cluster.add_command(drain)
cluster.add_command(rebalance)
cluster.add_command(forget)
cluster.add_command(quotas)


@cluster.command()
@format_options
@target_options
def info(target: Target, output: str) -> None:
    """Show the cluster's id and its brokers."""
    metadata = run(target, lambda cluster: cluster.metadata())
    brokers = [
        {
            "broker": row.node_id,
            "host": row.host,
            "port": row.port,
            "rack": row.rack,
            "controller": row.node_id == metadata.controller_id,
            "leads": _led_by(metadata, row.node_id),
        }
        for row in sorted(metadata.brokers, key=lambda row: row.node_id)
    ]
    value = {
        "cluster_id": metadata.cluster_id,
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics),
        "brokers": brokers,
    }

    def text(wide: bool) -> list[str]:
        columns = [Column("broker"), Column("host"), Column("port"), Column("rack", optional=True)]
        columns += [Column("controller"), Column("leads")]
        head = f"cluster {value['cluster_id']}: {value['topics']} topics, "
        return [f"{head}{value['partitions']} partitions", *table(columns, brokers, wide=wide)]

    show(output, value, text)


def _led_by(metadata: MetadataResponse, node_id: int) -> int:
    return sum(part.leader_id == node_id for topic in metadata.topics for part in topic.partitions)


@cluster.command()
@format_options
@target_options
def health(target: Target, output: str) -> None:
    """Look for brokers, folders and partitions that do not work. Exit status 1 when there are any.

    Every broker is asked at the address that it advertises, and every partition for its end. A
    folder is a problem when it takes no records, or when its disk is 90 % full.
    """
    problems = run(target, _problems)
    columns = [Column("what"), Column("where"), Column("problem"), Column("action")]

    def text(wide: bool) -> list[str]:
        return table(columns, problems, wide=wide) if problems else ["healthy"]

    show(output, problems, text)
    if problems:
        raise SystemExit(FAILED)


async def _problems(cluster: ClusterClient) -> list[dict[str, Any]]:
    from kbroker.client.errors import NotReachable

    metadata = await cluster.metadata()
    problems, dead = [], set()
    for broker in metadata.brokers:
        try:
            await cluster.node(broker.node_id)
        except NotReachable as error:
            dead.add(broker.node_id)
            problems.append(_problem("broker", str(broker.node_id), str(error), ""))
    offline: list[dict[str, Any]] = []
    readable = []
    required = await _required_in_sync(cluster, metadata)
    for topic in metadata.topics:
        for part in topic.partitions:
            where = f"{topic.name}-{part.partition_index}"
            missing = sorted(set(part.replica_nodes) - set(part.isr_nodes))
            if part.leader_id < 0:
                offline.append(_without_leader(where, part.replica_nodes, part.isr_nodes))
            elif part.leader_id not in dead:
                readable.append((topic.name or "", part.partition_index))
                if missing:
                    said = f"copies on {', '.join(map(str, missing))} are behind"
                    if len(part.isr_nodes) < min(required[topic.name], len(part.replica_nodes)):
                        said += "; too few are in sync, acks=all is refused"
                    action = "start these brokers, or look into their logs"
                    problems.append(_problem("partition", where, said, action))
    alive = {broker.node_id for broker in metadata.brokers} - dead
    problems += await _folder_problems(cluster, metadata, alive)
    return problems + offline + await _unreadable(cluster, readable)


async def _folder_problems(
    cluster: ClusterClient, metadata: MetadataResponse, alive: Iterable[int]
) -> list[dict[str, Any]]:
    """Disks that are full or nearly so, and the partitions that refuse records because of that."""
    from kbroker.client.log_dirs import describe_log_dirs

    led = {
        (topic.name, part.partition_index): part.leader_id
        for topic in metadata.topics
        for part in topic.partitions
    }
    problems = []
    for found in await describe_log_dirs(cluster, alive):
        where = f"{found.node_id}:{found.path}"
        full = f"{found.used:.0%} of its disk are used"
        if found.error:
            said = f"takes no records; {full}" if found.sizes else f"offline: {found.error.name}"
            problems.append(_problem("folder", where, said, _MAKE_ROOM))
            refused = [place for place in sorted(found.sizes) if led.get(place) == found.node_id]
            problems += [
                _problem("partition", f"{name}-{index}", f"refuses records: {where}", _MAKE_ROOM)
                for name, index in refused
            ]
        elif found.used >= NEARLY_FULL:
            problems.append(_problem("folder", where, f"nearly full: {full}", _MAKE_ROOM))
    return problems


async def _required_in_sync(
    cluster: ClusterClient, metadata: MetadataResponse
) -> dict[str | None, int]:
    """The min.insync.replicas of the topics that have copies that are behind."""
    from kbroker.client.configs import Resource, describe_configs

    names = [
        topic.name or ""
        for topic in metadata.topics
        if any(len(part.isr_nodes) < len(part.replica_nodes) for part in topic.partitions)
    ]
    found = await describe_configs(cluster, Resource.TOPIC, names) if names else {}
    return {
        name: int(setting.value or 1)
        for name, settings in found.items()
        for setting in settings
        if setting.name == "min.insync.replicas"
    }


async def _unreadable(
    cluster: ClusterClient, partitions: list[tuple[str, int]]
) -> list[dict[str, Any]]:
    """Partitions whose leader cannot use them, because of damage for example."""
    from kbroker.client.list_offsets import EARLIEST, list_offsets

    found = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    return [
        _offline(f"{name}-{index}", one.error.name)
        for (name, index), one in sorted(found.items())
        if one.error
    ]


def _without_leader(where: str, replicas: list[int], in_sync: list[int]) -> dict[str, Any]:
    first = ", ".join(map(str, in_sync or replicas))
    return _problem(
        "partition",
        where,
        "offline: no leader",
        f"start broker {first}; when none of them comes back, `kafka-leader-election --election-type "
        "unclean` gives up what only they have",
    )


def _offline(where: str, reason: str) -> dict[str, Any]:
    action = "the log of its broker names the cause; `kbroker log repair` brings back damaged files"
    return _problem("partition", where, f"offline: {reason}", action)


def _problem(what: str, where: str, problem: str, action: str) -> dict[str, Any]:
    return {"what": what, "where": where, "problem": problem, "action": action}


@cluster.command()
@click.option("--topic", "topics", multiple=True, help="Only the sizes of this topic.")
@format_options
@target_options
def logdirs(target: Target, topics: tuple[str, ...], output: str) -> None:
    """Show the folders of all brokers; the wide form has the size of each partition."""
    from kbroker.client.log_dirs import describe_log_dirs

    rows: list[dict[str, Any]] = [
        {
            "broker": found.node_id,
            "folder": found.path,
            "error": found.error.name if found.error else None,
            "total_bytes": found.total_bytes if found.total_bytes >= 0 else None,
            "usable_bytes": found.usable_bytes if found.usable_bytes >= 0 else None,
            "partitions": [
                {"partition": f"{name}-{index}", "bytes": size}
                for (name, index), size in sorted(found.sizes.items())
                if not topics or name in topics
            ],
        }
        for found in run(target, describe_log_dirs)
    ]
    columns = [Column("broker"), Column("folder"), Column("partitions"), Column("bytes")]
    columns += [Column("usable_bytes"), Column("total_bytes"), Column("error", optional=True)]

    def text(wide: bool) -> list[str]:
        sums = [
            row
            | {
                "partitions": len(row["partitions"]),
                "bytes": sum(each["bytes"] for each in row["partitions"]),
            }
            for row in rows
        ]
        parts = [table(columns, sums, wide=wide)]
        if wide:
            flat = [{"broker": row["broker"], **each} for row in rows for each in row["partitions"]]
            sizes = [Column("broker"), Column("partition"), Column("bytes")]
            parts.append(table(sizes, flat, wide=True))
        return paragraphs(parts)

    show(output, rows, text)
