"""A follower's side of an incremental fetch session (KIP-227): only what changed is sent."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.protocol.messages.fetch import FetchRequest

PartitionKey = tuple[uuid.UUID, int]
"""A partition by topic id and index."""

NO_SESSION = 0
FIRST_EPOCH = 0
EPOCH_MAX = 2**31 - 1


class Position(NamedTuple):
    """Where a follower stands in one partition; what is below `fetch_offset` is durable."""

    fetch_offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int
    high_watermark: int


class FollowerSession:
    """What one leader knows of what a follower fetches from it.

    Call `update` for each request and `opened` with the session id of each answer. After an error,
    or when it is not known whether the leader got a request, `reset` begins anew.
    """

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        self._told: dict[PartitionKey, Position] = {}

    @property
    def is_new(self) -> bool:
        """Whether the next request has to name every partition."""
        return self.epoch == FIRST_EPOCH

    def update(
        self, positions: Mapping[PartitionKey, Position], left_out: Iterable[PartitionKey]
    ) -> tuple[list[PartitionKey], list[PartitionKey]]:
        """Which of `positions` the next request must name, and which partitions it must drop.

        `positions` may leave out what did not change; of a new session it has everything.
        """
        if self.is_new:
            self._told = dict(positions)
            return list(positions), []
        named = [key for key, position in positions.items() if self._told.get(key) != position]
        dropped = [key for key in left_out if self._told.pop(key, None) is not None]
        self._told.update((key, positions[key]) for key in named)
        return named, dropped

    def opened(self, session_id: int) -> None:
        """An answer came. A leader without room for a session answers with id 0 each time."""
        self.id = session_id
        if session_id == NO_SESSION:
            self.epoch = FIRST_EPOCH
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def told(self, key: PartitionKey) -> Position | None:
        """What the leader answered for; None when it was not asked."""
        return self._told.get(key)

    def reset(self) -> None:
        """Begin anew with the next request, which also ends the session that was."""
        self.epoch = FIRST_EPOCH
        self._told = {}


def topic_rows(
    keys: Iterable[PartitionKey], positions: Mapping[PartitionKey, Position], max_bytes: int
) -> list[FetchRequest.Topic]:
    """The partitions of a request, at most `max_bytes` from each."""
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
    """The partitions that leave the session."""
    topics: dict[uuid.UUID, FetchRequest.ForgottenTopic] = {}
    for topic_id, index in keys:
        topic = topics.setdefault(topic_id, FetchRequest.ForgottenTopic(topic_id=topic_id))
        topic.partitions.append(index)
    return list(topics.values())
