"""Groups of all types: list, lag and details."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.dead_letters import dead_letter_queue
from kbroker.client.group_details import group_details
from kbroker.client.groups import list_groups
from kbroker.client.topology_descriptions import topology_description
from kbroker.security.acls import AclOperation, AclResourceType, Resource

from .answers import json_response, json_rows_response
from .api import Api, Permission
from .rings import SAMPLE_SECONDS
from .sessions import Viewer

# Maximum number of trends per response.
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
        trends = self._api.trends.groups

        rows: list[dict[str, object]] = []
        for each in await list_groups(viewer.cluster):
            if search not in each.name.lower():
                continue
            trend = trends.get(each.name)
            rows.append(
                {
                    "group": each.name,
                    "state": each.state,
                    "type": each.type,
                    "protocol": each.protocol_type,
                    "coordinator": each.coordinator,
                    "members": trend.members if trend else None,
                    "lag": trend.lag if trend else None,
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
