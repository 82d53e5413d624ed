"""Live view of records by server-sent events; slow viewers lose the oldest records."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import aclosing

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kbroker.client.connection import Connection
from kbroker.client.consumer import TOPIC_BY_NAME
from kbroker.client.errors import ClientError, error_code
from kbroker.client.list_offsets import LATEST, NO_LEADER, list_offsets
from kbroker.client.topic_details import choose_partitions
from kbroker.client.topics import by_leader
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.runtime.time_slices import DutyCycle
from kbroker.text.documents import read_json

from .answers import ApiError, serialize_rows
from .api import Api, LiveSlot
from .connected import cancel_on_disconnect
from .decoding import ShownRecord, row
from .filters import Columns, RecordFilter
from .messages import numbers_of
from .scan import FETCH_BYTES, Budget, Reader
from .sessions import NOT_READY, Viewer
from .topics import READ_TOPIC

# Maximum number of records that wait to be sent; beyond it the oldest are dropped.
QUEUED_MAX = 200
# Time between two events.
SEND_SECONDS = 0.25
# Maximum wait of a Fetch request for new records.
WAIT_MS = 500
# Lag beyond which the stream jumps to near the end of a partition.
BEHIND_MAX = 20_000
# Number of newest records that are kept on a jump.
CATCH_UP_RECORDS = 50
# Maximum size of a record that is shown with key and value: many streams read concurrently.
RECORD_BYTES_MAX = 2 * 1024 * 1024
# Length of a pause of a stream, as a multiple of the time slice before it.
REST = 2
# Fraction of the request timeout after which a stream ends; the page then reconnects and resumes.
TIME_FRACTION = 0.8
# Maximum number of partitions whose positions are part of each event.
POSITIONS_MAX = 200
# Time between two attempts to read a partition.
RETRY_BACKOFF_SECONDS = 1
# Position of a partition whose end is not known yet.
UNKNOWN = -1
_CLUSTER_ERRORS = (OSError, ClientError, KafkaError)


class Live:
    """Routes for live streams of records."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [self._api.read_route("/topics/{topic}/live", self._live, READ_TOPIC)]

    async def _live(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["topic"]
        if self._api.ending.is_set():
            raise ApiError(NOT_READY, "this node is stopping")
        slot = self._api.take_live_slot()
        record_filter = RecordFilter(name, request)
        numbers = numbers_of(request.query_params.get("partition", ""))
        chosen = await choose_partitions(viewer.cluster, name, numbers)
        schemas = await self._api.schemas(viewer)
        reader = Reader(
            viewer.cluster,
            name,
            record_filter,
            columns=Columns(name, request),
            committed=False,
            schemas=schemas,
            duty_cycle=DutyCycle(rest=REST, resting=self._api.live_resting),
            record_bytes_max=RECORD_BYTES_MAX,
        )
        stream = _Stream(
            self._api, slot, viewer, name, reader, record_filter, [one[1] for one in chosen]
        )
        await stream.find_ends()
        given = request.query_params.get("position", "")
        stream.resume_at(request.headers.get("last-event-id", given))
        viewer.uses += 1
        return stream


class _Stream(Response):
    """A live stream."""

    def __init__(
        self,
        api: Api,
        slot: LiveSlot,
        viewer: Viewer,
        topic: str,
        reader: Reader,
        record_filter: RecordFilter,
        partitions: Iterable[int],
    ) -> None:
        super().__init__(headers={"x-accel-buffering": "no"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._api = api
        self._slot = slot
        self._viewer = viewer
        self._cluster = viewer.cluster
        self._topic = topic
        self._reader = reader
        self._record_filter = record_filter
        self._positions = dict.fromkeys(partitions, UNKNOWN)
        # Partitions that no task reads at the moment.
        self._unread = set(self._positions)
        # Partitions that are being read, by leader.
        self._reading: dict[int, list[int]] = {}
        self._queue: deque[ShownRecord] = deque(maxlen=QUEUED_MAX)
        self._dropped = 0
        self._received = 0
        # Error messages by partition, for partitions that cannot be read.
        self._errors: dict[int, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the time limit, or until the viewer disconnects."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                nursery.start_soon(cancel_on_disconnect, receive, nursery.cancel_scope)
                await self._send_events(send)
                nursery.cancel_scope.cancel()
        finally:
            self._api.live.discard(self._slot)
            self._viewer.uses -= 1

    async def _send_events(self, send: Send) -> None:
        ends_at = trio.current_time() + self._api.seconds * TIME_FRACTION
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _send(send, b"retry: 300\n\n")
        while trio.current_time() < ends_at and not self._api.ending.is_set():
            await _send(send, await self._event())
            with trio.move_on_after(SEND_SECONDS):
                await self._api.ending.wait()
        await send({"type": "http.response.body", "body": b""})

    async def _event(self) -> bytes:
        """Return an event with all queued records and the positions after them."""
        rows = sorted(self._queue, key=lambda it: (it.record.timestamp, it.partition))
        self._queue.clear()
        fields = {
            "dropped": self._dropped,
            "received": self._received,
            "problem": self._error_text(),
        }
        self._dropped = self._received = 0
        event_id = ""
        if len(self._positions) <= POSITIONS_MAX:
            known = {index: at for index, at in self._positions.items() if at != UNKNOWN}
            event_id = f"id: {json.dumps(known, separators=(',', ':'))}\n"
        found = (row(self._topic, each) for each in rows)
        return b"%sdata: %s\n\n" % (
            event_id.encode(),
            await serialize_rows(fields, "records", found),
        )

    def _error_text(self) -> str:
        """Return the first error and the number of others; empty if all partitions can be read."""
        texts = [self._errors[index] for index in sorted(self._errors)]
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        return texts[0] + more if texts else ""

    def _mark_failed(self, index: int, reason: str) -> None:
        self._errors[index] = f"partition {index} of {self._topic}: cannot be read ({reason})"

    def resume_at(self, text: str) -> None:
        """Continue at the positions of an earlier stream's last event ID."""
        self._positions |= _parse_positions(text, self._positions)

    async def find_ends(self) -> None:
        """Start at the end of the partitions whose positions are unknown."""
        unknown = [index for index, at in self._positions.items() if at == UNKNOWN]
        for node, indexes in (await self._by_leader(unknown)).items():
            if node == NO_LEADER:
                continue
            wanted = dict.fromkeys(((self._topic, index) for index in indexes), LATEST)
            try:
                found = await list_offsets(self._cluster, wanted)
            except _CLUSTER_ERRORS as error:
                for index in indexes:
                    self._mark_failed(index, str(error))
                continue
            for (_, index), one in found.items():
                if one.error:
                    self._mark_failed(index, one.error.name)
                else:
                    self._positions[index] = one.offset

    async def _by_leader(self, indexes: Collection[int]) -> dict[int, list[int]]:
        """Group partitions by leader; empty if the cluster is unreachable."""
        if not indexes:
            return {}
        partitions = [(self._topic, index) for index in indexes]
        try:
            owned = await by_leader(self._cluster, partitions)
        except _CLUSTER_ERRORS as error:
            for index in indexes:
                self._mark_failed(index, str(error))
            return {}
        for _, index in owned.get(NO_LEADER, ()):
            self._mark_failed(index, "no leader")
        return {node: [index for _, index in some] for node, some in owned.items()}

    async def _read(self) -> None:
        """Read from all leaders; retry partitions that cannot be read."""
        async with trio.open_nursery() as nursery:
            while True:
                await self.find_ends()
                known = [index for index in self._unread if self._positions[index] != UNKNOWN]
                for node, indexes in (await self._by_leader(known)).items():
                    if node == NO_LEADER:
                        continue
                    self._unread.difference_update(indexes)
                    if node in self._reading:
                        self._reading[node] += indexes
                    else:
                        self._reading[node] = indexes
                        nursery.start_soon(self._read_from, node)
                await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _read_from(self, node: int) -> None:
        """Read from one leader as long as it leads partitions."""
        indexes = self._reading[node]
        try:
            connection = await self._cluster.dial(node)
            try:
                while indexes:
                    size = await self._read_once(connection, indexes)
                    if size < FETCH_BYTES:  # a full response means that more is available
                        await trio.sleep(SEND_SECONDS)
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
        except _CLUSTER_ERRORS as error:
            for index in indexes:
                self._mark_failed(index, str(error))
        finally:
            self._unread.update(self._reading.pop(node))

    async def _read_once(self, connection: Connection, indexes: list[int]) -> int:
        """Fetch once; remove the partitions that cannot be read from `indexes`.

        Returns:
            Number of bytes of records.
        """
        offsets = {index: self._positions[index] for index in indexes}
        request = self._reader.request(offsets, wait_ms=WAIT_MS, committed=False)
        answer = await connection.ask(request, oldest=4, newest=TOPIC_BY_NAME)
        self._reader.duty_cycle.restart()
        indexes.append(indexes.pop(0))  # rotate: the first partitions may fill a response
        size = 0
        for found in answer.responses[0].partitions:
            index = found.partition_index
            try:
                if found.error_code:
                    raise KafkaError(error_code(found.error_code))
                size += len(found.records or b"")
                await self._add_matches(index, found)
            except KafkaError as error:
                if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._positions[index] = UNKNOWN
                self._mark_failed(index, error.code.name)
                indexes.remove(index)
                self._unread.add(index)
            else:
                self._errors.pop(index, None)
        return size

    async def _add_matches(self, index: int, found: FetchResponse.Partition) -> None:
        behind, end = self._positions[index], found.high_watermark
        if end - behind > BEHIND_MAX:
            self._positions[index] = end - CATCH_UP_RECORDS
            self._skip(end - CATCH_UP_RECORDS - behind)
            return
        first = behind
        if self._record_filter.matches_all and end - behind > QUEUED_MAX:
            first = self._positions[index] = end - CATCH_UP_RECORDS
            self._skip(first - behind)
        budget = Budget(math.inf, 1 << 62)
        async with aclosing(self._reader.matches(found, index, first, 1 << 62, budget)) as records:
            async for at, one in records:
                self._positions[index] = max(self._positions[index], at)
                if one is not None:
                    self._dropped += len(self._queue) == QUEUED_MAX
                    self._queue.append(one)
        self._received += budget.records

    def _skip(self, number: int) -> None:
        """Count records that are skipped because they arrive too fast."""
        self._received += number
        self._dropped += number


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _parse_positions(text: str, known: dict[int, int]) -> dict[int, int]:
    """Parse the positions of an earlier stream; ignore invalid positions."""
    try:
        found = read_json(text) if text else {}
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        index: offset
        for index in known
        if type(offset := found.get(str(index))) is int
        and offset >= 0
        and (offset <= known[index] or known[index] == UNKNOWN)
    }
