"""Topics: list and details."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.cluster import ClusterClient
from kbroker.client.list_offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.topic_details import id_text, topic_details, topic_partitions
from kbroker.cluster.model import Topic
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation, AclResourceType, Resource

from .answers import (
    REST,
    json_response,
    json_rows_response,
    number,
)
from .api import Api, Permission
from .sessions import Viewer

# Maximum number of topics per response.
TOPICS_MAX = 200
# Maximum number of partitions per response whose offsets and sizes are queried.
PARTITIONS_ASKED_MAX = 2_000
DESCRIBE_TOPIC = Permission(AclOperation.DESCRIBE, AclResourceType.TOPIC, "topic")
READ_TOPIC = DESCRIBE_TOPIC._replace(operation=AclOperation.READ)
WRITE_TOPIC = DESCRIBE_TOPIC._replace(operation=AclOperation.WRITE)
# Operations that change a topic, its settings or its records.
CHANGES_OF_TOPIC = (
    AclOperation.WRITE,
    AclOperation.ALTER,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DELETE,
)


class GroupLag(TypedDict):
    """Lag of a group in one topic; None if unknown."""

    group: str
    lag: int | None
    members: int | None


class Topics:
    """Routes for topics."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route = self._api.read_route
        return [
            read_route("/topics", self._list),
            read_route("/topics/{topic}", self._topic_details, DESCRIBE_TOPIC),
            read_route("/topics/{topic}/permissions", self._permissions, DESCRIBE_TOPIC),
        ]

    # -- all topics

    async def _list(self, request: Request, viewer: Viewer) -> Response:
        search = request.query_params.get("search", "").lower()
        with_internal = request.query_params.get("internal") == "1"
        limit = number(request, "limit", 100, 1, TOPICS_MAX)
        after = request.query_params.get("after", "")
        found: list[Topic] = []
        duty_cycle, matching = DutyCycle(rest=REST), 0
        topics = self._api.node.cluster.topics
        for name in sorted(topics):
            await duty_cycle.pause()
            topic = topics.get(name)
            if topic is None or (topic.is_internal and not with_internal):
                continue
            if search not in name.lower() or not _may_see(viewer, name):
                continue
            matching += 1
            if name > after and len(found) < limit:
                found.append(topic)
        rows = await topic_rows(self._api, found, viewer)
        may_create = self._api.permits_any(viewer, AclOperation.CREATE, AclResourceType.TOPIC)
        more = {
            "matching": matching,
            "next": found[-1].name if len(found) == limit else None,
            "may": [AclOperation.CREATE.name] if may_create else [],
        }
        return await json_rows_response(more, "topics", rows)

    # -- one topic

    async def _topic_details(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["topic"]
        resource = Resource(AclResourceType.TOPIC, name)
        if viewer.may(AclOperation.DESCRIBE_CONFIGS, resource):
            (details,) = await topic_details(viewer.cluster, [name])
        else:
            (details,) = await topic_partitions(viewer.cluster, [name])
            details["configs"] = None
        sizes = await partition_sizes(viewer.cluster, {name: len(details["partitions"])})
        for each in details["partitions"]:
            each["bytes"] = sizes.get((name, each["partition"]))
        trend = self._api.trends.topics.get(name)
        details["records_per_second"] = round(trend.records_per_second, 1) if trend else None
        details["groups"] = (await _groups_of(self._api, {name}, viewer))[name]
        details["may"] = self._api.permitted(viewer, resource, *CHANGES_OF_TOPIC)
        return await json_rows_response(details, "partitions", details.pop("partitions"))

    async def _permissions(self, request: Request, viewer: Viewer) -> Response:
        """Return what the viewer may do with a topic, without queries to other nodes."""
        resource = Resource(AclResourceType.TOPIC, request.path_params["topic"])
        return json_response({"may": self._api.permitted(viewer, resource, *CHANGES_OF_TOPIC)})


async def topic_rows(api: Api, topics: list[Topic], viewer: Viewer) -> list[dict[str, object]]:
    """Return the rows of topics, with sizes, groups and what the viewer may do with them."""
    sizes, counts = await _sizes_and_counts(viewer.cluster, topics)
    trends = api.trends
    groups_of = await _groups_of(api, {each.name for each in topics}, viewer)
    rows = []
    for topic in topics:
        name, trend = topic.name, trends.topics.get(topic.name)
        groups = groups_of[name]
        lags = [each["lag"] for each in groups if each["lag"] is not None]
        resource = Resource(AclResourceType.TOPIC, name)
        rows.append(
            {
                "name": name,
                "partitions": len(topic.partitions),
                "replicas": max((len(it.replicas) for it in topic.partitions), default=0),
                "topic_id": id_text(topic.id),
                "internal": topic.is_internal,
                "bytes": sizes.get(name),
                "records": counts.get(name),
                "records_per_second": round(trend.records_per_second, 1) if trend else None,
                "bytes_per_second": _rounded(trend.bytes_per_second) if trend else None,
                "groups": groups,
                "lag": sum(lags) if lags else None,
                "may": api.permitted(viewer, resource, *CHANGES_OF_TOPIC),
            }
        )
    return rows


async def _groups_of(api: Api, names: set[str], viewer: Viewer) -> dict[str, list[GroupLag]]:
    """Return the groups that read each topic, with their lags."""
    found: dict[str, list[GroupLag]] = {name: [] for name in names}
    duty_cycle = DutyCycle(rest=REST)
    for group, trend in tuple(api.trends.groups.items()):
        read = names & trend.topics.keys()
        if read and _may_see_group(viewer, group):
            for name in read:
                row: GroupLag = {
                    "group": group,
                    "lag": trend.topics[name],
                    "members": trend.members,
                }
                found[name].append(row)
        await duty_cycle.pause()
    return found


def _may_see(viewer: Viewer, topic: str) -> bool:
    return viewer.may(AclOperation.DESCRIBE, Resource(AclResourceType.TOPIC, topic))


def _may_see_group(viewer: Viewer, group: str) -> bool:
    return viewer.may(AclOperation.DESCRIBE, Resource(AclResourceType.GROUP, group))


def _rounded(number: float | None) -> int | None:
    return None if number is None else round(number)


async def _sizes_and_counts(
    cluster: ClusterClient, topics: Iterable[Topic]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return sizes in bytes and record counts, for as many topics as the limit permits."""
    partition_counts: dict[str, int] = {}
    for topic in topics:
        if sum(partition_counts.values()) + len(topic.partitions) <= PARTITIONS_ASKED_MAX:
            partition_counts[topic.name] = len(topic.partitions)
    if not partition_counts:
        return {}, {}
    sizes: dict[str, int] = {}
    for (name, _), size in (await partition_sizes(cluster, partition_counts)).items():
        sizes[name] = sizes.get(name, 0) + size
    existing = {
        row.name for row in (await cluster.metadata(partition_counts)).topics if not row.error_code
    }
    partitions = [
        (name, at)
        for name, number in partition_counts.items()
        if name in existing
        for at in range(number)
    ]
    if not partitions:
        return sizes, {}
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    counts: dict[str, int] = {}
    for one in partitions:
        if not starts[one].error and not ends[one].error:
            counts[one[0]] = counts.get(one[0], 0) + ends[one].offset - starts[one].offset
    return sizes, counts


async def partition_sizes(
    cluster: ClusterClient, counts: dict[str, int]
) -> dict[tuple[str, int], int]:
    """Return the size of the largest replica of each partition that the viewer may describe."""
    cls = DescribeLogDirsRequest
    topics = [cls.Topic(topic=name, partitions=list(range(n))) for name, n in counts.items()]
    sizes: dict[tuple[str, int], int] = {}
    for broker in (await cluster.metadata([])).brokers:
        answered = await (await cluster.node(broker.node_id)).ask(cls(topics=topics))
        for directory in answered.results:
            for topic in directory.topics:
                for part in topic.partitions:
                    one = topic.name, part.partition_index
                    sizes[one] = max(sizes.get(one, 0), part.partition_size)
    return sizes
