"""A raw client for tests: any request in any version, invalid bytes, responses in order."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import trio

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.headers import decode_response, encode_request
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.topics import CreateTopicsRequest
from kbroker.protocol.records import Record, encode_batch, read_records
from kbroker.protocol.schema import ZERO_UUID

# Timeout for a response.
ANSWER_SECONDS = 60

# Special timestamps of ListOffsets.
LATEST, EARLIEST = -1, -2

# Wait time in ms that exceeds every test.
NEVER = 2**31 - 1


# Socket option that makes `close` send a reset instead of an orderly end.
RESETS_ON_CLOSE = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class ConnectionClosed(Exception):
    """The broker closed the connection."""


class Topic(NamedTuple):
    """A topic as clients know it."""

    name: str
    id: uuid.UUID = ZERO_UUID


class Wire:
    """A connection. Responses are matched with requests by order and correlation ID."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.pending: deque[tuple[int, ApiKey, int]] = deque()
        self._sent = 0

    async def send(
        self,
        key: ApiKey,
        version: int,
        message: Any,
        *,
        answered: bool = True,
        client_id: str | None = "test",
    ) -> None:
        """Send a request without waiting; `answered` is False if it gets no response."""
        await self.stream.send_all(self.frame(key, version, message, answered, client_id))

    def frame(
        self,
        key: ApiKey,
        version: int,
        message: Any,
        answered: bool = True,
        client_id: str | None = "test",
    ) -> bytes:
        """Return the bytes of a request and expect a response to it."""
        self._sent += 1
        if answered:
            self.pending.append((self._sent, key, version))
        return frame(key, version, message, client_id, self._sent)

    async def reset(self) -> None:
        """Close the connection like a crashed client."""
        self.stream.setsockopt(*RESETS_ON_CLOSE)
        await self.stream.aclose()

    async def receive(self) -> Any:
        """Return the response to the oldest pending request."""
        correlation_id, key, version = self.pending.popleft()
        frame = await self.receive_frame()
        got, response = decode_response(messages.response_class(key), frame, version)
        assert got == correlation_id, f"response {got} instead of {correlation_id}"
        return response

    async def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request and return its response."""
        await self.send(key, version, message)
        assert len(self.pending) == 1, "an earlier request has no response yet"
        return await self.receive()

    async def receive_frame(self) -> bytes:
        """Return one complete frame.

        Raises:
            ConnectionClosed: The stream has ended.
        """
        with trio.fail_after(ANSWER_SECONDS):
            (size,) = struct.unpack(">i", await self._receive(4))
            return await self._receive(size)

    async def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                more = await self.stream.receive_some(size - len(data))
            except trio.BrokenResourceError:
                more = b""
            if not more:
                raise ConnectionClosed(f"after {len(data)} of {size} bytes")
            data += more
        return bytes(data)

    async def send_bytes(self, data: bytes) -> None:
        """Send arbitrary bytes; a concurrent close of the connection is not an error."""
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(data)

    async def wait_closed(self, seconds: float = ANSWER_SECONDS) -> bytes:
        """Wait until the broker closes the connection; return what it sent before.

        Raises:
            TooSlowError: The broker does not close it.
        """
        data = b""
        with trio.fail_after(seconds):
            with suppress(trio.BrokenResourceError):
                while more := await self.stream.receive_some(65536):
                    data += more
        return data

    async def is_silent(self, seconds: float = 0.1) -> bool:
        """Return True if nothing arrives, not even the end of the stream."""
        with trio.move_on_after(seconds):
            await self.stream.receive_some(1)
            return False
        return True

    async def works(self) -> bool:
        """Return True if the broker responds to a request."""
        response = await self.ask(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
        return not response.error_code


def frame(
    key: ApiKey,
    version: int,
    message: Any,
    client_id: str | None = "test",
    correlation_id: int = 1,
) -> bytes:
    """Return the bytes of a request."""
    parts: list[Any] = list(encode_request(key, version, correlation_id, client_id, message))
    return b"".join(parts)


@asynccontextmanager
async def connected(endpoint: tuple[str, int]) -> AsyncIterator[Wire]:
    """Open a connection to a broker."""
    stream = await trio.open_tcp_stream(*endpoint)
    async with stream:
        yield Wire(stream)


def request(key: ApiKey, /, **fields: Any) -> Any:
    """Return a request with these fields, and defaults for all others."""
    return messages.request_class(key)(**fields)


async def until(condition: Callable[[], object], seconds: float = ANSWER_SECONDS) -> None:
    """Wait until `condition()` is true; fail the test after a timeout."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  # there is no event for what tests look at
            await trio.sleep(0.005)


