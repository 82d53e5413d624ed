"""Changes of groups: create and delete them, reset and delete offsets, and remove members.

Each change is only previewed unless the request says `"dry_run": false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.errors import ClientError, NoSuchGroup
from kbroker.client.groups import Group, delete_groups, describe_group, remove_members
from kbroker.client.offset_deletion import (
    WholeTopicsOnly,
    delete_group_offsets,
    offsets_to_delete,
)
from kbroker.client.offset_spec import OffsetSpec
from kbroker.client.seek import NoOffsets, Seek
from kbroker.client.topics import Partition
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.primitives import INT64_MAX
from kbroker.security.acls import AclOperation, AclResourceType, Resource
from kbroker.text.documents import Json

from .answers import PARTITION_MAX, ApiError, api_error_of, json_response, json_rows_response
from .api import Api, field, read_json_body
from .bodies import ITEMS_MAX, is_dry_run, names, past_offset_spec, topic_selection
from .groups import DESCRIBE_GROUP
from .sessions import Viewer
from .statuses import CONFLICT

SHIFT = "shift"
# Value of the field `type` that creates a share group.
SHARE = "share"
TYPES = ("consumer", SHARE)
# Maximum number of groups to delete at once.
GROUPS_MAX = 200
# Maximum number of members to remove at once.
MEMBERS_MAX = 1_000
READ_GROUP = DESCRIBE_GROUP._replace(operation=AclOperation.READ)
DELETE_GROUP = DESCRIBE_GROUP._replace(operation=AclOperation.DELETE)


class GroupChanges:
    """Routes that change groups."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        write_route = self._api.write_route
        return [
            write_route("/groups/delete", self._delete_several),
            write_route("/groups/{group:path}/create", self._create, READ_GROUP),
            write_route("/groups/{group:path}/seek", self._seek, READ_GROUP),
            write_route("/groups/{group:path}/delete", self._delete, DELETE_GROUP),
            write_route("/groups/{group:path}/delete-offsets", self._delete_offsets, DELETE_GROUP),
            write_route("/groups/{group:path}/remove-members", self._remove_members, READ_GROUP),
        ]

    async def _create(self, request: Request, viewer: Viewer) -> Response:
        """Create a group without members by setting its start offsets."""
        body = await read_json_body(request)
        name, kind = request.path_params["group"], field(body, "type", str)
        if kind not in TYPES:
            raise ApiError(400, f"invalid type {kind[:40]!r} (valid: {', '.join(TYPES)})")
        topics = topic_selection(body)
        if not topics:
            raise ApiError(400, "topics is missing: select the topics that the group reads")
        _require_read(viewer, topics)
        if await _find_group(viewer, name) is not None:
            raise ApiError(CONFLICT, f"group {name!r} exists already; reset its offsets instead")
        job = Seek(name, self._spec(body), None, None, topics, creates=kind == SHARE)
        return await self._run_seek(viewer, job, body, problem=None)

    async def _seek(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        name = request.path_params["group"]
        topics, offsets = topic_selection(body), _offsets(body)
        if offsets is not None:
            job = Seek(name, None, None, offsets, topics)
        elif body.get("to") == SHIFT:
            job = Seek(name, None, _shift(body), None, topics)
        else:
            job = Seek(name, self._spec(body), None, None, topics)
        found = await _find_group(viewer, name)
        return await self._run_seek(viewer, job, body, problem=_members_problem(found))

    def _spec(self, body: Mapping[str, Json]) -> OffsetSpec:
        return past_offset_spec(body, self._api.node.clock.log_ms())

    async def _run_seek(
        self, viewer: Viewer, job: Seek, body: Mapping[str, Json], *, problem: str | None
    ) -> Response:
        dry_run = is_dry_run(body)
        try:
            rows = await job.plan(viewer.cluster)
        except NoOffsets:
            text = f"group {job.group!r} has no committed offsets; pass topics to reset"
            raise ApiError(400, text) from None
        _require_read(viewer, {row["topic"] for row in rows})
        if not dry_run:
            # Not a new plan, which may contain partitions whose topics were not checked.
            rows = await job.apply(viewer.cluster, rows)
        fields = {"dry_run": dry_run, "group": job.group, "problem": problem}
        return await json_rows_response(fields, "partitions", rows)

    async def _delete(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        name, dry_run = request.path_params["group"], is_dry_run(body)
        if dry_run:
            found = await describe_group(viewer.cluster, name)
            row = {"group": name, "type": found.type, "state": found.state}
            problem = _members_problem(found)
            return json_response({"dry_run": True, **row, "problem": problem})
        (error,) = (await delete_groups(viewer.cluster, [name])).values()
        if error is not None:
            raise KafkaError(error.code, error.message or f"cannot delete group {name}")
        return json_response({"dry_run": False, "group": name})

    async def _delete_several(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        wanted, dry_run = names(body, "groups", GROUPS_MAX), is_dry_run(body)
        for name in wanted:
            viewer.require(AclOperation.DELETE, Resource(AclResourceType.GROUP, name))
        rows: list[dict[str, object]] = []
        if dry_run:
            for name in wanted:
                found = await describe_group(viewer.cluster, name)
                row = {"group": name, "type": found.type, "state": found.state}
                rows.append(row | {"problem": _members_problem(found)})
        else:
            rows = [await _deletion_row(viewer, name) for name in wanted]
        return await json_rows_response({"dry_run": dry_run}, "groups", rows)

    async def _delete_offsets(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        name, dry_run, topics = (
            request.path_params["group"],
            is_dry_run(body),
            topic_selection(body),
        )
        if not topics:
            raise ApiError(400, "topics is missing: select topics whose offsets to delete")
        _require_read(viewer, topics)
        found = await describe_group(viewer.cluster, name)
        try:
            offsets = await offsets_to_delete(viewer.cluster, name, topics)
        except WholeTopicsOnly as error:
            raise ApiError(400, str(error)) from None
        if not offsets:
            raise ApiError(404, f"group {name!r} has no offsets in these topics")
        errors = {} if dry_run else await delete_group_offsets(viewer.cluster, name, offsets)
        rows: list[dict[str, object]] = []
        for one, offset in offsets.items():
            code = errors.get(one)
            row: dict[str, object] = {"topic": one[0], "partition": one[1], "offset": offset}
            rows.append(row | {"error": code.name if code else None})
        fields = {"dry_run": dry_run, "group": name, "problem": _readers_problem(found, topics)}
        return await json_rows_response(fields, "partitions", rows)

    async def _remove_members(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        name, dry_run = request.path_params["group"], is_dry_run(body)
        wanted = names(body, "members", MEMBERS_MAX)
        found = await describe_group(viewer.cluster, name)
        members = {each.id: each for each in found.members}
        unknown = next((each for each in wanted if each not in members), None)
        if unknown is not None:
            raise ApiError(404, f"group {name!r} has no member {unknown!r}")
        errors = {} if dry_run else await remove_members(viewer.cluster, name, wanted)
        rows: list[dict[str, object]] = []
        for each in wanted:
            code = errors.get(each)
            row: dict[str, object] = {"member_id": each, "client_id": members[each].client_id}
            row |= {"partitions": len(members[each].partitions)}
            rows.append(row | {"error": code.name if code else None})
        return await json_rows_response({"dry_run": dry_run, "group": name}, "members", rows)


async def _deletion_row(viewer: Viewer, name: str) -> dict[str, object]:
    """Delete a group, and return its row; a failure must not hide which others were deleted."""
    try:
        error = (await delete_groups(viewer.cluster, [name]))[name]
    except (KafkaError, ClientError, OSError) as failure:
        return {"group": name, "error": str(api_error_of(failure))}
    return {"group": name, "error": error and error.code.name}


def _require_read(viewer: Viewer, topics: Iterable[str]) -> None:
    """Raise ApiError unless the viewer may read topics.

    The coordinator checks this as well, but a node of another process does not know the viewer's host.
    """
    for topic in topics:
        viewer.require(AclOperation.READ, Resource(AclResourceType.TOPIC, topic))


async def _find_group(viewer: Viewer, name: str) -> Group | None:
    try:
        return await describe_group(viewer.cluster, name)
    except NoSuchGroup:
        return None


def _members_problem(group: Group | None) -> str | None:
    """Return why the coordinator would reject a change of a group that needs to be empty."""
    if group is None or not group.members:
        return None
    count = len(group.members)
    return f"the group has {count} active member{'s' if count > 1 else ''}; stop them first"


def _readers_problem(group: Group, topics: Mapping[str, set[int] | None]) -> str | None:
    """Return why the coordinator would reject a deletion of offsets."""
    if group.type == SHARE.capitalize():
        return _members_problem(group)
    for member in group.members:
        for topic, _ in member.partitions:
            if topic in topics:
                client = member.client_id or member.id
                return f"member {client} of the group reads {topic}; stop it first"
    return None


def _shift(body: Mapping[str, Json]) -> int:
    value = field(body, "value", int, 0)
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ApiError(400, "value must be a 64-bit integer")
    return value


def _offsets(body: Mapping[str, Json]) -> dict[Partition, int] | None:
    """Return the field `offsets`, a list of topic, partition and offset; None if it is missing."""
    given = body.get("offsets")
    if given is None:
        return None
    if not isinstance(given, list) or not 1 <= len(given) <= ITEMS_MAX:
        raise ApiError(400, f"offsets must be a list of 1 to {ITEMS_MAX} rows")
    offsets: dict[Partition, int] = {}
    for row in given:
        if not isinstance(row, dict):
            raise ApiError(400, "offsets must contain objects with topic, partition and offset")
        index, offset = field(row, "partition", int, -1), field(row, "offset", int, -1)
        if not 0 <= index <= PARTITION_MAX or not 0 <= offset <= INT64_MAX:
            raise ApiError(400, "offsets: partition and offset must be integers of at least 0")
        offsets[field(row, "topic", str), index] = offset
    return offsets
