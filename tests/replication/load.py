"""Clients of three nodes: producers and readers of two libraries, members of a group."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka.cimpl import KafkaError as ConfluentError
from confluent_kafka.cimpl import KafkaException
from confluent_kafka.cimpl import TopicPartition as Assigned

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import read_records

from ..kill.history import Acked, Event, Place, Polled
from ..kill.load import (
    BURST,
    IN_FLIGHT_MAX,
    PAUSE_SECONDS,
    Load,
    Worker,
    fetch_commits,
    from_bytes,
    read_partition,
    to_bytes,
)
from ..kill.server import GROUP, Address
from ..wire import Topic, connected, fetch, request
from .cluster import PARTITIONS, PLACES, Cluster, wait_until

_MOVING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
METADATA_MS = 500
_PATIENT = {
    "topic.metadata.refresh.interval.ms": METADATA_MS,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "log_level": 0,
}


class Traffic(Load):
    """The clients of a cluster, and how long some of them waited for new leaders.

    Each producer writes to one topic: a request waits for the replicas of all its partitions.
    Clients refresh metadata often: a client that knows only one node loses the cluster with it.

    Args:
        addresses: Addresses of the nodes.
        events: The history so far. All clients append to it.
    """

    metadata_max_age_ms = METADATA_MS

    def __init__(self, addresses: Sequence[Address], events: list[Event]) -> None:
        super().__init__(addresses, events, PLACES)
        self._watch_began = 0.0
        self._watched: dict[Place, float | None] = {}
        self._late: set[int] = set()

    def add_confluent_producer(self) -> None:
        """Add a producer with librdkafka. `add_producer` adds one with kafka-python."""
        number = len(self._producers) + 1
        self._sent[number] = self._acked[number] = 0
        self._producers.append(Worker(partial(self._produce_confluent, number)))

    def add_reader(self) -> None:
        """Add a consumer that reads all partitions from the beginning until stopped."""
        name = f"reader-{len(self._members)}"
        self._members.append(Worker(partial(self._read, name)))

    def _places_of(self, number: int) -> Sequence[Place]:
        """Return the partitions of a producer. Each topic has producers of two libraries."""
        topic = list(PARTITIONS)[(number - 1) // 2 % len(PARTITIONS)]
        return [place for place in self._places if place[0] == topic]

    # -- waiting for new leaders

    def watch(self, places: Sequence[Place]) -> None:
        """Start measuring the time to the first acknowledgement in each of these partitions."""
        self._late.clear()
        self._watch_began = time.perf_counter()
        self._watched = dict.fromkeys(places)

    @property
    def waits(self) -> dict[Place, float | None]:
        """Seconds from `watch` to the first acknowledgement per partition, or None."""
        return dict(self._watched)

    def _next_record(self, number: int) -> tuple[Place, int]:
        place, value = super()._next_record(number)
        if self._watched.get(place, 0.0) is None:
            self._late.add(value)
        return place, value

    def _record_ack(self, number: int, ack: Acked) -> None:
        super()._record_ack(number, ack)
        if ack.value in self._late and self._watched.get(ack.place, 0.0) is None:
            self._watched[ack.place] = time.perf_counter() - self._watch_began

    # -- steps of the threads

    def _produce_confluent(self, number: int, worker: Worker) -> None:
        producer = Producer(
            {
                "bootstrap.servers": ",".join(self._bootstrap),
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "delivery.timeout.ms": 600_000,
                **_PATIENT,
            }
        )
        while not worker.stopping.is_set():
            producer.poll(PAUSE_SECONDS)
            waiting = self._sent[number] - self._acked[number]
            for _ in range(BURST if waiting < IN_FLIGHT_MAX else 0):
                place, value = self._next_record(number)
                producer.produce(
                    place[0],
                    to_bytes(value),
                    partition=place[1],
                    on_delivery=partial(self._on_delivery, number, value),
                )
        if self._abandoned:
            producer.purge()
        producer.flush(60)

    def _on_delivery(self, number: int, value: int, error: Any, message: Any) -> None:
        if error is None:
            place = (message.topic(), message.partition())
            self._record_ack(number, Acked(place, message.offset(), value))
        elif not self._abandoned:
            self._failed.append(KafkaException(error))

    def _read(self, name: str, worker: Worker) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": ",".join(self._bootstrap),
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                **_PATIENT,
            }
        )
        consumer.assign([Assigned(topic, index, 0) for topic, index in self._places])
        while not worker.stopping.is_set():
            given: defaultdict[Place, list[tuple[int, int]]] = defaultdict(list)
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    row = (message.offset(), from_bytes(message.value()))
                    given[message.topic(), message.partition()].append(row)
                else:
                    _check_passing(message.error())
            for place, records in given.items():
                self._events.append(Polled(name, place, records))
        consumer.close()


def _check_passing(error: Any) -> None:
    """Raise an error of the client unless it is retriable."""
    if error.code() != ConfluentError._ALL_BROKERS_DOWN and not error.retriable():
        raise KafkaException(error)


# -- reading back


def read_back(
    cluster: Cluster, events: list[Event], read_to: dict[Place, int], places: Sequence[Place]
) -> None:
    """Read each partition from its leader, starting at `read_to`, into `events`."""
    for place in places:
        trio.run(_read_from, cluster.await_leader(place), place, events, read_to)


def read_known(cluster: Cluster, events: list[Event], reader: str, place: Place) -> int:
    """Read all records that the leader returns, and return their number."""
    leader = cluster.addresses[cluster.partition_states()[place].leader - 1]
    records = trio.run(_read_known, leader, place)
    if records:
        events.append(Polled(reader, place, records))
    return len(records)


def read_commits(cluster: Cluster, events: list[Event]) -> None:
    """Read the group's committed offsets, once its coordinator has loaded them, into `events`."""
    wait_until(
        lambda: trio.run(_read_commits, cluster, events), lambda: f"{GROUP} has no coordinator"
    )


async def _read_from(
    address: Address, place: Place, events: list[Event], read_to: dict[Place, int]
) -> None:
    async with connected(address) as wire:
        await read_partition(wire, place, events, read_to)


async def _read_known(address: Address, place: Place) -> list[tuple[int, int]]:
    records: list[tuple[int, int]] = []
    async with connected(address) as wire:
        while True:
            at = records[-1][0] + 1 if records else 0
            row = await fetch(wire, Topic(place[0]), at, partitions=[place[1]], max_wait_ms=0)
            assert row.error_code == 0, row
            rows = [(each.offset, each.value) for each in read_records(row.records or b"")]
            if not rows or rows[-1][0] < at:
                return records
            records += [(offset, from_bytes(value)) for offset, value in rows if offset >= at]


async def _read_commits(cluster: Cluster, events: list[Event]) -> bool:
    ask = request(ApiKey.FIND_COORDINATOR, key=GROUP)
    async with connected(cluster.addresses[0]) as wire:
        response = await wire.ask(ApiKey.FIND_COORDINATOR, 1, ask)
    if response.error_code == 0:
        async with connected((response.host, response.port)) as wire:
            response.error_code = await fetch_commits(wire, GROUP, events)
    assert response.error_code == 0 or response.error_code in _MOVING, response
    return bool(response.error_code == 0)
