"""Service that keeps the stock of a shop in SQLite, from topic `shipments`.

The table accepts each shipment ID once, so a shipment counts once even if it is sent or delivered
repeatedly. Invalid shipments go to `shipments.dead`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, Producer


class StockService:
    """Service that runs until `stop` is called; several instances share work and database."""

    def __init__(self, bootstrap_servers: str, database: Path) -> None:
        self._stopping = threading.Event()
        self._database = database
        self._producer = Producer({"bootstrap.servers": bootstrap_servers})
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "stock",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 500,
                "reconnect.backoff.ms": 20,
            }
        )
        self._consumer.subscribe(["shipments"])

    def run(self) -> None:
        with closing(self._consumer), closing(open_database(self._database)) as database:
            while not self._stopping.is_set():
                message = self._consumer.poll(0.1)
                if message is not None and message.error() is None:
                    self._process(message, database)
                    self._commit(message)

    def stop(self) -> None:
        self._stopping.set()

    def _process(self, message: Message, database: sqlite3.Connection) -> None:
        try:
            shipment = json.loads(message.value())
            row = shipment["id"], shipment["item"], int(shipment["amount"])
        except (ValueError, KeyError, TypeError):
            self._producer.produce("shipments.dead", message.value(), message.key())
            self._producer.flush()
            return
        with database:
            database.execute("INSERT OR IGNORE INTO shipments VALUES (?, ?, ?)", row)

    def _commit(self, message: Message) -> None:
        # If the commit fails, the group has rebalanced: the repeated shipment is ignored.
        with suppress(KafkaException):
            self._consumer.commit(message, asynchronous=False)


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database, and create its table if necessary."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS shipments (id PRIMARY KEY, item, amount)")
    return database


def stock_of(path: Path) -> dict[str, int]:
    """Return the stock of each item."""
    with closing(open_database(path)) as database:
        return dict(database.execute("SELECT item, SUM(amount) FROM shipments GROUP BY item"))


if __name__ == "__main__":
    StockService(os.environ["KAFKA_BOOTSTRAP_SERVERS"], Path("stock.db")).run()
