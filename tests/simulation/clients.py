"""Producers and consumers of a simulated cluster, and the history that they record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import trio

from kbroker.client.connection import Connection
from kbroker.client.endpoint import Endpoint
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import DecodeError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.protocol.records import Record, encode_batch, read_records

from .network import Network
from .seeded import Events, Source

VERSIONS = {
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 17,
    ApiKey.METADATA: 13,
    ApiKey.INIT_PRODUCER_ID: 5,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.LIST_OFFSETS: 10,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ELECT_LEADERS: 2,
}
REQUEST_SECONDS = 1.0
PRODUCE_MS = 800
RETRY_BACKOFF_SECONDS = (0.01, 0.1)
FETCH_MS = 300
FETCH_BYTES = 64 * 1024
ALL, LEADER_ONLY = -1, 1
# Probability that a client refreshes its metadata without an error.
METADATA_REFRESH_SHARE = 0.2
LATEST = -1
# Probability that a consumer checks the latest offset after a fetch.
LATEST_SHARE = 0.3


class Violation(AssertionError):
    """A broken invariant."""


def must(holds: bool, message: str) -> None:
    """Raise Violation unless the condition holds."""
    if not holds:
        raise Violation(message)


class TopicIdPartition(NamedTuple):
    """A partition: its topic ID and index."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{str(self.topic_id)[:8]}-{self.partition}"


class Leader(NamedTuple):
    """The leader of a partition according to a client's metadata."""

    node: int
    epoch: int


class Sent(NamedTuple):
    """An acknowledged batch."""

    place: TopicIdPartition
    offset: int
    values: tuple[int, ...]
    acks: int
    at: float


@dataclass
class History:
    """The observations of all clients."""

    acked: list[Sent] = field(default_factory=list)
    sent: dict[int, TopicIdPartition] = field(default_factory=dict)
    # The value at each offset that a consumer has read.
    read: dict[TopicIdPartition, dict[int, int]] = field(default_factory=dict)
    attempts: int = 0
    # Names of topics that the nemesis deletes.
    passing: set[str] = field(default_factory=set)

    def record_read(self, place: TopicIdPartition, offset: int, value: int) -> None:
        """Record a read value, and check that its offset never has another value."""
        known = self.read.setdefault(place, {}).setdefault(offset, value)
        must(known == value, f"{place}: offset {offset} was {known} and is {value}")
        must(self.sent.get(value) == place, f"{place}: {value} at {offset} was never sent there")


class RequestFailed(Exception):
    """A request without a response, or with an error; without a response `code` is None."""

    def __init__(self, code: ErrorCode | None, why: str = "") -> None:
        super().__init__(f"{code.name if code else 'no response'} {why}")
        self.code = code


class Client:
    """Connections from one host to all nodes, and the cached metadata."""

    def __init__(
        self, name: str, network: Network, nodes: Mapping[int, Endpoint], source: Source
    ) -> None:
        self.name = name
        self.chance = source.of("client", name)
        self.leaders: dict[TopicIdPartition, Leader] = {}
        self.topics: dict[str, UUID] = {}
        self._network = network
        self._nodes = nodes
        self._connections: dict[int, Connection] = {}

    async def request(self, node: int, message: Any) -> Any:
        """Send a request to a node and return the response. Raises RequestFailed."""
        key = ApiKey(message.KEY)
        try:
            with trio.fail_after(REQUEST_SECONDS):
                connection = await self._connection(node)
                return await connection.request(key, VERSIONS[key], message)
        except (OSError, trio.TooSlowError, DecodeError) as error:
            await self._forget(node)
            raise RequestFailed(None, str(error)) from error

    async def _connection(self, node: int) -> Connection:
        known = self._connections.get(node)
        if known is None or known.broken:
            known = Connection(await self._network.dial(self.name, self._nodes[node]), self.name)
            self._connections[node] = known
        return known

    async def dial(self, node: int) -> trio.abc.Stream:
        """Open another connection to a node. Raises OSError."""
        return await self._network.dial(self.name, self._nodes[node])

    async def _forget(self, node: int) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            with trio.CancelScope(shield=True):
                await connection.aclose()

    async def request_any(self, message: Any) -> Any:
        """Send a request to a random node and return the response. Raises RequestFailed."""
        return await self.request(self.chance.choice(sorted(self._nodes)), message)

    async def refresh(self) -> None:
        """Update the known leaders from a random node; ignore older leader epochs."""
        try:
            response = await self.request_any(MetadataRequest(topics=None))
        except RequestFailed:
            return
        self.topics = {topic.name: topic.topic_id for topic in response.topics}
        for topic in response.topics:
            for row in topic.partitions:
                place = TopicIdPartition(topic.topic_id, row.partition_index)
                leader = Leader(row.leader_id, row.leader_epoch)
                if leader.epoch >= self.leaders.get(place, leader).epoch:
                    self.leaders[place] = leader

    def places(self) -> list[TopicIdPartition]:
        """Return the partitions of all known topics."""
        return sorted(filter(self.knows, self.leaders))

    def knows(self, place: TopicIdPartition) -> bool:
        """Return True if the topic exists in this client's metadata."""
        return place.topic_id in self.topics.values()

    async def pause(self) -> None:
        """Wait for the retry backoff."""
        await trio.sleep(self.chance.uniform(*RETRY_BACKOFF_SECONDS))


