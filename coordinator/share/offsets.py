"""Operations on the offsets of share groups: alter and delete (KIP-932).

The states are stored by share coordinators, so each operation has two steps, with requests to the
share coordinators in between. If the group coordinator moves between the steps, the operator must
repeat the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.share_state_log import SharePartitionKey

from ..common.modern_group import NO_TARGET, Target
from ..common.result import Now, Pieces, Result, append_error
from ..common.topics import KnownTopics
from ..state import ShardState
from .group import NO_STATE, SharedState, SharedTopics, ShareGroup, merge_topics, partitions_of
from .groups import find_share_group
from .initialization import ShareStateInitializations
from .records import shared_record


class ShareStateRequests:
    """Result of a first step: requests for the share coordinators, or an error.

    Attributes:
        epoch: Epoch of the group.
        partitions: Partitions whose states to initialize or delete.
    """

    __slots__ = ("epoch", "error_code", "error_message", "partitions")

    def __init__(
        self,
        epoch: int = 0,
        partitions: Target = NO_TARGET,
        *,
        error_code: ErrorCode = ErrorCode.NONE,
        error_message: str | None = None,
    ) -> None:
        self.epoch = epoch
        self.partitions = partitions
        self.error_code = error_code
        self.error_message = error_message


class ShareOffsets:
    """Offsets of the share groups of one shard."""

    def __init__(
        self, state: ShardState, topics: KnownTopics, initializations: ShareStateInitializations
    ) -> None:
        self._state = state
        self._topics = topics
        self._initializations = initializations

    def partitions(self, group_id: str) -> Iterator[SharePartitionKey]:
        """Return the share partitions of a group that have a state; empty for an unknown group."""
        group = self._state.find_group(group_id, ShareGroup)
        topics = NO_STATE.initialized if group is None else group.shared.initialized
        return (
            SharePartitionKey(group_id, topic_id, partition)
            for topic_id, topic in topics.items()
            for partition in sorted(topic.partitions)
        )

    # -- alter

    def alter(self, group_id: str, topics: SharedTopics, now: Now) -> Result[ShareStateRequests]:
        """Handle the first step of AlterShareGroupOffsets for an empty or new group.

        When the result is committed, send requests to the share coordinators and call
        `ShareStateInitializations.record_outcome`. Errors are in the response.
        """
        try:
            group = self._empty_group(group_id, may_be_new=True)
        except KafkaError as error:
            return Result(_error_response(error))
        result = Result(ShareStateRequests(group.epoch, partitions_of(topics)))
        if topics:
            self._initializations.note_request(group_id, now)
            shared = group.shared
            changed = SharedState(
                merge_topics(shared.initializing, topics),
                shared.initialized,
                {each: name for each, name in shared.deleting.items() if each not in topics},
            )
            _store_states(result, group_id, changed)
        return result

    # -- delete

    def delete(self, group_id: str, topics: Mapping[UUID, str]) -> Result[ShareStateRequests]:
        """Handle the first step of DeleteShareGroupOffsets for an empty group.

        When the result is committed, send requests to the share coordinators, and then call
        `record_deletion`.

        Args:
            group_id: ID of the group.
            topics: Names of existing topics by ID. The response omits topics without a state.
        """
        try:
            group = self._empty_group(group_id)
        except KafkaError as error:
            return Result(_error_response(error))
        initialized = dict(group.shared.initialized)
        deleting = dict(group.shared.deleting)
        partitions: dict[UUID, AbstractSet[int]] = {}
        for topic_id, name in topics.items():
            if topic_id in initialized:
                partitions[topic_id] = initialized.pop(topic_id).partitions
                deleting[topic_id] = name
            elif topic_id in deleting:
                partitions[topic_id] = self._all_partitions(topic_id)
        result = Result(ShareStateRequests(group.epoch, partitions))
        if partitions:
            _store_states(
                result, group_id, SharedState(group.shared.initializing, initialized, deleting)
            )
        return result

    def _all_partitions(self, topic_id: UUID) -> AbstractSet[int]:
        """Return all partitions of a topic."""
        name = self._topics.name_of(topic_id)
        shapes = self._topics.shapes_of({name} if name else set())
        return frozenset(range(max((shape.partitions for shape in shapes.values()), default=0)))

    def has_states(self, group_id: str) -> bool:
        """Return True if a group ever had a share-partition state."""
        group = self._state.find_group(group_id, ShareGroup)
        return group is not None and group.has_shared_record

    def record_deletion(self, group_id: str, topic_ids: Collection[UUID]) -> Result[ErrorCode]:
        """Record that share coordinators have deleted the states of topics."""
        group = self._state.find_group(group_id, ShareGroup)
        result = Result(ErrorCode.NONE)
        if group is not None and not group.shared.deleting.keys().isdisjoint(topic_ids):
            deleting = {
                each: name for each, name in group.shared.deleting.items() if each not in topic_ids
            }
            result.records = [shared_record(group_id, group.shared._replace(deleting=deleting))]
            result.on_failure = lambda code, now: Result(append_error(code))
        return result

    def delete_all(self, group_id: str) -> Result[ShareStateRequests]:
        """Begin to delete all states of a group, before the group itself is deleted.

        When the result is committed, send requests to the share coordinators.
        """
        try:
            group = self._empty_group(group_id)
        except KafkaError as error:
            return Result(_error_response(error))
        shared = group.shared
        topics = merge_topics(shared.initialized, shared.initializing)
        partitions = dict(partitions_of(topics))
        for topic_id in shared.deleting:
            partitions[topic_id] = self._all_partitions(topic_id)
        result = Result(ShareStateRequests(group.epoch, partitions))
        if partitions:
            names = {topic_id: topic.name for topic_id, topic in topics.items()}
            _store_states(result, group_id, SharedState(deleting={**shared.deleting, **names}))
        return result

    def _empty_group(self, group_id: str, *, may_be_new: bool = False) -> ShareGroup:
        """Return a group without members.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
        """
        if may_be_new and self._state.groups.get(group_id) is None:
            return ShareGroup(group_id)
        group = find_share_group(self._state, group_id)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        return group

    # -- deleted topics

    def forget_topics(self, topic_ids: Collection[UUID]) -> Pieces:
        """Remove deleted topics in pieces; share coordinators delete their states themselves."""
        return self._forget(lambda topic_id: topic_id in topic_ids)

    def forget_missing_topics(self) -> Pieces:
        """Remove topics that were deleted while no node led this shard."""
        return self._forget(lambda topic_id: self._topics.name_of(topic_id) is None)

    def _forget(self, is_deleted: Callable[[UUID], bool]) -> Pieces:
        for each in self._state.groups_of(ShareGroup):
            group_id = each.id
            group = self._state.find_group(group_id, ShareGroup)
            if group is None:
                continue
            shared = group.shared
            if not any(is_deleted(topic_id) for topic_id in shared.topic_ids):
                yield None
                continue
            left = SharedState(
                {
                    each: topic
                    for each, topic in shared.initializing.items()
                    if not is_deleted(each)
                },
                {each: topic for each, topic in shared.initialized.items() if not is_deleted(each)},
                {each: name for each, name in shared.deleting.items() if not is_deleted(each)},
            )
            result: Result[None] = Result()
            result.records = [shared_record(group_id, left)]
            # Members get no partitions of deleted topics anyway. The next load repeats the removal.
            result.on_failure = lambda code, now: Result()
            yield result


def _error_response(error: KafkaError) -> ShareStateRequests:
    return ShareStateRequests(error_code=error.code, error_message=error.message)


def _store_states(result: Result[ShareStateRequests], group_id: str, shared: SharedState) -> None:
    result.records = [shared_record(group_id, shared)]
    result.on_failure = lambda code, now: Result(ShareStateRequests(error_code=append_error(code)))
