"""Rows with many connections, partitions, consumers and groups.

The frames are encoded in advance and sent over plain sockets, so that the load generator is cheap
and the same for all brokers.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count as naturals
from itertools import cycle, islice
from typing import Protocol, TypeAlias

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.framing import FrameReader
from kbroker.protocol.records import iter_headers
from tests.wire import Topic, batch, fetch_request, frame, produce_request

from .brokers import BenchmarkFailed, RowUnsupported
from .classic import (
    OFFSET_COMMIT_VERSION,
    OFFSET_FETCH_VERSION,
    ClassicMember,
    check,
    committed_offset,
    coordinator_ports,
    joined_members,
    wait_for_coordinator,
)
from .lines import Line, connect, decoded
from .python_client import PythonClient, timed
from .rows import COLD_BYTES, FAN_OUT_BYTES, SIZES, Sample

PRODUCE_VERSION, FETCH_VERSION = 9, 11
# Number of connections in the rows of partitions.
PARTITION_ROW_CONNECTIONS = 10
CLIENT_ID = "benchmark"
FETCH_BYTES = 1 << 20
RECEIVE_BYTES, ANSWER_BYTES_MAX = 1 << 16, 64 << 20
RECORD_BYTES = 200
DELETED_TOPICS, DELETED_PARTITIONS = 10, 100
WAIT_SECONDS = 60
# Errors that a broker may return for a new topic after it has become the leader.
_NEW_TOPIC_ERRORS = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
# Offset in an encoded request that is replaced by other offsets.
_SENTINEL = 0x1122_3344_5566_7788


# Host and port.
Address: TypeAlias = tuple[str, int]
# Returns the next frame to send, or None at the end.
NextFrame: TypeAlias = Callable[[], bytes | bytearray | None]
# Processes a response.
OnResponse: TypeAlias = Callable[[memoryview], None]
Handlers: TypeAlias = tuple[NextFrame, OnResponse]
# Requests of a connection, each of which may depend on the previous response.
Steps: TypeAlias = Generator[bytes | bytearray, memoryview, None]


class FrameQueue:
    """Frames for the partitions that one node leads; several connections send them.

    Attributes:
        address: Address of the node.
        size: Number of partitions.
    """

    def __init__(self, address: Address, frames: Sequence[bytes]) -> None:
        self.address = address
        self.size = len(frames)
        self._frames = cycle(frames)
        self._left: Iterator[bytes] = iter(())

    def refill(self, count: int) -> None:
        """Queue this number of frames."""
        self._left = islice(self._frames, count)

    def next_frame(self) -> bytes | None:
        """Return the next frame, or None at the end."""
        return next(self._left, None)


@dataclass
class Log:
    """A partition that many consumers read.

    Attributes:
        end: Log end offset.
        returned_bytes: Total bytes of batches in all responses.
    """

    topic: str
    end: int
    returned_bytes: int = 0


class OffsetFrame:
    """An encoded request with a placeholder for an offset, encoded as _SENTINEL."""

    def __init__(self, encoded: bytes) -> None:
        self._frame = bytearray(encoded)
        self._place = encoded.index(struct.pack(">q", _SENTINEL))

    def at(self, offset: int) -> bytearray:
        struct.pack_into(">q", self._frame, self._place, offset)
        return self._frame


class Stream(Protocol):
    """A connection that sends requests."""

    socket: socket.socket

    def ask(self) -> bool:
        """Send the next request; return False at the end."""

    def receive(self) -> bool:
        """Receive data and send the next request; return False at the end."""


class SequentialConnection:
    """A connection with at most one request in flight. Responses have no length prefix."""

    def __init__(self, address: Address, next_frame: NextFrame, on_response: OnResponse) -> None:
        self._next_frame = next_frame
        self._on_response = on_response
        self._frames = FrameReader(ANSWER_BYTES_MAX)
        self.socket = connect(address, WAIT_SECONDS)

    def ask(self) -> bool:
        """Send the next request; return False at the end."""
        frame = self._next_frame()
        if frame is None:
            return False
        self.socket.sendall(frame)
        return True

    def receive(self) -> bool:
        """Receive data, and send the next request after a response; return False at the end."""
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
            self._on_response(answer)
        return self.ask() if answers else True


class WireClient:
    """Client that runs rows against one broker, with topics that `client` creates."""

    def __init__(self, client: PythonClient) -> None:
        self._client = client
        self._broker = client.broker
        host, _, port = client.broker.address.partition(",")[0].rpartition(":")
        self._address = (host, int(port))

    def connections(self, count: int) -> Iterator[Sample]:
        """Send one record on each connection, wait for its ack, then send the next."""
        partitions = self._client.connection_partitions
        topic = self._client.create_topic(f"connections-{count}", partitions)
        yield from self._produce(f"connections {count}", topic, count, range(partitions))

    def partitions(self, count: int) -> Iterator[Sample]:
        """Send like `connections` over ten connections, to all partitions in turn."""
        topic = self._client.create_topic(f"partitions-{count}", count)
        try:
            yield from self._produce(
                f"partitions {count}", topic, PARTITION_ROW_CONNECTIONS, range(count)
            )
        finally:
            self._client.delete_topics([topic])

    def readers(self, count: int) -> Iterator[Sample]:
        """Read the same partition from the beginning on several connections."""
        log = self._fan_out_log("readers", count)
        yield self._fan_out(f"readers {count}", log, [read(log) for _ in range(count)])

    def groups(self, count: int) -> Iterator[Sample]:
        """Read like `readers`, each as a member of its own group that commits each response."""
        log = self._fan_out_log("groups", count)
        address = self._leader_addresses(log.topic, [0])[0]
        names = self._group_names(log.topic, count, address)
        with joined_members(self._broker, names, log.topic, address) as members:
            reading = [read_and_commit(log, member) for member in members]
            yield self._fan_out(f"groups {count}", log, reading)
            for member in members:
                if (committed := member.fetch_committed_offset()) != log.end:
                    reason = f"{member.group} committed {committed}, expected {log.end}"
                    raise BenchmarkFailed(f"{self._broker.name}: {reason}")
        self._client.delete_topics([log.topic])

    def deletion(self) -> Iterator[Sample]:
        """Send records at a constant rate while topics with many partitions are deleted."""
        topics = [
            self._client.create_topic(f"deleted-{number}", DELETED_PARTITIONS)
            for number in range(DELETED_TOPICS)
        ]
        deleting = threading.Thread(target=self._client.delete_topics, args=(topics,))
        yield from self._client.send_during("deletion", deleting)

    def cold(self) -> Iterator[Sample]:
        """Read a long log that is not in the page cache, while records are sent at a constant rate."""
        size = int(self._client.scale * COLD_BYTES)
        log = self._fill("cold", size)
        _evict_from_page_cache(str(self._broker.directory))
        seconds: list[float] = []

        def read_all() -> None:
            began = time.perf_counter()
            self._run(log.topic, [read(log)])
            seconds.append(time.perf_counter() - began)

        yield from self._client.send_during("cold", threading.Thread(target=read_all))
        yield Sample("cold read", size / seconds[0] / 1e6)
        self._client.delete_topics([log.topic])

    # -- steps of the rows

    def _produce(
        self, row: str, topic: str, connections: int, partitions: Sequence[int]
    ) -> Iterator[Sample]:
        total = int(self._client.scale * (4000 if self._broker.durable else 16_000))
        queues = self._queues(topic, partitions)[:connections]
        answers: list[bytes] = []

        senders = [
            (queue.address, (queue.next_frame, lambda answer: answers.append(bytes(answer))))
            for queue in islice(cycle(queues), connections)
        ]
        with self._open_connections(senders) as streams:
            ends_at = time.monotonic() + WAIT_SECONDS
            while not answers or _NEW_TOPIC_ERRORS & {*map(_error_of, answers)}:
                if time.monotonic() > ends_at:
                    raise RowUnsupported(f"{self._broker.name} does not lead {topic}")
                answers.clear()
                for queue in queues:
                    queue.refill(max(queue.size, connections))
                exchange_all(streams)  # use each connection and each partition once before
            for queue in queues:
                queue.refill(total // len(queues))
            with timed(self._broker) as watch:
                exchange_all(streams)
        for error in filter(None, map(_error_of, answers)):
            raise RowUnsupported(f"{self._broker.name} rejected a record with error {error}")
        sent = total // len(queues) * len(queues)
        yield Sample(row, sent / watch.seconds / 1e3, watch.cpu_seconds / sent * 1e6)

    def _queues(self, topic: str, partitions: Sequence[int]) -> list[FrameQueue]:
        """Return a queue for each node that leads partitions of a topic."""
        led: dict[Address, list[bytes]] = {}
        for partition, address in self._leader_addresses(topic, partitions).items():
            led.setdefault(address, []).append(produce_frame(topic, partition))
        return [FrameQueue(address, frames) for address, frames in led.items()]

    def _leader_addresses(self, topic: str, partitions: Sequence[int]) -> dict[int, Address]:
        """Return the address of the leader of each of these partitions."""
        if self._broker.nodes == 1:
            return dict.fromkeys(partitions, self._address)
        found = self._client.leader_addresses(topic)
        return {each: found[each] for each in partitions}

    def _group_names(self, topic: str, count: int, address: Address) -> list[str]:
        """Return names of groups that the node with an address coordinates.

        The members read and commit on one connection.
        """
        names = (f"{topic}-{number}" for number in naturals())
        if self._broker.nodes == 1:
            return [*islice(names, count)]
        found: list[str] = []
        with closing(Line(self._broker)) as line:
            wait_for_coordinator(line)
            while len(found) < count:
                some = [*islice(names, count)]
                found += [
                    name for name, port in coordinator_ports(line, some) if port == address[1]
                ]
        return found[:count]

    def _fill(self, name: str, size: int) -> Log:
        each = SIZES["10 kB"]
        return Log(self._client.fill(name, size, each), size // each)

    def _fan_out_log(self, name: str, readers: int) -> Log:
        size = int(self._client.scale * FAN_OUT_BYTES / max(readers, 10))
        return self._fill(f"{name}-{readers}", size)

    def _fan_out(self, row: str, log: Log, readers: Iterable[Steps]) -> Sample:
        with timed(self._broker) as watch:
            self._run(log.topic, readers)
        cpu = watch.cpu_seconds / (log.returned_bytes / 1e9)
        return Sample(row, log.returned_bytes / watch.seconds / 1e6, cpu)

    def _run(self, topic: str, readers: Iterable[Steps]) -> None:
        """Run all readers of a topic's first partition, each on its own connection."""
        address = self._leader_addresses(topic, [0])[0]
        with self._open_connections([(address, _handlers_of(each)) for each in readers]) as streams:
            exchange_all(streams)

    @contextmanager
    def _open_connections(
        self, handlers: Sequence[tuple[Address, Handlers]]
    ) -> Iterator[list[SequentialConnection]]:
        streams = [SequentialConnection(address, *each) for address, each in handlers]
        try:
            yield streams
        finally:
            for stream in streams:
                stream.socket.close()


