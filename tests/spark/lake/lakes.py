"""Helpers that fill topics and read lakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka

from kbroker.pipelines.lake import reading
from kbroker.pipelines.lake.archiver import Archiver, Conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.testing import LocalBroker

HOUR_MS = 3_600_000
# 2026-03-01T00:00:00Z.
START_MS = 1_772_323_200_000


def produce(broker: LocalBroker, topic: str, values: list[Any], **more: Any) -> None:
    """Produce values: bytes unchanged, None as a tombstone, anything else as JSON."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    settings: dict[str, Any] = {"partition": 0, "timestamp": START_MS} | more
    for value in values:
        data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        producer.produce(topic, data, **settings)
    assert producer.flush(30) == 0


def archive(spark: SparkSession, conf: Conf) -> Archiver:
    """Archive all records that the topic has now."""
    archiver = Archiver(conf)
    archiver.start(spark).awaitTermination()
    return archiver


def conf_of(broker: LocalBroker, lake: Path, topic: str, **more: Any) -> Conf:
    return Conf(lake, topic, broker.bootstrap_servers, once=True, **more)


def rows(lake: Path, topic: str, partition: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of a partition, without null fields."""
    for batch in reading.records(lake, topic, partition):
        yield from batch.to_pylist()


def payloads(lake: Path, topic: str, partition: int = 0) -> list[Any]:
    """Return the values of a partition."""
    batches = reading.records(lake, topic, partition)
    values = [value for batch in batches for value in reading.payload(batch)]
    return [None if value is None else json.loads(value) for value in values]
