"""Rows measured with confluent-kafka (librdkafka): the same client in the same process for all."""

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

from .brokers import BenchmarkFailed, Broker, RowRefused
from .rows import BULK_BYTES, COMPRESSED_BYTES, JOINING, ROWS, SIZES, Sample

WAIT_SECONDS = 60
CREATE_SECONDS = 300
"""For a topic of 10,000 partitions."""
CREATED_AT_ONCE = 5000
"""Kafka refuses to make 10,000 partitions at once."""
FILL_BYTES = 500_000_000
"""What is sent at a time: the client's queue holds it."""
TOPICS = 15
PING_BYTES = 200
TEXTS = 1000
CUSTOMERS = ("Ada Lovelace", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Alan Turing")
RECORDS_IN_TRANSACTION = 10
WARM_BYTES = 10_000_000
ALONE = {"linger.ms": 0, "batch.num.messages": 1}
"""One record in each request."""
RATE = 1000
RATE_SECONDS = 6
QUIET = {"log_level": 2}
"""librdkafka reports every connection that a stopping broker closes."""
UNBOUNDED = {"queue.buffering.max.messages": 0, "queue.buffering.max.kbytes": 2_147_483_647}
"""The client's queue holds all that a row sends: nothing but the broker makes it wait."""
PREFETCH = {"fetch.queue.backoff.ms": 1}
"""By default the client sleeps a second whenever a broker is faster than the program that reads."""
_SENT_AT = struct.Struct(">q")


class Stopwatch:
    """Wall time and the broker's processor time of a `with` block."""

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
    """Runs the rows against one broker.

    Parameters: `scale` multiplies the number of records. `tag` is in the names of all topics, groups
    and transactions: what is run once more finds nothing of what was before.
    """

    def __init__(self, broker: Broker, scale: float, tag: str) -> None:
        self.broker = broker
        self.scale = scale
        self._tag = tag
        self._common: dict[str, Any] = {
            "bootstrap.servers": broker.address,
            **broker.client,
            **QUIET,
        }
        self._admin = AdminClient(self._common)

    def warm_up(self, seconds: float) -> None:
        """The load of the rows for so long, so that a JVM compiles what they use."""
        topics = {size: self.create_topic(f"warm-{size}") for size in SIZES.values()}
        alone = self.create_topic("warm-alone")
        ends = time.monotonic() + seconds
        while True:
            for size, topic in topics.items():
                self._produce(topic, [bytes(size)], WARM_BYTES // size)
                self._consume(topic, WARM_BYTES // size)
            self._produce(alone, [bytes(PING_BYTES)], 2000, **ALONE)
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
        """A new group, its first member, and its first record."""
        topic = self.create_topic("join")
        self._send_one(topic)
        consumer = self._consumer(topic)
        began = time.perf_counter()
        consumer.subscribe([topic])
        _next(consumer)
        yield Sample("join", (time.perf_counter() - began) * 1e3)
        consumer.close()

    def bulk(self, name: str) -> Iterator[Sample]:
        """Produce as fast as it goes, then consume the same."""
        size = SIZES[name]
        count = int(self.scale * BULK_BYTES[name] / size)
        topic = self.create_topic(f"bulk-{size}")
        watch = self._produce(topic, [bytes(size)], count)
        yield _throughput(f"produce {name}", watch, count, size)
        yield _throughput(f"consume {name}", self._consume(topic, count), count, size)

    def compressed(self, codec: str) -> Iterator[Sample]:
        """As `bulk`, of text that the client compresses."""
        size = SIZES["1 kB"]
        count = int(self.scale * COMPRESSED_BYTES / size)
        topic = self.create_topic(codec)
        watch = self._produce(topic, _texts(size), count, **{"compression.type": codec})
        yield _throughput(f"produce {codec}", watch, count, size)
        yield _throughput(f"consume {codec}", self._consume(topic, count), count, size)

    def idempotent(self) -> Iterator[Sample]:
        """As `bulk`, and the broker looks for what it has already."""
        size = SIZES["1 kB"]
        count = int(self.scale * BULK_BYTES["1 kB"] / size)
        topic = self.create_topic("idempotent")
        watch = self._produce(topic, [bytes(size)], count, **{"enable.idempotence": True})
        yield _throughput("idempotent", watch, count, size)

    def join_many(self) -> Iterator[Sample]:
        """All members of a new group subscribe at once, each of them gets a partition."""
        topic = self.create_topic("join-many", JOINING)
        members = [self._consumer(topic) for _ in range(JOINING)]
        deadline = time.monotonic() + WAIT_SECONDS
        began = time.perf_counter()
        for member in members:
            member.subscribe([topic])
        while any(len(member.assignment()) != 1 for member in members):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{self.broker.name}: {JOINING} members do not come together")
            for member in members:
                member.poll(0)
            time.sleep(0.005)
        yield Sample("join many", time.perf_counter() - began)
        with ThreadPoolExecutor(JOINING) as pool:
            for _ in pool.map(Consumer.close, members):
                pass

    def ping(self) -> Iterator[Sample]:
        """Send one record, wait for its ack, send the next."""
        count = int(self.scale * (1500 if self.broker.durable else 4000))
        topic = self.create_topic("ping")
        with timed(self.broker) as watch:
            seconds = self._exchange(topic, count)
        cpu = watch.cpu_seconds / count * 1e6
        yield Sample("ping p50", statistics.median(seconds) * 1e6, cpu)
        yield Sample("ping p99", _quantile(seconds, 0.99) * 1e6, cpu)

    def pipelined(self) -> Iterator[Sample]:
        """One record in each request, many requests on their way; then all of it is read."""
        count = int(self.scale * (8000 if self.broker.durable else 40_000))
        topic = self.create_topic("pipelined")
        watch = self._produce(topic, [bytes(PING_BYTES)], count, **ALONE)
        yield Sample("pipelined", count / watch.seconds / 1e3, watch.cpu_seconds / count * 1e6)
        watch = self._consume(topic, count)
        yield Sample("tiny batches", count / watch.seconds / 1e3, watch.cpu_seconds / count * 1e6)

    def produce_at_rate(self) -> Iterator[Sample]:
        """Single records at a steady rate; the time from send to ack."""
        topic = self.create_topic("produce-at-rate")
        seconds: list[float] = []
        with timed(self.broker) as watch:
            self._send_at_rate(topic, seconds)
        yield from _quantiles("produce at rate", seconds, watch)

    def receive_at_rate(self) -> Iterator[Sample]:
        """The same with a consumer that is waiting; the time from send to receive."""
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
        """Begin, send ten records, commit: each producer one transaction after the other."""
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

    def beside(self, row: str, work: threading.Thread) -> Iterator[Sample]:
        """Single records at a steady rate while a thread works; the 99th percentile of all acks."""
        topic = self.create_topic(f"beside-{row}")
        seconds: list[float] = []
        work.start()
        while not seconds or work.is_alive():
            self._send_at_rate(topic, seconds)
        work.join()
        yield Sample(row, _quantile(seconds, 0.99) * 1e3)

    # -- the parts

    def fill(self, name: str, size: int, each: int = SIZES["10 kB"]) -> str:
        """A new topic with so many bytes of values, in records of `each` bytes."""
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
        """Create a topic of which `name` is a part, and return its whole name.

        When it returns each partition has a leader. Raises RowRefused.
        """
        topic = f"{name}-{self._tag}"
        first, *more = [*range(CREATED_AT_ONCE, partitions, CREATED_AT_ONCE), partitions]
        try:
            self._admin.create_topics([NewTopic(topic, first)])[topic].result(CREATE_SECONDS)
            for total in more:
                grown = self._admin.create_partitions([NewPartitions(topic, total)])
                grown[topic].result(CREATE_SECONDS)
        except KafkaException as error:
            raise RowRefused(f"{self.broker.name} does not make {topic}: {error}") from error
        if partitions > 1:
            self.until_led(topic, partitions)
        return topic

    def until_led(self, topic: str, partitions: int) -> None:
        """Wait until a topic has so many partitions with leaders."""
        deadline = time.monotonic() + CREATE_SECONDS
        while time.monotonic() < deadline:
            found = self._admin.list_topics(topic, CREATE_SECONDS).topics[topic].partitions
            if len(found) == partitions and all(each.leader >= 0 for each in found.values()):
                return
            time.sleep(0.01)
        raise BenchmarkFailed(f"{self.broker.name}: {topic} has not {partitions} leaders")

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
        """Send records, with these values in turn, and wait for all acks."""
        producer = self._producer(**{"linger.ms": 5, **UNBOUNDED, **settings})
        with timed(self.broker) as watch:
            for value in islice(cycle(values), count):
                producer.produce(topic, value, partition=0)
            if producer.flush(WAIT_SECONDS):
                raise BenchmarkFailed(f"{self.broker.name} did not take all records of {topic}")
        return watch

    def _consume(self, topic: str, count: int) -> Stopwatch:
        """Read records from the first on; joining the group is not counted."""
        consumer = self._consumer(topic, **PREFETCH)
        consumer.subscribe([topic])
        _next(consumer)
        left = count - 1
        deadline = time.monotonic() + WAIT_SECONDS
        with timed(self.broker) as watch:
            while left > 0:
                # Not more at a time: it would wait for messages that do not fit into its queue, and
                # at the end for some that never come.
                messages = consumer.consume(min(left, 500), timeout=0.1)
                failed = next((message.error() for message in messages if message.error()), None)
                if failed or time.monotonic() > deadline:
                    reason = f"{left} of {count} records are missing: {failed or 'too slow'}"
                    raise BenchmarkFailed(f"{self.broker.name}, {topic}: {reason}")
                left -= len(messages)
        consumer.close()
        return watch

    def _exchange(self, topic: str, count: int) -> list[float]:
        """Seconds of each of `count` sends with their acks."""
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
        """Send one record each millisecond, collect the time that each ack took.

        A late send is counted from when it should have gone out.
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
    """Values as services send them; compressed, they take a third to a sixth."""
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
    """Records of this size, or their bytes, a second, and processor seconds for each GB."""
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
