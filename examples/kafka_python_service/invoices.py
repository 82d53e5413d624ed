"""Service that writes an invoice for each order, from topic `orders` to topic `invoices`.

The offset of an order is committed after its invoice is acknowledged, so no order is lost. If the
commit fails, the order is processed again. The second invoice has the same key and value as the
first, so it changes nothing for readers. Invalid orders go to `orders.dead`.
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
    """Service that runs until `stop` is called; several instances share the work."""

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
            # kafka-python 3.0.12 loses its assignment if it discovers the topic during the join.
            self._consumer.partitions_for_topic("orders")
            while not self._stopping.is_set():
                batch = self._consumer.poll(timeout_ms=100)
                for orders in batch.values():
                    for order in orders:
                        self._process(order)
                if batch:
                    self._commit()

    def stop(self) -> None:
        self._stopping.set()

    def _process(self, order: Any) -> None:
        try:
            topic, value = "invoices", invoice_for(order.value)
        except (ValueError, KeyError, TypeError):
            topic, value = "orders.dead", order.value
        self._producer.send(topic, key=order.key, value=value).get(timeout=30)

    def _commit(self) -> None:
        # If the commit fails, the group has rebalanced: the orders are delivered again.
        with suppress(CommitFailedError, RebalanceInProgressError):
            self._consumer.commit()


def invoice_for(order: bytes) -> bytes:
    """Return the invoice for an order; raise ValueError, KeyError or TypeError if it is invalid."""
    fields = json.loads(order)
    cents = fields["cents"] * (100 + VAT_PERCENT) // 100
    return json.dumps({"order": fields["id"], "cents": cents}).encode()


if __name__ == "__main__":
    InvoiceService(os.environ["KAFKA_BOOTSTRAP_SERVERS"]).run()
