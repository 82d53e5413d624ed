"""Records of a topic: searches, single records with their neighbours, and whole keys and values."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from contextlib import aclosing
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kbroker.client.offset_spec import END, START, Kind, OffsetSpec, find
from kbroker.client.topic_details import choose_partitions
from kbroker.protocol.primitives import INT64_MAX
from kbroker.protocol.record_stream import OversizedRecord
from kbroker.protocol.records import Record
from kbroker.web.chunks import Chunks

from .answers import (
    PARTITION_MAX,
    ApiError,
    json_response,
    json_rows_response,
    number,
    path_number,
)
from .api import Api
from .connected import while_connected
from .decoding import details_row
from .decoding import row as record_row
from .filters import Columns, RecordFilter
from .scan import RECORD_BYTES_MAX, Budget, PartitionScan, Reader, Remaining, Scan
from .schemas import Schemas, decoded_parts
from .sessions import Viewer
from .topics import READ_TOPIC

# Maximum number of records per response.
RECORDS_MAX = 500
# Budget of a scan: its maximum and default time in ms, and number of bytes.
MS_MAX, BYTES_MAX = 10_000, 256 * 1024 * 1024
MS_DEFAULT, BYTES_DEFAULT = 2_000, 64 * 1024 * 1024
CURSORS_MAX = 256
# Largest offset, and largest timestamp in ms since the epoch, of a query.
PLACE_MAX = (1 << 63) - 2
# Size of the chunks in which a key or value is sent.
VALUE_PIECE = 64 * 1024
DIRECTIONS = ("", "previous", "next")


class _Ranges(NamedTuple):
    """Offsets to scan in each partition, and the direction of the scan."""

    backwards: bool
    by_partition: dict[int, Remaining]


class Messages:
    """Routes for the records of a topic."""

    def __init__(self, api: Api) -> None:
        self._api = api
        # Unfinished scans by cursor: topic and unread ranges.
        self._cursors: OrderedDict[str, tuple[str, _Ranges]] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes."""
        read_route, record = self._api.read_route, "/topics/{topic}/records/{partition}/{offset}"
        return [
            read_route("/topics/{topic}/messages", self._messages, READ_TOPIC),
            read_route(record, self._record, READ_TOPIC),
            read_route(record + "/{part}", self._part, READ_TOPIC),
        ]

    # -- searches

    async def _messages(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["topic"]
        limit = number(request, "limit", 100, 1, RECORDS_MAX)
        milliseconds = number(request, "ms", MS_DEFAULT, 1, MS_MAX)
        bytes_max = number(request, "bytes", BYTES_DEFAULT, 1, BYTES_MAX)
        committed = request.query_params.get("committed") == "1"
        aborted = request.query_params.get("aborted") == "1"
        if committed and aborted:
            raise ApiError(400, "committed and aborted cannot both be 1")
        reader = await self._reader(request, viewer, committed=committed, aborted=aborted)

        async def search() -> Response:
            async with self._api.scanning:
                # The time budget starts after waiting for a free slot.
                budget = Budget(milliseconds / 1000, bytes_max)
                ranges = await self._ranges_to_scan(request, viewer, committed)
                partitions = [
                    PartitionScan(index, *place) for index, place in ranges.by_partition.items()
                ]
                scan = Scan(reader, partitions, backwards=ranges.backwards)
                found = await scan.run(budget, limit)
            left = _Ranges(ranges.backwards, scan.remaining)
            fields = {
                "scanned": budget.records,
                "remaining": sum(each.end - each.start for each in scan.remaining.values()),
                "scanned_bytes": budget.bytes,
                "seconds": round(budget.took, 3),
                "too_large": reader.record_filter.too_large,
                "done": scan.is_done,
                "cursor": None if scan.is_done else self._save_cursor(name, left),
            }
            rows = (record_row(name, each) for each in found)
            return await json_rows_response(fields, "records", rows)

        return await while_connected(request, search)

    async def _reader(
        self, request: Request, viewer: Viewer, *, committed: bool = False, aborted: bool = False
    ) -> Reader:
        name = request.path_params["topic"]
        return Reader(
            viewer.cluster,
            name,
            RecordFilter(name, request),
            columns=Columns(name, request),
            committed=committed,
            aborted=aborted,
            schemas=await self._api.schemas(viewer),
            record_bytes_max=RECORD_BYTES_MAX,
        )

    def _save_cursor(self, name: str, ranges: _Ranges) -> str:
        cursor = secrets.token_urlsafe(12)
        self._cursors[cursor] = name, ranges
        while len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)
        return cursor

    async def _ranges_to_scan(self, request: Request, viewer: Viewer, committed: bool) -> _Ranges:
        name, cursor = request.path_params["topic"], request.query_params.get("cursor", "")
        if cursor:
            known = self._cursors.get(cursor)
            if known is None or known[0] != name:
                raise ApiError(410, "the cursor has expired; start the search again")
            return known[1]
        origin = request.query_params.get("from", "newest")
        first, last = _bounds(origin, request)
        numbers = numbers_of(request.query_params.get("partition", ""))
        chosen = await choose_partitions(viewer.cluster, name, numbers)
        starts = await find(viewer.cluster, chosen, START)
        ends = await find(viewer.cluster, chosen, END, committed=committed)
        limits = {one: Remaining(starts[one], ends[one]) for one in chosen}
        if first is not None:
            found = await find(viewer.cluster, chosen, first, committed=committed)
            limits = {
                one: limits[one]._replace(start=max(found[one], starts[one])) for one in chosen
            }
        if last is not None:
            found = await find(viewer.cluster, chosen, last, committed=committed)
            limits = {one: limits[one]._replace(end=min(found[one], ends[one])) for one in chosen}
        by_partition = {
            one[1]: each._replace(start=min(each.start, each.end)) for one, each in limits.items()
        }
        return _Ranges(origin == "newest", by_partition)

    # -- one record

    async def _record(self, request: Request, viewer: Viewer) -> Response:
        """Return the record at an offset, or the nearest matching record before or after it."""
        name, index = request.path_params["topic"], path_number(request, "partition", PARTITION_MAX)
        offset = path_number(request, "offset", INT64_MAX - 1)
        direction = request.query_params.get("direction", "")
        if direction not in DIRECTIONS:
            raise ApiError(400, "direction must be previous or next")
        reader = await self._reader(request, viewer)
        chosen = await choose_partitions(viewer.cluster, name, (index,))
        start = (await find(viewer.cluster, chosen, START))[name, index]
        end = (await find(viewer.cluster, chosen, END))[name, index]
        first = {"previous": start, "next": offset + 1}.get(direction, offset)
        last = {"previous": offset, "next": end}.get(direction, offset + 1)
        place = Remaining(max(first, start), min(last, end))

        async def search() -> Response:
            async with self._api.scanning:
                budget = Budget(MS_DEFAULT / 1000, BYTES_DEFAULT)
                scan = Scan(
                    reader, [PartitionScan(index, *place)], backwards=direction == "previous"
                )
                found = await scan.run(budget, 1)
            if not found and not direction:
                raise ApiError(404, _absence(name, index, offset, start, end))
            rest = scan.remaining.get(index)
            return json_response(
                {
                    "record": details_row(name, found[0]) if found else None,
                    "start_offset": start,
                    "end_offset": end,
                    # Offset at which the same request continues an unfinished search.
                    "continue_at": None
                    if found or rest is None
                    else (rest.end if direction == "previous" else rest.start - 1),
                }
            )

        return await while_connected(request, search)

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
            async for header, batch, _ in batches:
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
            "reads; read it with a consumer",
        )
    return record


