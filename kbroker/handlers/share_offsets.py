"""Share group offsets: describe, alter and delete (KIP-932)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kbroker.coordinator import StatesToInitialize
from kbroker.coordinator.common.modern_group import Target
from kbroker.coordinator.share.group import SharedTopic
from kbroker.coordinator.share.offsets import ShareStateRequests
from kbroker.coordinator_runtime.groups import GroupShard
from kbroker.coordinator_runtime.high_watermarks import Ends, high_watermarks
from kbroker.coordinator_runtime.shards import ShardPending, outcome_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kbroker.protocol.messages.share_state import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from kbroker.protocol.primitives import INT64_MAX
from kbroker.protocol.share_state_log import UNKNOWN_COUNT, SharePartitionKey
from kbroker.security.acls import AclOperation, Resource

from .context import TOPIC, Context
from .deduplicate import distinct, distinct_partitions
from .registry import handles
from .share_groups import require_share_groups

NO_OFFSET = -1
UNKNOWN_TOPIC = "This server does not host this topic-partition."

Group = DescribeShareGroupOffsetsResponse.Group
Topic = DescribeShareGroupOffsetsResponse.Topic
Partition = DescribeShareGroupOffsetsResponse.Partition
Summaries = dict[SharePartitionKey, ReadShareGroupStateSummaryResponse.Partition]


@handles(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, versions="0-1", read_only=True)
async def describe_share_group_offsets(
    ctx: Context, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Return the share-partition start offsets of groups, as stored by the share coordinators.

    A group without a list of topics selects all its share partitions.

    Versions: 1 has the lag (KIP-1226).

    Differs from Kafka: a group that is named several times has one row with all its partitions.
    """
    asked: dict[str, list[DescribeShareGroupOffsetsRequest.Topic] | None] = {}
    async for group in ctx.time_slice.each(request.groups):
        known = asked.setdefault(group.group_id, [])
        if known is not None and group.topics is not None:
            known += group.topics
        else:
            asked[group.group_id] = None
    return DescribeShareGroupOffsetsResponse(
        groups=[
            await _describe(ctx, group_id, topics)
            async for group_id, topics in ctx.time_slice.each(asked.items())
        ]
    )


async def _describe(
    ctx: Context, group_id: str, topics: list[DescribeShareGroupOffsetsRequest.Topic] | None
) -> Group:
    row = Group(group_id=group_id)
    try:
        require_share_groups(ctx)
        ctx.require_group(AclOperation.DESCRIBE, group_id)
        if topics is None:
            row.topics = await _describe_all(ctx, group_id)
        else:
            row.topics = await _describe_named(ctx, group_id, topics)
    except KafkaError as error:
        row.error_code, row.error_message = error.code, error.message
    return row


async def _describe_all(ctx: Context, group_id: str) -> list[Topic]:
    groups = ctx.node.groups
    shard = groups.shard(group_id)
    found = shard.coordinator.share_offsets.partitions(group_id)
    if not await outcome_of(groups.release(shard, True)):
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    by_id = ctx.node.cluster.topics_by_id
    visible = [
        share
        async for share in ctx.time_slice.each(found)
        if share.topic_id in by_id and ctx.may_list_topic(by_id[share.topic_id].name)
    ]
    return await _rows(ctx, visible)


async def _describe_named(
    ctx: Context, group_id: str, topics: list[DescribeShareGroupOffsetsRequest.Topic]
) -> list[Topic]:
    named = await distinct_partitions(
        ctx.time_slice, ((topic.topic_name, topic.partitions) for topic in topics)
    )
    shares: list[SharePartitionKey] = []
    others: list[Topic] = []
    denied: list[Topic] = []
    async for name, indexes in ctx.time_slice.each(named.items()):
        known = ctx.node.cluster.topics.get(name)
        try:
            ctx.require_topic(AclOperation.DESCRIBE, name)
        except KafkaError as error:
            denied.append(_error_rows(name, indexes, error))
            continue
        if known is None:
            others.append(_error_rows(name, indexes, None))
        else:
            shares += [SharePartitionKey(group_id, known.id, index) for index in indexes]
    return [*await _rows(ctx, shares), *others, *denied]


def _error_rows(name: str, indexes: Any, error: KafkaError | None) -> Topic:
    rows = [Partition(partition_index=index, start_offset=NO_OFFSET) for index in indexes]
    if error is not None:
        for row in rows:
            row.error_code, row.error_message = error.code, error.message
    return Topic(topic_name=name, partitions=rows)