def code_of(row: Any) -> ErrorCode:
    """Return the error code of a part of a response."""
    return ErrorCode(row.error_code)


class Producer:
    """A producer that writes batches to random partitions, one at a time, until stopped.

    With acks=all the producer is idempotent and resends a batch until it is acknowledged.
    With acks=1 it abandons a batch whose outcome is unknown.
    """

    def __init__(
        self, client: Client, history: History, events: Events, values: range, acks: int
    ) -> None:
        self.client = client
        self.stopping = False
        self.acked = 0
        self._history = history
        self._events = events
        self._values = iter(values)
        self._acks = acks
        self._producer_id = -1
        self._epoch = -1
        self._sequences: dict[TopicIdPartition, int] = {}

    async def run(self, pause: tuple[float, float]) -> None:
        """Write to all topics, with a random pause of `pause` seconds between batches."""
        client = self.client
        while not self.stopping:
            places = client.places()
            if places:
                await self.write(client.chance.choice(places))
                await trio.sleep(client.chance.uniform(*pause))
            else:
                await client.pause()
            if not places or client.chance.random() < METADATA_REFRESH_SHARE:
                await client.refresh()

    async def write(self, place: TopicIdPartition) -> None:
        """Write a batch; with acks=all until it is acknowledged or its topic is deleted."""
        values = tuple(next(self._values) for _ in range(self.client.chance.randint(1, 3)))
        for value in values:
            self._history.sent[value] = place
        batch = await self._batch(place, values)
        while True:
            try:
                offset = await self._send(place, batch)
            except RequestFailed as error:
                self._events.note(f"{self.client.name} {place} {values[0]}: {error}")
                self._check_in_order(error, place)
                await self.client.pause()
                await self.client.refresh()
                if self._acks != ALL:
                    return
                if not self.client.knows(place):
                    self._reset_producer()
                    return
                continue
            sent = Sent(place, offset, values, self._acks, trio.current_time())
            self._events.note(f"{self.client.name} {place} {values} acked at {offset}")
            self._history.acked.append(sent)
            self.acked += 1
            return

    def _check_in_order(self, error: RequestFailed, place: TopicIdPartition) -> None:
        """Check that a producer with one batch in flight gets no sequence or epoch error."""
        bad = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH)
        must(error.code not in bad, f"{self.client.name} at {place}: {error}")

    async def _batch(self, place: TopicIdPartition, values: Sequence[int]) -> bytes:
        records = [Record(None, b"%d" % value) for value in values]
        if self._acks != ALL:
            return encode_batch(records)
        while self._producer_id < 0:
            await self._identify()
        first = self._sequences.get(place, 0)
        self._sequences[place] = first + len(values)
        return encode_batch(
            records,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=first,
        )

    def _reset_producer(self) -> None:
        """Drop the producer ID: the abandoned batch leaves a gap in its sequences."""
        self._producer_id = -1
        self._sequences.clear()

    async def _identify(self) -> None:
        try:
            response = await self.client.request_any(InitProducerIdRequest())
        except RequestFailed:
            await self.client.pause()
            return
        if response.error_code:
            await self.client.pause()
        else:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch

    async def _send(self, place: TopicIdPartition, batch: bytes) -> int:
        """Send the batch once and return its base offset. Raises RequestFailed."""
        leader = self.client.leaders[place]
        if leader.node < 0:
            raise RequestFailed(ErrorCode.LEADER_NOT_AVAILABLE)
        self._history.attempts += 1
        row = ProduceRequest.Partition(index=place.partition, records=batch)
        topic = ProduceRequest.Topic(topic_id=place.topic_id, partition_data=[row])
        response = await self.client.request(
            leader.node,
            ProduceRequest(acks=self._acks, timeout_ms=PRODUCE_MS, topic_data=[topic]),
        )
        (found,) = response.responses[0].partition_responses
        if code_of(found):
            raise RequestFailed(code_of(found))
        return int(found.base_offset)


