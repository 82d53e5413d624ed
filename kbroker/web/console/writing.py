"""Production of new records from the console, and repeated sending of existing records."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.errors import ClientError, NoSuchPartition
from kbroker.client.ndjson import BadLine, parse_line
from kbroker.client.producer import ANY_PARTITION, Producer, Written
from kbroker.client.topics import Partition
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import Record
from kbroker.text.documents import check_elements

from .answers import PARTITION_MAX, ApiError, api_error_of, json_response, number, path_number
from .api import Api
from .messages import one_record
from .schemas import Mismatch
from .sessions import Viewer
from .topics import READ_TOPIC, WRITE_TOPIC

# Maximum number of lines per request; `http.max.request.bytes` limits its size.
LINES_MAX = 1_000
# Query parameter that ignores the partitions of the lines.
BY_KEY = "by_key"
# Maximum version of a subject.
VERSION_MAX = (1 << 31) - 1
NO_SCHEMAS = "run kbroker with --registry-port, and permit READ on the topic _schemas"


class Writing:
    """Routes that write records."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        write_route = self._api.write_route
        return [
            write_route("/topics/{topic}/records", self._produce, WRITE_TOPIC),
            write_route(
                "/topics/{topic}/records/{partition}/{offset}/resend",
                self._resend,
                READ_TOPIC,
                WRITE_TOPIC,
            ),
        ]

    async def _produce(self, request: Request, viewer: Viewer) -> Response:
        """Produce the NDJSON lines of the body, as `kbroker topic produce --json` does."""
        now_ms = self._api.node.clock.log_ms()
        body = await request.body()
        try:
            check_elements(body.decode(errors="replace"))
        except ValueError as error:
            raise ApiError(400, f"request body: {error}") from None
        lines = body.splitlines()
        if len(lines) <= LINES_MAX:
            lines = [each for each in lines if each.strip()]
        if not 0 < len(lines) <= LINES_MAX:
            raise ApiError(400, f"expected 1 to {LINES_MAX} lines")
        records = []
        for line_number, line in enumerate(lines, 1):
            try:
                parsed = parse_line(line, now_ms)
            except BadLine as error:
                raise ApiError(400, f"line {line_number}: {error}") from None
            at = parsed.partition
            if at is None or BY_KEY in request.query_params:
                at = ANY_PARTITION
            records.append((parsed.record, at))
        for part in ("key", "value"):
            records = await self._encode(request, viewer, part, records)
        return await self._write(viewer, request.path_params["topic"], records)

    async def _encode(
        self, request: Request, viewer: Viewer, part: str, records: list[tuple[Record, int]]
    ) -> list[tuple[Record, int]]:
        """Encode JSON keys or values by the schema of the query, if it names one; null stays null."""
        subject = request.query_params.get(f"{part}_subject", "")
        if not subject:
            return records
        version = number(request, f"{part}_version", -1, -1, VERSION_MAX)
        schemas = await self._api.schemas(viewer)
        if schemas is None:
            raise ApiError(400, f"{part}_subject: no schemas are available; {NO_SCHEMAS}")
        parts = [record.key if part == "key" else record.value for record, _ in records]
        given = [index for index, data in enumerate(parts) if data is not None]
        documents = [data for data in parts if data is not None]
        found = await schemas.encoded(documents, subject, version)
        if isinstance(found, Mismatch):
            line = "" if found.position is None else f"line {given[found.position] + 1}: "
            raise ApiError(400, f"{line}{part}: {found.reason}")
        encoded = dict(zip(given, found, strict=True))
        return [
            (
                record._replace(key=encoded.get(index))
                if part == "key"
                else record._replace(value=encoded.get(index)),
                at,
            )
            for index, (record, at) in enumerate(records)
        ]

    async def _resend(self, request: Request, viewer: Viewer) -> Response:
        """Append a copy of a record to its partition."""
        record: Record = await one_record(self._api, request, viewer)
        again = record._replace(offset=-1, timestamp=self._api.node.clock.log_ms())
        at = path_number(request, "partition", PARTITION_MAX)
        return await self._write(viewer, request.path_params["topic"], [(again, at)])

    async def _write(
        self, viewer: Viewer, topic: str, records: list[tuple[Record, int]]
    ) -> Response:
        producer = Producer(viewer.cluster)
        placed: dict[Partition, list[Record]] = {}
        for line_number, (record, at) in enumerate(records, 1):
            try:
                partition = await producer.place(topic, record, at)
            except NoSuchPartition as error:
                raise ApiError(400, f"line {line_number}: {error}") from None
            placed.setdefault(partition, []).append(record)
        try:
            written = await producer.write(placed)
        except (KafkaError, ClientError, OSError) as error:
            failed, rows = api_error_of(error), _rows(producer.written_before_error)
            if not rows:
                raise
            reason = f"{failed}; {len(rows)} of {len(records)} records were written"
            raise ApiError(failed.status, reason, details={"written": rows}) from None
        return json_response({"written": _rows(written)})


def _rows(written: Sequence[Written]) -> list[dict[str, object]]:
    """Return the places of written records, for a response."""
    return [
        {"topic": each.partition[0], "partition": each.partition[1], "offset": record.offset}
        for each in written
        for record in each.placed
    ]
