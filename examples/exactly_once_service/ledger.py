"""Service that keeps a ledger: each payment in topic `payments` becomes two records in `bookings`.

A payment is booked in one transaction that also commits the group's offset. Therefore it is booked
completely and once, or not at all. Invalid payments go to `payments.dead` in the same way.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition


class LedgerService:
    """Service that runs until `stop` is called; several instances share the work.

    Args:
        bootstrap_servers: Addresses of the brokers.
        name: Name of the instance, used as transactional ID. If a second instance starts with the
            same name, for example because the first one hangs, the first one is fenced, and its
            `run` raises KafkaException.
    """

    def __init__(self, bootstrap_servers: str, name: str) -> None:
        self._stopping = threading.Event()
        broker = {"bootstrap.servers": bootstrap_servers, "reconnect.backoff.ms": 20}
        self._producer = Producer(
            {
                **broker,
                "transactional.id": name,
                # With the default, offsets wait for a broker that was removed while it was down:
                # https://github.com/confluentinc/librdkafka/issues/5511
                "metadata.recovery.strategy": "none",
            }
        )
        self._consumer = Consumer(
            {
                **broker,
                "group.id": "ledger",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 500,
            }
        )
        self._consumer.subscribe(["payments"])

    def run(self) -> None:
        with closing(self._consumer):
            self._producer.init_transactions()
            while not self._stopping.is_set():
                message = self._consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self._process(message)

    def stop(self) -> None:
        self._stopping.set()

    def _process(self, message: Message) -> None:
        try:
            self._book(message)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction()
            # The transaction was aborted: the payment is delivered again, possibly to another instance.
            with suppress(KafkaException):
                self._consumer.seek(position(message, message.offset()))

    def _book(self, message: Message) -> None:
        self._producer.begin_transaction()
        try:
            for booking in bookings_of(json.loads(message.value())):
                self._producer.produce("bookings", json.dumps(booking), booking["account"])
        except (ValueError, KeyError, TypeError):
            self._producer.abort_transaction()  # the first booking may have been produced
            self._producer.begin_transaction()
            self._producer.produce("payments.dead", message.value(), message.key())
        self._producer.send_offsets_to_transaction(
            [position(message, message.offset() + 1)], self._consumer.consumer_group_metadata()
        )
        self._producer.commit_transaction()


def bookings_of(payment: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield the debit of one account and the credit of the other."""
    cents = int(payment["cents"])
    yield {"payment": payment["id"], "account": payment["from"], "cents": -cents}
    yield {"payment": payment["id"], "account": payment["to"], "cents": cents}


def position(message: Message, offset: int) -> TopicPartition:
    """Return an offset in the partition of a message."""
    return TopicPartition(message.topic(), message.partition(), offset)


if __name__ == "__main__":
    LedgerService(os.environ["KAFKA_BOOTSTRAP_SERVERS"], os.environ["INSTANCE"]).run()
