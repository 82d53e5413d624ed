"""Helpers that fill, read and truncate topics."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from kbroker.testing import LocalBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("kafka", "kbroker")


def produce(
    broker: LocalBroker, topic: str, values: Sequence[str], *, partition: int = 0, **settings: str
) -> None:
    """Append records with a new client; `settings` are librdkafka's, with underscores for dots."""
    producer = Producer(_settings(broker, settings))
    for value in values:
        producer.produce(topic, value, key=f"key of {value}", partition=partition)
    assert producer.flush(20) == 0


class Transaction:
    """A producer with an open transaction."""

    def __init__(self, broker: LocalBroker, topic: str, values: Sequence[str]) -> None:
        """Begin a transaction, and append records to partition 0."""
        settings = {"transactional.id": str(uuid.uuid4()), "linger.ms": "0"}
        self.producer = Producer(_settings(broker, settings))
        self.producer.init_transactions(20)
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(topic, value, partition=0)
        assert self.producer.flush(20) == 0

    def commit(self) -> None:
        """Commit the transaction."""
        self.producer.commit_transaction(20)

    def abort(self) -> None:
        """Abort the transaction."""
        self.producer.abort_transaction(20)


def _settings(broker: LocalBroker, given: dict[str, str]) -> dict[str, Any]:
    own = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 2}
    return own | {name.replace("_", "."): value for name, value in given.items()}


def read(spark: SparkSession, kind: str, broker: LocalBroker, **options: str) -> list[Any]:
    """Return all rows of a batch read, sorted by partition and offset."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers} | {
        name.replace("__", "."): value for name, value in options.items()
    }
    rows = spark.read.format(kind).options(**given).load().collect()
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def values(rows: Sequence[Any]) -> list[str]:
    """Return the values of rows as strings."""
    return [bytes(row.value).decode() for row in rows]


def delete_before(broker: LocalBroker, topic: str, offset: int) -> None:
    """Delete the records of partition 0 before `offset`."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for answer in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        answer.result(20)
