"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import trio

from kbroker.cluster import Topic
from kbroker.cluster.topics import (
    DEFAULT,
    NewTopic,
    TopicPlan,
    check_new_partitions,
    check_replicas,
    find_topic,
    plan_topic,
)
from kbroker.config import describe_topic
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kbroker.protocol.schema import ZERO_UUID
from kbroker.security.acls import CLUSTER, AclOperation, Resource

from .context import TOPIC, Context
from .registry import handles
from .steps import last_rows

# Offset of a DeleteRecords request that means the high watermark.
HIGH_WATERMARK = -1


@handles(ApiKey.CREATE_TOPICS, versions="0-7")
async def create_topics(ctx: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics, each one independently. A new topic is usable when the response arrives.

    As in Kafka, a request above the limit of new partitions creates no topic.

    A client above its controller mutation quota gets an error or is throttled (KIP-599). As in
    Kafka, partitions that are only validated count too.

    Versions: 1 has validate_only, 5 returns counts and settings, 6 knows THROTTLING_QUOTA_EXCEEDED,
    7 has the topic ID. -1 partitions or replicas mean the broker's default, as in Kafka also before
    version 4.
    """
    default = ctx.node.config.num_partitions
    asked: dict[str, CreateTopicsRequest.Topic] = {}
    twice: set[str] = set()
    wanted = 0
    async for topic in ctx.time_slice.each(request.topics):
        if topic.name in asked:
            twice.add(topic.name)
        asked[topic.name] = topic
        wanted += _count_partitions(topic, default)
    rows = []
    async for name, new in ctx.time_slice.each(asked.items()):
        try:
            if not ctx.allows(AclOperation.CREATE, CLUSTER, is_filter=True):
                ctx.require_topic(AclOperation.CREATE, name)
            check_new_partitions(wanted)
            if name in twice:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"topic '{name}' is named more than once"
                )
            rows.append(await _create_one(ctx, new, validate_only=request.validate_only))
        except KafkaError as error:
            rows.append(
                CreateTopicsResponse.Topic(
                    name=name, error_code=error.code, error_message=error.message, configs=[]
                )
            )
    return CreateTopicsResponse(topics=rows)


def _count_partitions(topic: CreateTopicsRequest.Topic, default: int) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return default if topic.num_partitions == DEFAULT else max(topic.num_partitions, 0)


async def _create_one(
    ctx: Context, row: CreateTopicsRequest.Topic, *, validate_only: bool
) -> CreateTopicsResponse.Topic:
    node = ctx.node
    new = _new_topic(row)
    plan = plan_topic(node.cluster, node.config, new)
    if len(new.assignments) != len(row.assignments):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned twice")
    placed = [nodes async for nodes in ctx.time_slice.each(plan.assignments)]
    ctx.charge_partitions(len(placed), strict_since=6)
    topic_id = ZERO_UUID
    if not validate_only:
        topic = await node.cluster.create_topic(
            plan.name, placed, plan.configs, cause=f"CreateTopics by {ctx.client_id}"
        )
        topic_id = topic.id
    return _created_row(ctx, plan, placed, topic_id)


def _new_topic(row: CreateTopicsRequest.Topic) -> NewTopic:
    assignments = {each.partition_index: each.broker_ids for each in row.assignments}
    configs = {each.name: each.value for each in row.configs}
    return NewTopic(row.name, row.num_partitions, row.replication_factor, assignments, configs)


def _created_row(
    ctx: Context, plan: TopicPlan, placed: Sequence[Sequence[int]], topic_id: uuid.UUID
) -> CreateTopicsResponse.Topic:
    if not ctx.allows(AclOperation.DESCRIBE_CONFIGS, Resource(TOPIC, plan.name), is_filter=True):
        return CreateTopicsResponse.Topic(
            name=plan.name,
            topic_id=topic_id,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            configs=[],
        )
    entries = describe_topic(plan.configs, ctx.node.config)
    return CreateTopicsResponse.Topic(
        name=plan.name,
        topic_id=topic_id,
        num_partitions=len(placed),
        replication_factor=len(placed[0]),
        configs=[
            CreateTopicsResponse.Config(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in entries
        ],
    )


@handles(ApiKey.DELETE_TOPICS, versions="0-6")
async def delete_topics(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics. Their names can be reused when the response arrives.

    Versions: 5 knows THROTTLING_QUOTA_EXCEEDED (KIP-599), 6 deletes by name or by ID.
    """
    asked: Iterable[DeleteTopicsRequest.Topic] = request.topics
    if ctx.version < 6:
        asked = (DeleteTopicsRequest.Topic(name=name) for name in request.topic_names)
    # As in Kafka, DELETE on the cluster permits to describe and delete each topic.
    may_all = ctx.allows(AclOperation.DELETE, CLUSTER, is_filter=True)
    times: dict[tuple[str | None, uuid.UUID], int] = {}
    async for row in ctx.time_slice.each(asked):
        times[row.name, row.topic_id] = times.get((row.name, row.topic_id), 0) + 1
    rows = []
    async for (name, topic_id), count in ctx.time_slice.each(times.items()):
        answer = DeleteTopicsResponse.Topic(name=name, topic_id=topic_id)
        rows.append(answer)
        try:
            topic = _topic_to_delete(ctx, name, topic_id, twice=count > 1, may_all=may_all)
            if not may_all:
                if ctx.allows(AclOperation.DESCRIBE, Resource(TOPIC, topic.name)):
                    answer.name = topic.name
                ctx.require_topic(AclOperation.DELETE, topic.name)
            answer.name, answer.topic_id = topic.name, topic.id
            ctx.charge_partitions(len(topic.partitions), strict_since=5)
            await ctx.node.cluster.delete_topic(
                topic.name, cause=f"DeleteTopics by {ctx.client_id}"
            )
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.message
    return DeleteTopicsResponse(responses=rows)


def _topic_to_delete(
    ctx: Context, name: str | None, topic_id: uuid.UUID, *, twice: bool, may_all: bool
) -> Topic:
    by_id = topic_id != ZERO_UUID
    if twice or by_id == (name is not None):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "name each topic once, by name or by ID")
    if not ctx.node.config.allow_delete_topics:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
    if name is not None and not may_all:
        # First, so that the error does not reveal whether the topic exists.
        ctx.require_topic(AclOperation.DESCRIBE, name)
    return find_topic(ctx.node.cluster, name or "", topic_id, by_id=by_id)


