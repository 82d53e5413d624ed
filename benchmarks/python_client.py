"""Rows measured with confluent-kafka (librdkafka), with the same client process for all brokers."""

from __future__ import annotations

import random
import statistics
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from .brokers import BenchmarkFailed, Broker, RowUnsupported
from .rows import BULK_BYTES, COMPRESSED_BYTES, JOINING, ROWS, SIZES, Sample

WAIT_SECONDS = 60
# Timeout for creating a topic with 10,000 partitions.
CREATE_SECONDS = 300
# Partitions per request: Kafka rejects 10,000 at once.
CREATED_AT_ONCE = 5000
# Bytes that are sent before waiting, limited by the client's queue.
FILL_BYTES = 500_000_000
TOPICS = 15
PING_BYTES = 200
TEXTS = 1000
CUSTOMERS = ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Alan Turing")
RECORDS_IN_TRANSACTION = 10
WARM_BYTES = 10_000_000
# Settings for one record per request.
UNBATCHED = {"linger.ms": 0, "batch.num.messages": 1}
RATE = 1000
RATE_SECONDS = 6
# librdkafka logs every connection that a stopping broker closes.
QUIET = {"log_level": 2}
# Queue limits above what a row sends, so that only the broker can slow the client down.
UNBOUNDED = {"queue.buffering.max.messages": 0, "queue.buffering.max.kbytes": 2_147_483_647}
# By default, the client pauses for a second when the broker is faster than the consumer.
PREFETCH = {"fetch.queue.backoff.ms": 1}
_SENT_AT = struct.Struct(">q")


class Stopwatch:
    """Wall time and CPU time of the broker for a `with` block."""

    seconds = cpu_seconds = 0.0


@contextmanager
def timed(broker: Broker) -> Iterator[Stopwatch]:
    """Measure a block."""
    watch = Stopwatch()
    cpu, began = broker.cpu_seconds(), time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - began
    watch.cpu_seconds = broker.cpu_seconds() - cpu


