"""What every example does with a Kafka besides Spark: make topics, send records, read them back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4
_PATIENCE_S = 30


class Record(NamedTuple):
    """A record to send, or one that was read."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    """To send: 0 stands for now."""
    partition: int = -1
    """To send: -1 lets the key decide."""
    headers: Mapping[str, bytes] = MappingProxyType({})


def create(
    bootstrap: str, names: Iterable[str], *, partitions: int = PARTITIONS, compacted: bool = False
) -> None:
    """Make topics.

    Raises:
        SystemExit: one of them exists; an example would mix its records with those in it.
    """
    config = {"cleanup.policy": "compact"} if compacted else {}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    made = admin.create_topics([NewTopic(name, partitions, config=config) for name in names])
    for name, future in made.items():
        if error := future.exception(_PATIENCE_S):
            raise SystemExit(
                f"Topic {name} cannot be made at {bootstrap}: {error}. Delete the topics of an "
                "earlier run, or take a fresh broker: kbroker run -- python -m ..."
            )


def send(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    """Send records; all are acknowledged, each is written once.

    Raises:
        RuntimeError: one could not be delivered.
    """
    # "murmur2_random" puts a key where Spark's and Java's producers put it.
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

    def heard(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    for record in records:
        _produce(producer, topic, record, heard)
    if unsent := producer.flush(_PATIENCE_S):
        failed.append(f"{unsent} records were not acknowledged within {_PATIENCE_S} s")
    if failed:
        raise RuntimeError(f"Topic {topic} did not take every record: {failed[0]}")


def _produce(producer: Producer, topic: str, record: Record, heard: Any) -> None:
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=heard,
                timestamp=record.timestamp_ms,
                headers=dict(record.headers),
            )
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def read(bootstrap: str, topic: str) -> Iterator[Record]:
    """The committed records of a topic up to its present end; each partition's in order.

    Raises:
        RuntimeError: a partition delivers nothing for half a minute.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "examples",  # a consumer must name one; this one joins and commits nothing
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(_PATIENCE_S)
            if message is None:
                raise RuntimeError(f"Topic {topic} delivers nothing for {_PATIENCE_S} s.")
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
    """What a compacted topic means: the last record of each key; keys without a value are gone.

    A key is always in the same partition, so the order of the partition is that of its records.
    """
    last = {record.key: record for record in read(bootstrap, topic)}
    return {
        (key or b"").decode(): record for key, record in last.items() if record.value is not None
    }


def latest(bootstrap: str, topic: str) -> dict[str, Any]:
    """The last value of each key, as JSON."""
    records = last_records(bootstrap, topic)
    return {key: json.loads(record.value or b"null") for key, record in records.items()}


def source(bootstrap: str, topics: str) -> dict[str, str]:
    """Options that read topics from their beginning; several are separated by commas."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topics,
        "startingOffsets": "earliest",
        # Spark asks for a partition's ends after every poll, and a poll's default is 500 records.
        "kafka.max.poll.records": "20000",
    }
