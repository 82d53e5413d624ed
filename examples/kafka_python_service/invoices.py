"""Writes an invoice for each order: topic `orders` in, topic `invoices` out.

The offset of an order is committed once its invoice is acknowledged. So no order is lost, and one
whose commit failed is worked on again: its second invoice has the key and the text of the first, and
changes nothing for a reader. What is no order goes to `orders.dead`.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import closing, suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import CommitFailedError, RebalanceInProgressError

VAT_PERCENT = 19


class InvoiceService:
    """Works in `run` until `stop` is called; several of them share the work."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._stopping = threading.Event()
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers, enable_idempotence=True, retry_backoff_ms=20
        )
        self._consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=bootstrap_servers,
            group_id="invoices",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=500,
            retry_backoff_ms=20,
        )

    def run(self) -> None:
        with closing(self._producer), closing(self._consumer):
            # kafka-python 3.0.12 forgets its assignment when it learns of the topic while it joins.
            self._consumer.partitions_for_topic("orders")
            while not self._stopping.is_set():
                batch = self._consumer.poll(timeout_ms=100)
                for orders in batch.values():
                    for order in orders:
                        self._work_on(order)
                if batch:
                    self._commit()

    def stop(self) -> None:
        self._stopping.set()

    def _work_on(self, order: Any) -> None:
        try:
            topic, answer = "invoices", invoice_for(order.value)
        except (ValueError, KeyError, TypeError):
            topic, answer = "orders.dead", order.value
        self._producer.send(topic, key=order.key, value=answer).get(timeout=30)

    def _commit(self) -> None:
        # Where this fails the group has moved on: the orders come again, here or elsewhere.
        with suppress(CommitFailedError, RebalanceInProgressError):
            self._consumer.commit()


def invoice_for(order: bytes) -> bytes:
    """The invoice for an order. Raises ValueError, KeyError or TypeError for what is none."""
    fields = json.loads(order)
    cents = fields["cents"] * (100 + VAT_PERCENT) // 100
    return json.dumps({"order": fields["id"], "cents": cents}).encode()


if __name__ == "__main__":
    InvoiceService(os.environ["KAFKA_BOOTSTRAP_SERVERS"]).run()