def exchange_all(streams: Sequence[Stream]) -> None:
    """Send requests on all connections until each has no more requests."""
    with closing(selectors.DefaultSelector()) as selector:
        for stream in streams:
            if stream.ask():
                selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(WAIT_SECONDS)
            if not ready:
                raise BenchmarkFailed("a broker does not respond")
            for key, _ in ready:
                if not key.data.receive():
                    selector.unregister(key.fileobj)


def read(log: Log) -> Steps:
    """Read a partition from the beginning to the end."""
    fetch = _fetch_frame(log.topic)
    offset = 0
    while offset < log.end:
        offset = _count_batches(log, (yield fetch.at(offset)))


def read_and_commit(log: Log, member: ClassicMember) -> Steps:
    """Read a partition from the group's committed offset, and commit after each response."""
    fetch, commit = _fetch_frame(log.topic), _commit_frame(member)
    key, version = ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION
    answer = yield frame(key, version, member.offset_fetch_request(), CLIENT_ID)
    offset = max(committed_offset(decoded(key, version, answer)), 0)
    while offset < log.end:
        offset = _count_batches(log, (yield fetch.at(offset)))
        _check_commit((yield commit.at(offset)))


def _handlers_of(steps: Steps) -> Handlers:
    """Return the handlers that run a generator of requests."""
    upcoming = next(steps, None)

    def on_response(answer: memoryview) -> None:
        nonlocal upcoming
        try:
            upcoming = steps.send(answer)
        except StopIteration:
            upcoming = None

    return lambda: upcoming, on_response


