"""Rows of many connections, partitions and readers: frames that are encoded beforehand, over plain
sockets, so that the load costs next to nothing and is the same for all.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import cycle, islice
from typing import Any, Protocol, TypeAlias

from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import FrameReader
from kbroker.protocol.headers import decode_response
from kbroker.protocol.records import iter_headers
from tests.wire import Topic, batch, fetch_request, frame, produce_request

from .brokers import BenchmarkFailed, RowRefused
from .python_client import PythonClient, timed
from .rows import COLD_BYTES, FAN_OUT_BYTES, Sample

PRODUCE_VERSION, FETCH_VERSION = 9, 11
SENDING = 10
"""How many connections the rows of partitions have."""
CLIENT_ID = "benchmark"
FETCH_BYTES = 1 << 20
RECEIVE_BYTES, ANSWER_BYTES_MAX = 1 << 16, 64 << 20
RECORD_BYTES = 200
DELETED_TOPICS, DELETED_PARTITIONS = 10, 100
WAIT_SECONDS = 60
_NOT_YET = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""What a broker may say of a new topic after it has said that it leads it."""
_SENTINEL = 0x1122_3344_5566_7788
"""An offset that is looked for in an encoded request, to put others in its place."""


Following: TypeAlias = Callable[[], bytes | bytearray | None]
Answered: TypeAlias = Callable[[memoryview], None]
Handlers: TypeAlias = tuple[Following, Answered]
"""What a connection sends next, None at the end, and what is done with each answer."""


class Stream(Protocol):
    """A connection that asks."""

    socket: socket.socket

    def ask(self) -> bool:
        """Send what comes next; False when there is nothing."""

    def receive(self) -> bool:
        """Take what has come, and ask again; False at the end."""


