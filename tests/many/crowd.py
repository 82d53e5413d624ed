"""Many topics, partitions, groups and connections, and requests to them."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest

from ..wire import LATEST, Topic, Wire, batch, create_topic, produce, request

PARTITIONS_PER_TOPIC = 100
TOPICS_PER_REQUEST = 10
VALUE = b"v" * 100
HOT = "hot"


class Crowd:
    """`partitions` partitions of topics `crowd.N`, and `groups` groups that read some of them."""

    def __init__(self, partitions: int, groups: int) -> None:
        self.partitions = partitions
        self.groups = groups
        per_topic = min(PARTITIONS_PER_TOPIC, partitions)
        self.per_topic = per_topic
        self.names = [f"crowd.{number}" for number in range(partitions // per_topic)]
        # Number of records in each partition.
        self.records = 0

    async def create(self, wire: Wire) -> None:
        await create_topic(wire, HOT)
        for names in _chunks(self.names, TOPICS_PER_REQUEST):
            rows = [
                CreateTopicsRequest.Topic(
                    name=name, num_partitions=self.per_topic, replication_factor=-1
                )
                for name in names
            ]
            response = await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=rows))
            assert not any(row.error_code for row in response.topics), response

    async def produce(self, wire: Wire) -> None:
        """Produce one more record to each partition, with one request per topic."""
        for name in self.names:
            rows = [
                ProduceRequest.Partition(index=index, records=batch([VALUE]))
                for index in range(self.per_topic)
            ]
            ask = ProduceRequest(
                acks=-1,
                timeout_ms=30_000,
                topic_data=[ProduceRequest.Topic(name=name, partition_data=rows)],
            )
            response = await wire.ask(ApiKey.PRODUCE, 9, ask)
            rejected = [
                r for t in response.responses for r in t.partition_responses if r.error_code
            ]
            assert rejected == []
        self.records += 1

    def group(self, number: int) -> tuple[str, str, int]:
        """Return a group ID, and the topic and offset that it commits for partition 0."""
        return f"group-{number}", self.names[number % len(self.names)], number

    async def commit(self, wire: Wire) -> None:
        """Commit one offset per group."""
        await request_coordinator(wire, "group-0")
        for number in range(self.groups):
            group, name, offset = self.group(number)
            row = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset)
            topic = OffsetCommitRequest.Topic(name=name, partitions=[row])
            ask = OffsetCommitRequest(group_id=group, topics=[topic])
            await wire.send(ApiKey.OFFSET_COMMIT, 7, ask)
            if len(wire.pending) >= 100 or number == self.groups - 1:
                while wire.pending:
                    response = await wire.receive()
                    assert response.topics[0].partitions[0].error_code == 0, response

    async def check(self, wire: Wire) -> None:
        """Check that every partition has its records and every group its offset."""
        for name in self.names:
            rows = [
                ListOffsetsRequest.Partition(partition_index=index, timestamp=LATEST)
                for index in range(self.per_topic)
            ]
            ask = ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsRequest.Topic(name=name, partitions=rows)]
            )
            (response,) = (await wire.ask(ApiKey.LIST_OFFSETS, 7, ask)).topics
            assert {(row.error_code, row.offset) for row in response.partitions} == {
                (0, self.records)
            }, name
        for number in range(self.groups):
            group, name, offset = self.group(number)
            topics = [OffsetFetchRequest.Topic(name=name, partition_indexes=[0])]
            ask_group = OffsetFetchRequest(group_id=group, topics=topics)
            found = await wire.ask(ApiKey.OFFSET_FETCH, 5, ask_group)
            assert found.topics[0].partitions[0].committed_offset == offset, group

    async def follow(self, wire: Wire, partitions: int) -> float:
        """Return the median seconds of an incremental fetch without new records."""
        topics = [
            FetchRequest.Topic(
                topic=name,
                partitions=[
                    FetchRequest.Partition(
                        partition=index, fetch_offset=self.records, partition_max_bytes=1 << 20
                    )
                    for index in range(self.per_topic)
                ],
            )
            for name in self.names[: partitions // self.per_topic]
        ]
        ask = FetchRequest(max_wait_ms=0, max_bytes=1 << 20, session_epoch=0, topics=topics)
        session = (await wire.ask(ApiKey.FETCH, 12, ask)).session_id
        took = []
        for epoch in range(1, 21):
            ask = FetchRequest(
                max_wait_ms=0, max_bytes=1 << 20, session_id=session, session_epoch=epoch
            )
            seconds, response = await ask_timed(wire, ApiKey.FETCH, 12, ask)
            assert (response.error_code, response.responses) == (0, [])
            took.append(seconds)
        return statistics.median(took)

    async def delete(self, wire: Wire) -> None:
        for names in _chunks(self.names, TOPICS_PER_REQUEST):
            ask = request(ApiKey.DELETE_TOPICS, topic_names=list(names))
            response = await wire.ask(ApiKey.DELETE_TOPICS, 5, ask)
            assert not any(row.error_code for row in response.responses), response


def _chunks(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]


async def request_coordinator(wire: Wire, group: str) -> None:
    """Look up a group's coordinator, which creates the offsets topic."""
    ask = request(ApiKey.FIND_COORDINATOR, key=group)
    response = await wire.ask(ApiKey.FIND_COORDINATOR, 1, ask)
    assert response.error_code == 0, response


async def ask_timed(wire: Wire, key: ApiKey, version: int, message: Any) -> tuple[float, Any]:
    """Send a request and return the seconds until the response, and the response."""
    began = time.perf_counter()
    response = await wire.ask(key, version, message)
    return time.perf_counter() - began, response


async def all_metadata(wire: Wire) -> tuple[float, Any]:
    """Request the metadata of all topics, and return seconds and response."""
    ask = messages.request_class(ApiKey.METADATA)(topics=None, allow_auto_topic_creation=False)
    return await ask_timed(wire, ApiKey.METADATA, 9, ask)


async def ping(wire: Wire) -> float:
    """Return the seconds until a record for the hot partition is acknowledged."""
    began = time.perf_counter()
    row = await produce(wire, Topic(HOT), batch([VALUE]))
    assert row.error_code == 0, row
    return time.perf_counter() - began


async def ping_alternately(
    first: Wire, second: Wire, count: int
) -> tuple[list[float], list[float]]:
    """Ping two servers alternately, so that other load affects both equally."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(count):
        for wire, times in zip((first, second), took, strict=True):
            times.append(await ping(wire))
            await trio.sleep(0.001)
    return took


def p99_ms(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] * 1000


@asynccontextmanager
async def idle_connections(endpoint: tuple[str, int], count: int) -> AsyncIterator[None]:
    """Open connections that send one request and are then idle."""
    streams = []
    try:
        for _ in range(count):
            stream = await trio.open_tcp_stream(*endpoint)
            streams.append(stream)
            assert await Wire(stream).works()
        yield
    finally:
        for stream in streams:
            stream.socket.close()
