"""Input of the soak test: a producer writes orders while the broker and the jobs are killed."""

from __future__ import annotations

import json
import threading
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

ORDERS, CUSTOMERS, ENRICHED = "orders", "customers", "enriched"
CUSTOMER_COUNT = 1000
# Number of orders between two checks of the pipeline's progress.
ORDERS_PER_CHECK = 5_000


def order(number: int) -> tuple[bytes, bytes]:
    """Return the key and the value of an order. The ID identifies it in all topics."""
    fields = {
        "id": f"{number:08d}",
        "customer": f"c{number % CUSTOMER_COUNT}",
        "amount": number / 8,
    }
    return b"%08d" % number, json.dumps(fields).encode()


class OrderWriter:
    """A thread that writes `count` orders, at most `ahead` more than the pipeline has processed."""

    def __init__(self, bootstrap: str, count: int, ahead: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                # Retry without a time limit: the run kills and restarts the broker.
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 500,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )
        self._count = count
        self._ahead = ahead
        self._allowed = ahead
        self._stopped = False
        self.acknowledged = 0
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Write the customers, and start to write the orders."""
        for number in range(CUSTOMER_COUNT):
            value = json.dumps({"name": f"Customer {number}", "country": "NL"})
            self._producer.produce(CUSTOMERS, key=f"c{number}", value=value)
        assert self._producer.flush(60) == 0
        self._thread.start()

    def set_processed(self, processed: int) -> None:
        """Set the number of orders that the pipeline has processed."""
        self._allowed = max(self._allowed, processed + self._ahead)

    @property
    def is_done(self) -> bool:
        return self.acknowledged == self._count

    @property
    def in_flight(self) -> int:
        """The number of orders without acknowledgement."""
        return len(self._producer)

    def close(self) -> None:
        self._stopped = True
        self._thread.join()
        self._producer.purge()

    def _run(self) -> None:
        for begin in range(0, self._count, ORDERS_PER_CHECK):
            while (begin > self._allowed or len(self._producer) > 200_000) and not self._stopped:
                self._producer.poll(0.05)
            if self._stopped:
                return
            for number in range(begin, min(begin + ORDERS_PER_CHECK, self._count)):
                key, value = order(number)
                self._producer.produce(ORDERS, key=key, value=value, on_delivery=self._delivered)
            self._producer.poll(0)
        while not self._stopped and not self.is_done and not self.failed:
            self._producer.poll(0.05)

    def _delivered(self, error: KafkaError | None, message: Message) -> Any:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(str(error))
