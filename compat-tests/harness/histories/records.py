"""Records, batches and producers of random histories."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.admin_calls import of, request
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.records import Record, encode_batch

from .pair import Pair, Side

NOW_MS = int(time.time()) * 1000
LAST_SEQUENCE = 2**31 - 1
# Timestamps of records: recent ones, one in the future, the epoch, and an old one.
TIMES = (*range(NOW_MS - 39_000, NOW_MS + 1, 3000), NOW_MS + 10_000, 0, 1, NOW_MS - 10**9)
TIMEOUT_MS = 600_000


def some_records(rng: random.Random, count: int) -> list[Record]:
    """Return records with random keys, values, headers and timestamps."""
    first = rng.choice((*TIMES, -1))
    # A batch with a timestamp of -1 has no other timestamps.
    times = [first if first < 0 or rng.random() < 0.5 else rng.choice(TIMES) for _ in range(count)]
    return [
        Record(
            rng.choice((None, b"k1", b"k2", b"")),
            rng.choice((None, b"v" * rng.choice((0, 1, 50, 500)))),
            timestamp,
            [("h", rng.choice((None, b"", b"x")))] * rng.choice((0, 0, 1, 2)),
        )
        for timestamp in times
    ]


@dataclass
class Producer:
    """An idempotent producer, with the batches that both brokers accepted.

    Attributes:
        transactional_id: Its transactional ID, or None.
        is_v2: True if it uses version 2 of transactions (KIP-890).
        next: Next sequence by partition.
        sent: First sequence and number of records of accepted batches, by partition.
        open: Partitions of the open transaction.
    """

    name: str
    transactional_id: str | None = None
    is_v2: bool = True
    next: dict[int, int] = field(default_factory=dict)
    sent: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)

    def initialise(self, pair: Pair, rng: random.Random, *, resume: bool = False) -> None:
        """Send InitProducerId, and begin with sequence 0 again."""
        key = ApiKey.INIT_PRODUCER_ID

        def message(side: Side) -> Any:
            known = side.producers.get(self.name, (-1, -1)) if resume else (-1, -1)
            return request(
                key,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TIMEOUT_MS,
                producer_id=known[0],
                producer_epoch=known[1],
            )

        answers = pair.ask(key, rng.choice((3, 4, 5)), message)
        self.learn(pair, answers)
        self.forget()

    def learn(self, pair: Pair, answers: list[Any]) -> bool:
        """Take the ID and epoch of a response, and return True if there was no error."""
        if any(answer is None or answer.error_code for answer in answers):
            return False
        for side, answer in zip(pair.sides, answers, strict=True):
            if answer.producer_id >= 0:
                side.add_producer(self.name, answer.producer_id, answer.producer_epoch)
        return True

    def batch(
        self, side: Side, records: list[Record], sequence: int, *, epochs: int = 0, codec: int = 0
    ) -> bytes:
        """Return a batch for a broker, with an epoch that is higher by `epochs`."""
        producer_id, epoch = side.producers[self.name]
        return encode_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch + epochs,
            base_sequence=sequence,
            transactional=self.transactional_id is not None,
        )

    def wait_for_markers(self, pair: Pair) -> None:
        """Wait until the transaction has ended in all partitions."""
        key = ApiKey.DESCRIBE_TRANSACTIONS
        message = request(key, transactional_ids=[self.transactional_id])
        pair.wait(key, 0, message, _has_ended)

    def forget(self) -> None:
        """Begin with sequence 0 in all partitions."""
        self.next.clear()
        self.sent.clear()
        self.open.clear()


def _has_ended(answer: Any) -> bool:
    return not answer.transaction_states[0].transaction_state.startswith("Prepare")


def produce(
    topic: str,
    partition: int,
    version: int,
    batch: Callable[[Side], bytes],
    *,
    transactional_id: str | None = None,
    acks: int = -1,
) -> Callable[[Side], Any]:
    """Return the builder of a Produce request with one batch."""
    key = ApiKey.PRODUCE

    def message(side: Side) -> Any:
        row = of(key, "Partition", index=partition, records=batch(side))
        rows = of(key, "Topic", partition_data=[row], **named(side, topic, version >= 13))
        return request(
            key, transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=[rows]
        )

    return message


def named(side: Side, topic: str, by_id: bool, field_name: str = "name") -> dict[str, Any]:
    """Return the field that names a topic: its name or its ID."""
    return {"topic_id": side.topics[topic]} if by_id else {field_name: topic}


def fetch(
    topic: str, version: int, offsets: dict[int, int], limit: int = 1 << 20, **values: Any
) -> Callable[[Side], Any]:
    """Return the builder of a Fetch request without a session.

    Args:
        topic: The topic.
        version: Version of the request.
        offsets: Offset by partition.
        limit: Maximum bytes per partition.
        values: Other fields of the request and of its partitions.
    """
    key = ApiKey.FETCH
    row_names = of(key, "Partition").DEFAULTS
    row_values = {name: value for name, value in values.items() if name in row_names}
    other = {name: value for name, value in values.items() if name not in row_names}

    def message(side: Side) -> Any:
        rows = [
            of(
                key,
                "Partition",
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=limit,
                **row_values,
            )
            for partition, offset in offsets.items()
        ]
        topics = [of(key, "Topic", partitions=rows, **named(side, topic, version >= 13, "topic"))]
        return request(
            key,
            **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 24, "topics": topics} | other,
        )

    return message