async def _rows(ctx: Context, shares: list[SharePartitionKey]) -> list[Topic]:
    """Return the rows of share partitions, from share coordinators and partition leaders."""
    if not shares:
        return []
    asked = {
        share: ReadShareGroupStateSummaryRequest.Partition(
            partition=share.partition, leader_epoch=-1
        )
        async for share in ctx.time_slice.each(shares)
    }
    summaries = await ctx.node.share.persister.summary(asked)
    by_id = ctx.node.cluster.topics_by_id
    names = {
        share.topic_id: by_id[share.topic_id].name for share in shares if share.topic_id in by_id
    }
    places = [
        (names[share.topic_id], share.partition)
        async for share in ctx.time_slice.each(shares)
        if share.topic_id in names and _has_lag(summaries[share])
    ]
    ends = await high_watermarks(ctx.node.context, ctx.node.partitions, ctx.node.peers, places)
    topics: dict[UUID, Topic] = {}
    async for share in ctx.time_slice.each(shares):
        name = names.get(share.topic_id)
        if name is not None:
            row = _row(share, summaries[share], name, ends)
            topic = topics.setdefault(
                share.topic_id, Topic(topic_name=name, topic_id=share.topic_id)
            )
            topic.partitions.append(row)
    return list(topics.values())


def _has_lag(summary: ReadShareGroupStateSummaryResponse.Partition) -> bool:
    """Return True if the lag can be computed."""
    return (
        not summary.error_code
        and summary.start_offset != NO_OFFSET
        and summary.delivery_complete_count != UNKNOWN_COUNT
    )


def _row(
    share: SharePartitionKey,
    summary: ReadShareGroupStateSummaryResponse.Partition,
    name: str,
    ends: Ends,
) -> Partition:
    row = Partition(partition_index=share.partition)
    if summary.error_code:
        row.start_offset = NO_OFFSET  # as in Kafka, without an error code
        return row
    if not _has_lag(summary):
        row.start_offset, row.leader_epoch = summary.start_offset, summary.leader_epoch
        return row
    end = ends[name, share.partition]
    if isinstance(end, ErrorCode):
        row.error_code = end
        return row
    row.start_offset, row.leader_epoch = summary.start_offset, summary.leader_epoch
    lag = end - summary.start_offset - summary.delivery_complete_count
    # Clamp the lag to 64 bits: another broker may have stored any offsets.
    row.lag = max(-INT64_MAX, min(lag, INT64_MAX))
    return row


