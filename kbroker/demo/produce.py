"""The producer process: both tables through kafka-python, as fast as it goes.

Run as ``python -m kbroker.demo.produce``; says in JSON lines how many records the broker has
acknowledged. The weather goes first; the departures begin when the parent says ``go``.
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
from .child import Parent

if TYPE_CHECKING:
    from kafka import KafkaProducer
    from kafka.producer.future import FutureRecordMetadata

_CHUNK_RECORDS = 500
_CHUNKS_IN_FLIGHT = 40
"""kafka-python's buffer has no bound of its own: this is the bound."""


def main() -> None:
    arguments = _arguments()
    parent = Parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    from kafka import KafkaProducer

    # Idempotent, acks=all and unlimited retries within two minutes are kafka-python's defaults:
    # they carry the producer over a broker that is killed and comes back.
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
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        parent.emit("failed", reason=f"{type(error).__name__}: {error}")
        sys.exit(1)


def _produce(arguments: argparse.Namespace, parent: Parent, producer: KafkaProducer) -> None:
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
    """Send all and yield, again and again, how many the broker has acknowledged so far.

    Raises:
        kafka.errors.KafkaError: a record could not be delivered.
    """
    in_flight: deque[list[FutureRecordMetadata]] = deque()
    acknowledged = 0
    while futures := [
        producer.send(topic, key=key, value=value, timestamp_ms=timestamp_ms)
        for key, value, timestamp_ms in islice(messages, _CHUNK_RECORDS)
    ]:
        in_flight.append(futures)
        settled = acknowledged
        while in_flight and (len(in_flight) > _CHUNKS_IN_FLIGHT or in_flight[0][-1].is_done):
            acknowledged += _settle(in_flight.popleft())
        if acknowledged > settled:
            yield acknowledged
    producer.flush()
    for futures in in_flight:
        acknowledged += _settle(futures)
    yield acknowledged


def _settle(futures: list[FutureRecordMetadata]) -> int:
    for future in futures:
        future.get()
    return len(futures)


def _paced(
    messages: Iterable[data.Message], per_second: int, parent: Parent
) -> Iterator[data.Message]:
    """No more than so many per second, until the parent says ``hurry``."""
    started = time.monotonic()
    hurry = False
    for number, message in enumerate(messages):
        if not hurry and number % 100 == 0:
            time.sleep(max(0.0, number / per_second - (time.monotonic() - started)))
            hurry = parent.heard("hurry")
        yield message


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--departures", required=True, help="topic")
    parser.add_argument("--weather", required=True, help="topic")
    parser.add_argument("--rows", type=int, help="only the first so many departures")
    parser.add_argument("--pause-at", type=int, help="wait for a second 'go' after so many")
    parser.add_argument("--rate", type=int, default=1_000, help="departures/s after the pause")
    return parser.parse_args()


if __name__ == "__main__":
    main()
