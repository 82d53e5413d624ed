"""Reads the results of a run: topics with kafka-python, and Parquet files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import DemoError, truth

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

# Maximum time without any record from a topic before the read fails, in seconds.
_TIMEOUT_S = 60
# Maximum time that one poll without records adds to this time: this process may be suspended.
_POLL_S_MAX = 5


class Record(NamedTuple):
    """A consumed record."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def records(bootstrap: str, topic: str) -> Iterator[Record]:
    """Yield all records of a topic up to its end offsets at the start of the read.

    Raises:
        DemoError: The topic does not exist or cannot be read.
    """
    from kafka.errors import KafkaError

    try:
        yield from _read(bootstrap, topic)
    except KafkaError as error:
        raise DemoError(f"Topic {topic} cannot be read at {bootstrap}: {error}") from error


def _read(bootstrap: str, topic: str) -> Iterator[Record]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        client_id="kbroker-demo-check",
        fetch_max_bytes=32 * 1024 * 1024,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=10_000,
        metrics_enabled=False,
    )
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        if not partitions:
            raise DemoError(f"Topic {topic} does not exist at {bootstrap}.")
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        yield from _until(consumer, ends)
    finally:
        consumer.close()


def _until(consumer: KafkaConsumer, ends: dict[TopicPartition, int]) -> Iterator[Record]:
    quiet_s = 0.0
    began = time.monotonic()
    while behind := [p for p, end in ends.items() if consumer.position(p) < end]:
        found = consumer.poll(timeout_ms=500)
        quiet_s = 0.0 if found else quiet_s + min(time.monotonic() - began, _POLL_S_MAX)
        for partition, batch in found.items():
            for record in batch:
                if record.offset < ends[partition]:
                    yield Record(
                        partition.partition,
                        record.offset,
                        record.timestamp,
                        record.key,
                        record.value,
                    )
        began = time.monotonic()  # the time that the caller takes for the records does not count
        if quiet_s > _TIMEOUT_S:
            where = ", ".join(
                f"{p.partition} at {consumer.position(p)} of {ends[p]}" for p in behind
            )
            raise DemoError(
                f"No records of topic {behind[0].topic} for {_TIMEOUT_S} s: partition {where}."
            )


def latest_values(bootstrap: str, topic: str) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key, as in a compacted topic.

    All records of a key are in the same partition, so offset order is time order.
    """
    return {record.key: record.value for record in records(bootstrap, topic)}


def topic_groups(bootstrap: str, topic: str) -> dict[truth.Group, dict[str, truth.Figures]]:
    """Return the statistics in the result topic, by group.

    Raises:
        DemoError: A record was not written by the job.
    """
    groups: dict[truth.Group, dict[str, truth.Figures]] = {}
    for key, value in latest_values(bootstrap, topic).items():
        try:
            day, carrier, origin = (key or b"").decode().split("|")
            groups[day, carrier, origin] = json.loads(value or b"null")
        except ValueError as error:
            raise DemoError(f"Topic {topic} has an unexpected record: key {key!r}.") from error
    return groups


def parquet_groups(directory: Path) -> dict[truth.Group, dict[str, truth.Figures]]:
    """Return the statistics in the Parquet files, by group; its last micro-batch counts."""
    groups: dict[truth.Group, dict[str, truth.Figures]] = {}
    batches = sorted(
        directory.glob("batch_id=*"), key=lambda path: int(path.name.partition("=")[2])
    )
    for batch in batches:
        for row in _rows(batch):
            groups[row.pop("day"), row.pop("carrier"), row.pop("origin")] = row
    return groups


def parquet_hours(directory: Path) -> dict[truth.Hour, truth.Figures]:
    """Return the statistics by hour of day and weather."""
    return {(row.pop("hour"), row.pop("weather")): row for row in _rows(directory)}


def _rows(directory: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    for file in sorted(directory.glob("*.parquet")):
        yield from parquet.ParquetFile(file).read().to_pylist()
