"""Clients of a simulated cluster, and what they saw."""

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
ASK_SECONDS = 1.0
PRODUCE_MS = 800
RETRY_BACKOFF_SECONDS = (0.01, 0.1)
FETCH_MS = 300
FETCH_BYTES = 64 * 1024
ALL, LEADER_ONLY = -1, 1
NEWS_SHARE = 0.2
"""How often a client asks for metadata without being told to."""
LATEST = -1
LATEST_SHARE = 0.3
"""How often a consumer asks for the latest offset after it has fetched."""


class Violation(AssertionError):
    """Something that must never be."""


def must(holds: bool, what: str) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(what)


class Place(NamedTuple):
    """One partition: the id of its topic, and its index."""

    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{str(self.topic_id)[:8]}-{self.partition}"


class Leader(NamedTuple):
    """Who leads a partition, as a client was told."""

    node: int
    epoch: int


class Sent(NamedTuple):
    """A batch that was acknowledged."""

    place: Place
    offset: int
    values: tuple[int, ...]
    acks: int
    at: float


@dataclass
class History:
    """What all clients saw together."""

    acked: list[Sent] = field(default_factory=list)
    sent: dict[int, Place] = field(default_factory=dict)
    read: dict[Place, dict[int, int]] = field(default_factory=dict)
    """The value at each offset that anybody read."""
    attempts: int = 0
    passing: set[str] = field(default_factory=set)
    """Names of topics that somebody deletes."""

    def saw(self, place: Place, offset: int, value: int) -> None:
        """Somebody read a record. One offset has one value, for ever and for all."""
        known = self.read.setdefault(place, {}).setdefault(offset, value)
        must(known == value, f"{place}: offset {offset} was {known} and is {value}")
        must(self.sent.get(value) == place, f"{place}: {value} at {offset} was never sent there")


class Failed(Exception):
    """A request that was not answered, or with an error; `code` is None where nobody answered."""

    def __init__(self, code: ErrorCode | None, why: str = "") -> None:
        super().__init__(f"{code.name if code else 'no answer'} {why}")
        self.code = code


class Client:
    """Connections to all nodes from one host, and what the metadata said."""

    def __init__(
        self, name: str, network: Network, nodes: Mapping[int, Endpoint], source: Source
    ) -> None:
        self.name = name
        self.chance = source.of("client", name)
        self.leaders: dict[Place, Leader] = {}
        self.topics: dict[str, UUID] = {}
        self._network = network
        self._nodes = nodes
        self._connections: dict[int, Connection] = {}

    async def ask(self, node: int, message: Any) -> Any:
        """The answer of one node. Raises Failed when there is none."""
        key = ApiKey(message.KEY)
        try:
            with trio.fail_after(ASK_SECONDS):
                connection = await self._connection(node)
                return await connection.request(key, VERSIONS[key], message)
        except (OSError, trio.TooSlowError, DecodeError) as error:
            await self._forget(node)
            raise Failed(None, str(error)) from error

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

    async def ask_any(self, message: Any) -> Any:
        """The answer of some node. Raises Failed."""
        return await self.ask(self.chance.choice(sorted(self._nodes)), message)

    async def refresh(self) -> None:
        """Learn who leads what, from any node; what is older than what is known is left out."""
        try:
            answer = await self.ask_any(MetadataRequest(topics=None))
        except Failed:
            return
        self.topics = {topic.name: topic.topic_id for topic in answer.topics}
        for topic in answer.topics:
            for row in topic.partitions:
                place = Place(topic.topic_id, row.partition_index)
                told = Leader(row.leader_id, row.leader_epoch)
                if told.epoch >= self.leaders.get(place, told).epoch:
                    self.leaders[place] = told

    def places(self) -> list[Place]:
        """The partitions of all topics, as far as they are known."""
        return sorted(filter(self.knows, self.leaders))

    def knows(self, place: Place) -> bool:
        """Whether the topic is there, as far as this client knows."""
        return place.topic_id in self.topics.values()

    async def pause(self) -> None:
        """Wait a little before the next try."""
        await trio.sleep(self.chance.uniform(*RETRY_BACKOFF_SECONDS))


def code_of(row: Any) -> ErrorCode:
    """The error in a part of an answer."""
    return ErrorCode(row.error_code)


