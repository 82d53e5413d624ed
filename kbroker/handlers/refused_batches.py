"""Batches of idempotent producers that one connection was refused for a reason that passes.

A producer with several batches in flight sends the next ones before it knows that the first was refused.
If the reason is over by then, the next ones leave a gap in the sequence, for which the log can only answer
OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka takes that error as a reason to bump the producer epoch, and sends
again everything unacknowledged under new sequences: a batch that is stored although its response was an
error is doubled then, in any partition of that producer. So batches behind a gap that consists of refused
batches get the response that those had. The client resends all of them in order.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader, claimed_producer
from kbroker.storage.producer_state import ProducerStates, sequence_distance

KEPT_MAX = 256
"""Producers and partitions per connection whose refused batches are remembered, under 1 kB each."""
KEPT_SECONDS = 60.0
"""How long a batch in flight behind a refused one may take to arrive."""

Key: TypeAlias = tuple[str | UUID, int, int, int]
"""The topic as the client names it, the partition, producer ID and producer epoch."""


class _Refused(NamedTuple):
    """The refused sequences, from the first one to the last one, and why."""

    first: int
    last: int
    code: ErrorCode
    until: float


class RefusedBatches:
    """Of one connection. Most connections never need one."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[Key, _Refused] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    def note(
        self, topic: str | UUID, index: int, records: memoryview | None, code: ErrorCode, now: float
    ) -> None:
        """Remember a refused batch if it has a sequence and the client will send it again.

        Args:
            topic: Name or ID, as the client names the topic.
            index: Partition.
            records: The batch as it came, not checked.
            code: The response's error.
            now: Seconds of a monotonic clock.
        """
        # A corrupt batch says nothing about the ones behind it.
        passes = code.retriable and code != ErrorCode.CORRUPT_MESSAGE
        producer = claimed_producer(records) if passes else None
        if producer is None:
            return
        producer_id, epoch, sequence = producer
        key = topic, index, producer_id, epoch
        known = self._refused.pop(key, None)
        first = last = sequence
        if known is not None and now < known.until:
            if sequence_distance(known.first, sequence) < 0:
                first = known.first
            if sequence_distance(known.last, sequence) > 0:
                last = known.last
        self._refused[key] = _Refused(first, last, code, now + KEPT_SECONDS)
        if len(self._refused) > KEPT_MAX:
            del self._refused[next(iter(self._refused))]

    def check(
        self,
        topic: str | UUID,
        index: int,
        header: BatchHeader,
        producers: ProducerStates,
        now: float,
    ) -> None:
        """Refuse a batch that would leave a gap where refused batches belong.

        Args:
            topic: As for `note`.
            index: Partition.
            header: Of the batch.
            producers: State of the partition's log.
            now: Seconds of the same clock.

        Raises:
            KafkaError: With the code of the earlier refusal.
        """
        key = topic, index, header.producer_id, header.producer_epoch
        refused = self._refused.get(key)
        if refused is None:
            return
        producer = producers.get(header.producer_id)
        due = refused.first
        if producer is not None and producer.epoch == header.producer_epoch:
            due = producer.next_sequence
        if now >= refused.until or sequence_distance(refused.last, due) < 0:
            del self._refused[key]
            return
        sequence = header.base_sequence
        is_behind = sequence_distance(sequence, due) > 0
        if is_behind and sequence_distance(sequence, refused.first) > 0:
            raise KafkaError(
                refused.code,
                f"batches of producer {header.producer_id} from sequence {refused.first} on were "
                f"refused on this connection; send them before sequence {sequence}",
            )