class Asking:
    """One connection with at most one request on its way. Answers come without their length."""

    def __init__(self, address: tuple[str, int], following: Following, answered: Answered) -> None:
        self._following = following
        self._answered = answered
        self._frames = FrameReader(ANSWER_BYTES_MAX)
        self.socket = socket.create_connection(address, timeout=WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> bool:
        """Send the next request; False when there is none."""
        frame = self._following()
        if frame is None:
            return False
        self.socket.sendall(frame)
        return True

    def receive(self) -> bool:
        """Take what has come, and ask again after a whole answer; False at the end."""
        buffer = self._frames.next_buffer()
        if buffer is not None:
            size = self.socket.recv_into(buffer)
            self._frames.received(size)
        else:
            data = self.socket.recv(RECEIVE_BYTES)
            size = len(data)
            self._frames.feed(data)
        if not size:
            raise BenchmarkFailed("a broker closed a connection")
        answers = [*self._frames]
        for answer in answers:
            self._answered(answer)
        return self.ask() if answers else True


class WireClient:
    """Runs the rows against one broker, with topics that `client` makes."""

    def __init__(self, client: PythonClient) -> None:
        self._client = client
        self._broker = client.broker
        host, _, port = client.broker.address.partition(",")[0].rpartition(":")
        self._address = (host, int(port))

    def connections(self, count: int) -> Iterator[Sample]:
        """Each connection sends one record, waits for its ack, sends the next."""
        topic = self._client.create_topic(f"connections-{count}")
        yield from self._produce(f"connections {count}", topic, count, range(1))

    def partitions(self, count: int) -> Iterator[Sample]:
        """The same over ten connections, each record to the next partition."""
        topic = self._client.create_topic(f"partitions-{count}", count)
        try:
            yield from self._produce(f"partitions {count}", topic, SENDING, range(count))
        finally:
            self._client.delete_topics([topic])

    def readers(self, count: int) -> Iterator[Sample]:
        """Connections that all read the same partition from its beginning."""
        size = int(self._client.scale * FAN_OUT_BYTES / max(count, 10))
        topic = self._client.fill(f"readers-{count}", size)
        with timed(self._broker) as watch:
            taken = self._read_all(topic, size, count)
        cpu = watch.cpu_seconds / (taken / 1e9)
        yield Sample(f"readers {count}", taken / watch.seconds / 1e6, cpu)

    def deletion(self) -> Iterator[Sample]:
        """Records at a steady rate while topics of many partitions are deleted."""
        doomed = [
            self._client.create_topic(f"doomed-{number}", DELETED_PARTITIONS)
            for number in range(DELETED_TOPICS)
        ]
        deleting = threading.Thread(target=self._client.delete_topics, args=(doomed,))
        yield from self._client.beside("deletion", deleting)

    def cold(self) -> Iterator[Sample]:
        """A reader of a long log that is on the disk only, beside records at a steady rate."""
        size = int(self._client.scale * COLD_BYTES)
        topic = self._client.fill("cold", size)
        _forget(str(self._broker.folder))
        seconds: list[float] = []

        def read() -> None:
            began = time.perf_counter()
            self._read_all(topic, size, 1)
            seconds.append(time.perf_counter() - began)

        yield from self._client.beside("cold", threading.Thread(target=read))
        yield Sample("cold read", size / seconds[0] / 1e6)
        self._client.delete_topics([topic])

    # -- the parts

    def _produce(
        self, row: str, topic: str, connections: int, partitions: Sequence[int]
    ) -> Iterator[Sample]:
        total = int(self._client.scale * (4000 if self._broker.durable else 16_000))
        frames = cycle([produce_frame(topic, index) for index in partitions])
        left: Iterator[bytes] = iter(())
        answers: list[bytes] = []

        def sender() -> Handlers:
            return lambda: next(left, None), lambda answer: answers.append(bytes(answer))

        with self._connected(connections, sender) as streams:
            ends_at = time.monotonic() + WAIT_SECONDS
            while not answers or _NOT_YET & {*map(_error_of, answers)}:
                if time.monotonic() > ends_at:
                    raise RowRefused(f"{self._broker.name} does not lead {topic}")
                answers.clear()
                left = islice(frames, max(len(partitions), connections))
                until_answered(streams)  # each connection and each partition is used once before
            left = islice(frames, total)
            with timed(self._broker) as watch:
                until_answered(streams)
        for error in filter(None, map(_error_of, answers)):
            raise RowRefused(f"{self._broker.name} refuses a record with error {error}")
        yield Sample(row, total / watch.seconds / 1e3, watch.cpu_seconds / total * 1e6)

    def _read_all(self, topic: str, size: int, readers: int) -> int:
        """Read a partition with `size` bytes of values; returns how many bytes were answered."""
        taken = 0

        def reader() -> Handlers:
            asked = bytearray(_fetch_frame(topic))
            place = asked.index(struct.pack(">q", _SENTINEL))
            offset, got = 0, 0

            def following() -> bytearray | None:
                if got >= size:
                    return None
                struct.pack_into(">q", asked, place, offset)
                return asked

            def keep(answer: memoryview) -> None:
                nonlocal offset, got, taken
                last, length = _last_offset(answer)
                if not length:
                    raise BenchmarkFailed(f"{self._broker.name} has less of {topic} than was sent")
                offset, got, taken = last + 1, got + length, taken + length

            return following, keep

        with self._connected(readers, reader) as streams:
            until_answered(streams)
        return taken

    @contextmanager
    def _connected(self, count: int, make: Callable[[], Handlers]) -> Iterator[list[Asking]]:
        streams = [Asking(self._address, *make()) for _ in range(count)]
        try:
            yield streams
        finally:
            for stream in streams:
                stream.socket.close()


def until_answered(streams: Sequence[Stream]) -> None:
    """Let all of them ask until they have nothing more to ask."""
    with closing(selectors.DefaultSelector()) as selector:
        for stream in streams:
            if stream.ask():
                selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(WAIT_SECONDS)
            if not ready:
                raise BenchmarkFailed("a broker does not answer")
            for key, _ in ready:
                if not key.data.receive():
                    selector.unregister(key.fileobj)


def produce_frame(topic: str, partition: int) -> bytes:
    message = produce_request(Topic(topic), batch([bytes(RECORD_BYTES)]), partition=partition)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, message, CLIENT_ID)


def _error_of(answer: bytes) -> int:
    """What a broker said of the one partition of a Produce request."""
    cls = messages.response_class(ApiKey.PRODUCE)
    response: Any = decode_response(cls, answer, PRODUCE_VERSION)[1]
    ((row,),) = (topic.partition_responses for topic in response.responses)
    return int(row.error_code)


def _fetch_frame(topic: str) -> bytes:
    message = fetch_request(
        Topic(topic),
        _SENTINEL,
        max_wait_ms=500,
        max_bytes=FETCH_BYTES,
        partition_max_bytes=FETCH_BYTES,
    )
    return frame(ApiKey.FETCH, FETCH_VERSION, message, CLIENT_ID)


def _last_offset(answer: memoryview) -> tuple[int, int]:
    """The last offset of the batches in an answer, and how many bytes those are, whole ones only."""
    cls = messages.response_class(ApiKey.FETCH)
    response: Any = decode_response(cls, answer, FETCH_VERSION)[1]
    ((row,),) = (topic.partitions for topic in response.responses)
    if row.error_code:
        raise BenchmarkFailed(f"a fetch was refused with error {row.error_code}")
    headers = [header for _, header in iter_headers(row.records or b"")]
    return max((each.last_offset for each in headers), default=-1), sum(
        each.size for each in headers
    )


def _forget(folder: str) -> None:
    """Have the system keep nothing of these files in memory, as after a long time."""
    os.sync()
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                descriptor = os.open(f"{parent}/{name}", os.O_RDONLY)
            except FileNotFoundError:  # the broker has removed it meanwhile
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
