"""Initialization of share-partition states for the share groups of a shard (KIP-932).

A group records the partitions whose states it requests, sends the request, and records the states
that exist. Only then are the partitions assigned to members. If the group coordinator moves, the
new one repeats pending requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.share_state_log import SharePartitionKey

from ..common.modern_group import Target
from ..common.record import CoordinatorRecord
from ..common.result import Now, Result
from ..common.topics import KnownTopics
from ..state import ShardState
from .group import (
    SharedState,
    SharedTopic,
    ShareGroup,
    merge_topics,
    partitions_of,
    subtract_partitions,
)
from .records import shared_record

# Time after which an unanswered initialization is repeated, in ms. Kafka uses the same value.
RETRY_BACKOFF_MS = 30_000
# Number of partitions after which a request contains no more topics. The next heartbeat continues.
PARTITIONS_AT_ONCE = 2_000
# Start offset of a share partition whose leader has to determine it (`share.auto.offset.reset`).
NO_OFFSET = -1


class StatesToInitialize(NamedTuple):
    """Share-partition states to initialize for one group, in its epoch.

    Attributes:
        grown: Topics of which the group already has states. It has to read their new partitions
            from the first record on.
    """

    group_id: str
    epoch: int
    partitions: Target
    grown: AbstractSet[UUID] = frozenset()

    def start_of(self, share: SharePartitionKey) -> int:
        """Return the start offset of a share partition, or NO_OFFSET."""
        return 0 if share.topic_id in self.grown else NO_OFFSET


class ShareStateInitializations:
    """Pending state initializations of the share groups of one shard."""

    def __init__(self, state: ShardState, topics: KnownTopics) -> None:
        self._state = state
        self._topics = topics
        self._due: list[StatesToInitialize] = []
        # Time of each group's last initialization request, in ms of the monotonic clock. Volatile.
        self._requested_ms: dict[str, int] = {}

    def take(self) -> list[StatesToInitialize]:
        """Return the pending initialization requests.

        Call this after the result of an operation was stored. Send the requests when the result is
        committed, and then call `record_outcome`.
        """
        due, self._due = self._due, []
        return due

    def request_missing(
        self,
        group: ShareGroup,
        epoch: int,
        names: AbstractSet[str],
        now: Now,
        records: list[CoordinatorRecord],
    ) -> None:
        """Request the initialization of partitions that have no state.

        Args:
            group: The group.
            epoch: Epoch of the group after the step.
            names: Topics to which its members subscribe after the step.
            now: Current time.
            records: Receives the record of the new state.
        """
        must_repeat = self._must_repeat(group, now)
        if group.is_initialization_checked and not must_repeat:
            return
        shared = group.shared
        known = (
            shared.initialized
            if must_repeat
            else merge_topics(shared.initialized, shared.initializing)
        )
        missing = self._missing(names, known)
        group.is_initialization_checked = True
        if not missing:
            return
        self._requested_ms[group.id] = now.coordinator_ms
        changed = SharedState(
            merge_topics(shared.initializing, missing),
            shared.initialized,
            {each: name for each, name in shared.deleting.items() if each not in missing},
        )
        records.append(shared_record(group.id, changed))
        grown = missing.keys() & known.keys()
        self._due.append(StatesToInitialize(group.id, epoch, partitions_of(missing), grown))

    def note_request(self, group_id: str, now: Now) -> None:
        """Note that another operation requests initialization for a group."""
        self._requested_ms[group_id] = now.coordinator_ms

    def _must_repeat(self, group: ShareGroup, now: Now) -> bool:
        """Return True if requests are unanswered for too long, or were loaded from the log."""
        if not group.shared.initializing:
            return False
        requested_ms = self._requested_ms.get(group.id)
        return requested_ms is None or now.coordinator_ms - requested_ms >= RETRY_BACKOFF_MS

    def _missing(
        self, names: AbstractSet[str], known: Mapping[UUID, SharedTopic]
    ) -> dict[UUID, SharedTopic]:
        """Return partitions without a state.

        A topic is never split, because the rest of its partitions would look like new partitions.
        """
        missing: dict[UUID, SharedTopic] = {}
        count = 0
        for topic_id, shape in self._topics.shapes_of(names).items():
            topic = known.get(topic_id)
            if topic is not None and len(topic.partitions) >= shape.partitions:
                continue
            rest = frozenset(range(shape.partitions)).difference(topic.partitions if topic else ())
            if missing and count + len(rest) > PARTITIONS_AT_ONCE:
                break
            count += len(rest)
            missing[topic_id] = SharedTopic(self._topics.name_of(topic_id) or "", rest)
        return missing

    def forget(self, group: ShareGroup) -> None:
        """Drop requests whose record could not be stored; the next heartbeat repeats them."""
        self._due = [each for each in self._due if each.group_id != group.id]
        self._requested_ms.pop(group.id, None)
        group.is_initialization_checked = False

    def repeat_pending(self, group: ShareGroup, now: Now) -> None:
        """Repeat the pending initialization of a loaded group, if the group has members."""
        if group.shared.initializing and group.members:
            self._requested_ms[group.id] = now.coordinator_ms
            shared = group.shared
            partitions = partitions_of(shared.initializing)
            grown = shared.initializing.keys() & shared.initialized.keys()
            self._due.append(StatesToInitialize(group.id, group.epoch, partitions, grown))

    def record_outcome(self, group_id: str, partitions: Target, *, succeeded: bool) -> Result[None]:
        """Record the result of an initialization. If it failed, the next heartbeat repeats it."""
        result: Result[None] = Result()
        group = self._state.find_group(group_id, ShareGroup)
        if group is None:
            self._requested_ms.pop(group_id, None)
            return result
        shared = group.shared
        done = {
            each: topic._replace(partitions=topic.partitions & partitions[each])
            for each, topic in shared.initializing.items()
            if each in partitions
        }
        if any(topic.partitions for topic in done.values()):
            left = subtract_partitions(shared.initializing, partitions)
            if not left:
                self._requested_ms.pop(group_id, None)
            initialized = (
                merge_topics(shared.initialized, done) if succeeded else shared.initialized
            )
            changed = shared._replace(initializing=left, initialized=initialized)
            result.records = [shared_record(group_id, changed)]
            result.on_failure = lambda code, now: Result()  # the next heartbeat repeats the request
        return result
