"""Producer process: writes both tables with kafka-python, as fast as possible.

Run as ``python -m kbroker.demo.produce``. It reports the number of acknowledged records as NDJSON.
The weather is sent first; the departures start with the parent's command ``go``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from . import data
from .child import ParentConnection

if TYPE_CHECKING:
    from kafka import KafkaProducer
    from kafka.producer.future import FutureRecordMetadata

_CHUNK_RECORDS = 500
# Maximum number of unacknowledged chunks; kafka-python's buffer is unbounded.
_CHUNKS_IN_FLIGHT = 40


def main() -> None:
    arguments = _arguments()
    parent = ParentConnection()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    from kafka import KafkaProducer

    # kafka-python's defaults (idempotent, acks=all, unlimited retries within two minutes) let the
    # producer survive a restart of the broker.
    producer = KafkaProducer(
        bootstrap_servers=arguments.bootstrap,
        client_id="kbroker-demo-producer",
        compression_type="lz4",
        linger_ms=20,
        batch_size=256 * 1024,
        reconnect_backoff_max_ms=1_000,
        metrics_enabled=False,
    )
    try:
        _produce(arguments, parent, producer)
    except Exception as error:  # noqa: BLE001 - report any error to the parent
        parent.emit("failed", reason=f"{type(error).__name__}: {error}")
        sys.exit(1)


def _produce(
    arguments: argparse.Namespace, parent: ParentConnection, producer: KafkaProducer
) -> None:
    files = data.locate()
    for count in _acknowledged(producer, arguments.weather, data.weather(files)):
        parent.emit("weather", records=count)
    parent.emit("weather-complete")
    parent.wait_for("go")

    messages = data.departures(files, arguments.rows)
    sent = 0
    if arguments.pause_at:
        first_part = islice(messages, arguments.pause_at)
        for sent in _acknowledged(producer, arguments.departures, first_part):
            parent.emit("departures", records=sent)
        parent.emit("paused")
        parent.wait_for("go")
        messages = _paced(messages, arguments.rate, parent)
    for count in _acknowledged(producer, arguments.departures, messages):
        parent.emit("departures", records=sent + count)
    producer.close()
    parent.emit("departures-complete")


def _acknowledged(
    producer: KafkaProducer, topic: str, messages: Iterator[data.Message]
) -> Iterator[int]:
    """Send all records, and repeatedly yield the number of acknowledged records so far.

    Raises:
        kafka.errors.KafkaError: A record could not be delivered.
    """
    in_flight: deque[list[FutureRecordMetadata]] = deque()
    acknowledged = 0
    while futures := [
        producer.send(topic, key=key, value=value, timestamp_ms=timestamp_ms)
        for key, value, timestamp_ms in islice(messages, _CHUNK_RECORDS)
    ]:
        in_flight.append(futures)
        before = acknowledged
        while in_flight and (len(in_flight) > _CHUNKS_IN_FLIGHT or in_flight[0][-1].is_done):
            acknowledged += _wait_for(in_flight.popleft())
        if acknowledged > before:
            yield acknowledged
    producer.flush()
    for futures in in_flight:
        acknowledged += _wait_for(futures)
    yield acknowledged


def _wait_for(futures: list[FutureRecordMetadata]) -> int:
    for future in futures:
        future.get()
    return len(futures)


def _paced(
    messages: Iterable[data.Message], per_second: int, parent: ParentConnection
) -> Iterator[data.Message]:
    """Limit the rate until the parent sends ``hurry``."""
    started = time.monotonic()
    hurry = False
    for number, message in enumerate(messages):
        if not hurry and number % 100 == 0:
            time.sleep(max(0.0, number / per_second - (time.monotonic() - started)))
            hurry = parent.received("hurry")
        yield message


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--departures", required=True, help="topic")
    parser.add_argument("--weather", required=True, help="topic")
    parser.add_argument("--rows", type=int, help="maximum number of departures")
    parser.add_argument(
        "--pause-at", type=int, help="number of departures after which to wait for another 'go'"
    )
    parser.add_argument("--rate", type=int, default=1_000, help="departures/s after the pause")
    return parser.parse_args()


if __name__ == "__main__":
    main()
