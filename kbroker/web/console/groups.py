"""Groups of all types: list, lag and details."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.dead_letters import dead_letter_queue
from kbroker.client.errors import ClientError
from kbroker.client.group_details import group_details
from kbroker.client.group_overview import GroupOverview, group_overviews
from kbroker.client.groups import ListedGroup, list_groups
from kbroker.client.topology_descriptions import topology_description
from kbroker.protocol.errors import KafkaError
from kbroker.security.acls import AclOperation, AclResourceType, Resource

from .answers import json_response, json_rows_response
from .api import Api, Permission
from .rings import SAMPLE_SECONDS
from .sessions import Viewer
from .topics import PARTITIONS_ASKED_MAX

# Maximum number of trends per response, and of groups whose coordinators are queried.
TRENDS_MAX = 200
DESCRIBE_GROUP = Permission(AclOperation.DESCRIBE, AclResourceType.GROUP, "group")
# Operations that change a group: READ resets offsets.
CHANGES_OF_GROUP = (AclOperation.READ, AclOperation.DELETE, AclOperation.ALTER_CONFIGS)


class Groups:
    """Routes for groups."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route = self._api.read_route
        return [
            read_route("/groups", self._list),
            read_route("/groups/{group:path}/details", self._group_details, DESCRIBE_GROUP),
            read_route(
                "/groups/{group:path}/dead-letter-queue", self._dead_letter_queue, DESCRIBE_GROUP
            ),
            read_route("/groups/{group:path}/topology", self._topology, DESCRIBE_GROUP),
        ]

    async def _list(self, request: Request, viewer: Viewer) -> Response:
        search = request.query_params.get("search", "").lower()
        listed = [each for each in await list_groups(viewer.cluster) if search in each.name.lower()]
        overviews = await self._overviews(listed, viewer)
        rows: list[dict[str, object]] = []
        for each in listed:
            trend, overview = self._api.trends.groups.get(each.name), overviews.get(each.name)
            known = overview or trend
            rows.append(
                {
                    "group": each.name,
                    "state": each.state,
                    "type": each.type,
                    "protocol": each.protocol_type,
                    "coordinator": each.coordinator,
                    "members": known.members if known else None,
                    "lag": known.lag if known else None,
                    "without_offset": overview.without_offset if overview else None,
                    "trend": trend.total.values() if trend and len(rows) < TRENDS_MAX else None,
                    "may": self._api.permitted(
                        viewer, Resource(AclResourceType.GROUP, each.name), AclOperation.DELETE
                    ),
                }
            )
        may_create = self._api.permits_any(viewer, AclOperation.READ, AclResourceType.GROUP)
        fields = {
            "sample_seconds": SAMPLE_SECONDS,
            "may": [AclOperation.CREATE.name] if may_create else [],
        }
        return await json_rows_response(fields, "groups", rows)

    async def _overviews(
        self, listed: Sequence[ListedGroup], viewer: Viewer
    ) -> dict[str, GroupOverview]:
        """Return lags as the command line shows them, of as many groups as the limits permit."""
        topics, trends = self._api.node.cluster.topics, self._api.trends.groups
        chosen: list[ListedGroup] = []
        partitions_left = PARTITIONS_ASKED_MAX
        for each in listed[:TRENDS_MAX]:
            trend = trends.get(each.name)
            read = [topics[name] for name in (trend.topics if trend else ()) if name in topics]
            size = sum(len(topic.partitions) for topic in read)
            if size <= partitions_left:
                partitions_left -= size
                chosen.append(each)
        try:
            found = await group_overviews(viewer.cluster, chosen)
        except (ClientError, KafkaError, OSError):
            return {}
        return {each.listed.name: each for each in found}

    async def _group_details(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["group"]
        details = await group_details(viewer.cluster, name)
        trend = self._api.trends.groups.get(name)
        details["sample_seconds"] = SAMPLE_SECONDS
        details["may"] = self._api.permitted(
            viewer, Resource(AclResourceType.GROUP, name), *CHANGES_OF_GROUP
        )
        details["trend"] = trend.total.values() if trend else None
        for number, each in enumerate(details["partitions"]):
            ring = trend.partitions.get((each["topic"], each["partition"])) if trend else None
            each["trend"] = ring.values() if ring and number < TRENDS_MAX else None
        return await json_rows_response(details, "partitions", details.pop("partitions"))

    async def _dead_letter_queue(self, request: Request, viewer: Viewer) -> Response:
        found = await dead_letter_queue(viewer.cluster, request.path_params["group"])
        return json_response({"dead_letter_queue": None if found is None else asdict(found)})

    async def _topology(self, request: Request, viewer: Viewer) -> Response:
        found = await topology_description(viewer.cluster, request.path_params["group"])
        nodes = (node._asdict() for node in found.nodes)
        return await json_rows_response({"status": found.status}, "nodes", nodes)
