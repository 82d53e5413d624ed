"""Topics: list, details, configuration and records."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import aclosing
from typing import TypedDict

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kbroker.client.cluster import ClusterClient
from kbroker.client.list_offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.offset_spec import END, START, Kind, OffsetSpec, find
from kbroker.client.topic_details import choose_partitions, id_text, topic_details
from kbroker.cluster.model import Topic
from kbroker.protocol.messages.log_dirs import DescribeLogDirsRequest
from kbroker.protocol.primitives import INT64_MAX
from kbroker.protocol.record_stream import OversizedRecord
from kbroker.protocol.records import Record
from kbroker.runtime.time_slices import DutyCycle
from kbroker.security.acls import AclOperation, AclResourceType, Resource
from kbroker.web.chunks import Chunks

from .answers import (
    PARTITION_MAX,
    REST,
    ApiError,
    json_response,
    json_rows_response,
    number,
    path_number,
)
from .api import Api, Permission
from .decoding import row as record_row
from .filters import RecordFilter
from .scan import RECORD_BYTES_MAX, Budget, PartitionScan, Reader, Remaining, Scan
from .schemas import Schemas, decoded_parts
from .sessions import Viewer

# Maximum number of topics per response.
TOPICS_MAX = 200
# Maximum number of partitions per response whose offsets and sizes are queried.
PARTITIONS_ASKED_MAX = 2_000
# Maximum number of records per response.
RECORDS_MAX = 500
# Budget of a scan: its maximum and default time in ms, and number of bytes.
MS_MAX, BYTES_MAX = 10_000, 256 * 1024 * 1024
MS_DEFAULT, BYTES_DEFAULT = 2_000, 64 * 1024 * 1024
CURSORS_MAX = 256
# Size of the chunks in which a key or value is sent.
VALUE_PIECE = 64 * 1024
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
        # Unfinished scans by cursor: topic, direction, and the unread rest of each partition.
        self._cursors: OrderedDict[str, tuple[str, bool, dict[int, Remaining]]] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route = self._api.read_route
        return [
            read_route("/topics", self._list),
            read_route("/topics/{topic}", self._topic_details, DESCRIBE_TOPIC),
            read_route("/topics/{topic}/permissions", self._permissions, DESCRIBE_TOPIC),
            read_route("/topics/{topic}/messages", self._messages, READ_TOPIC),
            read_route(
                "/topics/{topic}/records/{partition}/{offset}/{part}",
                self._part,
                READ_TOPIC,
            ),
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
        (details,) = await topic_details(viewer.cluster, [name])
        sizes = await _partition_sizes(viewer.cluster, {name: len(details["partitions"])})
        for each in details["partitions"]:
            each["bytes"] = sizes.get((name, each["partition"]))
        trend = self._api.trends.topics.get(name)
        details["records_per_second"] = round(trend.records_per_second, 1) if trend else None
        details["groups"] = (await _groups_of(self._api, {name}, viewer))[name]
        details["may"] = self._api.permitted(
            viewer, Resource(AclResourceType.TOPIC, name), *CHANGES_OF_TOPIC
        )
        return await json_rows_response(details, "partitions", details.pop("partitions"))

    async def _permissions(self, request: Request, viewer: Viewer) -> Response:
        """Return what the viewer may do with a topic, without queries to other nodes."""
        resource = Resource(AclResourceType.TOPIC, request.path_params["topic"])
        return json_response({"may": self._api.permitted(viewer, resource, *CHANGES_OF_TOPIC)})

    # -- records

    async def _messages(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["topic"]
        record_filter = RecordFilter(name, request)
        limit = number(request, "limit", 100, 1, RECORDS_MAX)
        milliseconds = number(request, "ms", MS_DEFAULT, 1, MS_MAX)
        bytes_max = number(request, "bytes", BYTES_DEFAULT, 1, BYTES_MAX)
        committed = request.query_params.get("committed") == "1"
        schemas = await self._api.schemas(viewer)
        async with self._api.scanning:
            # The time budget starts after waiting for a free slot.
            budget = Budget(milliseconds / 1000, bytes_max)
            backwards, ranges = await self._ranges_to_scan(request, viewer, name, committed)
            reader = Reader(
                viewer.cluster,
                name,
                record_filter,
                committed=committed,
                schemas=schemas,
                record_bytes_max=RECORD_BYTES_MAX,
            )
            partitions = [PartitionScan(index, *place) for index, place in ranges.items()]
            scan = Scan(reader, partitions, backwards=backwards)
            found = await scan.run(budget, limit)
        fields = {
            "scanned": budget.records,
            "remaining": sum(each.end - each.start for each in scan.remaining.values()),
            "scanned_bytes": budget.bytes,
            "seconds": round(budget.took, 3),
            "too_large": record_filter.too_large,
            "done": scan.is_done,
            "cursor": None if scan.is_done else self._save_cursor(name, backwards, scan.remaining),
        }
        return await json_rows_response(
            fields, "records", (record_row(name, each) for each in found)
        )

    def _save_cursor(self, name: str, backwards: bool, ranges: dict[int, Remaining]) -> str:
        cursor = secrets.token_urlsafe(12)
        self._cursors[cursor] = name, backwards, ranges
        while len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)
        return cursor

    async def _ranges_to_scan(
        self, request: Request, viewer: Viewer, name: str, committed: bool
    ) -> tuple[bool, dict[int, Remaining]]:
        """Return whether a scan goes backwards, and the offsets to scan in each partition."""
        cursor = request.query_params.get("cursor", "")
        if cursor:
            known = self._cursors.get(cursor)
            if known is None or known[0] != name:
                raise ApiError(410, "the cursor has expired; start the search again")
            return known[1], known[2]
        origin = request.query_params.get("from", "newest")
        place = _offset_spec(origin, request)
        numbers = numbers_of(request.query_params.get("partition", ""))
        chosen = await choose_partitions(viewer.cluster, name, numbers)
        starts = await find(viewer.cluster, chosen, START)
        ends = await find(viewer.cluster, chosen, END, committed=committed)
        if place not in (START, END):
            moved = await find(viewer.cluster, chosen, place, committed=committed)
            starts = {one: min(max(moved[one], starts[one]), ends[one]) for one in chosen}
        ranges = {one[1]: Remaining(starts[one], ends[one]) for one in chosen}
        return origin == "newest", ranges

    async def _part(self, request: Request, viewer: Viewer) -> Response:
        """Return a whole key or value: its bytes, or JSON if it is decoded by a schema."""
        part = request.path_params["part"]
        if part not in ("key", "value"):
            raise ApiError(404, "expected `key` or `value`")
        record = await one_record(self._api, request, viewer)
        data = record.key if part == "key" else record.value
        if data is None:
            raise ApiError(404, f"the {part} is null")
        if request.query_params.get("decoded") == "1":
            schemas = await self._api.schemas(viewer)
            return await _decoded_part(schemas, request.path_params["topic"], record, part)
        headers = {
            "content-length": str(len(data)),
            "content-disposition": f'attachment; filename="{part}.bin"',
        }
        return StreamingResponse(
            _pieces(data), headers=headers, media_type="application/octet-stream"
        )


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


async def _decoded_part(schemas: Schemas | None, topic: str, record: Record, part: str) -> Response:
    both = await decoded_parts(schemas, topic, record)
    decoded = both.key if part == "key" else both.value
    if decoded is None or decoded.text is None:
        reason = "it has no schema" if decoded is None else decoded.problem
        raise ApiError(404, reason)
    data = decoded.text.encode()
    headers = {"content-length": str(len(data))}
    return StreamingResponse(_pieces(data), headers=headers, media_type="application/json")


async def one_record(api: Api, request: Request, viewer: Viewer) -> Record:
    """Return the record at the offset in the path. Raises ApiError if no record has the offset."""
    name, index = request.path_params["topic"], path_number(request, "partition", PARTITION_MAX)
    offset = path_number(request, "offset", INT64_MAX - 1)
    record_filter = RecordFilter(name, request)
    reader = Reader(
        viewer.cluster, name, record_filter, committed=False, record_bytes_max=RECORD_BYTES_MAX
    )
    await choose_partitions(viewer.cluster, name, (index,))
    row = await reader.fetch(index, offset)
    if not row.error_code:
        async with aclosing(reader.batches(row, offset, offset + 1)) as batches:
            async for header, batch in batches:
                if batch is not None:
                    steps = reader.records(batch, header, offset, RECORD_BYTES_MAX)
                    async with aclosing(steps) as records:
                        async for record in records:
                            if record.offset == offset:
                                return _check_not_oversized(record)
                            break
    raise ApiError(404, f"partition {index} has no record at offset {offset}")


def _check_not_oversized(record: Record | OversizedRecord) -> Record:
    if isinstance(record, OversizedRecord):
        raise ApiError(
            413,
            f"the record has {record.size:,} bytes, more than the {RECORD_BYTES_MAX:,} that the console "
            "reads; use `kbroker topic consume`",
        )
    return record


def _pieces(data: bytes) -> Chunks:
    return Chunks(data[at : at + VALUE_PIECE] for at in range(0, len(data), VALUE_PIECE))


def _may_see(viewer: Viewer, topic: str) -> bool:
    return viewer.may(AclOperation.DESCRIBE, Resource(AclResourceType.TOPIC, topic))


def _may_see_group(viewer: Viewer, group: str) -> bool:
    return viewer.may(AclOperation.DESCRIBE, Resource(AclResourceType.GROUP, group))


def _offset_spec(origin: str, request: Request) -> OffsetSpec:
    most = (1 << 63) - 2
    if origin in ("newest", "oldest"):
        return END if origin == "newest" else START
    if origin == "offset":
        return OffsetSpec(Kind.OFFSET, number(request, "offset", 0, 0, most))
    if origin == "timestamp":
        return OffsetSpec(Kind.TIME, number(request, "timestamp", 0, -most, most))
    raise ApiError(400, "from must be newest, oldest, offset or timestamp")


def numbers_of(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of partitions. Raises ApiError."""
    parts = [each for each in text.split(",") if each][:1000]
    if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts):
        raise ApiError(400, "partition must be a comma-separated list of numbers")
    return tuple(sorted({int(each) for each in parts}))


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
    for (name, _), size in (await _partition_sizes(cluster, partition_counts)).items():
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


async def _partition_sizes(
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