def _count_batches(log: Log, answer: memoryview) -> int:
    """Count the bytes of a Fetch response, and return the offset after its last record."""
    last, size = _last_offset(answer)
    if not size:
        raise BenchmarkFailed(f"{log.topic} has fewer records than were sent")
    log.returned_bytes += size
    return last + 1


def _check_commit(answer: memoryview) -> None:
    response = decoded(ApiKey.OFFSET_COMMIT, OFFSET_COMMIT_VERSION, answer)
    ((row,),) = (topic.partitions for topic in response.topics)
    check(row.error_code, "OffsetCommit")


def produce_frame(topic: str, partition: int) -> bytes:
    message = produce_request(Topic(topic), batch([bytes(RECORD_BYTES)]), partition=partition)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, message, CLIENT_ID)


def _error_of(answer: bytes) -> int:
    """Return the error code in a Produce response for one partition."""
    response = decoded(ApiKey.PRODUCE, PRODUCE_VERSION, answer)
    ((row,),) = (topic.partition_responses for topic in response.responses)
    return int(row.error_code)


def _fetch_frame(topic: str) -> OffsetFrame:
    message = fetch_request(
        Topic(topic),
        _SENTINEL,
        max_wait_ms=500,
        max_bytes=FETCH_BYTES,
        partition_max_bytes=FETCH_BYTES,
    )
    return OffsetFrame(frame(ApiKey.FETCH, FETCH_VERSION, message, CLIENT_ID))


def _commit_frame(member: ClassicMember) -> OffsetFrame:
    message = member.offset_commit_request(_SENTINEL)
    return OffsetFrame(frame(ApiKey.OFFSET_COMMIT, OFFSET_COMMIT_VERSION, message, CLIENT_ID))


def _last_offset(answer: memoryview) -> tuple[int, int]:
    """Return the last offset and the size of the complete batches in a response."""
    response = decoded(ApiKey.FETCH, FETCH_VERSION, answer)
    ((row,),) = (topic.partitions for topic in response.responses)
    check(row.error_code, "Fetch")
    headers = [header for _, header in iter_headers(row.records or b"")]
    return max((each.last_offset for each in headers), default=-1), sum(
        each.size for each in headers
    )


def _evict_from_page_cache(directory: str) -> None:
    """Remove all files of a directory from the page cache."""
    os.sync()
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                descriptor = os.open(f"{parent}/{name}", os.O_RDONLY)
            except FileNotFoundError:  # the broker has deleted it in the meantime
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
