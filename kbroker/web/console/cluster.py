"""Cluster overview, storage and transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.cluster_details import broker_rows, cluster_problems
from kbroker.client.transactions import (
    ONGOING,
    describe_transaction,
    list_transactions,
)
from kbroker.cluster import NO_LEADER
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import CLUSTER, AclOperation, AclResourceType, Resource
from kbroker.storage.errors import StorageError
from kbroker.storage.log import Log

from .answers import REST, json_response, json_rows_response, number
from .api import DESCRIBE_CLUSTER, Api
from .sessions import Viewer
from .trends import SAMPLE_SECONDS

# Maximum number of rows of one table in a response.
ROWS_MAX = 500
# Maximum number of transactions per response that are described in detail.
DESCRIBED_MAX = 100
# Clusters with more partitions are only checked by `kbroker cluster health`.
PARTITIONS_CHECKED_MAX = 1_000


class ClusterViews:
    """Routes for the cluster as a whole."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route = self._api.read_route
        return [
            read_route("/overview", self._overview),
            read_route("/cluster", self._cluster, DESCRIBE_CLUSTER),
            read_route("/storage", self._storage, DESCRIBE_CLUSTER),
            read_route("/transactions", self._transactions),
        ]

    async def _overview(self, _: Request, viewer: Viewer) -> Response:
        api, node = self._api, self._api.node
        may_see = viewer.may(AclOperation.DESCRIBE, CLUSTER)
        partitions = sum(len(topic.partitions) for topic in node.cluster.topics.values())
        problems: list[dict[str, object]] | None = None
        if may_see and partitions <= PARTITIONS_CHECKED_MAX:
            problems = (await cluster_problems(viewer.cluster))[:50]
        software: Counter[str] = Counter()
        for each in tuple(api.local.server.connections):
            software[each.peer.software or "unknown"] += 1
        return json_response(
            {
                "cluster_id": node.cluster.id,
                "node_id": node.id,
                "state": api.local.state.value,
                "topics": await _count_visible(viewer, AclResourceType.TOPIC, node.cluster.topics),
                "groups": await _count_visible(viewer, AclResourceType.GROUP, api.trends.groups),
                "listeners": [
                    {
                        "name": listener.name,
                        "address": str(api.local.endpoints()[listener.name]),
                        "tls": listener.certificates is not None,
                        "mechanisms": list(listener.users.mechanisms) if listener.users else [],
                    }
                    for listener in (api.local.listeners if may_see else [api.listener])
                ],
                "software": dict(software.most_common(50)) if may_see else None,
                "disks": _disk_rows(api) if may_see else None,
                "problems": problems,
                "outage": await self._outage() if may_see else None,
                "other_nodes": api.other_nodes,
                "sample_seconds": SAMPLE_SECONDS,
                "records_per_second": api.trends.records.values() if may_see else None,
                "requests_per_second": api.trends.requests.values() if may_see else None,
            }
        )

    async def _outage(self) -> dict[str, int]:
        """Count failures in this node's copy of the metadata, without requests to other nodes."""
        cluster, duty_cycle = self._api.node.cluster, DutyCycle(rest=REST)
        offline = under_replicated = 0
        for topic in tuple(cluster.topics.values()):
            for each in topic.partitions:
                offline += each.leader == NO_LEADER
                under_replicated += len(each.isr) < len(each.replicas)
                await duty_cycle.pause()
        down = len(set(cluster.node_ids) - set(cluster.nodes))
        return {"brokers_down": down, "offline": offline, "under_replicated": under_replicated}

    async def _cluster(self, _: Request, viewer: Viewer) -> Response:
        cluster, duty_cycle = self._api.node.cluster, DutyCycle(rest=REST)
        leader_counts: Counter[int] = Counter()
        replica_counts: Counter[int] = Counter()
        under_replicated: list[dict[str, object]] = []
        moving: list[dict[str, object]] = []
        partitions = offline = under_replicated_count = 0
        for topic in tuple(cluster.topics.values()):
            for each in topic.partitions:
                partitions += 1
                leader_counts[each.leader] += 1
                replica_counts.update(each.replicas)
                row = {"topic": topic.name, "partition": each.index, "leader": each.leader}
                row |= {"replicas": each.replicas, "isr": each.isr}
                offline += each.leader == NO_LEADER
                if each.leader == NO_LEADER or len(each.isr) < len(each.replicas):
                    under_replicated_count += 1
                    under_replicated += [row] if len(under_replicated) < ROWS_MAX else []
                if (each.adding or each.removing) and len(moving) < ROWS_MAX:
                    moves = {"adding": list(each.adding), "removing": list(each.removing)}
                    moving.append(row | moves)
                await duty_cycle.pause()
        metadata = await viewer.cluster.metadata([])
        return json_response(
            {
                "cluster_id": metadata.cluster_id,
                "topics": len(cluster.topics),
                "partitions": partitions,
                "brokers": [
                    row | {"replicas": replica_counts[row["broker"]]}
                    for row in broker_rows(metadata, leader_counts)
                ],
                "offline": offline,
                "under_replicated_count": under_replicated_count,
                "under_replicated": under_replicated,
                "reassignments": moving,
            }
        )

    # -- storage

    async def _storage(self, request: Request, _: Viewer) -> Response:
        search = request.query_params.get("search", "").lower()
        limit = number(request, "limit", 200, 1, ROWS_MAX)
        rows: list[dict[str, Any]] = []
        duty_cycle, unstable, omitted = DutyCycle(rest=REST), 0, 0
        for node in self._api.nodes:
            for topic in tuple(node.cluster.topics.values()):
                if search not in topic.name.lower():
                    continue
                for partition in topic.partitions:
                    await duty_cycle.pause()
                    replica = node.partitions.opened_replica(topic, partition.index)
                    if replica is None or not node.partitions.leads(partition):
                        continue
                    row = _storage_row(topic.name, partition.index, replica.log)
                    is_unstable = row["last_stable_offset"] < row["high_watermark"]
                    unstable += is_unstable
                    if len(rows) < limit or (is_unstable and len(rows) < ROWS_MAX):
                        rows.append(row | {"node": node.id})
                    else:
                        omitted += 1
        rows.sort(key=lambda row: row["last_stable_offset"] >= row["high_watermark"])
        fields = {
            "unstable_partitions": unstable,
            "omitted_partitions": omitted,
            "other_nodes": self._api.other_nodes,
        }
        return await json_rows_response(fields, "partitions", rows)

    async def _transactions(self, _: Request, viewer: Viewer) -> Response:
        rows = []
        found = await list_transactions(viewer.cluster)
        for number_, one in enumerate(found):
            row: dict[str, object] = one.row()
            if one.state == ONGOING and number_ < DESCRIBED_MAX:
                row |= (await describe_transaction(viewer.cluster, one.id)).row()
            resource = Resource(AclResourceType.TRANSACTIONAL_ID, one.id)
            may_abort = one.state == ONGOING and self._api.may_change(
                viewer, AclOperation.WRITE, resource
            )
            rows.append(row | {"may_abort": may_abort})
        return await json_rows_response({}, "transactions", rows[:ROWS_MAX])


async def _count_visible(viewer: Viewer, kind: AclResourceType, names: Collection[str]) -> int:
    """Count the resources that the viewer may describe."""
    if viewer.sees_all:
        return len(names)
    duty_cycle, count = DutyCycle(rest=REST), 0
    for name in tuple(names):
        count += viewer.may_describe(Resource(kind, name))
        await duty_cycle.pause()
    return count


def _storage_row(topic: str, index: int, log: Log) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": index,
        "log_start_offset": log.log_start_offset,
        "last_stable_offset": log.last_stable_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "bytes": log.segments.size,
        "segments": len(log.segments),
        "producers": len(log.producers),
    }


def _disk_rows(api: Api) -> list[dict[str, object]]:
    rows = []
    for manager in api.node.partitions.logs.managers:
        try:
            total, free = manager.usage()
        except StorageError:
            total = free = -1
        reason = manager.failed or manager.read_only_reason
        rows.append(
            {
                "directory": manager.data_dir,
                "total": total,
                "free": free,
                "read_only_reason": reason or None,
            }
        )
    return rows
