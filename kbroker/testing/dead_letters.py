"""Dead letters of share groups (KIP-1191): records that a group could not process."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.coordinator.share.dlq_records import (
    HEADER_DELIVERY_COUNT,
    HEADER_GROUP,
    HEADER_MESSAGE,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_TOPIC,
)

from .kafka_record import KafkaRecord

# Maximum number of dead letters in the message of a failed wait.
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a share group could not process.

    Attributes:
        topic: Topic of the record.
        partition: Its partition.
        offset: Its offset.
        delivery_count: Number of its deliveries.
        reason: Cause in the words of Kafka, for example "Offset rejected by client."
        record: Record in the dead-letter queue topic.
    """

    topic: str
    partition: int
    offset: int
    delivery_count: int
    reason: str
    record: KafkaRecord

    @classmethod
    def from_record(cls, group: str, record: KafkaRecord) -> DeadLetter | None:
        """Return the dead letter in a record, or None if it is none of the group."""
        # The headers of the queue follow those of the copied record.
        headers = {name: value or b"" for name, value in record.headers}
        if headers.get(HEADER_GROUP) != group.encode():
            return None
        try:
            return cls(
                headers[HEADER_TOPIC].decode(),
                int(headers[HEADER_PARTITION]),
                int(headers[HEADER_OFFSET]),
                int(headers[HEADER_DELIVERY_COUNT]),
                headers[HEADER_MESSAGE].decode(),
                record,
            )
        except (KeyError, ValueError):  # a client has written the record
            return None

    @property
    def key(self) -> bytes | None:
        """Key, if `errors.deadletterqueue.copy.record.enable` is set; else None."""
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """Value, if `errors.deadletterqueue.copy.record.enable` is set; else None."""
        return self.record.value


@dataclass(frozen=True, slots=True)
class FoundDeadLetters:
    """Dead letters that a wait has read, the oldest first."""

    letters: list[DeadLetter]

    def __str__(self) -> str:
        lines = [f"{len(self.letters)} dead letters", *map(str, self.letters[-SHOWN_MAX:])]
        return "\n  ".join(lines)
