"""The follower's side of an incremental fetch session (KIP-227), which sends only changes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.protocol.messages.fetch import FetchRequest

# A partition by topic ID and index.
PartitionKey = tuple[uuid.UUID, int]

NO_SESSION = 0
FIRST_EPOCH = 0
EPOCH_MAX = 2**31 - 1


class Position(NamedTuple):
    """The fetch position in one partition; records before `fetch_offset` are durable."""

    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    high_watermark: int


class FollowerSession:
    """The state of a fetch session with one leader.

    Call `update` for each request and `opened` with the session ID of each response. After an
    error, or if it is unknown whether the leader received a request, call `reset`.
    """

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._sent_positions: dict[PartitionKey, Position] = {}

    @property
    def is_new(self) -> bool:
        """True if the next request must contain all partitions."""
        return self.epoch == FIRST_EPOCH

    def update(
        self, positions: Mapping[PartitionKey, Position], left_out: Iterable[PartitionKey]
    ) -> tuple[list[PartitionKey], list[PartitionKey]]:
        """Return the partitions that the next request must contain and those that it must forget.

        Args:
            positions: Current positions; for an existing session, unchanged ones may be omitted.
            left_out: Partitions that are no longer fetched.
        """
        if self.is_new:
            self._sent_positions = dict(positions)
            return list(positions), []
        named = [
            key for key, position in positions.items() if self._sent_positions.get(key) != position
        ]
        dropped = [key for key in left_out if self._sent_positions.pop(key, None) is not None]
        self._sent_positions.update((key, positions[key]) for key in named)
        return named, dropped

    def opened(self, session_id: int) -> None:
        """Record a response. A leader without a free session responds with ID 0 each time."""
        self.id = session_id
        if session_id == NO_SESSION:
            self.epoch = FIRST_EPOCH
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def sent_position(self, key: PartitionKey) -> Position | None:
        """Return the position that was last sent for a partition, or None."""
        return self._sent_positions.get(key)

    def reset(self) -> None:
        """Start a new session with the next request, which also closes the old one."""
        self.epoch = FIRST_EPOCH
        self._sent_positions = {}


def topic_rows(
    keys: Iterable[PartitionKey], positions: Mapping[PartitionKey, Position], max_bytes: int
) -> list[FetchRequest.Topic]:
    """Return the partitions of a request, with at most `max_bytes` for each."""
    topics: dict[uuid.UUID, FetchRequest.Topic] = {}
    for topic_id, index in keys:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchRequest.Topic(topic_id=topic_id)
        at = positions[topic_id, index]
        topic.partitions.append(
            FetchRequest.Partition(
                partition=index,
                current_leader_epoch=at.leader_epoch,
                fetch_offset=at.fetch_offset,
                last_fetched_epoch=at.last_fetched_epoch,
                log_start_offset=at.log_start_offset,
                partition_max_bytes=max_bytes,
                high_watermark=at.high_watermark,
            )
        )
    return list(topics.values())


def forgotten_rows(keys: Iterable[PartitionKey]) -> list[FetchRequest.ForgottenTopic]:
    """Return the partitions that are removed from the session."""
    topics: dict[uuid.UUID, FetchRequest.ForgottenTopic] = {}
    for topic_id, index in keys:
        topic = topics.setdefault(topic_id, FetchRequest.ForgottenTopic(topic_id=topic_id))
        topic.partitions.append(index)
    return list(topics.values())
