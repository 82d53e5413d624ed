"""Kafka helpers of the examples: create topics, send records, read them back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
_TIMEOUT_S = 30


class Record(NamedTuple):
    """A record to send, or one that was read."""

    key: bytes | None
    value: bytes | None
    # When sending, 0 means the current time.
    timestamp_ms: int = 0
    # When sending, -1 selects the partition by key.
    partition: int = -1
    headers: Mapping[str, bytes] = MappingProxyType({})


def create(
    bootstrap: str, names: Iterable[str], *, partitions: int = PARTITIONS, compacted: bool = False
) -> None:
    """Create topics.

    Raises:
        SystemExit: A topic already exists; the example would mix its records with existing ones.
    """
    config = {"cleanup.policy": "compact"} if compacted else {}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    made = admin.create_topics([NewTopic(name, partitions, config=config) for name in names])
    for name, future in made.items():
        if error := future.exception(_TIMEOUT_S):
            raise SystemExit(
                f"Topic {name} cannot be created at {bootstrap}: {error}. Delete the topics of an "
                "earlier run, or use a new broker: kbroker run -- python -m ..."
            )


def send(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Send records, each exactly once, and wait until all are acknowledged.

    Raises:
        RuntimeError: A record could not be delivered.
    """
    # "murmur2_random" partitions keys like the producers of Spark and Java.
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
        }
    )
    failed: list[str] = []

    def on_delivery(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    for record in records:
        _produce(producer, topic, record, on_delivery)
    if unsent := producer.flush(_TIMEOUT_S):
        failed.append(f"{unsent} records were not acknowledged within {_TIMEOUT_S} s")
    if failed:
        raise RuntimeError(f"Topic {topic} did not accept all records: {failed[0]}")


def _produce(producer: Producer, topic: str, record: Record, on_delivery: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=on_delivery,
                timestamp=record.timestamp_ms,
                headers=dict(record.headers),
            )
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def read(bootstrap: str, topic: str) -> Iterator[Record]:
    """Yield the committed records of a topic up to its current end, in order per partition.

    Raises:
        RuntimeError: A partition returned no records for 30 seconds.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "examples",  # required, but unused: no join, no commit
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(_TIMEOUT_S)
            if message is None:
                raise RuntimeError(f"No records of topic {topic} for {_TIMEOUT_S} s.")
            if (error := message.error()) is None:
                yield Record(
                    message.key(),
                    message.value(),
                    message.timestamp()[1],
                    message.partition(),
                    dict(message.headers() or ()),
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise RuntimeError(f"Topic {topic} cannot be read: {error}")
    finally:
        consumer.close()


def last_records(bootstrap: str, topic: str) -> dict[str, Record]:
    """Return the last record of each key of a compacted topic, without deleted keys.

    All records of a key are in the same partition, so offset order is the order of the records.
    """
    last = {record.key: record for record in read(bootstrap, topic)}
    return {
        (key or b"").decode(): record for key, record in last.items() if record.value is not None
    }


def latest(bootstrap: str, topic: str) -> dict[str, Any]:
    """Return the last value of each key, parsed as JSON."""
    records = last_records(bootstrap, topic)
    return {key: json.loads(record.value or b"null") for key, record in records.items()}


def source(bootstrap: str, topics: str) -> dict[str, str]:
    """Return Spark options that read topics (separated by commas) from their beginning."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topics,
        "startingOffsets": "earliest",
        # Spark queries the end offsets after every poll; the default poll returns only 500 records.
        "kafka.max.poll.records": "20000",
    }
