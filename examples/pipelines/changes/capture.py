"""The capture process: it takes changes from the outbox and writes them to the tables' topics.

Usage: python -m changes.capture --database FILE --bootstrap HOST:PORT

The changes of a round and the number of the last one of them are one Kafka transaction. A process that is
killed leaves a transaction open; its successor has the same transactional id, so it ends that one, reads
the last committed number and goes on behind it. Who reads committed records sees every change, once.

A deleted row is a change without `after`, followed by a record without a value: that one lets compaction
forget the key. The header `change` identifies each record.
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
_PATIENCE_S = 60


def create_topics(bootstrap: str) -> None:
    """Make a compacted topic for each table, and one for the position."""
    topics.create(bootstrap, _TOPICS.values(), compacted=True)
    topics.create(bootstrap, [POSITIONS], partitions=1, compacted=True)


def capture(path: Path, bootstrap: str, round_size: int = 500) -> int:
    """Write what is in the outbox now; returns how many changes were taken.

    Parameters: `round_size`, the most changes of one Kafka transaction.

    Error handling: there is none. Whatever happens (KafkaException, sqlite3.Error), start it again.
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
    producer.init_transactions(_PATIENCE_S)  # ends what a predecessor has left open
    begin: int = topics.latest(bootstrap, POSITIONS).get("outbox", 0)
    position = begin
    with database.connect(path) as opened:
        while changes := opened.execute(_NEXT, (position, round_size)).fetchall():
            position = changes[-1][0]
            producer.begin_transaction()
            for change in changes:
                _produce(producer, *change)
            producer.produce(POSITIONS, str(position).encode(), b"outbox")
            producer.commit_transaction(_PATIENCE_S)
            _forget(opened, position)
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


def _forget(opened: sqlite3.Connection, position: int) -> None:
    """What is committed in Kafka is no longer needed here; the position says so, not this."""
    opened.execute("DELETE FROM outbox WHERE sequence <= ?", (position,))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a database's changes to topics.")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--round-size", type=int, default=500)
    asked = parser.parse_args()
    capture(asked.database, asked.bootstrap, asked.round_size)


if __name__ == "__main__":
    main()
