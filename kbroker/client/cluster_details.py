"""Cluster description and health problems, as reported by commands and the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import DescribeClusterRequest
from kbroker.protocol.messages.metadata import MetadataResponse
from kbroker.protocol.messages.quorum import DescribeQuorumRequest

from .cluster import ClusterClient
from .configs import Resource, describe_configs
from .errors import ClientError, NotReachable, check
from .list_offsets import EARLIEST, list_offsets
from .log_dirs import LogDir, describe_log_dirs
from .moves import drained_brokers

Row: TypeAlias = dict[str, Any]

METADATA_TOPIC = "__cluster_metadata"
NEARLY_FULL = 0.9
# First version of DescribeCluster that can list fenced brokers (KIP-1073).
LISTS_FENCED = 2
# Time limit for the queries whether brokers are drained.
DRAINED_SECONDS = 3
# Maximum number of partitions that a summarized problem names.
NAMED_MAX = 3
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


async def cluster_details(cluster: ClusterClient) -> Row:
    """Return the cluster ID, topic and partition counts, and the brokers with their states.

    The state of a broker is "running", "drained" or "down".

    Args:
        cluster: The cluster to describe.

    Raises:
        KafkaError: A broker rejects a request.
    """
    metadata = await cluster.metadata()
    leads = Counter(part.leader_id for topic in metadata.topics for part in topic.partitions)
    running = broker_rows(metadata, leads)
    down = await down_brokers(cluster, metadata)
    drained: set[int] = set()
    # The client may lack the permission for the directories, or may not reach a broker.
    with trio.move_on_after(DRAINED_SECONDS), suppress(KafkaError, ClientError):
        drained = await drained_brokers(cluster, [row["broker"] for row in running])
    rows = [
        row | {"state": "drained" if row["broker"] in drained else "running"} for row in running
    ]
    rows += [row | {"controller": False, "leads": 0, "state": "down"} for row in down.values()]
    return {
        "cluster_id": metadata.cluster_id,
        "topics": len(metadata.topics),
        "partitions": sum(len(topic.partitions) for topic in metadata.topics),
        "brokers": sorted(rows, key=lambda row: row["broker"]),
    }


async def down_brokers(cluster: ClusterClient, metadata: MetadataResponse) -> dict[int, Row]:
    """Return the brokers that are down or not ready, by ID, with their last known addresses.

    These are the fenced brokers, if the cluster lists them (KIP-1073), and all brokers with replicas
    that the metadata does not list.

    Args:
        cluster: The cluster of the brokers.
        metadata: The metadata of all topics.

    Raises:
        KafkaError: The broker rejects the request.
    """
    running = {row.node_id for row in metadata.brokers}
    named = {
        each
        for topic in metadata.topics
        for part in topic.partitions
        for each in part.replica_nodes
    }
    down: dict[int, Row] = {each: _down_row(each) for each in sorted(named - running)}
    request = DescribeClusterRequest(include_fenced_brokers=True)
    try:
        answer = await (await cluster.any()).ask(request, oldest=LISTS_FENCED)
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        return down
    check(answer.error_code, answer.error_message)
    for row in answer.brokers:
        if row.is_fenced and row.broker_id not in running:
            down[row.broker_id] = _down_row(row.broker_id, row.host, row.port, row.rack)
    return down


def _down_row(
    node_id: int, host: str | None = None, port: int = -1, rack: str | None = None
) -> Row:
    known_port = port if port > 0 else None
    return {"broker": node_id, "host": host or None, "port": known_port, "rack": rack}


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
        Brokers first, then partitions without a leader, directories, and under-replicated
        partitions. The `severity` is "error", or "warning" for directories that are nearly full.

    Raises:
        KafkaError: A broker rejects a request.
        ClientError: A broker or topic disappears during the check.
    """
    metadata = await cluster.metadata()
    down = await down_brokers(cluster, metadata)
    problems, unreachable = [down_problem(each) for each in sorted(down)], set()
    for broker in metadata.brokers:
        try:
            await cluster.node(broker.node_id)
        except NotReachable as error:
            unreachable.add(broker.node_id)
            problems.append(problem_row("broker", str(broker.node_id), str(error), ""))
    offline: list[Row] = []
    lagging: list[Row] = []
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
                    row = under_replicated_problem(where, missing, down)
                    if len(part.isr_nodes) < min(required[topic.name], len(part.replica_nodes)):
                        row["problem"] += "; ISR below min.insync.replicas, acks=all is rejected"
                    lagging.append(row)
    alive = {broker.node_id for broker in metadata.brokers} - unreachable
    problems += offline + await _unreadable(cluster, readable)
    problems += await _metadata_problems(cluster, alive)
    problems += await _directory_problems(cluster, metadata, alive)
    return problems + lagging


def summarize(problems: Iterable[Row]) -> list[Row]:
    """Return problems with one row for all partitions that have the same problem and fix."""
    causes: dict[tuple[str, ...], list[Row]] = {}
    for row in problems:
        name = "" if row["what"] == "partition" else row["where"]
        causes.setdefault((row["what"], name, row["problem"], row["action"]), []).append(row)
    return [_summary(rows) for rows in causes.values()]


def _summary(rows: Sequence[Row]) -> Row:
    if len(rows) == 1:
        return rows[0]
    where = ", ".join(row["where"] for row in rows[:NAMED_MAX])
    if len(rows) > NAMED_MAX:
        where += f" and {len(rows) - NAMED_MAX:,} more"
    return rows[0] | {
        "where": where,
        "problem": f"{len(rows):,} partitions {rows[0]['problem']}",
    }


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


def down_problem(node_id: int) -> Row:
    """Return the problem of a broker that is not connected to the cluster."""
    action = "start this broker, or check its log"
    return problem_row("broker", str(node_id), "down: not running, or still starting", action)


def under_replicated_problem(where: str, missing: Sequence[int], down: Collection[int]) -> Row:
    """Return the problem of a partition, given the brokers that are not in sync.

    Args:
        where: Name of the partition.
        missing: Brokers with a replica that is not in sync.
        down: Brokers that are down.
    """
    names = ", ".join(map(str, missing))
    if not set(missing) <= set(down):
        problem = f"under-replicated: not in sync on {names}"
        return problem_row("partition", where, problem, "start these brokers, or check their logs")
    if len(missing) == 1:
        problem, action = f"broker {names} is down", "start this broker, or check its log"
    else:
        problem, action = f"brokers {names} are down", "start these brokers, or check their logs"
    return problem_row("partition", where, f"under-replicated: {problem}", action)


def leaderless_problem(where: str, replicas: Sequence[int], in_sync: Sequence[int]) -> Row:
    """Return the problem of a partition without a leader."""
    first = in_sync or replicas
    action = f"start broker {' or '.join(map(str, first))}"
    if set(replicas) <= set(first):
        action += "; no other broker has a replica"
    else:
        lost = "it cannot return" if len(first) == 1 else "none of them can return"
        action += (
            f"; if {lost}, `kbroker compat kafka-leader-election --election-type unclean` elects "
            "another replica and loses the records that the others do not have"
        )
    return problem_row("partition", where, "offline: no leader", action)


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
