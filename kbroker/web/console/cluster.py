"""Nodes and partitions of the cluster, storage and transactions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.cluster_details import broker_rows
from kbroker.client.transactions import (
    ONGOING,
    describe_transaction,
    list_transactions,
)
from kbroker.cluster import NO_LEADER
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation, AclResourceType, Resource
from kbroker.storage.log import Log

from .answers import REST, json_response, json_rows_response, number
from .api import DESCRIBE_CLUSTER, Api
from .disks import disk_rows
from .other_nodes import json_int, json_objects
from .sessions import Viewer

# Maximum number of rows of one table in a response.
ROWS_MAX = 500
# Maximum number of transactions per response that are described in detail.
DESCRIBED_MAX = 100


class ClusterViews:
    """Routes for the cluster as a whole."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route = self._api.read_route
        return [
            read_route("/cluster", self._cluster, DESCRIBE_CLUSTER),
            read_route("/storage", self._storage, DESCRIBE_CLUSTER),
            read_route("/transactions", self._transactions),
        ]

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
                lacks_replica = len(each.isr) < len(each.replicas)
                under_replicated_count += lacks_replica
                if each.leader == NO_LEADER or lacks_replica:
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
                "brokers_down": [
                    {"broker": each, "replicas": replica_counts[each]}
                    for each in sorted(set(cluster.node_ids) - set(cluster.nodes))
                ],
                "offline": offline,
                "under_replicated_count": under_replicated_count,
                "under_replicated": under_replicated,
                "reassignments": moving,
            }
        )

    # -- storage

    async def _storage(self, request: Request, viewer: Viewer) -> Response:
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
        disks = [row for node in self._api.nodes for row in disk_rows(node)]
        others = await self._api.ask_other_nodes(request, viewer)
        for each in others.found.values():
            unstable += json_int(each, "unstable_partitions")
            omitted += json_int(each, "omitted_partitions")
        rows += json_objects(others.found.values(), "partitions")
        rows.sort(key=lambda row: row["last_stable_offset"] >= row["high_watermark"])
        fields = {
            "unstable_partitions": unstable,
            "omitted_partitions": omitted + max(len(rows) - ROWS_MAX, 0),
            "disks": disks + json_objects(others.found.values(), "disks"),
            **others.row(),
        }
        return await json_rows_response(fields, "partitions", rows[:ROWS_MAX])

    async def _transactions(self, request: Request, viewer: Viewer) -> Response:
        """Return the transactions, or the one with the transactional ID `id`."""
        rows = []
        found = await list_transactions(viewer.cluster)
        if "id" in request.query_params:
            found = [each for each in found if each.id == request.query_params["id"]]
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
