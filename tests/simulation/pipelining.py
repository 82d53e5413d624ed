"""An idempotent producer with several batches in flight."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.headers import decode_response, encode_request
from kbroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import Record, encode_batch

from .clients import (
    ALL,
    METADATA_REFRESH_SHARE,
    PRODUCE_MS,
    VERSIONS,
    Client,
    History,
    RequestFailed,
    Sent,
    TopicIdPartition,
    code_of,
    must,
)
from .seeded import Events

# Maximum number of batches from the oldest unacknowledged one to the newest sent one, including
# acknowledged ones: a broker recognises a retry only among the last five batches of a producer.
SENT_MAX = 5
# Maximum unacknowledged batches per partition.
QUEUED_MAX = 8
# Maximum seconds that a connection may be silent before the producer closes it.
ANSWER_SECONDS = 2.0
# Pause between two rounds, as a share of the pause of a producer with one batch in flight.
PAUSE_SHARE = 0.25


@dataclass(eq=False)
class Item:
    """A batch that is not acknowledged yet."""

    values: tuple[int, ...]
    sequence: int
    # Position among all batches of the partition.
    number: int
    in_flight: bool = False


@dataclass(eq=False)
class Lane:
    """The unacknowledged batches of one partition, in order."""

    place: TopicIdPartition
    items: deque[Item] = field(default_factory=deque)
    next_sequence: int = 0
    next_number: int = 0
    # The node that received the batches in flight.
    node: int = -1
    # A batch failed: resend nothing until all other batches in flight have a response.
    is_draining: bool = False

    @property
    def has_in_flight(self) -> bool:
        return any(item.in_flight for item in self.items)


class Pipeline:
    """A connection on which requests are sent before earlier ones have a response."""

    def __init__(self, stream: trio.abc.Stream, client_id: str) -> None:
        self._stream = stream
        self._client_id = client_id
        self._sent = 0
        self.waiting: deque[tuple[Lane, Item]] = deque()
        self.more = trio.Event()

    async def send(self, message: ProduceRequest, lane: Lane, item: Item) -> None:
        """Send a request. Raises OSError or BrokenResourceError."""
        self._sent += 1
        key, version = ApiKey.PRODUCE, VERSIONS[ApiKey.PRODUCE]
        parts: list[Any] = list(encode_request(key, version, self._sent, self._client_id, message))
        item.in_flight = True
        self.waiting.append((lane, item))
        self.more.set()
        await self._stream.send_all(b"".join(parts))

    async def receive(self) -> ProduceResponse:
        """Return the next response. Raises OSError, BrokenResourceError or TooSlowError."""
        with trio.fail_after(ANSWER_SECONDS):
            (size,) = struct.unpack(">i", await self._exactly(4))
            frame = await self._exactly(size)
        return decode_response(ProduceResponse, frame, VERSIONS[ApiKey.PRODUCE])[1]

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self._stream.receive_some(size - len(data))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            data += part
        return data

    async def aclose(self) -> None:
        """Close the connection."""
        with trio.CancelScope(shield=True):
            await self._stream.aclose()


BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


class PipeliningProducer:
    """A producer that writes to all partitions of a topic, with batches in flight on each.

    It resends each batch until it is acknowledged. No batch may get OUT_OF_ORDER_SEQUENCE_NUMBER.
    This producer never bumps its epoch. librdkafka would resend all unacknowledged batches under
    new sequences. A batch that was stored although its response was an error would then be
    duplicated.
    """

    def __init__(
        self, client: Client, history: History, events: Events, values: range, topic: str
    ) -> None:
        self.client = client
        self.stopping = False
        self.acked = 0
        self._history = history
        self._events = events
        self._values = iter(values)
        self._topic = topic
        self._producer_id = self._epoch = -1
        self._lanes: dict[TopicIdPartition, Lane] = {}
        self._pipelines: dict[int, Pipeline] = {}
        self._nursery: trio.Nursery

    async def run(self, pause: tuple[float, float]) -> None:
        """Write with pauses between rounds, until stopped and everything is acknowledged."""
        chance = self.client.chance
        async with trio.open_nursery() as self._nursery:
            while not self.stopping or any(lane.items for lane in self._lanes.values()):
                if self._producer_id < 0:
                    await self._identify()
                else:
                    await self._round()
                await trio.sleep(PAUSE_SHARE * chance.uniform(*pause))
                is_draining = any(lane.is_draining for lane in self._lanes.values())
                if is_draining or not self._lanes or chance.random() < METADATA_REFRESH_SHARE:
                    await self.client.refresh()
            self._nursery.cancel_scope.cancel()
        for pipeline in self._pipelines.values():
            await pipeline.aclose()

    async def _identify(self) -> None:
        try:
            response = await self.client.request_any(InitProducerIdRequest())
        except RequestFailed:
            return
        if not response.error_code:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch

    async def _round(self) -> None:
        for place in self.client.places():
            if place.topic_id == self.client.topics.get(self._topic):
                self._lanes.setdefault(place, Lane(place))
        lanes = list(self._lanes.values())
        if lanes and not self.stopping:
            for _ in range(self.client.chance.randint(0, 3)):
                self._add(self.client.chance.choice(lanes))
        for lane in lanes:
            await self._send_some(lane)

    def _add(self, lane: Lane) -> None:
        if len(lane.items) >= QUEUED_MAX:
            return
        values = tuple(next(self._values) for _ in range(self.client.chance.randint(1, 3)))
        for value in values:
            self._history.sent[value] = lane.place
        lane.items.append(Item(values, lane.next_sequence, lane.next_number))
        lane.next_sequence += len(values)
        lane.next_number += 1

    async def _send_some(self, lane: Lane) -> None:
        leader = self.client.leaders[lane.place].node
        if lane.has_in_flight and (lane.is_draining or leader != lane.node):
            return
        lane.is_draining = False
        if leader < 0:
            return
        lane.node = leader
        try:
            for item in [each for each in lane.items if not each.in_flight]:
                if lane.is_draining or item.number - lane.items[0].number >= SENT_MAX:
                    return
                pipeline = await self._pipeline(leader)
                self._history.attempts += 1
                await pipeline.send(self._request(lane, item), lane, item)
        except BROKEN:
            lane.is_draining = True  # the reader of this connection fails as well

    async def _pipeline(self, node: int) -> Pipeline:
        known = self._pipelines.get(node)
        if known is None:
            with trio.fail_after(ANSWER_SECONDS):
                stream = await self.client.dial(node)
            known = self._pipelines[node] = Pipeline(stream, self.client.name)
            self._nursery.start_soon(self._read, node, known)
        return known

    def _request(self, lane: Lane, item: Item) -> ProduceRequest:
        batch = encode_batch(
            [Record(None, b"%d" % value) for value in item.values],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=item.sequence,
        )
        row = ProduceRequest.Partition(index=lane.place.partition, records=batch)
        topic = ProduceRequest.Topic(topic_id=lane.place.topic_id, partition_data=[row])
        return ProduceRequest(acks=ALL, timeout_ms=PRODUCE_MS, topic_data=[topic])

    async def _read(self, node: int, pipeline: Pipeline) -> None:
        try:
            while True:
                while not pipeline.waiting:
                    pipeline.more = trio.Event()
                    await pipeline.more.wait()
                response = await pipeline.receive()
                self._take(*pipeline.waiting.popleft(), response)
        except BROKEN:
            pass
        del self._pipelines[node]
        for lane, item in pipeline.waiting:
            item.in_flight, lane.is_draining = False, True
        await pipeline.aclose()

    def _take(self, lane: Lane, item: Item, response: ProduceResponse) -> None:
        item.in_flight = False
        (found,) = response.responses[0].partition_responses
        code = code_of(found)
        label = f"{self.client.name} {lane.place} {item.values[0]}"
        self._events.note(f"{label}: {code.name} at {found.base_offset}")
        if not code:
            lane.items.remove(item)
            now = trio.current_time()
            sent = Sent(lane.place, int(found.base_offset), item.values, ALL, now)
            self._history.acked.append(sent)
            self.acked += 1
            return
        lane.is_draining = True
        bad = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH)
        must(code not in bad, f"{label}: {code.name}")