class Producer:
    """Writes batches to random partitions, one after the other, until it is stopped.

    With acks=all it is idempotent and sends a batch again until it is acknowledged; else a batch
    whose fate is not known is given up.
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
        self._sequences: dict[Place, int] = {}

    async def run(self, pause: tuple[float, float]) -> None:
        """Write to all topics, with pauses between batches."""
        client = self.client
        while not self.stopping:
            places = client.places()
            if places:
                await self.write(client.chance.choice(places))
                await trio.sleep(client.chance.uniform(*pause))
            else:
                await client.pause()
            if not places or client.chance.random() < NEWS_SHARE:
                await client.refresh()

    async def write(self, place: Place) -> None:
        """Write a batch; with acks=all until it is acknowledged or its topic is gone."""
        values = tuple(next(self._values) for _ in range(self.client.chance.randint(1, 3)))
        for value in values:
            self._history.sent[value] = place
        batch = await self._batch(place, values)
        while True:
            try:
                offset = await self._send(place, batch)
            except Failed as error:
                self._events.note(f"{self.client.name} {place} {values[0]}: {error}")
                self._check_in_order(error, place)
                await self.client.pause()
                await self.client.refresh()
                if self._acks != ALL:
                    return
                if not self.client.knows(place):
                    self._begin_anew()
                    return
                continue
            sent = Sent(place, offset, values, self._acks, trio.current_time())
            self._events.note(f"{self.client.name} {place} {values} acked at {offset}")
            self._history.acked.append(sent)
            self.acked += 1
            return

    def _check_in_order(self, error: Failed, place: Place) -> None:
        """An idempotent producer with one batch on its way is never out of order."""
        bad = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH)
        must(error.code not in bad, f"{self.client.name} at {place}: {error}")

    async def _batch(self, place: Place, values: Sequence[int]) -> bytes:
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

    def _begin_anew(self) -> None:
        """Be another producer: a batch was given up, so the sequences of this one have a gap."""
        self._producer_id = -1
        self._sequences.clear()

    async def _identify(self) -> None:
        try:
            answer = await self.client.ask_any(InitProducerIdRequest())
        except Failed:
            await self.client.pause()
            return
        if answer.error_code:
            await self.client.pause()
        else:
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch

    async def _send(self, place: Place, batch: bytes) -> int:
        """Send once; returns the base offset. Raises Failed."""
        leader = self.client.leaders[place]
        if leader.node < 0:
            raise Failed(ErrorCode.LEADER_NOT_AVAILABLE)
        self._history.attempts += 1
        row = ProduceRequest.Partition(index=place.partition, records=batch)
        topic = ProduceRequest.Topic(topic_id=place.topic_id, partition_data=[row])
        answer = await self.client.ask(
            leader.node,
            ProduceRequest(acks=self._acks, timeout_ms=PRODUCE_MS, topic_data=[topic]),
        )
        (found,) = answer.responses[0].partition_responses
        if code_of(found):
            raise Failed(code_of(found))
        return int(found.base_offset)


class Consumer:
    """Reads all partitions of a topic from their start, in order, without a gap."""

    def __init__(self, client: Client, history: History, events: Events) -> None:
        self.client = client
        self.positions: dict[Place, int] = {}
        self.latest: dict[Place, int] = {}
        """What leaders said was the latest offset."""
        self._history = history
        self._events = events

    async def run(self) -> None:
        """Read for ever."""
        while True:
            await self.poll()
            if self.client.chance.random() < LATEST_SHARE:
                await self._check_latest()
            await trio.sleep(self.client.chance.uniform(0.02, 0.2))

    async def poll(self) -> None:
        """Fetch once from one of the leaders."""
        client = self.client
        led: dict[int, list[Place]] = {}
        for place in client.places():
            led.setdefault(client.leaders[place].node, []).append(place)
        if led.pop(-1, None) or not led:
            await client.pause()
            await client.refresh()
        if not led:
            return
        node = client.chance.choice(sorted(led))
        try:
            answer = await client.ask(node, self._request(led[node]))
        except Failed:
            await client.pause()
            await client.refresh()
            return
        stale = [
            self._take(row.topic_id, part) for row in answer.responses for part in row.partitions
        ]
        if answer.error_code or any(stale) or client.chance.random() < NEWS_SHARE:
            await client.pause()
            await client.refresh()

    def _request(self, places: list[Place]) -> FetchRequest:
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
        """Take what one partition answered; True when the metadata is to be asked again."""
        place = Place(topic_id, row.partition_index)
        code = code_of(row)
        if code:
            must(
                code != ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.client.name} read {place} up to {self.positions.get(place)}, now that is "
                "out of range",
            )
            return True
        for record in read_records(row.records or b""):
            self._read(place, record)
        return False

    async def _check_latest(self) -> None:
        """Ask a leader for the latest offset, which never goes back."""
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
            answer = await client.ask(leader.node, request)
        except Failed:
            return
        (found,) = answer.topics[0].partitions
        if not code_of(found) and client.topics.get(name) == place.topic_id:
            least = max(self.positions.get(place, 0), self.latest.get(place, 0))
            must(
                found.offset >= least,
                f"{client.name}: the latest offset of {place} went back from {least} to "
                f"{found.offset}, node {leader.node} says in epoch {leader.epoch}",
            )
            self.latest[place] = found.offset

    def _read(self, place: Place, record: Record) -> None:
        offset, expected = record.offset, self.positions.get(place, 0)
        if offset < expected:
            return  # a batch begins before the offset that was asked for
        must(offset == expected, f"{self.client.name}: {place} skips from {expected} to {offset}")
        assert record.value is not None
        self._history.saw(place, offset, int(record.value))
        self.positions[place] = offset + 1
