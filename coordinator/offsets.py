"""Committed offsets: commit, fetch, delete, and expire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import OffsetCommitValue
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from kbroker.protocol.schema import ZERO_UUID
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from .classic.group_state import COMMIT_ERROR, EMPTY, PREPARING, STABLE
from .classic.rebalance import Rebalances, add_deletion_event
from .common.memory import group_bytes, offset_bytes
from .common.offset_checks import FIRST_TXN_VERSION_OF_IDS, CommitCheck, uniform_check
from .common.pending import TopicPartition
from .common.record import CoordinatorRecord
from .common.records import offset_record, offset_tombstone
from .common.result import Now, Pieces, Result, append_error
from .common.settings import GroupSettings
from .common.topics import TopicNames
from .common.version_adapters import (
    commit_error_response,
    fetch_error_row,
    no_offset,
    to_offset_commit,
    to_txn_offset_commit_response,
)
from .consumer.group import ConsumerGroup
from .consumer.offsets import committer_check, fetcher_error, transactional_committer_check
from .share.group import ShareGroup
from .state import OFFSETS_AT_ONCE, AnyGroup, GroupOffsets, ShardState
from .streams.group import StreamsGroup
from .streams.offsets import (
    streams_committer_check,
    streams_fetcher_error,
    streams_transactional_check,
)
from .tombstones import tombstones_of

# Latest expiration time of an offset, in ms.
FOR_EVER_MS = 2**63 - 1
# First version of OffsetCommit and OffsetFetch that identifies topics by ID.
FIRST_VERSION_OF_IDS = 10
# Rows of an OffsetFetch response to read per piece.
ROWS_AT_ONCE = 16


class _OffsetToCommit(NamedTuple):
    """An offset to store, with its row in the response."""

    topic: str
    topic_id: UUID
    partition: OffsetCommitRequest.Partition
    row: OffsetCommitResponse.Partition


class OffsetMetadataManager:
    """Committed offsets of one shard.

    A committed offset contains the ID of its topic (Kafka stores it since 4.2). Offsets of an
    earlier topic of the same name are not returned.
    """

    def __init__(
        self,
        state: ShardState,
        rebalances: Rebalances,
        settings: GroupSettings,
        topics: TopicNames,
    ) -> None:
        self._state = state
        self._rebalances = rebalances
        self._settings = settings
        self._topics = topics

    # -- commit

    def commit(
        self, request: OffsetCommitRequest, now: Now, version: int
    ) -> Result[OffsetCommitResponse]:
        """Handle OffsetCommit (versions 0-10; version 0 acts as version 1)."""
        response, to_commit = self._parse_commit(request, by_id=version >= FIRST_VERSION_OF_IDS)
        result = Result(response)
        if not to_commit:
            return result  # nothing to store, so the group is irrelevant
        group = self._state.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            check = committer_check(group, request, version)
        elif isinstance(group, StreamsGroup):
            check = streams_committer_check(group, request, version)
        elif isinstance(group, ShareGroup):
            check = uniform_check(ErrorCode.GROUP_ID_NOT_FOUND)
        else:
            check = uniform_check(self._check_committer(group, request, now, version))
        result.records = self._records(request, to_commit, check, now)
        if result.records:
            # Only the member's session was extended, so there is nothing to undo.
            result.on_failure = lambda code, now: Result(
                commit_error_response(request, append_error(code))
            )
        return result

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        now: Now,
        version: int,
        refusal: ErrorCode = ErrorCode.NONE,
    ) -> Result[TxnOffsetCommitResponse]:
        """Handle TxnOffsetCommit (versions 0-6). Offsets are pending until the transaction ends.

        Args:
            request: The request.
            now: Current time.
            version: Version of the request.
            refusal: Error with which the transaction coordinator rejects the commit, or NONE.
        """
        commit = to_offset_commit(request)
        response, to_commit = self._parse_commit(commit, by_id=version >= FIRST_TXN_VERSION_OF_IDS)
        result: Result[TxnOffsetCommitResponse] = Result()
        if to_commit:
            group = self._state.groups.get(request.group_id)
            if refusal:
                check = uniform_check(refusal)
            elif isinstance(group, ConsumerGroup):
                check = transactional_committer_check(group, commit, version)
            elif isinstance(group, StreamsGroup):
                check = streams_transactional_check(group, commit, version)
            elif isinstance(group, ShareGroup):
                check = uniform_check(ErrorCode.GROUP_ID_NOT_FOUND)
            else:
                check = uniform_check(self._check_transactional_committer(group, commit, version))
            result.records = self._records(commit, to_commit, check, now, request.producer_id)
        result.response = to_txn_offset_commit_response(response)
        if result.records:
            result.producer = (request.producer_id, request.producer_epoch)
            result.on_failure = lambda code, now: Result(
                to_txn_offset_commit_response(response, append_error(code))
            )
        return result

    def _parse_commit(
        self, request: OffsetCommitRequest, *, by_id: bool
    ) -> tuple[OffsetCommitResponse, list[_OffsetToCommit]]:
        """Return the response rows, and the offsets of partitions that exist."""
        to_commit: list[_OffsetToCommit] = []
        topics = [self._parse_topic(topic, by_id, to_commit) for topic in request.topics]
        return OffsetCommitResponse(topics=topics), to_commit

    def _parse_topic(
        self, topic: OffsetCommitRequest.Topic, by_id: bool, to_commit: list[_OffsetToCommit]
    ) -> OffsetCommitResponse.Topic:
        """Return the topic's response rows, and add existing partitions to `to_commit`."""
        answer = OffsetCommitResponse.Topic(name=topic.name, topic_id=topic.topic_id)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        name: str | None = topic.name
        topic_id: UUID | None = topic.topic_id
        if by_id:
            name = self._topics.name_of(topic.topic_id)
            unknown = unknown if name else ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic_id = self._topics.id_of(topic.name)
        for partition in topic.partitions:
            row = OffsetCommitResponse.Partition(partition_index=partition.partition_index)
            answer.partitions.append(row)
            if name and self._topics.exists(name, partition.partition_index):
                to_commit.append(_OffsetToCommit(name, topic_id or ZERO_UUID, partition, row))
            else:
                row.error_code = unknown
        return answer

    def _check_committer(
        self, group: ClassicGroup | None, request: OffsetCommitRequest, now: Now, version: int
    ) -> ErrorCode:
        """Return the error for a commit by the sender. A commit by a member extends its session."""
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation < 0:
                return ErrorCode.NONE  # the commit creates a simple group
            if version >= 9:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.state is EMPTY:
            return ErrorCode.NONE
        code = group.check_member(request.member_id, request.group_instance_id)
        if code:
            return code  # also rejects tools that send no member ID while the group is in use
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state in (STABLE, PREPARING):
            self._rebalances.keep_alive(group, group.members[request.member_id], now)
        return COMMIT_ERROR[group.state]

    @staticmethod
    def _check_transactional_committer(
        group: ClassicGroup | None, request: OffsetCommitRequest, version: int
    ) -> ErrorCode:
        """Return the error for a transactional commit by the sender.

        The state of the group is not checked. Requests of older clients have no member ID, so the
        member is not checked either: the transaction already fences its producers. The commit does
        not extend the session.
        """
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation < 0:
                return ErrorCode.NONE  # the commit creates a simple group
            if version >= FIRST_TXN_VERSION_OF_IDS:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and (group.state is EMPTY or not _has_member(request)):
            return ErrorCode.NONE
        code = group.check_member(request.member_id, request.group_instance_id)
        if not code and generation != group.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        return code

    def _records(
        self,
        request: OffsetCommitRequest,
        to_commit: list[_OffsetToCommit],
        check: CommitCheck,
        now: Now,
        producer_id: int = NO_PRODUCER_ID,
    ) -> list[CoordinatorRecord]:
        """Return the records to store, and set the error codes of rejected rows.

        As in Kafka, one partition with a stale epoch rejects the whole request. The memory limit of
        the node also rejects the whole request.
        """
        refusal = check.request_error
        valid = []
        for item in to_commit:
            metadata = item.partition.committed_metadata or ""
            if len(metadata) > self._settings.offset_metadata_length_max:
                item.row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                valid.append((item, metadata))
                code = check.partition_error(
                    item.topic, item.topic_id, item.partition.partition_index
                )
                refusal = refusal or code
        if not refusal:
            values = [self._value(request, item, metadata, now) for item, metadata in valid]
            topic_partitions = [(item.topic, item.partition.partition_index) for item, _ in valid]
            offsets = list(zip(topic_partitions, values, strict=True))
            growth = self._growth(request.group_id, offsets, producer_id)
            if self._state.memory.limits.offsets.permits(growth):
                return [
                    offset_record(request.group_id, *topic_partition, value)
                    for topic_partition, value in offsets
                ]
            refusal = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        for item in to_commit:
            item.row.error_code = refusal
        return []

    def _growth(
        self,
        group_id: str,
        offsets: list[tuple[TopicPartition, OffsetCommitValue]],
        producer_id: int,
    ) -> int:
        """Return the bytes by which the commit would increase the memory of committed offsets."""
        if producer_id != NO_PRODUCER_ID:
            pending = self._state.pending_offsets
            growth = 0 if pending.topic_partitions(group_id) else group_bytes(group_id)
            for topic_partition, value in offsets:
                growth += offset_bytes(topic_partition[0], value)
                growth -= pending.size_of(producer_id, group_id, topic_partition)
            return growth
        known = self._state.offsets.get(group_id, {})
        growth = 0 if known else group_bytes(group_id)
        for topic_partition, value in offsets:
            before = known.get(topic_partition)
            growth += len(value.metadata) - len(before.metadata) if before else 0
            growth += 0 if before else offset_bytes(topic_partition[0], value)
        return growth

    def _value(
        self, request: OffsetCommitRequest, item: _OffsetToCommit, metadata: str, now: Now
    ) -> OffsetCommitValue:
        partition = item.partition
        at_ms = partition.commit_timestamp
        keep_ms = request.retention_time_ms
        expires = keep_ms != -1
        return OffsetCommitValue(
            offset=partition.committed_offset,
            leader_epoch=-1 if expires else partition.committed_leader_epoch,
            metadata=metadata,
            commit_timestamp=now.log_ms if at_ms == -1 else at_ms,
            # Clients that still send a retention time get it (KIP-211). Only version 1 of the value
            # stores a retention time, and it has no leader epoch and no topic ID.
            expire_timestamp=min(now.log_ms + keep_ms, FOR_EVER_MS) if expires else -1,
            topic_id=ZERO_UUID if expires else item.topic_id,
        )

    # -- fetch

    def fetch(
        self, request: OffsetFetchRequest.Group, version: int, *, require_stable: bool = False
    ) -> Generator[None, None, OffsetFetchResponse.Group]:
        """Handle one group of OffsetFetch (versions 0-10; version 0 acts as version 1).

        `version_adapters.groups_to_fetch` creates the group requests. The work is done in pieces
        because there may be many rows. Other requests may commit between two pieces. A missing
        offset is not an error. Release the response like the response of a `Result` without
        records.

        Args:
            request: One group of the request.
            version: Version of the request.
            require_stable: If True, return UNSTABLE_OFFSET_COMMIT for a partition with a pending
                offset (KIP-447).
        """
        group = self._state.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and (code := fetcher_error(group, request)):
            return fetch_error_row(request, code, version)
        if isinstance(group, StreamsGroup) and (code := streams_fetcher_error(group, request)):
            return fetch_error_row(request, code, version)
        offsets = self._state.offsets.get(request.group_id, {})
        unstable: Collection[TopicPartition] = ()
        if require_stable:
            unstable = self._state.pending_offsets.topic_partitions(request.group_id)
        answer = OffsetFetchResponse.Group(group_id=request.group_id)
        if request.topics is None:
            answer.topics = yield from self._fetch_all(request.group_id, unstable, version)
            return answer
        for topic in request.topics:
            name: str | None = topic.name
            topic_id: UUID | None = topic.topic_id
            if version >= FIRST_VERSION_OF_IDS:
                name = self._topics.name_of(topic.topic_id)
            else:
                topic_id = self._topics.id_of(topic.name)
            rows = OffsetFetchResponse.Topic(name=topic.name, topic_id=topic.topic_id)
            answer.topics.append(rows)
            for index in topic.partition_indexes:
                if name is None:
                    rows.partitions.append(no_offset(index, ErrorCode.UNKNOWN_TOPIC_ID))
                elif (name, index) in unstable:
                    rows.partitions.append(no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                else:
                    rows.partitions.append(
                        self._row(request.group_id, (name, index), offsets, topic_id)
                    )
                if not len(rows.partitions) % ROWS_AT_ONCE:
                    yield
            if not len(answer.topics) % ROWS_AT_ONCE:
                yield
        return answer

    def _fetch_all(
        self, group_id: str, unstable: Collection[TopicPartition], version: int
    ) -> Generator[None, None, list[OffsetFetchResponse.Topic]]:
        topics: dict[str, OffsetFetchResponse.Topic] = {}
        offsets = self._state.offsets.get(group_id, {})
        for count, topic_partition in enumerate(tuple(offsets), 1):
            name, index = topic_partition
            if not count % ROWS_AT_ONCE:
                yield
            # Read the value now: a transaction may have replaced it since the last piece.
            value = offsets.get(topic_partition)
            if value is None:
                continue
            topic_id = self._topics.id_of(name)
            if version >= FIRST_VERSION_OF_IDS and topic_id is None:
                continue  # this version identifies topics by ID only
            if self._belongs_to_earlier_topic(group_id, topic_partition, value, topic_id):
                continue
            topic = topics.get(name)
            if topic is None:
                topic = OffsetFetchResponse.Topic(name=name, topic_id=topic_id or ZERO_UUID)
                topics[name] = topic
            if topic_partition in unstable:
                topic.partitions.append(no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                topic.partitions.append(_row(index, value))
        return list(topics.values())

    def _row(
        self,
        group_id: str,
        topic_partition: TopicPartition,
        offsets: GroupOffsets,
        topic_id: UUID | None,
    ) -> OffsetFetchResponse.Partition:
        value = offsets.get(topic_partition)
        if value is None or self._belongs_to_earlier_topic(
            group_id, topic_partition, value, topic_id
        ):
            return no_offset(topic_partition[1])
        return _row(topic_partition[1], value)

    # -- delete

    def delete(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        """Handle OffsetDelete (KIP-496). Offsets of subscribed topics are not deleted."""
        if not request.group_id:
            return Result(OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._state.committing_group(request.group_id)
        if group is None:
            return Result(OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        if isinstance(group, ClassicGroup) and not _is_empty_or_consumer(group):
            return Result(OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
        result = Result(OffsetDeleteResponse())
        response = OffsetDeleteResponse()
        result.response = response
        topic_partitions = self._state.topic_partitions(group.id)
        for topic in request.topics:
            rows = self._delete_topic(group, topic, topic_partitions, result.records)
            if not rows:
                continue
            response.topics.append(OffsetDeleteResponse.Topic(name=topic.name, partitions=rows))
        if result.records:
            result.on_failure = lambda code, now: Result(
                OffsetDeleteResponse(error_code=append_error(code))
            )
        return result

    def _delete_topic(
        self,
        group: AnyGroup,
        topic: OffsetDeleteRequest.Topic,
        topic_partitions: Collection[TopicPartition],
        records: list[CoordinatorRecord],
    ) -> list[OffsetDeleteResponse.Partition]:
        subscribed = group.subscribes(topic.name)
        rows = []
        for partition in topic.partitions:
            index = partition.partition_index
            row = OffsetDeleteResponse.Partition(partition_index=index)
            rows.append(row)
            if not self._topics.exists(topic.name, index):
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif subscribed:
                row.error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif (topic.name, index) in topic_partitions:
                records.append(offset_tombstone(group.id, topic.name, index))
        return rows

    def forget_topics(self, names: Collection[str]) -> Pieces:
        """Delete the offsets of deleted topics."""
        deleted = self._state.deleted_topics
        is_running = deleted.any
        deleted.add(names)
        return iter(()) if is_running else self._delete_offsets_of_deleted_topics()

    def _delete_offsets_of_deleted_topics(self) -> Pieces:
        for names in self._state.deleted_topics.rounds():
            yield from self._delete_stale_offsets(names.__contains__)

    def forget_missing_topics(self) -> Pieces:
        """Delete the offsets of topics that were deleted while no node led this shard."""
        return self._delete_stale_offsets(lambda name: True)

    def _delete_stale_offsets(self, is_affected: Callable[[str], bool]) -> Pieces:
        """Delete the offsets of earlier topics whose name satisfies `is_affected`."""
        for each in self._state.committing_groups():
            group_id = each.id
            for topic_partitions in _in_pieces(self._state.topic_partitions(group_id)):
                expired = [
                    topic_partition
                    for topic_partition in topic_partitions
                    if is_affected(topic_partition[0])
                    and self._has_only_stale_offsets(group_id, topic_partition)
                ]
                yield _result_with_tombstones(group_id, expired) if expired else None

    def _has_only_stale_offsets(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return True if all offsets of a group for a partition belong to an earlier topic."""
        topic_id = self._topics.id_of(topic_partition[0])
        values = self._state.values(group_id, topic_partition)
        return topic_id is None or all(
            self._belongs_to_earlier_topic(group_id, topic_partition, value, topic_id)
            for value in values
        )

    def _belongs_to_earlier_topic(
        self,
        group_id: str,
        topic_partition: TopicPartition,
        value: OffsetCommitValue,
        topic_id: UUID | None,
    ) -> bool:
        """Return True if an offset was committed to an earlier topic of the same name.

        An offset without a topic ID was written by Kafka before 4.2 or with its own retention time.
        It counts as an offset of the existing topic, unless it is known to be older.
        """
        if topic_id is None or value.topic_id == ZERO_UUID:
            return self._state.deleted_topics.covers(group_id, topic_partition)
        return value.topic_id != topic_id

    def expire(self, now: Now) -> Pieces:
        """Delete expired offsets.

        A group without members is deleted with its last offset. Pending offsets do not expire.
        """
        for each in self._state.committing_groups():
            group_id = each.id
            group = self._state.committing_group(group_id)
            if group is None:
                continue  # the group was deleted in the meantime
            for topic_partitions in _in_pieces(self._state.offsets.get(group_id, ())):
                yield self._expire_offsets(group, topic_partitions, now)

    def _expire_offsets(
        self, group: AnyGroup, topic_partitions: Collection[TopicPartition], now: Now
    ) -> Result[None] | None:
        """Return the tombstones of expired offsets, and of the group if nothing else remains."""
        if self._state.committing_group(group.id) is not group:
            return None  # the group was deleted in the meantime
        offsets = self._state.offsets.get(group.id, {})
        unstable = self._state.pending_offsets.topic_partitions(group.id)
        expired = [
            topic_partition
            for topic_partition in topic_partitions
            if topic_partition in offsets
            and topic_partition not in unstable
            and self._has_expired(group, topic_partition[0], offsets[topic_partition], now)
        ]
        has_nothing_left = len(expired) == len(offsets) and not unstable
        group_expired = has_nothing_left and _is_unused(group)
        if not expired and not group_expired:
            return None
        result = _result_with_tombstones(group.id, expired)
        if group_expired:
            result.records += tombstones_of(group)
            add_deletion_event(group, "no members and no offsets are left", now, result)
        return result

    def _has_expired(self, group: AnyGroup, topic: str, value: OffsetCommitValue, now: Now) -> bool:
        """Return True if an offset has expired.

        Retention starts at the commit, or when the last member of the group left (KIP-211).
        """
        if not isinstance(group, ClassicGroup):
            since_ms = value.commit_timestamp
            if group.subscribes(topic):
                return False
        elif group.protocol_type is None:
            since_ms = value.commit_timestamp
        elif group.state is EMPTY:
            known = group.state_since_ms >= 0
            since_ms = group.state_since_ms if known else value.commit_timestamp
        elif group.state is STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE:
            since_ms = value.commit_timestamp
            if group.subscribes(topic):
                return False
        else:
            return False
        if value.expire_timestamp != -1:
            return now.log_ms >= value.expire_timestamp
        return now.log_ms - since_ms >= self._settings.offsets_retention_ms


def _is_empty_or_consumer(group: ClassicGroup) -> bool:
    return group.state is EMPTY or group.protocol_type == CONSUMER_PROTOCOL_TYPE


def _is_unused(group: AnyGroup) -> bool:
    """Return True if a group has no members and no pending members."""
    if not isinstance(group, ClassicGroup):
        return not group.members
    return group.state is EMPTY and not group.pending


def _has_member(request: OffsetCommitRequest) -> bool:
    return bool(request.member_id) or request.group_instance_id is not None


def _result_with_tombstones(
    group_id: str, topic_partitions: Collection[TopicPartition]
) -> Result[None]:
    result: Result[None] = Result()
    result.records += [
        offset_tombstone(group_id, topic, index) for topic, index in topic_partitions
    ]
    # Nothing has changed: the next expiration pass tries again.
    result.on_failure = lambda code, now: Result()
    return result


def _row(partition: int, value: OffsetCommitValue) -> OffsetFetchResponse.Partition:
    return OffsetFetchResponse.Partition(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _in_pieces(topic_partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Yield the current items of `topic_partitions` in pieces, with at least one (possibly empty) piece."""
    left = iter(tuple(topic_partitions))
    piece = list(islice(left, OFFSETS_AT_ONCE))
    yield piece
    while piece := list(islice(left, OFFSETS_AT_ONCE)):
        yield piece