@handles(ApiKey.CREATE_PARTITIONS, versions="0-3")
async def create_partitions(
    ctx: Context, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Increase the number of partitions of topics to `count`.

    A request above the limit of new partitions creates no partitions.

    Versions: 3 knows THROTTLING_QUOTA_EXCEEDED (KIP-599).
    """
    asked: dict[str, CreatePartitionsRequest.Topic] = {}
    twice: set[str] = set()
    wanted = 0
    async for topic in ctx.time_slice.each(request.topics):
        if topic.name in asked:
            twice.add(topic.name)
        asked[topic.name] = topic
        wanted += _count_missing(ctx, topic)
    rows = []
    async for name, topic in ctx.time_slice.each(asked.items()):
        answer = CreatePartitionsResponse.Topic(name=name)
        rows.append(answer)
        try:
            ctx.require_topic(AclOperation.ALTER, name)
            check_new_partitions(wanted)
            if name in twice:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"topic '{name}' is named more than once"
                )
            added = await _choose_replicas(ctx, topic)
            ctx.charge_partitions(len(added), strict_since=3)
            if not request.validate_only:
                await ctx.node.cluster.add_partitions(
                    name, added, cause=f"CreatePartitions by {ctx.client_id}"
                )
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.message
    return CreatePartitionsResponse(results=rows)


def _count_missing(ctx: Context, asked: CreatePartitionsRequest.Topic) -> int:
    topic = ctx.node.cluster.topics.get(asked.name)
    return 0 if topic is None else max(asked.count - len(topic.partitions), 0)


async def _choose_replicas(
    ctx: Context, asked: CreatePartitionsRequest.Topic
) -> list[Sequence[int]]:
    """Return the replicas of each new partition. Repeat if partitions were added concurrently."""
    while True:
        added = [nodes async for nodes in ctx.time_slice.each(_added_partitions(ctx, asked))]
        if len(added) == _count_missing(ctx, asked):
            return added


def _added_partitions(
    ctx: Context, asked: CreatePartitionsRequest.Topic
) -> Iterator[Sequence[int]]:
    cluster = ctx.node.cluster
    topic = find_topic(cluster, asked.name, ZERO_UUID, by_id=False)
    current = len(topic.partitions)
    missing = asked.count - current
    if missing <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"topic '{topic.name}' has {current} partitions; the new number must be higher than "
            f"that, not {asked.count}",
        )
    if asked.assignments is None:
        return cluster.place_partitions(missing, topic.replication_factor, topic)
    if len(asked.assignments) != missing:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{missing} partitions are new, but {len(asked.assignments)} have replicas assigned",
        )
    return (
        check_replicas(cluster, each.broker_ids, topic.replication_factor)
        for each in asked.assignments
    )


@handles(ApiKey.DELETE_RECORDS, versions="0-2")
async def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Advance the log start offset of partitions on all online replicas (KIP-107).

    Offset -1 means the high watermark. If replicas do not follow in time, the error is
    REQUEST_TIMED_OUT. As in Kafka, the last of several offsets for a partition counts. If the log
    start offset cannot be stored, the error is KAFKA_STORAGE_ERROR.

    Differs from Kafka: the log start offset is durable when the response arrives. Kafka stores it
    within a minute, and a crash before that restores the records.
    """
    deadline = trio.current_time() + max(request.timeout_ms, 0) / 1000
    waiting: list[_Deletion] = []
    topics = await last_rows(ctx.time_slice, request.topics)
    response = DeleteRecordsResponse(
        topics=[
            DeleteRecordsResponse.Topic(
                name=topic.name,
                partitions=[
                    _delete_before(ctx, topic.name, row, waiting)
                    async for row in ctx.time_slice.each(topic.partitions)
                ],
            )
            async for topic in ctx.time_slice.each(topics)
        ]
    )
    unrecorded = set(await ctx.node.maintenance.log_manager_tasks.checkpoint())
    async for deletion in ctx.time_slice.each(waiting):
        log = deletion.replica.log
        if log in unrecorded or log.offline is not None:
            deletion.answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            await _wait_for_low_watermark(ctx, deletion, deadline)
    return response


class _Deletion(NamedTuple):
    """A partition whose followers must advance their log start offset, and its response row."""

    replica: Replica
    offset: int
    answer: DeleteRecordsResponse.Partition


def _delete_before(
    ctx: Context,
    name: str,
    row: DeleteRecordsRequest.Partition,
    waiting: list[_Deletion],
) -> DeleteRecordsResponse.Partition:
    answer = DeleteRecordsResponse.Partition(partition_index=row.partition_index, low_watermark=-1)
    try:
        ctx.require_topic(AclOperation.DELETE, name)
        replica = ctx.node.partitions.named_replica(name, row.partition_index)
        _check_deletable(replica.config.cleanup_policy)
        high_watermark = replica.log.high_watermark
        offset = high_watermark if row.offset == HIGH_WATERMARK else row.offset
        if not 0 <= offset <= high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > replica.log.log_start_offset:
            with ctx.node.partitions.storage_errors_reported(replica):
                replica.delete_records_before(offset)
        waiting.append(_Deletion(replica, offset, answer))
    except KafkaError as error:
        answer.error_code = error.code
    return answer


async def _wait_for_low_watermark(ctx: Context, deletion: _Deletion, deadline: float) -> None:
    """Fill in the row when the low watermark has reached the offset, or at the deadline."""
    replica, offset, answer = deletion
    try:
        with trio.move_on_at(deadline):
            while replica.low_watermark() < offset:
                await ctx.node.context.changes.next().wait()
        answer.low_watermark = replica.low_watermark()
        if answer.low_watermark < offset:
            answer.error_code, answer.low_watermark = ErrorCode.REQUEST_TIMED_OUT, -1
    except KafkaError as error:
        answer.error_code = error.code


def _check_deletable(cleanup_policy: Sequence[str]) -> None:
    if "delete" not in cleanup_policy:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "the topic's cleanup.policy does not contain delete"
        )
