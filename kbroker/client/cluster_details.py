"""Cluster description and health problems, as reported by commands and the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import NotReachable
from .list_offsets import EARLIEST, list_offsets
from .log_dirs import LogDir, describe_log_dirs

Row: TypeAlias = dict[str, Any]

METADATA_TOPIC = "__cluster_metadata"
NEARLY_FULL = 0.9
# Severities of a problem.
ERROR, WARNING = "error", "warning"
_FREE_SPACE = (
    "free space (`kbroker topic trim`, shorter retention, a larger disk) or make the disk writable; "
    "see the broker's log for the cause"
)
_CHECK_DISK = (
    "an fsync or the disk failed, see the broker's log for the cause: check or replace the disk, "
    "then restart the broker"
)


def cluster_details(metadata: MetadataResponse) -> Row:
    """Return the cluster ID, topic and partition counts, and the brokers."""
    leads = Counter(part.leader_id for topic in metadata.topics for part in topic.partitions)
    return {
        "cluster_id": metadata.cluster_id,
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics),
        "brokers": broker_rows(metadata, leads),
    }


def broker_rows(metadata: MetadataResponse, leads: Mapping[int, int]) -> list[Row]:
    """Return a row per live broker.

    Args:
        metadata: The cluster's metadata.
        leads: Number of led partitions by broker ID.
    """
    return [
        {
            "broker": row.node_id,
            "host": row.host,
            "port": row.port,
            "rack": row.rack,
            "controller": row.node_id == metadata.controller_id,
            "leads": leads.get(row.node_id, 0),
        }
        for row in sorted(metadata.brokers, key=lambda row: row.node_id)
    ]


def log_dir_row(found: LogDir, topics: Container[str] = ()) -> Row:
    """Return a log directory as a row; list sizes of `topics` only, or of all topics if empty."""
    return {
        "broker": found.node_id,
        "directory": found.path,
        "error": found.error.name if found.error else None,
        "total_bytes": found.total_bytes if found.total_bytes >= 0 else None,
        "usable_bytes": found.usable_bytes if found.usable_bytes >= 0 else None,
        "partitions": [
            {"partition": f"{name}-{index}", "bytes": size}
            for (name, index), size in sorted(found.sizes.items())
            if not topics or name in topics
        ],
    }


async def cluster_problems(cluster: ClusterClient) -> list[Row]:
    """Return the problems of brokers, log directories and partitions.

    Args:
        cluster: The cluster to check.

    Returns:
        Rows with `severity` "error", or "warning" for directories that are nearly full.

    Raises:
        KafkaError: A broker rejects a request.
        ClientError: A broker or topic disappears during the check.
    """
    metadata = await cluster.metadata()
    problems, unreachable = [], set()
    for broker in metadata.brokers:
        try:
            await cluster.node(broker.node_id)
        except NotReachable as error:
            unreachable.add(broker.node_id)
            problems.append(problem_row("broker", str(broker.node_id), str(error), ""))
    offline: list[Row] = []
    readable = []
    required = await _required_in_sync(cluster, metadata)
    for topic in metadata.topics:
        for part in topic.partitions:
            where = f"{topic.name}-{part.partition_index}"
            missing = sorted(set(part.replica_nodes) - set(part.isr_nodes))
            if part.leader_id < 0:
                offline.append(leaderless_problem(where, part.replica_nodes, part.isr_nodes))
            elif part.leader_id not in unreachable:
                readable.append((topic.name or "", part.partition_index))
                if missing:
                    row = under_replicated_problem(where, missing)
                    if len(part.isr_nodes) < min(required[topic.name], len(part.replica_nodes)):
                        row["problem"] += "; ISR below min.insync.replicas, acks=all is rejected"
                    problems.append(row)
    alive = {broker.node_id for broker in metadata.brokers} - unreachable
    problems += await _metadata_problems(cluster, alive)
    problems += await _directory_problems(cluster, metadata, alive)
    return problems + offline + await _unreadable(cluster, readable)


async def _metadata_problems(cluster: ClusterClient, alive: Iterable[int]) -> list[Row]:
    """Return the brokers that report that they cannot change the cluster metadata.

    Only kbroker sends an error message without an error code; Apache Kafka does not.
    """
    partition = DescribeQuorumRequest.Partition(partition_index=0)
    topic = DescribeQuorumRequest.Topic(topic_name=METADATA_TOPIC, partitions=[partition])
    problems = []
    for node_id in sorted(alive):
        node = await cluster.node(node_id)
        try:
            answer = await node.ask(DescribeQuorumRequest(topics=[topic]), oldest=2)
        except KafkaError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            continue
        for found in (part for topic in answer.topics for part in topic.partitions):
            if found.error_message and not found.error_code:
                problem, _, action = found.error_message.partition("; ")
                problems.append(problem_row("metadata", str(node_id), problem, action))
    return problems


async def _directory_problems(
    cluster: ClusterClient, metadata: MetadataResponse, alive: Iterable[int]
) -> list[Row]:
    """Return full or nearly full disks, and the partitions that are read-only because of them."""
    led = {
        (topic.name, part.partition_index): part.leader_id
        for topic in metadata.topics
        for part in topic.partitions
    }
    problems = []
    for found in await describe_log_dirs(cluster, alive):
        where = f"{found.node_id}:{found.path}"
        full = f"{found.used:.0%} of the disk is used"
        if found.error and found.total_bytes < 0:  # offline: no disk size reported
            problem = f"offline: {found.error.name}"
            problems.append(problem_row("directory", where, problem, _CHECK_DISK))
        elif found.error:
            problems.append(problem_row("directory", where, f"read-only; {full}", _FREE_SPACE))
            read_only = [
                partition
                for partition in sorted(found.sizes)
                if led.get(partition) == found.node_id
            ]
            problems += [
                problem_row("partition", f"{name}-{index}", f"read-only: {where}", _FREE_SPACE)
                for name, index in read_only
            ]
        elif found.used >= NEARLY_FULL:
            problem = f"nearly full: {full}"
            problems.append(problem_row("directory", where, problem, _FREE_SPACE, severity=WARNING))
    return problems


async def _required_in_sync(
    cluster: ClusterClient, metadata: MetadataResponse
) -> dict[str | None, int]:
    """Return min.insync.replicas of the topics with under-replicated partitions."""
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


async def _unreadable(cluster: ClusterClient, partitions: list[tuple[str, int]]) -> list[Row]:
    """Return partitions whose leader reports an error for them, such as a storage error."""
    found = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    return [
        _offline_problem(f"{name}-{index}", one.error.name)
        for (name, index), one in sorted(found.items())
        if one.error
    ]


def under_replicated_problem(where: str, missing: Sequence[int]) -> Row:
    """Return the problem of a partition, given the brokers that are not in sync."""
    problem = f"under-replicated: not in sync on {', '.join(map(str, missing))}"
    return problem_row("partition", where, problem, "start these brokers, or check their logs")


def leaderless_problem(where: str, replicas: Sequence[int], in_sync: Sequence[int]) -> Row:
    """Return the problem of a partition without a leader."""
    first = ", ".join(map(str, in_sync or replicas))
    return problem_row(
        "partition",
        where,
        "offline: no leader",
        f"start broker {first}; if none of them can return, `kafka-leader-election --election-type "
        "unclean` elects another replica and loses the records that only they have",
    )


def _offline_problem(where: str, reason: str) -> Row:
    action = "see the broker's log for the cause; `kbroker log repair` restores damaged files"
    return problem_row("partition", where, f"offline: {reason}", action)


def problem_row(what: str, where: str, problem: str, action: str, severity: str = ERROR) -> Row:
    """Return a problem.

    Args:
        what: Type of the resource.
        where: Name of the resource.
        problem: Description.
        action: Suggested fix.
        severity: `ERROR` or `WARNING`.
    """
    return {
        "what": what,
        "where": where,
        "problem": problem,
        "action": action,
        "severity": severity,
    }
