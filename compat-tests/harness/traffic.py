"""Continuous producers, transactional writers, and readers of whole topics."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

CALL_SECONDS = 30.0
DELIVERY_SECONDS = 120.0
BEGINNING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}


@dataclass(frozen=True)
class Record:
    """A record to write, or a consumed one. The timestamp is in ms."""

    topic: str
    key: str | None
    value: str
    timestamp: int


def create_topics(bootstrap: str, partitions: int, *names: str, **configs: str) -> None:
    """Create topics with the broker's replication factor. Config names have `_` for each dot."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [NewTopic(name, partitions, config=named) for name in names]
    for created in admin.create_topics(wanted).values():
        created.result(CALL_SECONDS)


def topic_configs(bootstrap: str, topic: str) -> dict[str, str]:
    """Return all configs of a topic."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([resource])[resource].result(CALL_SECONDS)
    return {name: entry.value for name, entry in found.items()}


def topics(bootstrap: str) -> set[str]:
    """Return the names of all topics."""
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=CALL_SECONDS)
    return set(listed.topics)


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the leader of each partition of a topic."""
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=CALL_SECONDS)
    return {number: each.leader for number, each in listed.topics[topic].partitions.items()}


class Feeder(threading.Thread):
    """Writes records continuously, each exactly once, also while the broker restarts.

    Args:
        bootstrap: "host:port".
        make: Returns the records of step 0, 1, 2 and so on.
        pause: Pause between two steps, in seconds.
    """

    def __init__(
        self, bootstrap: str, make: Callable[[int], Iterable[Record]], pause: float = 0.01
    ) -> None:
        super().__init__(daemon=True)
        self.sent: list[Record] = []
        self._make = make
        self._pause = pause
        self._over = threading.Event()
        self._errors: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": int(DELIVERY_SECONDS * 1000),
                "reconnect.backoff.max.ms": 500,
            },
        )

    def run(self) -> None:
        for step in itertools.count():
            if self._over.wait(self._pause):
                return
            for record in self._make(step):
                self._producer.produce(
                    record.topic,
                    record.value.encode(),
                    record.key and record.key.encode(),
                    timestamp=record.timestamp,
                    on_delivery=self._delivered,
                )
                self.sent.append(record)
            self._producer.poll(0)

    def stop(self) -> None:
        """Stop writing."""
        self._over.set()
        self.join()

    def finish(self) -> list[Record]:
        """Stop, wait until all records are delivered, and return them."""
        self.stop()
        left = self._producer.flush(DELIVERY_SECONDS)
        assert left == 0, f"{left} of {len(self.sent)} records are not written"
        assert not self._errors, self._errors[:3]
        return self.sent

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._errors.append(str(error))


class TransactionalWriter:
    """Writes integers in transactions to the two partitions of a topic."""

    def __init__(self, bootstrap: str, identity: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": identity, "linger.ms": 0}
        )
        self._producer.init_transactions(CALL_SECONDS)

    def begin(self, topic: str, values: Iterable[int]) -> None:
        """Begin a transaction, write its records, and wait until they are in the log."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(topic, str(value).encode(), partition=value % 2)
        assert not self._producer.flush(CALL_SECONDS)

    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction."""
        if commit:
            self._producer.commit_transaction(CALL_SECONDS)
        else:
            self._producer.abort_transaction(CALL_SECONDS)


class Reader:
    """Reads topics with isolation level "read_committed" or "read_uncommitted"."""

    def __init__(self, bootstrap: str, isolation: str = "read_committed") -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
        }

    def exists(self, topic: str) -> bool:
        """Return True if the topic exists."""
        return topic in topics(self._settings["bootstrap.servers"])

    def end(self, topic: str) -> int:
        """Return the sum of the end offsets of all partitions.

        With read_committed, the end of a partition is its last stable offset.
        """
        return sum(self.ends(topic).values())

    def ends(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition."""
        consumer = Consumer(self._settings)
        try:
            return {each.partition: _end(consumer, each) for each in _partitions(consumer, topic)}
        finally:
            consumer.close()

    def read(self, topic: str) -> list[Record]:
        """Return all records up to the end of each partition, in order per partition."""
        return [_record(message) for message in self.messages(topic)]

    def messages(self, topic: str) -> list[Any]:
        """Return the messages that `read` returns as records, with headers and offsets."""
        consumer = Consumer(self._settings)
        try:
            partitions = _partitions(consumer, topic)
            consumer.assign(partitions)
            found: list[Any] = []
            ended: set[int] = set()
            deadline = time.monotonic() + CALL_SECONDS
            while len(ended) < len(partitions):
                assert time.monotonic() < deadline, f"{topic}: no end of {partitions}, {ended}"
                for message in consumer.consume(1_000, 0.1):
                    if message.error() is None:
                        found.append(message)
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                    else:
                        raise KafkaException(message.error())
            return found
        finally:
            consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end offset of a partition, with retries while its leader is not ready."""
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=CALL_SECONDS)[1])
        except KafkaException as error:
            if error.args[0].code() not in BEGINNING or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    found = consumer.list_topics(topic, timeout=CALL_SECONDS).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return [TopicPartition(topic, number, 0) for number in sorted(found.partitions)]


def _record(message: Any) -> Record:
    key, value = message.key(), message.value()
    return Record(
        message.topic(),
        None if key is None else key.decode(),
        value.decode(),
        message.timestamp()[1],
    )