def _absence(topic: str, index: int, offset: int, start: int, end: int) -> str:
    """Return a sentence that says why no record has an offset."""
    where = f"{topic}-{index} has no record at offset {offset}"
    if offset >= end:
        return f"{where}: the next record will have offset {end}"
    if offset < start:
        return f"{where}: older records were deleted, the partition starts at offset {start}"
    return f"{where}: it is a transaction marker, or compaction removed the record"


def _pieces(data: bytes) -> Chunks:
    return Chunks(data[at : at + VALUE_PIECE] for at in range(0, len(data), VALUE_PIECE))


def _bounds(origin: str, request: Request) -> tuple[OffsetSpec | None, OffsetSpec | None]:
    """Return the first offset to scan, and the offset after the last one; None without a bound."""
    if origin not in ("newest", "oldest", "offset"):
        raise ApiError(400, "from must be newest, oldest or offset")
    first = last = None
    if request.query_params.get("since"):
        since = number(request, "since", 0, -PLACE_MAX, PLACE_MAX)
        first = OffsetSpec(Kind.TIME, since)
    if origin == "offset":
        first = OffsetSpec(Kind.OFFSET, number(request, "offset", 0, 0, PLACE_MAX))
    if request.query_params.get("until"):
        until = number(request, "until", 0, -PLACE_MAX, PLACE_MAX)
        last = OffsetSpec(Kind.TIME, until + 1)
    return first, last


def numbers_of(text: str) -> tuple[int, ...]:
    """Parse a comma-separated list of partitions. Raises ApiError."""
    parts = [each for each in text.split(",") if each][:1000]
    if not all(each.isascii() and each.isdigit() and len(each) < 10 for each in parts):
        raise ApiError(400, "partition must be a comma-separated list of numbers")
    return tuple(sorted({int(each) for each in parts}))
