"""Capture process that writes changes from the outbox to the tables' topics.

Usage: python -m changes.capture --database FILE --bootstrap HOST:PORT

The changes of a round and the number of its last change are one Kafka transaction. A killed process
leaves its transaction open. The next process has the same transactional ID. It aborts the open
transaction, reads the last committed number, and continues with the next change. Read_committed
consumers therefore see every change once.

A deleted row is a change without `after`, followed by a record without a value, with which
compaction removes the key. The header `change` identifies each record.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from pathlib import Path
from typing import Any

import topics
from confluent_kafka import Producer

from . import POSITIONS, TABLES, database

_TRANSACTIONAL_ID = "changes.capture"
_TOPICS = {table.name: table.topic for table in TABLES}
_NEXT = "SELECT * FROM outbox WHERE sequence > ? ORDER BY sequence LIMIT ?"
_TIMEOUT_S = 60


def create_topics(bootstrap: str) -> None:
    """Create a compacted topic for each table, and one for the position."""
    topics.create(bootstrap, _TOPICS.values(), compacted=True)
    topics.create(bootstrap, [POSITIONS], partitions=1, compacted=True)


def capture(path: Path, bootstrap: str, round_size: int = 500) -> int:
    """Write the changes in the outbox to the topics.

    If it fails with any exception (KafkaException, sqlite3.Error), start it again.

    Args:
        path: Database file.
        bootstrap: Address of the broker.
        round_size: Maximum number of changes per Kafka transaction.

    Returns:
        The number of changes written.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": _TRANSACTIONAL_ID,
            "compression.type": "lz4",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(_TIMEOUT_S)  # aborts an open transaction of an earlier process
    begin: int = topics.latest(bootstrap, POSITIONS).get("outbox", 0)
    position = begin
    with database.connect(path) as opened:
        while changes := opened.execute(_NEXT, (position, round_size)).fetchall():
            position = changes[-1][0]
            producer.begin_transaction()
            for change in changes:
                _produce(producer, *change)
            producer.produce(POSITIONS, str(position).encode(), b"outbox")
            producer.commit_transaction(_TIMEOUT_S)
            _delete_captured(opened, position)
            print(f"captured up to change {position}", flush=True)
    return position - begin


def _produce(producer: Producer, sequence: int, source: str, operation: str, *row: Any) -> None:
    key, before, after = row
    event = {
        "sequence": sequence,
        "operation": operation,
        "before": before and json.loads(before),
        "after": after and json.loads(after),
    }
    topic, number = _TOPICS[source], str(sequence).encode()
    producer.produce(topic, json.dumps(event).encode(), key.encode(), headers={"change": number})
    if operation == "delete":
        producer.produce(topic, None, key.encode(), headers={"change": number + b" end"})


def _delete_captured(opened: sqlite3.Connection, position: int) -> None:
    """Delete changes from the outbox that are committed in Kafka; only the position matters."""
    opened.execute("DELETE FROM outbox WHERE sequence <= ?", (position,))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a database's changes to topics.")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--round-size", type=int, default=500)
    options = parser.parse_args()
    capture(options.database, options.bootstrap, options.round_size)


if __name__ == "__main__":
    main()
