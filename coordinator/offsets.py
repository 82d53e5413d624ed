"""Committed offsets: commit, fetch, delete, expire."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import NamedTuple, Protocol
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

from .group import CONSUMER_PROTOCOL_TYPE, Group
from .group_state import COMMIT_ANSWER, EMPTY, PREPARING, STABLE
from .pending import Place
from .rebalance import Rebalances, note_deleted
from .records import group_tombstone, offset_record, offset_tombstone
from .result import CoordinatorRecord, Now, Result, append_error
from .settings import GroupSettings
from .shapes import commit_refused, no_offset, plain_commit, transactional_response
from .state import GroupOffsets, ShardState

FOR_EVER_MS = 2**63 - 1
FIRST_VERSION_OF_IDS = 10
"""Of OffsetCommit and OffsetFetch: topics come by id instead of by name."""
ROWS_AT_ONCE = 16
"""Of a fetch, in one piece."""


class TopicNames(Protocol):
    """What committed offsets need to know of the cluster's topics."""

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of a topic, None if there is no such topic."""
        ...

    def id_of(self, name: str) -> UUID | None:
        """The id of a topic, None if there is no such topic."""
        ...

    def exists(self, name: str, partition: int) -> bool:
        """Whether a topic has this partition."""
        ...


class _Wanted(NamedTuple):
    """One offset to store, and its row in the answer."""

    topic: str
    topic_id: UUID
    partition: OffsetCommitRequest.Partition
    row: OffsetCommitResponse.Partition


class Offsets:
    """Committed offsets of one shard.

    A committed offset carries the id of its topic (as Kafka 4.2 on stores it): one that was
    committed to an earlier topic of the same name is not found any more.
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
        response, wanted = self._read(request, by_id=version >= FIRST_VERSION_OF_IDS)
        result = Result(response)
        if not wanted:
            return result  # nothing that could be stored, so the group does not matter
        code = self._check_committer(request, now, version)
        result.records = self._records(request, wanted, code, now)
        if result.records:
            # Nothing was changed yet but the member's session, so there is nothing to undo.
            result.on_failure = lambda code, now: Result(
                commit_refused(request, append_error(code))
            )
        return result

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, now: Now, refusal: ErrorCode
    ) -> Result[TxnOffsetCommitResponse]:
        commit = plain_commit(request)
        response, wanted = self._read(commit, by_id=False)
        result: Result[TxnOffsetCommitResponse] = Result()
        if wanted:
            code = refusal or self._check_transactional_committer(commit)
            result.records = self._records(commit, wanted, code, now)
        result.response = transactional_response(response)
        if result.records:
            result.producer = (request.producer_id, request.producer_epoch)
            result.on_failure = lambda code, now: Result(
                transactional_response(response, append_error(code))
            )
        return result

    def _read(
        self, request: OffsetCommitRequest, *, by_id: bool
    ) -> tuple[OffsetCommitResponse, list[_Wanted]]:
        """The rows of the answer, and what of the request exists."""
        wanted: list[_Wanted] = []
        topics = [self._read_topic(topic, by_id, wanted) for topic in request.topics]
        return OffsetCommitResponse(topics=topics), wanted

    def _read_topic(
        self, topic: OffsetCommitRequest.Topic, by_id: bool, wanted: list[_Wanted]
    ) -> OffsetCommitResponse.Topic:
        """The topic's rows of the answer; what exists goes into `wanted`."""
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
                wanted.append(_Wanted(name, topic_id or ZERO_UUID, partition, row))
            else:
                row.error_code = unknown
        return answer

    def _check_committer(self, request: OffsetCommitRequest, now: Now, version: int) -> ErrorCode:
        """Whether the sender may commit now; if it is a member, that keeps its session."""
        group = self._state.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            if generation < 0:
                return ErrorCode.NONE  # a simple group begins
            if version >= 9:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.state is EMPTY:
            return ErrorCode.NONE
        code = group.check_member(request.member_id, request.group_instance_id)
        if code:
            return code  # and so for tools that send no member id: the group is in use
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state in (STABLE, PREPARING):
            self._rebalances.keep_alive(group, group.members[request.member_id], now)
        return COMMIT_ANSWER[group.state]

    def _check_transactional_committer(self, request: OffsetCommitRequest) -> ErrorCode:
        """Whether the sender may commit in a transaction now.

        The state of the group does not matter, and who names no member (as older clients) is not
        asked for one: the transaction fences its producers. It keeps no session.
        """
        group = self._state.groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and (group.state is EMPTY or not _names_member(request)):
            return ErrorCode.NONE
        code = group.check_member(request.member_id, request.group_instance_id)
        if not code and generation != group.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        return code

    def _records(
        self, request: OffsetCommitRequest, wanted: list[_Wanted], code: ErrorCode, now: Now
    ) -> list[CoordinatorRecord]:
        """What is to be stored; rows that are refused, by `code` or for themselves, are told so."""
        records = []
        for item in wanted:
            metadata = item.partition.committed_metadata or ""
            if code:
                item.row.error_code = code
            elif len(metadata) > self._settings.offset_metadata_length_max:
                item.row.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                records.append(self._record(request, item, metadata, now))
        return records

    def _record(
        self, request: OffsetCommitRequest, item: _Wanted, metadata: str, now: Now
    ) -> CoordinatorRecord:
        partition = item.partition
        at_ms = partition.commit_timestamp
        keep_ms = request.retention_time_ms
        value = OffsetCommitValue(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=metadata,
            commit_timestamp=now.log_ms if at_ms == -1 else at_ms,
            # A retention time of its own is honoured for clients that still send one (KIP-211).
            expire_timestamp=-1 if keep_ms == -1 else min(now.log_ms + keep_ms, FOR_EVER_MS),
            topic_id=item.topic_id,
        )
        return offset_record(request.group_id, item.topic, partition.partition_index, value)

    # -- fetch

    def fetch(
        self, request: OffsetFetchRequest.Group, version: int, *, require_stable: bool
    ) -> Generator[None, None, OffsetFetchResponse.Group]:
        """Committed offsets of one group; what is not there is no error."""
        offsets = self._state.offsets.get(request.group_id, {})
        unstable: Collection[Place] = ()
        if require_stable:
            unstable = self._state.pending_offsets.places(request.group_id)
        answer = OffsetFetchResponse.Group(group_id=request.group_id)
        if request.topics is None:
            answer.topics = yield from self._fetch_all(offsets, unstable, version)
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
                    rows.partitions.append(_row(index, offsets.get((name, index)), topic_id))
                if not len(rows.partitions) % ROWS_AT_ONCE:
                    yield
            if not len(answer.topics) % ROWS_AT_ONCE:
                yield
        return answer

    def _fetch_all(
        self, offsets: GroupOffsets, unstable: Collection[Place], version: int
    ) -> Generator[None, None, list[OffsetFetchResponse.Topic]]:
        topics: dict[str, OffsetFetchResponse.Topic] = {}
        for count, ((name, index), value) in enumerate(tuple(offsets.items()), 1):
            if not count % ROWS_AT_ONCE:
                yield
            topic_id = self._topics.id_of(name)
            if version >= FIRST_VERSION_OF_IDS and topic_id is None:
                continue  # without an id it cannot be said in this version
            if _is_of_another_topic(value, topic_id):
                continue
            topic = topics.get(name)
            if topic is None:
                topic = OffsetFetchResponse.Topic(name=name, topic_id=topic_id or ZERO_UUID)
                topics[name] = topic
            if (name, index) in unstable:
                topic.partitions.append(no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
            else:
                topic.partitions.append(_row(index, value, topic_id))
        return list(topics.values())

    # -- delete

    def delete(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        """Delete single offsets (KIP-496): not those of topics that the group reads."""
        if not request.group_id:
            return Result(OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._state.groups.get(request.group_id)
        if group is None:
            return Result(OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
        if group.state is not EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return Result(OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
        result = Result(OffsetDeleteResponse())
        response = OffsetDeleteResponse()
        result.response = response
        places = self._state.places(group.id)
        for topic in request.topics:
            rows = self._delete_topic(group, topic, places, result.records)
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
        group: Group,
        topic: OffsetDeleteRequest.Topic,
        places: Collection[Place],
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
            elif (topic.name, index) in places:
                records.append(offset_tombstone(group.id, topic.name, index))
        return rows

    def forget_topics(self, names: Collection[str]) -> Iterator[Result[None]]:
        """The offsets of deleted topics, one result per group that has some."""
        group_ids = (*self._state.offsets, *self._state.pending_offsets.groups())
        for group_id in dict.fromkeys(group_ids):
            gone = [place for place in self._state.places(group_id) if place[0] in names]
            if gone:
                yield _tombstones(group_id, gone)

    def forget_missing_topics(self) -> Iterator[Result[None]]:
        """The offsets of topics that were deleted while nobody had this shard, one result per group
        that has some. One that is pending stays until its transaction has ended.
        """
        ids: dict[str, UUID | None] = {}
        for group_id, offsets in list(self._state.offsets.items()):
            gone = []
            for place, value in offsets.items():
                name = place[0]
                if name not in ids:
                    ids[name] = self._topics.id_of(name)
                if ids[name] is None or _is_of_another_topic(value, ids[name]):
                    gone.append(place)
            if gone:
                yield _tombstones(group_id, gone)

    def expire(self, now: Now) -> Iterator[Result[None]]:
        """What has outlived its retention, one result per group that has some.

        A group that has nothing left and no members goes as well. What waits for the end of a
        transaction stays.
        """
        for group in list(self._state.groups.values()):
            offsets = self._state.offsets.get(group.id, {})
            unstable = self._state.pending_offsets.places(group.id)
            gone = [
                place
                for place, value in offsets.items()
                if place not in unstable and self._has_expired(group, place[0], value, now)
            ]
            result = _tombstones(group.id, gone)
            is_bare = len(gone) == len(offsets) and not unstable
            if is_bare and group.state is EMPTY and not group.pending:
                result.records.append(group_tombstone(group.id))
                note_deleted(group, "it has neither members nor offsets any more", now, result)
            if result.records:
                yield result

    def _has_expired(self, group: Group, topic: str, value: OffsetCommitValue, now: Now) -> bool:
        """Retention counts from the commit; in a group that had members, from its end (KIP-211)."""
        if group.protocol_type is None:
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


def _names_member(request: OffsetCommitRequest) -> bool:
    return bool(request.member_id) or request.group_instance_id is not None


def _tombstones(group_id: str, places: Collection[Place]) -> Result[None]:
    result: Result[None] = Result()
    result.records += [offset_tombstone(group_id, topic, index) for topic, index in places]
    # Nothing has changed; the next pass tries again.
    result.on_failure = lambda code, now: Result()
    return result


def _row(
    partition: int, value: OffsetCommitValue | None, topic_id: UUID | None
) -> OffsetFetchResponse.Partition:
    if value is None or _is_of_another_topic(value, topic_id):
        return no_offset(partition)
    return OffsetFetchResponse.Partition(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _is_of_another_topic(value: OffsetCommitValue, topic_id: UUID | None) -> bool:
    return value.topic_id not in (ZERO_UUID, topic_id or value.topic_id)
