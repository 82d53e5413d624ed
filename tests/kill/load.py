"""Producers and a consumer group that survive all kills, and a reader that verifies the result.

All clients append their requests and responses to one list of events.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import check_crc, iter_headers, read_records

from ..wire import (
    EARLIEST,
    LATEST,
    ConnectionClosed,
    Topic,
    Wire,
    connected,
    fetch,
    list_offset,
    request,
)
from .history import (
    Acked,
    Committed,
    Committing,
    Event,
    Fetched,
    Fetching,
    Place,
    Read,
    Reading,
    Sent,
)
from .server import ALONE, GROUP, KEPT, PARTITIONS, Address

with warnings.catch_warnings():
    # The import of kafka-python emits a deprecation warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

# Maximum unacknowledged records of a producer.
IN_FLIGHT_MAX = 300
BURST, PAUSE_SECONDS = 10, 0.02
VALUE_BYTES = 120
VALUES_PER_PRODUCER = 10**9
PLACES: list[Place] = [(topic, index) for topic, n in PARTITIONS.items() for index in range(n)]


class Worker:
    """A thread that stops on request and keeps its exception for the test."""

    def __init__(self, work: Callable[[Worker], None]) -> None:
        self.stopping = threading.Event()
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self)
        except Exception as error:  # noqa: BLE001  # `check` raises it again
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise AssertionError(f"a client failed: {self.error!r}") from self.error

    def wait(self) -> None:
        self._thread.join(60)

    def join(self) -> None:
        self.wait()
        assert not self._thread.is_alive(), "a client hangs"
        self.check()


class Load:
    """Idempotent producers, members of a consumer group, and a committer without membership.

    While `holding` is set, the committer pauses, so that its earlier commits can be checked. The
    group members continue from memory: their next commit would hide a lost one.

    Args:
        addresses: Addresses of the server, or of each node.
        events: The history so far; all clients append to it.
        places: The partitions that the producers write to.
    """

    # Interval of kafka-python's metadata refresh in ms.
    metadata_max_age_ms = 300_000

    def __init__(
        self, addresses: Sequence[Address], events: list[Event], places: Sequence[Place] = PLACES
    ) -> None:
        self.holding = threading.Event()
        self._addresses = addresses
        self._bootstrap = [f"{host}:{port}" for host, port in addresses]
        self._events = events
        self._places = places
        self._sent: dict[int, int] = {}
        self._acked: dict[int, int] = {}
        self._failed: list[BaseException] = []
        self._producers: list[Worker] = []
        self._members: list[Worker] = []
        self._left: list[Worker] = []
        self._abandoned = False

    @property
    def acked(self) -> int:
        """Return the number of acknowledged records."""
        return sum(self._acked.values())

    @property
    def in_flight(self) -> int:
        """Return the number of records without a response."""
        acked = self.acked  # read before `_sent`, so that the result is never negative
        return sum(self._sent.values()) - acked

    def add_producer(self) -> None:
        number = len(self._producers) + 1
        self._sent[number] = self._acked[number] = 0
        self._producers.append(Worker(partial(self._produce, number)))

    def add_member(self) -> None:
        self._members.append(Worker(self._consume))

    def add_committer(self) -> None:
        """Start the committer without membership."""
        self._members.insert(0, Worker(self._commit_standalone))

    def remove_member(self) -> None:
        """Tell the newest member to leave, and return immediately."""
        member = self._members.pop()
        member.stopping.set()
        self._left.append(member)

    def check(self) -> None:
        """Raise the error of a failed client."""
        for worker in [*self._producers, *self._members, *self._left]:
            worker.check()
        assert not self._failed, f"records failed: {self._failed[:3]}"

    def stop_producers(self) -> None:
        """Stop the producers after everything they sent is acknowledged."""
        for producer in self._producers:
            producer.stopping.set()
        for producer in self._producers:
            producer.join()
        self.check()
        assert self.in_flight == 0

    def stop_members(self) -> None:
        for member in self._members:
            member.stopping.set()
        for member in [*self._members, *self._left]:
            member.join()

    def abandon(self) -> None:
        """Stop all threads, even with unacknowledged records."""
        self._abandoned = True
        workers = [*self._producers, *self._members, *self._left]
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.wait()

    # -- threads

    def _produce(self, number: int, worker: Worker) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            delivery_timeout_ms=600_000,
            request_timeout_ms=10_000,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            retry_backoff_ms=50,
            metadata_max_age_ms=self.metadata_max_age_ms,
        )
        while not worker.stopping.is_set():
            time.sleep(PAUSE_SECONDS)
            waiting = self._sent[number] - self._acked[number]
            for _ in range(BURST if waiting < IN_FLIGHT_MAX else 0):
                self._send(producer, number)
        if not self._abandoned:
            producer.flush(60)
        producer.close(0 if self._abandoned else 10)

    def _send(self, producer: Any, number: int) -> None:
        place, value = self._next_record(number)
        future = producer.send(place[0], to_bytes(value), partition=place[1])
        future.add_callback(partial(self._on_ack, number, value))
        future.add_errback(self._failed.append)

    def _next_record(self, number: int) -> tuple[Place, int]:
        """Return the next partition and value of a producer."""
        count = self._sent[number]
        value = number * VALUES_PER_PRODUCER + count
        # Several records in a row go to one partition, so that batches have several records.
        places = self._places_of(number)
        place = places[(count // 5 + number) % len(places)]
        self._events.append(Sent(number, place, value))
        self._sent[number] += 1
        return place, value

    def _places_of(self, number: int) -> Sequence[Place]:
        """Return the partitions that a producer writes to."""
        return self._places

    def _on_ack(self, number: int, value: int, ack: Any) -> None:
        self._record_ack(number, Acked((ack.topic, ack.partition), ack.offset, value))

    def _record_ack(self, number: int, ack: Acked) -> None:
        self._events.append(ack)
        self._acked[number] += 1

    def _consume(self, worker: Worker) -> None:
        consumer = KafkaConsumer(
            KEPT,
            bootstrap_servers=self._bootstrap,
            group_id=GROUP,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=200,
            retry_backoff_ms=50,
            metadata_max_age_ms=self.metadata_max_age_ms,
        )
        while not worker.stopping.is_set():
            try:
                batches = consumer.poll(timeout_ms=100, max_records=200)
            except KafkaError:
                time.sleep(0.02)  # the server is down
                continue
            self._commit(
                consumer, {at: rows[-1].offset + 1 for at, rows in batches.items() if rows}
            )
        with suppress(KafkaError):
            consumer.close(autocommit=False, timeout_ms=5000)

    def _commit(self, consumer: Any, offsets: dict[TopicPartition, int]) -> None:
        if not offsets:
            return
        rows = [((at.topic, at.partition), offset) for at, offset in offsets.items()]
        self._events.extend(Committing(GROUP, place, offset) for place, offset in rows)
        try:
            consumer.commit({at: OffsetAndMetadata(n, "", -1) for at, n in offsets.items()})
        except KafkaError:
            return  # in doubt: the partitions may already belong to another member
        self._events.extend(Committed(GROUP, place, offset) for place, offset in rows)

    def _commit_standalone(self, worker: Worker) -> None:
        offset = 0

        async def commit() -> None:
            nonlocal offset
            async with connected(self._addresses[0]) as wire:
                await _find_coordinator(wire, ALONE)
                while not (worker.stopping.is_set() or self.holding.is_set()):
                    offset += 1
                    await self._commit_one(wire, offset)
                    await trio.sleep(0.005)

        while not worker.stopping.is_set():
            time.sleep(0.02)
            if not self.holding.is_set():
                with suppress(OSError, ConnectionClosed, trio.BrokenResourceError):
                    trio.run(commit)

    async def _commit_one(self, wire: Wire, offset: int) -> None:
        place = (KEPT, offset % PARTITIONS[KEPT])
        ask = request(ApiKey.OFFSET_COMMIT, group_id=ALONE, generation_id_or_member_epoch=-1)
        row = type(ask).Partition(partition_index=place[1], committed_offset=offset)
        ask.topics = [type(ask).Topic(name=KEPT, partitions=[row])]
        self._events.append(Committing(ALONE, place, offset))
        response = await wire.ask(ApiKey.OFFSET_COMMIT, 7, ask)
        if response.topics[0].partitions[0].error_code == 0:
            self._events.append(Committed(ALONE, place, offset))


def to_bytes(value: int) -> bytes:
    """Return the record value that encodes an integer."""
    return (b"%d;" % value).ljust(VALUE_BYTES, b".")


def from_bytes(data: bytes | None) -> int:
    return int((data or b"").split(b";")[0])


# -- verification


async def read_back(address: Address, events: list[Event], read_to: dict[Place, int]) -> None:
    """Read each partition from `read_to` to its end, and the committed offsets of the groups.

    `read_to` is advanced to the end. Everything read is appended to `events`.
    """
    async with connected(address) as wire:
        for group in (ALONE, GROUP):
            await _find_coordinator(wire, group)
            while code := await fetch_commits(wire, group, events):
                assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode(code)
                await trio.sleep(0.05)
        for place in PLACES:
            await read_partition(wire, place, events, read_to)


async def read_partition(
    wire: Wire, place: Place, events: list[Event], read_to: dict[Place, int]
) -> None:
    topic = Topic(place[0])
    events.append(Reading(place))
    end = (await list_offset(wire, topic, LATEST, partition=place[1])).offset
    while True:
        start = (await list_offset(wire, topic, EARLIEST, partition=place[1])).offset
        begin = max(read_to.get(place, 0), start)
        records = await _read_records(wire, topic, place[1], begin, end)
        if records is not None:
            break
    events.append(Read(place, start, begin, end, records))
    read_to[place] = max(begin, end)


async def _read_records(
    wire: Wire, topic: Topic, partition: int, begin: int, end: int
) -> list[tuple[int, int]] | None:
    """Return offsets and values from `begin` to `end`, or None if retention overtook the read."""
    records: list[tuple[int, int]] = []
    at = begin
    while at < end:
        row = await fetch(wire, topic, at, partitions=[partition], partition_max_bytes=1 << 18)
        if row.error_code == 1:  # OFFSET_OUT_OF_RANGE
            return None
        assert row.error_code == 0, row
        data = row.records or b""
        for position, header in iter_headers(data):
            assert check_crc(data, position, header), f"{topic.name}-{partition} at {at}: CRC"
        rows = [(each.offset, from_bytes(each.value)) for each in read_records(data)]
        if not rows or rows[-1][0] < at:
            return records  # records are missing: the checker reports a gap
        records += [each for each in rows if at <= each[0] < end]
        at = rows[-1][0] + 1
    return records


async def _find_coordinator(wire: Wire, group: str) -> None:
    ask = request(ApiKey.FIND_COORDINATOR, key=group)
    response = await wire.ask(ApiKey.FIND_COORDINATOR, 0, ask)
    assert response.error_code == 0, response


async def fetch_commits(wire: Wire, group: str, events: list[Event]) -> int:
    """Fetch the committed offsets of a group and return the error code of the response."""
    places = [place for place in PLACES if place[0] == KEPT]
    events.extend(Fetching(group, place) for place in places)
    ask = request(ApiKey.OFFSET_FETCH, group_id=group)
    indexes = [index for _, index in places]
    ask.topics = [type(ask).Topic(name=KEPT, partition_indexes=indexes)]
    response = await wire.ask(ApiKey.OFFSET_FETCH, 5, ask)
    for row in response.topics[0].partitions if response.error_code == 0 else ():
        assert row.error_code == 0, row
        events.append(Fetched(group, (KEPT, row.partition_index), row.committed_offset))
    return int(response.error_code)
