"""Clients that take what they can get, and a polite one; each in a process of its own.

What a client gets is counted twice: from its first request on, and after a quota's first windows,
because who was silent before may begin with what it did not take then.

Usage: python -m tests.quotas.greedy ROLE PORT SECONDS
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings

with warnings.catch_warnings():
    # It warns about itself when it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TOPIC, STORED, POLITE = "greedy", "stored", "polite"
VALUE = b"v" * 1000
BATCH_BYTES = 16_384
FETCH_BYTES = 100_000
POLITE_PAUSE_SECONDS = 0.005
IN_FLIGHT_MAX = 1000
"""Records that wait for their acks: this producer has no bound of its own."""
WINDOWS_SECONDS = 12
"""The default of `quota.window.num` times `quota.window.size.seconds`, and one more."""


class Taken:
    """How much has gone when, in bytes and seconds since it began."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts: list[tuple[float, int]] = []

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def add(self, size: int) -> None:
        self._parts.append((self.seconds, size))

    def rates(self, seconds: float) -> dict[str, float]:
        """Bytes per second over so long, `first` of the beginning, `then` after the first windows."""

        def rate(begin: float) -> float:
            return sum(size for at, size in self._parts if begin <= at < begin + seconds) / seconds

        return {"first": rate(0), "then": rate(WINDOWS_SECONDS)}


def produce(port: int, seconds: float) -> dict[str, float]:
    """As many bytes of values per second as one producer gets acknowledged."""
    producer = KafkaProducer(
        bootstrap_servers=f"127.0.0.1:{port}",
        client_id="greedy",
        batch_size=BATCH_BYTES,
        max_block_ms=60_000,
    )
    in_flight = threading.Semaphore(IN_FLIGHT_MAX)
    producer.partitions_for(TOPIC)
    taken = Taken()

    def count(_: object) -> None:
        taken.add(len(VALUE))
        in_flight.release()

    while taken.seconds < WINDOWS_SECONDS + seconds:
        in_flight.acquire()
        producer.send(TOPIC, VALUE).add_callback(count)
    return taken.rates(seconds)


def consume(port: int, seconds: float) -> dict[str, float]:
    """As many bytes of values per second as one consumer gets."""
    consumer = KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{port}",
        client_id="greedy",
        fetch_max_bytes=FETCH_BYTES,
        auto_offset_reset="earliest",
    )
    consumer.assign([TopicPartition(STORED, 0)])
    consumer.position(TopicPartition(STORED, 0))
    taken = Taken()
    while taken.seconds < WINDOWS_SECONDS + seconds:
        for records in consumer.poll(timeout_ms=100).values():
            taken.add(sum(len(each.value or b"") for each in records))
    return taken.rates(seconds)


def be_polite(port: int, seconds: float) -> dict[str, float]:
    """How long a small record takes until it is acknowledged, one after the other: p99 in seconds."""
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
