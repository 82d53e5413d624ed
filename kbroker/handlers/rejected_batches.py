"""Rejected batches of idempotent producers on one connection, after retriable errors.

A producer with several batches in flight sends the next batches before it knows that the first one
was rejected. If the cause of the error has ended by then, the next batches leave a gap in the
sequence, and the log returns OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then bumps the producer
epoch, and sends all unacknowledged batches again with new sequences. A batch that was stored
although its response was an error is duplicated then, in any partition of that producer. So batches
after a gap of rejected batches get the same error as the rejected ones, and the client sends all of
them again in order.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader, claimed_producer
from kbroker.storage.producer_state import ProducerStates, sequence_distance

# Maximum number of pairs of producer and partition per connection, less than 1 kB each.
KEPT_MAX = 256
# Maximum time in seconds until a batch in flight after a rejected one arrives.
KEPT_SECONDS = 60.0

# Name or ID of the topic in the request, partition, producer ID and producer epoch.
Key: TypeAlias = tuple[str | UUID, int, int, int]


class _Rejected(NamedTuple):
    """Range of rejected sequences, and the error."""

    first: int
    last: int
    code: ErrorCode
    until: float


class RejectedBatches:
    """Rejected batches of one connection. Most connections never create one."""

    __slots__ = ("_rejected",)

    def __init__(self) -> None:
        self._rejected: dict[Key, _Rejected] = {}

    def __bool__(self) -> bool:
        return bool(self._rejected)

    def remember(
        self, topic: str | UUID, index: int, records: memoryview | None, code: ErrorCode, now: float
    ) -> None:
        """Remember a rejected batch if it has a sequence and the error is retriable.

        Args:
            topic: Name or ID, as the client names the topic.
            index: Partition.
            records: The batch in the request, not yet validated.
            code: Error code of the response.
            now: Seconds of a monotonic clock.
        """
        # Later batches do not depend on a corrupt batch, so do not remember it.
        is_retriable = code.retriable and code != ErrorCode.CORRUPT_MESSAGE
        producer = claimed_producer(records) if is_retriable else None
        if producer is None:
            return
        producer_id, epoch, sequence = producer
        key = topic, index, producer_id, epoch
        known = self._rejected.pop(key, None)
        first = last = sequence
        if known is not None and now < known.until:
            if sequence_distance(known.first, sequence) < 0:
                first = known.first
            if sequence_distance(known.last, sequence) > 0:
                last = known.last
        self._rejected[key] = _Rejected(first, last, code, now + KEPT_SECONDS)
        if len(self._rejected) > KEPT_MAX:
            del self._rejected[next(iter(self._rejected))]

    def check(
        self,
        topic: str | UUID,
        index: int,
        header: BatchHeader,
        producers: ProducerStates,
        now: float,
    ) -> None:
        """Reject a batch that would leave a gap in place of rejected batches.

        Args:
            topic: Name or ID, as the client names the topic.
            index: Partition.
            header: Header of the batch.
            producers: State of the partition's log.
            now: Seconds of the monotonic clock that `remember` uses.

        Raises:
            KafkaError: The error of the rejected batches.
        """
        key = topic, index, header.producer_id, header.producer_epoch
        rejected = self._rejected.get(key)
        if rejected is None:
            return
        producer = producers.get(header.producer_id)
        due = rejected.first
        if producer is not None and producer.epoch == header.producer_epoch:
            due = producer.next_sequence
        if now >= rejected.until or sequence_distance(rejected.last, due) < 0:
            del self._rejected[key]
            return
        sequence = header.base_sequence
        is_behind = sequence_distance(sequence, due) > 0
        if is_behind and sequence_distance(sequence, rejected.first) > 0:
            raise KafkaError(
                rejected.code,
                f"batches of producer {header.producer_id} from sequence {rejected.first} on were "
                f"rejected on this connection; send them before sequence {sequence}",
            )
