"""Groups of all types: lag, offset resets and deletion."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.dead_letters import dead_letter_queue
from kbroker.client.group_details import group_details
from kbroker.client.groups import delete_groups, list_groups
from kbroker.client.offset_spec import Kind, OffsetSpec
from kbroker.client.seek import Seek
from kbroker.client.topology_descriptions import topology_description
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import INT64_MAX
from kbroker.security.acls import AclOperation, AclResourceType

from .answers import ApiError, json_response, json_rows_response
from .api import Api, Permission, field, read_json_body
from .sessions import Viewer
from .trends import SAMPLE_SECONDS

# Maximum number of trends per response.
TRENDS_MAX = 200
DESCRIBE_GROUP = Permission(AclOperation.DESCRIBE, AclResourceType.GROUP, "group")
READ_GROUP = DESCRIBE_GROUP._replace(operation=AclOperation.READ)
DELETE_GROUP = DESCRIBE_GROUP._replace(operation=AclOperation.DELETE)


class Groups:
    """Routes for groups."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route, write_route = self._api.read_route, self._api.write_route
        return [
            read_route("/groups", self._list),
            read_route("/groups/{group:path}/details", self._group_details, DESCRIBE_GROUP),
            read_route(
                "/groups/{group:path}/dead-letter-queue", self._dead_letter_queue, DESCRIBE_GROUP
            ),
            read_route("/groups/{group:path}/topology", self._topology, DESCRIBE_GROUP),
            write_route("/groups/{group:path}/seek", self._seek, READ_GROUP),
            write_route("/groups/{group:path}/delete", self._delete, DELETE_GROUP),
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
                }
            )
        return await json_rows_response({"sample_seconds": SAMPLE_SECONDS}, "groups", rows)

    async def _group_details(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["group"]
        details = await group_details(viewer.cluster, name)
        trend = self._api.trends.groups.get(name)
        details["sample_seconds"] = SAMPLE_SECONDS
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

    async def _seek(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        spec = _offset_spec(field(body, "to", str), field(body, "value", int, 0))
        topic = body.get("topic")
        numbers: object = body.get("partitions")
        if topic is not None and not isinstance(topic, str):
            raise ApiError(400, "topic must be a string")
        if numbers is not None and not (
            isinstance(numbers, list) and all(type(each) is int and each >= 0 for each in numbers)
        ):
            raise ApiError(400, "partitions must be a list of numbers")
        chosen = {topic: set(numbers) if numbers else None} if topic else {}
        job = Seek(request.path_params["group"], spec, None, None, chosen)
        dry_run = field(body, "dry_run", bool, True)
        rows = await (job.plan if dry_run else job.run)(viewer.cluster)
        return json_response({"dry_run": dry_run, "partitions": rows})

    async def _delete(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["group"]
        (error,) = (await delete_groups(viewer.cluster, [name])).values()
        if error is not None:
            raise KafkaError(error.code, error.message or f"cannot delete group {name}")
        return json_response({"deleted": name})


def _offset_spec(kind: str, value: int) -> OffsetSpec:
    kinds = {each.value: each for each in Kind}
    if kind not in kinds or not -INT64_MAX <= value <= INT64_MAX:
        raise ApiError(400, f"invalid to or value (to: {', '.join(kinds)})")
    return OffsetSpec(kinds[kind], value)
