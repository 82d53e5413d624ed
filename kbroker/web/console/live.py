"""Records as they come, by server-sent events: who cannot keep up misses the oldest."""

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

from .answers import Refusal, json_of_rows
from .api import Api, LiveSlot
from .decoding import Seen, row
from .filters import RecordFilter
from .scan import FETCH_BYTES, Budget, Reader
from .sessions import NOT_READY, Viewer
from .topics import READ_TOPIC, numbers_of

QUEUED_MAX = 200
"""Records that wait to be sent: of more the oldest are dropped."""
SEND_SECONDS = 0.25
"""Between two events."""
WAIT_MS = 500
BEHIND_MAX = 20_000
"""Who is so many records behind goes on near the end."""
KEPT_ON = 50
"""Of a partition whose records come too fast, the newest ones: nobody could read more."""
RECORD_BYTES_MAX = 2 * 1024 * 1024
"""Size of the largest record that a stream shows with its key and value: many streams read at once."""
REST = 2
"""Length of a rest of a stream, as a multiple of the slice of work before it."""
PART_OF_TIME = 0.8
"""Of what a request may take; then the page asks again, and the stream goes on where it was."""
PLACES_MAX = 200
"""Partitions of which an event says where it is."""
RETRY_BACKOFF_SECONDS = 1
"""Time between two attempts to read a partition that cannot be read."""
UNKNOWN = -1
"""Place of a partition whose end is not known yet."""
_AWAY = (OSError, ClientError, KafkaError)


class Live:
    """Streams of records."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Where they are."""
        return [self._api.look("/topics/{topic}/live", self._live, READ_TOPIC)]

    async def _live(self, request: Request, viewer: Viewer) -> Response:
        name = request.path_params["topic"]
        if self._api.ending.is_set():
            raise Refusal(NOT_READY, "this node stops")
        slot = self._api.take_live_slot()
        record_filter = RecordFilter(name, request)
        numbers = numbers_of(request.query_params.get("partition", ""))
        chosen = await choose_partitions(viewer.cluster, name, numbers)
        schemas = await self._api.schemas(viewer)
        reader = Reader(
            viewer.cluster,
            name,
            record_filter,
            committed=False,
            schemas=schemas,
            duty_cycle=DutyCycle(rest=REST, resting=self._api.live_resting),
            record_bytes_max=RECORD_BYTES_MAX,
        )
        stream = _Stream(
            self._api, slot, viewer, name, reader, record_filter, [one[1] for one in chosen]
        )
        await stream.find_ends()
        stream.go_on_at(request.headers.get("last-event-id", ""))
        viewer.uses += 1
        return stream