@handles(ApiKey.ALTER_SHARE_GROUP_OFFSETS, versions="0")
async def alter_share_group_offsets(
    ctx: Context, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Set the start offsets of an empty group, which need not exist yet.

    Differs from Kafka: if a partition has several rows, the last one counts.
    """
    cls = AlterShareGroupOffsetsResponse
    groups, group_id = ctx.node.groups, request.group_id
    asked = _AlteredOffsets(ctx)
    try:
        require_share_groups(ctx)
        ctx.require_group(AclOperation.READ, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        await asked.read(request)
        shard = groups.shard(group_id)
    except KafkaError as error:
        return cls(error_code=error.code, error_message=error.message)
    result = shard.coordinator.share_offsets.alter(group_id, asked.topics, groups.now())
    outcome: ShareStateRequests | ShardPending | None = groups.run(shard, result)
    begun = await outcome_of(outcome)
    if begun is None:
        return cls(error_code=ErrorCode.NOT_COORDINATOR)
    if begun.error_code:
        return cls(error_code=begun.error_code, error_message=begun.error_message)
    states = StatesToInitialize(group_id, begun.epoch, begun.partitions)
    failed = await groups.share_state_initializer.initialize(shard, states, asked.start_of)
    # Wait for the commit: otherwise the next coordinator would initialize the states again.
    if not groups.serves(shard) or not await outcome_of(groups.release(shard, True)):
        return cls(error_code=ErrorCode.NOT_COORDINATOR)
    async for share, failure in ctx.time_slice.each(failed.items()):
        row = asked.rows[share.topic_id, share.partition][0]
        row.error_code, row.error_message = failure.code, failure.message
    return cls(responses=asked.answers)


class _AlteredOffsets:
    """Distinct partitions of an AlterShareGroupOffsets request, and their response rows.

    Attributes:
        answers: Response rows.
        rows: Response row and new offset of each existing partition that the client may alter.
        topics: Topics of the partitions in `rows`.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.answers: list[AlterShareGroupOffsetsResponse.Topic] = []
        self.rows: dict[tuple[UUID, int], tuple[AlterShareGroupOffsetsResponse.Partition, int]] = {}
        self.topics: dict[UUID, SharedTopic] = {}

    def start_of(self, share: SharePartitionKey) -> int:
        """Return the new start offset of a share partition."""
        return self.rows[share.topic_id, share.partition][1]

    async def read(self, request: AlterShareGroupOffsetsRequest) -> None:
        """Read all rows of the request."""
        time_slice = self._ctx.time_slice
        named: dict[str, dict[int, int]] = {}
        async for topic in time_slice.each(request.topics):
            offsets = named.setdefault(topic.topic_name, {})
            async for row in time_slice.each(topic.partitions):
                offsets[row.partition_index] = row.start_offset
        async for name, offsets in time_slice.each(named.items()):
            await self._read_topic(name, offsets)

    async def _read_topic(self, name: str, offsets: dict[int, int]) -> None:
        cls = AlterShareGroupOffsetsResponse
        known = self._ctx.node.cluster.topics.get(name)
        answer = cls.Topic(topic_name=name)
        self.answers.append(answer)
        if known is not None:
            answer.topic_id = known.id
        code = ErrorCode.NONE
        if not self._ctx.allows(AclOperation.READ, Resource(TOPIC, name)):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        async for index, offset in self._ctx.time_slice.each(offsets.items()):
            row = cls.Partition(partition_index=index, error_code=code)
            answer.partitions.append(row)
            if code:
                continue
            if known is None or not 0 <= index < len(known.partitions):
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                row.error_message = UNKNOWN_TOPIC
            else:
                self.rows[known.id, index] = row, offset
        found = frozenset(index for index in offsets if (answer.topic_id, index) in self.rows)
        if found:
            self.topics[answer.topic_id] = SharedTopic(name, found)


@handles(ApiKey.DELETE_SHARE_GROUP_OFFSETS, versions="0")
async def delete_share_group_offsets(
    ctx: Context, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Delete the offsets of topics of an empty group.

    Differs from Kafka: a topic that is named several times has one row.
    """
    cls = DeleteShareGroupOffsetsResponse
    groups, group_id = ctx.node.groups, request.group_id
    topics: dict[UUID, str] = {}
    try:
        require_share_groups(ctx)
        ctx.require_group(AclOperation.DELETE, group_id)
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        denied, unknown = await _name_topics(ctx, request, topics)
        shard = groups.shard(group_id)
    except KafkaError as error:
        return cls(error_code=error.code, error_message=error.message)
    coordinator = shard.coordinator
    has_states = coordinator.share_offsets.has_states(group_id)
    result = coordinator.share_offsets.delete(group_id, topics)
    outcome: ShareStateRequests | ShardPending | None = groups.run(shard, result)
    # A member that joins would initialize the states before the share coordinators delete them.
    with groups.closed_to_requests(group_id):
        begun = await outcome_of(outcome)
        if begun is None:
            return cls(error_code=ErrorCode.NOT_COORDINATOR)
        if begun.error_code:
            return cls(error_code=begun.error_code, error_message=begun.error_message)
        if not has_states:
            return cls(responses=denied)  # as in Kafka
        failed = await _delete(ctx, shard, group_id, begun.partitions)
    if isinstance(failed, ErrorCode):
        return cls(error_code=failed)
    rows = []
    async for topic_id, name in ctx.time_slice.each(topics.items()):
        row = cls.Topic(topic_name=name)
        rows.append(row)
        if topic_id not in begun.partitions:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            row.error_message = "There is no offset information to delete."
            continue
        row.topic_id = topic_id
        if topic_id in failed:
            row.error_code, row.error_message = failed[topic_id].code, failed[topic_id].message
    return cls(responses=[*denied, *unknown, *rows])


async def _name_topics(
    ctx: Context, request: DeleteShareGroupOffsetsRequest, topics: dict[UUID, str]
) -> tuple[
    list[DeleteShareGroupOffsetsResponse.Topic], list[DeleteShareGroupOffsetsResponse.Topic]
]:
    """Add the permitted topics to `topics`, and return the rows of denied and unknown topics."""
    cls = DeleteShareGroupOffsetsResponse
    denied: list[DeleteShareGroupOffsetsResponse.Topic] = []
    unknown: list[DeleteShareGroupOffsetsResponse.Topic] = []
    async for name in ctx.time_slice.each(distinct(topic.topic_name for topic in request.topics)):
        known = ctx.node.cluster.topics.get(name)
        if not ctx.allows(AclOperation.READ, Resource(TOPIC, name)):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            denied.append(cls.Topic(topic_name=name, error_code=code))
        elif known is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            unknown.append(cls.Topic(topic_name=name, error_code=code, error_message=UNKNOWN_TOPIC))
        else:
            topics[known.id] = name
    return denied, unknown


async def _delete(
    ctx: Context, shard: GroupShard, group_id: str, partitions: Target
) -> dict[UUID, KafkaError] | ErrorCode:
    """Delete the share state of partitions. Return errors by topic, or an error for all topics."""
    if not partitions:
        return {}
    groups = ctx.node.groups
    failures = await groups.share_state_initializer.delete(group_id, partitions)
    failed = {share.topic_id: error for share, error in failures.items()}
    if not groups.serves(shard):
        return ErrorCode.NOT_COORDINATOR
    done = [topic_id for topic_id in partitions if topic_id not in failed]
    ended = shard.coordinator.share_offsets.record_deletion(group_id, done)
    outcome: ErrorCode | ShardPending | None = groups.run(shard, ended)
    code = await outcome_of(outcome)
    if code is None or code:
        return ErrorCode.NOT_COORDINATOR if code is None else code
    return failed