class Consumer:
    """A consumer that reads all partitions from their start and checks for gaps."""

    def __init__(self, client: Client, history: History, events: Events) -> None:
        self.client = client
        self.positions: dict[TopicIdPartition, int] = {}
        # The last latest offset that a leader returned.
        self.latest: dict[TopicIdPartition, int] = {}
        self._history = history
        self._events = events

    async def run(self) -> None:
        """Fetch in a loop until cancelled."""
        while True:
            await self.poll()
            if self.client.chance.random() < LATEST_SHARE:
                await self._check_latest()
            await trio.sleep(self.client.chance.uniform(0.02, 0.2))

    async def poll(self) -> None:
        """Fetch once from one of the leaders."""
        client = self.client
        led: dict[int, list[TopicIdPartition]] = {}
        for place in client.places():
            led.setdefault(client.leaders[place].node, []).append(place)
        if led.pop(-1, None) or not led:
            await client.pause()
            await client.refresh()
        if not led:
            return
        node = client.chance.choice(sorted(led))
        try:
            response = await client.request(node, self._request(led[node]))
        except RequestFailed:
            await client.pause()
            await client.refresh()
            return
        stale = [
            self._take(row.topic_id, part) for row in response.responses for part in row.partitions
        ]
        if response.error_code or any(stale) or client.chance.random() < METADATA_REFRESH_SHARE:
            await client.pause()
            await client.refresh()

    def _request(self, places: list[TopicIdPartition]) -> FetchRequest:
        rows = [
            FetchRequest.Partition(
                partition=place.partition,
                current_leader_epoch=self.client.leaders[place].epoch,
                fetch_offset=self.positions.get(place, 0),
                partition_max_bytes=FETCH_BYTES,
            )
            for place in places
        ]
        topics = [
            FetchRequest.Topic(topic_id=place.topic_id, partitions=[row])
            for place, row in zip(places, rows, strict=True)
        ]
        return FetchRequest(max_wait_ms=FETCH_MS, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)

    def _take(self, topic_id: UUID, row: Any) -> bool:
        """Process the response of one partition; return True if the metadata may be stale."""
        place = TopicIdPartition(topic_id, row.partition_index)
        code = code_of(row)
        if code:
            must(
                code != ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.client.name} read {place} up to {self.positions.get(place)}, which is now "
                "out of range",
            )
            return True
        for record in read_records(row.records or b""):
            self._read(place, record)
        return False

    async def _check_latest(self) -> None:
        """Check that the latest offset that a leader returns never decreases."""
        client = self.client
        led = [each for each in client.places() if client.leaders[each].node >= 0]
        if not led:
            return
        place = client.chance.choice(led)
        leader = client.leaders[place]
        row = ListOffsetsRequest.Partition(
            partition_index=place.partition, current_leader_epoch=leader.epoch, timestamp=LATEST
        )
        name = next(name for name, each in client.topics.items() if each == place.topic_id)
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsRequest.Topic(name=name, partitions=[row])]
        )
        try:
            response = await client.request(leader.node, request)
        except RequestFailed:
            return
        (found,) = response.topics[0].partitions
        if not code_of(found) and client.topics.get(name) == place.topic_id:
            least = max(self.positions.get(place, 0), self.latest.get(place, 0))
            must(
                found.offset >= least,
                f"{client.name}: the latest offset of {place} went back from {least} to "
                f"{found.offset} on node {leader.node} in epoch {leader.epoch}",
            )
            self.latest[place] = found.offset

    def _read(self, place: TopicIdPartition, record: Record) -> None:
        offset, expected = record.offset, self.positions.get(place, 0)
        if offset < expected:
            return  # a batch may begin before the fetch offset
        must(offset == expected, f"{self.client.name}: {place} skips from {expected} to {offset}")
        assert record.value is not None
        self._history.record_read(place, offset, int(record.value))
        self.positions[place] = offset + 1
