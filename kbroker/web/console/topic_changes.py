"""Changes of topics: create and delete them, add partitions, and delete records.

Each change is only previewed unless the request says `"dry_run": false`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.configs import Resource as ConfigResource
from kbroker.client.configs import describe_configs
from kbroker.client.errors import ClientError
from kbroker.client.offset_spec import END, START, find
from kbroker.client.topic_details import choose_partitions
from kbroker.client.topics import (
    DEFAULT,
    NewTopic,
    Partition,
    by_leader,
    create_topics,
    delete_records,
    delete_topics,
    grow_topic,
    wait_until_ready,
)
from kbroker.config import Scope
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import INT64_MAX
from kbroker.security.acls import CLUSTER, AclOperation, AclResourceType, Resource
from kbroker.text.documents import Json

from .answers import PARTITION_MAX, ApiError, api_error_of, json_response, json_rows_response
from .api import Api, field, read_json_body
from .bodies import (
    ITEMS_MAX,
    integers,
    integers_by_number,
    is_dry_run,
    names,
    partition_number,
    past_offset_spec,
    plain_settings,
)
from .sessions import Viewer
from .topics import DESCRIBE_TOPIC, TOPICS_MAX, topic_rows

REPLICATION_FACTOR_MAX = (1 << 15) - 1
# Maximum number of settings of a new topic.
CONFIGS_MAX = 200
CLEANUP_POLICY = "cleanup.policy"
ALTER_TOPIC = DESCRIBE_TOPIC._replace(operation=AclOperation.ALTER)
DELETE_TOPIC = DESCRIBE_TOPIC._replace(operation=AclOperation.DELETE)


class DeletionRow(TypedDict):
    """Deletion of a partition's records; `error` says why it failed, usually by the error code."""

    partition: int
    start_offset: int
    end_offset: int
    new_start_offset: int
    records: int
    error: str | None