def batch(values: Iterable[bytes | Record] = (b"x",), **settings: Any) -> bytes:
    """Return a record batch as producers send it; see `encode_batch` for `settings`."""
    now_ms = int(time.time() * 1000)
    records = [v if isinstance(v, Record) else Record(None, v, now_ms) for v in values]
    return encode_batch(records, **settings)


def sequenced(
    producer_id: int,
    sequence: int,
    values: Iterable[bytes | Record] = (b"x",),
    *,
    epoch: int = 0,
    **settings: Any,
) -> bytes:
    """Return a batch of an idempotent producer; `sequence` is that of its first record (KIP-98)."""
    return batch(
        values,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        **settings,
    )


# -- common requests


async def create_topic(
    wire: Wire, name: str, partitions: int = 1, configs: dict[str, str] | None = None
) -> Topic:
    """Create a topic; fail the test if the broker rejects it."""
    rows = [CreateTopicsRequest.Config(name=k, value=v) for k, v in (configs or {}).items()]
    topic = CreateTopicsRequest.Topic(
        name=name, num_partitions=partitions, replication_factor=-1, configs=rows
    )
    response = await wire.ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic]))
    (row,) = response.topics
    assert row.error_code == 0, row
    return Topic(name, row.topic_id)


async def delete_topic(wire: Wire, name: str) -> None:
    """Delete a topic; fail the test if the broker rejects it."""
    ask = request(ApiKey.DELETE_TOPICS, topic_names=[name])
    response = await wire.ask(ApiKey.DELETE_TOPICS, 5, ask)
    assert response.responses[0].error_code == 0, response


def produce_request(
    topic: Topic,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    """Return a request for one partition that is valid in every version."""
    row = ProduceRequest.Partition(index=partition, records=records)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequest.Topic(name=topic.name, topic_id=topic.id, partition_data=[row])],
    )


async def produce(
    wire: Wire, topic: Topic, records: bytes | None, version: int = 9, **settings: Any
) -> Any:
    """Produce to one partition and return its row of the response."""
    response = await wire.ask(ApiKey.PRODUCE, version, produce_request(topic, records, **settings))
    ((row,),) = (each.partition_responses for each in response.responses)
    return row


def fetch_request(
    topic: Topic,
    offset: int = 0,
    *,
    partitions: Iterable[int] = (0,),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    **fields: Any,
) -> FetchRequest:
    """Return a request for partitions of one topic that is valid in every version."""
    row = {k: fields.pop(k) for k in ("current_leader_epoch", "last_fetched_epoch") if k in fields}
    rows = [
        FetchRequest.Partition(
            partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes, **row
        )
        for index in partitions
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchRequest.Topic(topic=topic.name, topic_id=topic.id, partitions=rows)],
        **fields,
    )


async def fetch(
    wire: Wire, topic: Topic, offset: int = 0, version: int = 12, **settings: Any
) -> Any:
    """Fetch from one partition and return its row of the response."""
    response = await wire.ask(ApiKey.FETCH, version, fetch_request(topic, offset, **settings))
    assert response.error_code == 0, response
    ((row,),) = (each.partitions for each in response.responses)
    return row


def values_of(row: Any) -> list[bytes | None]:
    """Return the values in a row of a Fetch response."""
    return [record.value for record in read_records(row.records or b"")]


async def list_offset(
    wire: Wire, topic: Topic, timestamp: int, version: int = 7, *, partition: int = 0, **fields: Any
) -> Any:
    """Send ListOffsets for one partition and return its row of the response."""
    row = ListOffsetsRequest.Partition(
        partition_index=partition,
        timestamp=timestamp,
        current_leader_epoch=fields.pop("current_leader_epoch", -1),
        max_num_offsets=fields.pop("max_num_offsets", 1),
    )
    message = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsRequest.Topic(name=topic.name, partitions=[row])],
        **fields,
    )
    response = await wire.ask(ApiKey.LIST_OFFSETS, version, message)
    ((found,),) = (each.partitions for each in response.topics)
    return found


async def metadata(wire: Wire, names: Iterable[str] | None = None, version: int = 9) -> Any:
    """Request Metadata of the named topics (None: all) without creating topics."""
    cls: Any = messages.request_class(ApiKey.METADATA)
    rows = None if names is None else [cls.Topic(name=name) for name in names]
    ask = cls(topics=rows, allow_auto_topic_creation=False)
    return await wire.ask(ApiKey.METADATA, version, ask)