class PythonClient:
    """Client that runs rows against one broker.

    Args:
        broker: The broker.
        scale: Factor for the number of records.
        tag: Suffix of all topics, groups and transactional IDs, so that a repeated row starts
            empty.

    Attributes:
        connection_partitions: Number of partitions in the rows of connections.
    """

    def __init__(self, broker: Broker, scale: float, tag: str) -> None:
        self.broker = broker
        self.scale = scale
        self.connection_partitions = 1
        self._tag = tag
        self._common: dict[str, Any] = {
            "bootstrap.servers": broker.address,
            **broker.client,
            **QUIET,
        }
        self._admin = AdminClient(self._common)

    def warm_up(self, seconds: float) -> None:
        """Run the load of the rows for a while, so that a JVM compiles the code."""
        topics = {size: self.create_topic(f"warm-{size}") for size in SIZES.values()}
        alone = self.create_topic("warm-alone")
        ends = time.monotonic() + seconds
        while True:
            for size, topic in topics.items():
                self._produce(topic, [bytes(size)], WARM_BYTES // size)
                self._consume(topic, WARM_BYTES // size)
            self._produce(alone, [bytes(PING_BYTES)], 2000, **UNBATCHED)
            self._exchange(alone, 200)
            if time.monotonic() >= ends:
                break

    def create_topics(self) -> Iterator[Sample]:
        seconds = []
        for number in range(TOPICS):
            began = time.perf_counter()
            self.create_topic(f"topic-{number}")
            seconds.append(time.perf_counter() - began)
        yield Sample("create topic", statistics.median(seconds) * 1e3)

    def join(self) -> Iterator[Sample]:
        """Measure a new group from the subscription of its first member to its first record."""
        topic = self.create_topic("join")
        self._send_one(topic)
        consumer = self._consumer(topic)
        began = time.perf_counter()
        consumer.subscribe([topic])
        _next(consumer)
        yield Sample("join", (time.perf_counter() - began) * 1e3)
        consumer.close()

    def bulk(self, name: str) -> Iterator[Sample]:
        """Produce at maximum speed, then consume the same records."""
        size = SIZES[name]
        count = int(self.scale * BULK_BYTES[name] / size)
        topic = self.create_topic(f"bulk-{size}")
        watch = self._produce(topic, [bytes(size)], count)
        yield _throughput(f"produce {name}", watch, count, size)
        yield _throughput(f"consume {name}", self._consume(topic, count), count, size)

    def compressed(self, codec: str) -> Iterator[Sample]:
        """Run `bulk` with text that the client compresses."""
        size = SIZES["1 kB"]
        count = int(self.scale * COMPRESSED_BYTES / size)
        topic = self.create_topic(codec)
        watch = self._produce(topic, _texts(size), count, **{"compression.type": codec})
        yield _throughput(f"produce {codec}", watch, count, size)
        yield _throughput(f"consume {codec}", self._consume(topic, count), count, size)

    def idempotent(self) -> Iterator[Sample]:
        """Produce like `bulk` with an idempotent producer."""
        size = SIZES["1 kB"]
        count = int(self.scale * BULK_BYTES["1 kB"] / size)
        topic = self.create_topic("idempotent")
        watch = self._produce(topic, [bytes(size)], count, **{"enable.idempotence": True})
        yield _throughput("idempotent", watch, count, size)

    def join_many(self) -> Iterator[Sample]:
        """Subscribe all members of a new group at once, until each has a partition."""
        topic = self.create_topic("join-many", JOINING)
        members = [self._consumer(topic) for _ in range(JOINING)]
        deadline = time.monotonic() + WAIT_SECONDS
        began = time.perf_counter()
        for member in members:
            member.subscribe([topic])
        while any(len(member.assignment()) != 1 for member in members):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self.broker.name}: {JOINING} members got no partitions")
            for member in members:
                member.poll(0)
            time.sleep(0.005)
        yield Sample("join many", time.perf_counter() - began)
        with ThreadPoolExecutor(JOINING) as pool:
            for _ in pool.map(Consumer.close, members):
                pass

    def ping(self) -> Iterator[Sample]:
        """Send one record, wait for its ack, then send the next."""
        count = int(self.scale * (1500 if self.broker.durable else 4000))
        topic = self.create_topic("ping")
        with timed(self.broker) as watch:
            seconds = self._exchange(topic, count)
        cpu = watch.cpu_seconds / count * 1e6
        yield Sample("ping p50", statistics.median(seconds) * 1e6, cpu)
        yield Sample("ping p99", _quantile(seconds, 0.99) * 1e6, cpu)

    def pipelined(self) -> Iterator[Sample]:
        """Send one record per request with many requests in flight, then consume all."""
        count = int(self.scale * (8000 if self.broker.durable else 40_000))
        topic = self.create_topic("pipelined")
        watch = self._produce(topic, [bytes(PING_BYTES)], count, **UNBATCHED)
        yield Sample("pipelined", count / watch.seconds / 1e3, watch.cpu_seconds / count * 1e6)
        watch = self._consume(topic, count)
        yield Sample("tiny batches", count / watch.seconds / 1e3, watch.cpu_seconds / count * 1e6)

    def produce_at_rate(self) -> Iterator[Sample]:
        """Send single records at a constant rate; measure the time from send to ack."""
        topic = self.create_topic("produce-at-rate")
        seconds: list[float] = []
        with timed(self.broker) as watch:
            self._send_at_rate(topic, seconds)
        yield from _quantiles("produce at rate", seconds, watch)

    def receive_at_rate(self) -> Iterator[Sample]:
        """Send single records at a constant rate; measure the time from send to receive."""
        topic = self.create_topic("receive-at-rate")
        consumer = self._consumer(topic)
        consumer.subscribe([topic])
        self._send_one(topic)
        _next(consumer)
        seconds: list[float] = []
        count = int(self.scale * RATE_SECONDS * RATE)
        reader = threading.Thread(target=_receive, args=(consumer, count, seconds))
        with timed(self.broker) as watch:
            reader.start()
            self._send_at_rate(topic, [])
            reader.join()
        consumer.close()
        yield from _quantiles("receive at rate", seconds, watch)

    def transactions(self, producers: int) -> Iterator[Sample]:
        """Commit transactions of ten records, one after the other in each producer."""
        topic = self.create_topic(f"transactions-{producers}")
        each = max(int(self.scale * (200 if self.broker.durable else 600) / producers), 1)
        ready = [
            self._producer(**{"transactional.id": f"{topic}-{number}"})
            for number in range(producers)
        ]
        for producer in ready:
            producer.init_transactions(WAIT_SECONDS)
            _commit(producer, topic)
        with timed(self.broker) as watch, ThreadPoolExecutor(producers) as pool:
            for _ in pool.map(lambda producer: _commit(producer, topic, each), ready):
                pass
        count = each * producers
        cpu = watch.cpu_seconds / count * 1e3
        yield Sample(f"transactions {producers}", count / watch.seconds, cpu)

    def send_during(self, row: str, work: threading.Thread) -> Iterator[Sample]:
        """Send single records at a constant rate while `work` runs; measure the p99 of the acks."""
        topic = self.create_topic(f"beside-{row}")
        seconds: list[float] = []
        work.start()
        while not seconds or work.is_alive():
            self._send_at_rate(topic, seconds)
        work.join()
        yield Sample(row, _quantile(seconds, 0.99) * 1e3)

    # -- steps of the rows

    def fill(self, name: str, size: int, each: int = SIZES["10 kB"]) -> str:
        """Create a topic and fill it with `size` bytes of values, in records of `each` bytes."""
        topic = self.create_topic(name)
        left = size // each
        while left > 0:
            count = min(left, FILL_BYTES // each)
            self._produce(topic, [bytes(each)], count)
            left -= count
        return topic

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics, one after the other."""
        for topic in topics:
            self._admin.delete_topics([topic])[topic].result(WAIT_SECONDS)

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Create a topic and wait until each partition has a leader; return its full name.

        Raises:
            RowRefused: The broker rejected the topic.
        """
        topic = f"{name}-{self._tag}"
        first, *more = [*range(CREATED_AT_ONCE, partitions, CREATED_AT_ONCE), partitions]
        try:
            self._admin.create_topics([NewTopic(topic, first)])[topic].result(CREATE_SECONDS)
            for total in more:
                grown = self._admin.create_partitions([NewPartitions(topic, total)])
                grown[topic].result(CREATE_SECONDS)
        except KafkaException as error:
            raise RowUnsupported(f"{self.broker.name} cannot create {topic}: {error}") from error
        if partitions > 1:
            self.wait_for_leaders(topic, partitions)
        return topic

    def wait_for_leaders(self, topic: str, partitions: int | None = None) -> None:
        """Wait until a topic has this number of partitions (None: any), all with leaders."""
        deadline = time.monotonic() + CREATE_SECONDS
        while time.monotonic() < deadline:
            found = self._admin.list_topics(topic, CREATE_SECONDS).topics[topic].partitions
            is_complete = bool(found) if partitions is None else len(found) == partitions
            if is_complete and all(each.leader >= 0 for each in found.values()):
                return
            time.sleep(0.01)
        raise BenchmarkFailed(f"{self.broker.name}: {topic} does not have {partitions} leaders")

    def leader_addresses(self, topic: str) -> dict[int, tuple[str, int]]:
        """Return the address of the leader of each partition."""
        self.wait_for_leaders(topic)
        found = self._admin.list_topics(topic, CREATE_SECONDS)
        at = {each.id: (each.host, each.port) for each in found.brokers.values()}
        return {
            number: at[partition.leader]
            for number, partition in found.topics[topic].partitions.items()
        }

    def _producer(self, **settings: Any) -> Producer:
        return Producer({**self._common, "acks": "all", "linger.ms": 0, **settings})

    def _consumer(self, group: str, **settings: Any) -> Consumer:
        return Consumer(
            {
                **self._common,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )

    def _send_one(self, topic: str) -> None:
        producer = self._producer()
        producer.produce(topic, b"first")
        producer.flush()

    def _produce(
        self, topic: str, values: Sequence[bytes], count: int, **settings: Any
    ) -> Stopwatch:
        """Send `count` records with these values in turn, and wait for all acks."""
        producer = self._producer(**{"linger.ms": 5, **UNBOUNDED, **settings})
        with timed(self.broker) as watch:
            for value in islice(cycle(values), count):
                producer.produce(topic, value, partition=0)
            if producer.flush(WAIT_SECONDS):
                raise BenchmarkFailed(f"{self.broker.name} did not accept all records of {topic}")
        return watch

    def _consume(self, topic: str, count: int) -> Stopwatch:
        """Consume records from the first one on; the join time is not counted."""
        consumer = self._consumer(topic, **PREFETCH)
        consumer.subscribe([topic])
        _next(consumer)
        left = count - 1
        deadline = time.monotonic() + WAIT_SECONDS
        with timed(self.broker) as watch:
            while left > 0:
                # Limit the number: otherwise `consume` waits for messages that do not fit into its
                # queue, and at the end for messages that never arrive.
                messages = consumer.consume(min(left, 500), timeout=0.1)
                failed = next((message.error() for message in messages if message.error()), None)
                if failed or time.monotonic() > deadline:
                    reason = f"{left} of {count} records are missing: {failed or 'too slow'}"
                    raise BenchmarkFailed(f"{self.broker.name}, {topic}: {reason}")
                left -= len(messages)
        consumer.close()
        return watch

    def _exchange(self, topic: str, count: int) -> list[float]:
        """Send `count` records one by one, and return the seconds until each ack."""
        producer = self._producer()
        value = bytes(PING_BYTES)
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            producer.produce(topic, value, partition=0)
            producer.flush()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _send_at_rate(self, topic: str, seconds: list[float]) -> None:
        """Send one record per millisecond, and collect the time until each ack.

        The time of a late send counts from its scheduled time.
        """
        producer = self._producer()

        def done(error: Any, message: Any) -> None:
            if error:
                raise BenchmarkFailed(str(error))
            seconds.append(time.perf_counter() - _SENT_AT.unpack_from(message.value())[0] / 1e9)

        padding = bytes(PING_BYTES - _SENT_AT.size)
        start = time.perf_counter() + 0.1
        for number in range(int(self.scale * RATE_SECONDS * RATE)):
            due = start + number / RATE
            while (wait := due - time.perf_counter()) > 0:
                producer.poll(wait)
            value = _SENT_AT.pack(int(due * 1e9)) + padding
            producer.produce(topic, value, partition=0, on_delivery=done)
        producer.flush(WAIT_SECONDS)


def _texts(size: int) -> list[bytes]:
    """Return typical JSON values, which compress to between a third and a sixth."""
    numbers = random.Random(1)
    texts = []
    for _ in range(TEXTS):
        fields = (
            f'{{"order": {numbers.getrandbits(40)}, "customer": "{numbers.choice(CUSTOMERS)}"}},'
            for _ in range(size // 20)
        )
        texts.append("".join(fields).encode()[:size])
    return texts


def _commit(producer: Producer, topic: str, count: int = 1) -> None:
    value = bytes(PING_BYTES)
    for _ in range(count):
        producer.begin_transaction()
        for _ in range(RECORDS_IN_TRANSACTION):
            producer.produce(topic, value, partition=0)
        producer.commit_transaction(WAIT_SECONDS)


def _next(consumer: Consumer) -> Any:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and not message.error():
            return message
    raise BenchmarkFailed("a record did not arrive")


def _receive(consumer: Consumer, count: int, seconds: list[float]) -> None:
    for _ in range(count):
        value = _next(consumer).value()
        seconds.append(time.perf_counter() - _SENT_AT.unpack_from(value)[0] / 1e9)


def _throughput(row: str, watch: Stopwatch, count: int, size: int) -> Sample:
    """Return the rate in records or bytes per second, and the CPU seconds per GB."""
    rate = count / watch.seconds
    value = rate / 1e3 if ROWS[row].unit == "k records/s" else rate * size / 1e6
    return Sample(row, value, watch.cpu_seconds / (count * size / 1e9))


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(int(len(values) * q), len(values) - 1)]


def _quantiles(row: str, seconds: list[float], watch: Stopwatch) -> Iterator[Sample]:
    cpu = watch.cpu_seconds / len(seconds) * 1e6
    yield Sample(f"{row} avg", statistics.fmean(seconds) * 1e3, cpu)
    for name, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        yield Sample(f"{row} {name}", _quantile(seconds, q) * 1e3, cpu)