class TopicChanges:
    """Routes that change topics."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        write_route = self._api.write_route
        return [
            write_route("/topics", self._create),
            write_route("/topics/delete", self._delete),
            write_route("/topics/{topic}/partitions", self._add_partitions, ALTER_TOPIC),
            write_route("/topics/{topic}/delete-records", self._delete_records, DELETE_TOPIC),
        ]

    async def _create(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        new = _new_topic(body)
        _require(viewer, AclOperation.CREATE, new.name)
        dry_run = is_dry_run(body)
        outcome = await create_topics(viewer.cluster, [new], validate_only=dry_run)
        code, message = outcome[new.name]
        if code:
            raise KafkaError(code, message)
        row = self._created_row(new)
        if not dry_run and viewer.may_describe(Resource(AclResourceType.TOPIC, new.name)):
            await wait_until_ready(viewer.cluster, {new.name: new.partitions})
        return json_response({"dry_run": dry_run, "topic": row})

    def _created_row(self, new: NewTopic) -> dict[str, object]:
        config = self._api.node.config
        count, factor = new.partitions, new.replication_factor
        if new.assignments:
            count = len(new.assignments)
            factor = len(new.assignments[0]) if 0 in new.assignments else DEFAULT
        return {
            "name": new.name,
            "partitions": config.num_partitions if count == DEFAULT else count,
            "replication_factor": config.default_replication_factor
            if factor == DEFAULT
            else factor,
            "assignments": {str(index): nodes for index, nodes in new.assignments.items()},
            "configs": dict(new.configs),
        }

    async def _delete(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        wanted = names(body, "topics", TOPICS_MAX)
        for name in wanted:
            _require(viewer, AclOperation.DELETE, name)
        dry_run = is_dry_run(body)
        if dry_run:
            await viewer.cluster.topics(wanted)  # raises NoSuchTopic
            known = self._api.node.cluster.topics
            found = [known[name] for name in wanted if name in known]
            rows = await topic_rows(self._api, found, viewer)
        else:
            outcome = await delete_topics(viewer.cluster, wanted)
            rows = [
                {"name": name, "error": _error_text(*outcome[name])}
                for name in wanted
                if name in outcome
            ]
        return await json_rows_response({"dry_run": dry_run}, "topics", rows)

    async def _add_partitions(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        name, dry_run = request.path_params["topic"], is_dry_run(body)
        count = field(body, "count", int, 0)
        if not 0 < count <= PARTITION_MAX:
            raise ApiError(400, "count must be the new total number of partitions")
        (row,) = await viewer.cluster.topics([name])
        await grow_topic(
            viewer.cluster, name, count, assignments=_replica_lists(body), validate_only=dry_run
        )
        if not dry_run:
            await wait_until_ready(viewer.cluster, {name: count})
        numbers = {"partitions": len(row.partitions), "new_partitions": count}
        return json_response({"dry_run": dry_run, "topic": name, **numbers})

    async def _delete_records(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        name, dry_run = request.path_params["topic"], is_dry_run(body)
        rows = await _plan_deletion(viewer, name, body, self._api.node.clock.log_ms())
        if not dry_run:
            await _delete_before(viewer, name, rows)
        fields = {
            "dry_run": dry_run,
            "topic": name,
            "records": sum(row["records"] for row in rows if row["error"] is None),
            "problem": await _deletion_problem(viewer, name) if dry_run else None,
        }
        return await json_rows_response(fields, "partitions", rows)


def _new_topic(body: Mapping[str, Json]) -> NewTopic:
    count = field(body, "partitions", int, DEFAULT)
    factor = field(body, "replication_factor", int, DEFAULT)
    if count != DEFAULT and not 0 < count <= PARTITION_MAX:
        raise ApiError(400, "partitions must be at least 1, or -1 for the broker's default")
    if factor != DEFAULT and not 0 < factor <= REPLICATION_FACTOR_MAX:
        raise ApiError(400, "replication_factor must be at least 1, or -1 for the broker's default")
    configs = plain_settings(body, "configs", CONFIGS_MAX, Scope.TOPIC)
    given = body.get("assignments", {})
    if not isinstance(given, dict) or len(given) > ITEMS_MAX:
        raise ApiError(400, 'assignments must be an object such as {"0": [1, 2], "1": [2, 3]}')
    assignments = {
        partition_number(key, "assignments"): integers(nodes, f"assignments[{key[:20]!r}]")
        for key, nodes in given.items()
    }
    if assignments and (count, factor) != (DEFAULT, DEFAULT):
        raise ApiError(400, "pass assignments, or partitions and replication_factor, not both")
    return NewTopic(field(body, "name", str), count, factor, configs, assignments)


def _replica_lists(body: Mapping[str, Json]) -> list[list[int]] | None:
    """Return the replicas of each new partition, or None to let the broker choose."""
    given = body.get("assignments")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) > ITEMS_MAX:
        raise ApiError(400, "assignments must be a list such as [[1, 2], [2, 3]]")
    return [integers(each, f"assignments[{at}]") for at, each in enumerate(given)]


def _require(viewer: Viewer, operation: AclOperation, topic: str) -> None:
    """Raise ApiError unless the viewer may create or delete a topic, or all topics."""
    if not viewer.may(operation, CLUSTER):
        viewer.require(operation, Resource(AclResourceType.TOPIC, topic))


def _error_text(code: ErrorCode, message: str | None) -> str | None:
    if not code:
        return None
    return f"{code.name}: {message}" if message else code.name


async def _plan_deletion(
    viewer: Viewer, name: str, body: Mapping[str, Json], now_ms: int
) -> list[DeletionRow]:
    """Return the new start offset of each selected partition. Raises ApiError."""
    offsets = integers_by_number(body, "offsets", INT64_MAX)
    numbers = tuple(offsets)
    if not offsets and body.get("partitions") is not None:
        numbers = tuple(sorted(set(integers(body["partitions"], "partitions"))))
    chosen = await choose_partitions(viewer.cluster, name, numbers)
    if len(chosen) > ITEMS_MAX:
        raise ApiError(400, f"select at most {ITEMS_MAX} partitions")
    starts = await find(viewer.cluster, chosen, START)
    ends = await find(viewer.cluster, chosen, END)
    if offsets:
        new = {one: offsets[one[1]] for one in chosen}
        _check_offsets(new, ends)
    else:
        new = await find(viewer.cluster, chosen, past_offset_spec(body, now_ms))
    rows: list[DeletionRow] = []
    for one in chosen:
        start, end = starts[one], ends[one]
        offset = min(max(new[one], start), end)
        rows.append(
            {
                "partition": one[1],
                "start_offset": start,
                "end_offset": end,
                "new_start_offset": offset,
                "records": offset - start,
                "error": None,
            }
        )
    return rows


def _check_offsets(new: Mapping[Partition, int], ends: Mapping[Partition, int]) -> None:
    for one, offset in new.items():
        if offset > ends[one]:
            raise ApiError(
                400, f"offset {offset} of partition {one[1]} is after its end offset {ends[one]}"
            )


async def _delete_before(viewer: Viewer, name: str, rows: list[DeletionRow]) -> None:
    """Delete the records before the new start offsets, and set the errors of the rows."""
    offsets = {(name, row["partition"]): row["new_start_offset"] for row in rows if row["records"]}
    errors: dict[Partition, str] = {}
    # One leader at a time: a failure must not hide what the other leaders have deleted.
    leaders = await by_leader(viewer.cluster, offsets) if offsets else {}
    for partitions in leaders.values():
        try:
            outcome = await delete_records(
                viewer.cluster, {each: offsets[each] for each in partitions}
            )
        except (KafkaError, ClientError, OSError) as error:
            if len(leaders) == 1:
                raise
            errors |= dict.fromkeys(partitions, str(api_error_of(error)))
        else:
            errors |= {each: code.name for each, (code, _) in outcome.items() if code}
    for row in rows:
        row["error"] = errors.get((name, row["partition"]))


async def _deletion_problem(viewer: Viewer, name: str) -> str | None:
    """Return why the broker would reject a deletion of records, as far as the viewer may know it."""
    if not viewer.may(AclOperation.DESCRIBE_CONFIGS, Resource(AclResourceType.TOPIC, name)):
        return None
    found = await describe_configs(
        viewer.cluster, ConfigResource.TOPIC, [name], keys=[CLEANUP_POLICY]
    )
    policy = next((each.value or "" for each in found[name]), "")
    if not policy or "delete" in policy.split(","):
        return None
    return f"the broker deletes no records of this topic, because its {CLEANUP_POLICY} is {policy}"
