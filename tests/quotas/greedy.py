"""Greedy clients and a polite one, each in its own process.

A client's rate is measured twice: from its first request on, and after the first quota windows. A
client that was idle before may start with a burst.

Usage: python -m tests.quotas.greedy ROLE PORT SECONDS
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings

with warnings.catch_warnings():
    # The import of kafka-python emits a deprecation warning.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TOPIC, STORED, POLITE = "greedy", "stored", "polite"
VALUE = b"v" * 1000
BATCH_BYTES = 16_384
FETCH_BYTES = 100_000
POLITE_PAUSE_SECONDS = 0.005
# Maximum unacknowledged records: kafka-python has no limit of its own.
IN_FLIGHT_MAX = 1000
# One second more than the default of `quota.window.num` times `quota.window.size.seconds`.
WINDOWS_SECONDS = 12


class Transfer:
    """A record of transferred bytes over time, in seconds since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts: list[tuple[float, int]] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def add(self, size: int) -> None:
        self._parts.append((self.seconds, size))

    def rates(self, seconds: float) -> dict[str, float]:
        """Return bytes/s over `seconds`: `first` from the start, `then` after the first windows."""

        def rate(begin: float) -> float:
            return sum(size for at, size in self._parts if begin <= at < begin + seconds) / seconds

        return {"first": rate(0), "then": rate(WINDOWS_SECONDS)}


def produce(port: int, seconds: float) -> dict[str, float]:
    """Produce as fast as possible, and return the acknowledged value bytes per second."""
    producer = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{port}",
        client_id="greedy",
        batch_size=BATCH_BYTES,
        max_block_ms=60_000,
    )
    in_flight = threading.Semaphore(IN_FLIGHT_MAX)
    producer.partitions_for(TOPIC)
    transfer = Transfer()

    def count(_: object) -> None:
        transfer.add(len(VALUE))
        in_flight.release()

    while transfer.seconds < WINDOWS_SECONDS + seconds:
        in_flight.acquire()
        producer.send(TOPIC, VALUE).add_callback(count)
    return transfer.rates(seconds)


def consume(port: int, seconds: float) -> dict[str, float]:
    """Consume as fast as possible, and return the received value bytes per second."""
    consumer = KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{port}",
        client_id="greedy",
        fetch_max_bytes=FETCH_BYTES,
        auto_offset_reset="earliest",
    )
    consumer.assign([TopicPartition(STORED, 0)])
    consumer.position(TopicPartition(STORED, 0))
    transfer = Transfer()
    while transfer.seconds < WINDOWS_SECONDS + seconds:
        for records in consumer.poll(timeout_ms=100).values():
            transfer.add(sum(len(each.value or b"") for each in records))
    return transfer.rates(seconds)


def be_polite(port: int, seconds: float) -> dict[str, float]:
    """Produce one small record at a time, and return the p50 and p99 latency in seconds."""
    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", client_id="polite")
    producer.send(POLITE, b"x").get(timeout=60)
    waits = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter()
        producer.send(POLITE, b"x").get(timeout=60)
        waits.append(time.perf_counter() - began)
        time.sleep(POLITE_PAUSE_SECONDS)
    waits.sort()
    return {"p50": waits[len(waits) // 2], "p99": waits[len(waits) * 99 // 100]}


ROLES = {"produce": produce, "consume": consume, "polite": be_polite}

if __name__ == "__main__":
    print(json.dumps(ROLES[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))))