class _Stream(Response):
    """One of them."""

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
        self._places = dict.fromkeys(partitions, UNKNOWN)
        self._unread = set(self._places)
        """Partitions that no task reads now."""
        self._reading: dict[int, list[int]] = {}
        """Partitions that are read now, by the node that leads them."""
        self._queue: deque[Seen] = deque(maxlen=QUEUED_MAX)
        self._dropped = 0
        self._seen = 0
        self._troubles: dict[int, str] = {}
        """Why partitions cannot be read."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream's time is over, or nobody is there."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                nursery.start_soon(_until_left, receive, nursery.cancel_scope)
                await self._tell(send)
                nursery.cancel_scope.cancel()
        finally:
            self._api.live.discard(self._slot)
            self._viewer.uses -= 1

    async def _tell(self, send: Send) -> None:
        ends_at = trio.current_time() + self._api.seconds * PART_OF_TIME
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _send(send, b"retry: 300\n\n")
        while trio.current_time() < ends_at and not self._api.ending.is_set():
            await _send(send, await self._event())
            with trio.move_on_after(SEND_SECONDS):
                await self._api.ending.wait()
        await send({"type": "http.response.body", "body": b""})

    async def _event(self) -> bytes:
        """All that waits, and where the stream is then."""
        rows, self._queue = self._queue, deque(maxlen=QUEUED_MAX)
        said = {"dropped": self._dropped, "seen": self._seen, "trouble": self._trouble()}
        self._dropped = self._seen = 0
        places = ""
        if len(self._places) <= PLACES_MAX:
            known = {index: at for index, at in self._places.items() if at != UNKNOWN}
            places = f"id: {json.dumps(known, separators=(',', ':'))}\n"
        found = (row(self._topic, each) for each in rows)
        return b"%sdata: %s\n\n" % (places.encode(), await json_of_rows(said, "records", found))

    def _trouble(self) -> str:
        """Say which partitions cannot be read; empty if all can be."""
        texts = [self._troubles[index] for index in sorted(self._troubles)]
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        return texts[0] + more if texts else ""

    def _failed(self, index: int, reason: str) -> None:
        self._troubles[index] = f"partition {index} of {self._topic} cannot be read ({reason})"

    def go_on_at(self, text: str) -> None:
        """Continue where an earlier stream ended, which its last event says in `text`."""
        self._places |= _places(text, self._places)

    async def find_ends(self) -> None:
        """Begin at the ends of the partitions whose places are not known."""
        unknown = [index for index, at in self._places.items() if at == UNKNOWN]
        for node, indexes in (await self._by_leader(unknown)).items():
            if node == NO_LEADER:
                continue
            wanted = dict.fromkeys(((self._topic, index) for index in indexes), LATEST)
            try:
                found = await list_offsets(self._cluster, wanted)
            except _AWAY as error:
                for index in indexes:
                    self._failed(index, str(error))
                continue
            for (_, index), one in found.items():
                if one.error:
                    self._failed(index, one.error.name)
                else:
                    self._places[index] = one.offset

    async def _by_leader(self, indexes: Collection[int]) -> dict[int, list[int]]:
        """Return partitions by the node that leads them, none if the cluster cannot be asked."""
        if not indexes:
            return {}
        partitions = [(self._topic, index) for index in indexes]
        try:
            owned = await by_leader(self._cluster, partitions)
        except _AWAY as error:
            for index in indexes:
                self._failed(index, str(error))
            return {}
        for _, index in owned.get(NO_LEADER, ()):
            self._failed(index, "no leader")
        return {node: [index for _, index in some] for node, some in owned.items()}

    async def _read(self) -> None:
        """Read from all leaders. A partition that cannot be read keeps its place and is tried again."""
        async with trio.open_nursery() as nursery:
            while True:
                await self.find_ends()
                known = [index for index in self._unread if self._places[index] != UNKNOWN]
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
        """Read from a leader, as long as it serves partitions."""
        indexes = self._reading[node]
        try:
            connection = await self._cluster.dial(node)
            try:
                while indexes:
                    size = await self._read_once(connection, indexes)
                    if size < FETCH_BYTES:  # else more is there already
                        await trio.sleep(SEND_SECONDS)
            finally:
                with trio.CancelScope(shield=True):
                    await connection.aclose()
                self._cluster.forget(connection)
        except _AWAY as error:
            for index in indexes:
                self._failed(index, str(error))
        finally:
            self._unread.update(self._reading.pop(node))

    async def _read_once(self, connection: Connection, indexes: list[int]) -> int:
        """Fetch once, and remove the partitions that cannot be read from `indexes`.

        Returns:
            Number of bytes of records.
        """
        offsets = {index: self._places[index] for index in indexes}
        request = self._reader.request(offsets, wait_ms=WAIT_MS)
        answer = await connection.ask(request, oldest=4, newest=TOPIC_BY_NAME)
        indexes.append(indexes.pop(0))  # the first ones fill an answer
        size = 0
        for found in answer.responses[0].partitions:
            index = found.partition_index
            try:
                if found.error_code:
                    raise KafkaError(error_code(found.error_code))
                size += len(found.records or b"")
                await self._take(index, found)
            except KafkaError as error:
                if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._places[index] = UNKNOWN
                self._failed(index, error.code.name)
                indexes.remove(index)
                self._unread.add(index)
            else:
                self._troubles.pop(index, None)
        return size

    async def _take(self, index: int, found: FetchResponse.Partition) -> None:
        behind, end = self._places[index], found.high_watermark
        if end - behind > BEHIND_MAX:
            self._places[index] = end - KEPT_ON
            self._leave_out(end - KEPT_ON - behind)
            return
        first = behind
        if self._record_filter.matches_all and end - behind > QUEUED_MAX:
            first = self._places[index] = end - KEPT_ON
            self._leave_out(first - behind)
        budget = Budget(math.inf, 1 << 62)
        async with aclosing(self._reader.wanted(found, index, first, 1 << 62, budget)) as records:
            async for at, one in records:
                self._places[index] = max(self._places[index], at)
                if one is not None:
                    self._dropped += len(self._queue) == QUEUED_MAX
                    self._queue.append(one)
        self._seen += budget.records

    def _leave_out(self, number: int) -> None:
        """So many records came too fast to be looked at."""
        self._seen += number
        self._dropped += number


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_left(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _places(text: str, known: dict[int, int]) -> dict[int, int]:
    """Where a stream was that goes on now; nothing of what makes no sense."""
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
