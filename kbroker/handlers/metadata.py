"""Metadata and DescribeTopicPartitions: where everything is."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kbroker.cluster import NO_LEADER, Partition, Topic
from kbroker.cluster.model import check_topic_name
from kbroker.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kbroker.protocol.schema import ZERO_UUID
from kbroker.registry import handles

TOPIC_OPERATIONS = 0xDF8
CLUSTER_OPERATIONS = 0x1FA0
"""All operations that exist, as bits: what Kafka answers without an authorizer (KIP-430)."""
NOT_ASKED = -(2**31)
FIRST_VERSION_WITH_LISTENERS = 6
"""Older ones take a leader without the listener that the client came in by for one that is away."""


@handles(ApiKey.METADATA, versions="0-13")
def metadata(
    ctx: Context, request: MetadataRequest
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Behaviour: brokers, and the topics asked for; creates missing ones where both sides allow it.

    Versions: 0 means all topics by an empty list, later ones by null; 10 and 11 carry topic ids in
    the request but cannot use them (INVALID_REQUEST); 12 asks by id.

    Differs from Kafka: the request that creates a topic answers with the topic, not with
    UNKNOWN_TOPIC_OR_PARTITION.
    """
    if ctx.version < 12 and any(_is_by_id(row) for row in request.topics or ()):
        return _refuse_ids(request)
    missing = _topics_to_create(ctx, request)
    if missing:
        return _create_and_answer(ctx, request, missing)
    return _answer(ctx, request)


def _is_by_id(row: MetadataRequest.Topic) -> bool:
    return row.name is None or row.topic_id != ZERO_UUID


def _refuse_ids(request: MetadataRequest) -> MetadataResponse:
    """Versions 10 and 11 carry ids but cannot use them: the whole request is refused."""
    return MetadataResponse(
        cluster_id=None,
        controller_id=-1,
        topics=[
            MetadataResponse.Topic(
                error_code=ErrorCode.INVALID_REQUEST, name=row.name or "", topic_id=row.topic_id
            )
            for row in request.topics or ()
        ],
    )


def _asks_for_all(ctx: Context, request: MetadataRequest) -> bool:
    return request.topics is None or (ctx.version == 0 and not request.topics)


def _topics_to_create(ctx: Context, request: MetadataRequest) -> list[str]:
    """Names to create: asked for by name, allowed by the request and the broker, and legal."""
    if not request.topics or _asks_for_all(ctx, request):
        return []
    if not (request.allow_auto_topic_creation and ctx.node.config.allow_auto_create_topics):
        return []
    missing = []
    for row in request.topics:
        name = row.name
        if name is None or name in ctx.node.cluster.topics or row.topic_id != ZERO_UUID:
            continue
        try:
            check_topic_name(name)
        except KafkaError:
            continue
        missing.append(name)
    return missing


async def _create_and_answer(
    ctx: Context, request: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    failures: dict[str, ErrorCode] = {}
    for name in missing:
        try:
            await ctx.node.auto_create_topic(name)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                failures[name] = error.code
    return _answer(ctx, request, failures)


def _answer(
    ctx: Context, request: MetadataRequest, failures: dict[str, ErrorCode] | None = None
) -> MetadataResponse:
    cluster = ctx.node.cluster
    if _asks_for_all(ctx, request):
        topics = [_topic_row(ctx, request, topic) for topic in cluster.topics.values()]
    else:
        rows = {(row.name, row.topic_id): row for row in request.topics or ()}
        topics = [_asked_row(ctx, request, row, failures or {}) for row in rows.values()]
    return MetadataResponse(
        brokers=[
            MetadataResponse.Broker(
                node_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack
            )
            for node, endpoint in ctx.brokers()
        ],
        cluster_id=cluster.id,
        controller_id=cluster.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _asked_row(
    ctx: Context,
    request: MetadataRequest,
    row: MetadataRequest.Topic,
    failures: dict[str, ErrorCode],
) -> MetadataResponse.Topic:
    cluster = ctx.node.cluster
    if row.name is None or row.topic_id != ZERO_UUID:
        topic = cluster.topics_by_id.get(row.topic_id)
        if topic is None:
            return MetadataResponse.Topic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=row.topic_id
            )
        return _topic_row(ctx, request, topic)
    topic = cluster.topics.get(row.name)
    if topic is not None:
        return _topic_row(ctx, request, topic)
    code = failures.get(row.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        check_topic_name(row.name)
    except KafkaError as error:
        code = error.code
    return MetadataResponse.Topic(error_code=code, name=row.name)


def _topic_row(ctx: Context, request: MetadataRequest, topic: Topic) -> MetadataResponse.Topic:
    return MetadataResponse.Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition_row(ctx, partition) for partition in topic.partitions],
        topic_authorized_operations=(
            TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
        ),
    )


def _partition_row(ctx: Context, partition: Partition) -> MetadataResponse.Partition:
    code = _leader_error(ctx, partition)
    if code == ErrorCode.LISTENER_NOT_FOUND and ctx.version < FIRST_VERSION_WITH_LISTENERS:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponse.Partition(
        error_code=code,
        partition_index=partition.index,
        leader_id=partition.leader if code == ErrorCode.NONE else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=_offline(ctx, partition),
    )


def _leader_error(ctx: Context, partition: Partition) -> ErrorCode:
    """Why a client cannot turn to the leader of a partition.

    Differs from Kafka: a leader whose process is gone is not named in the time until the cluster
    misses it either. A client that is told of it once more does not ask again for seconds
    (librdkafka looks at its partitions once a second); one that is told of none asks soon.
    """
    node = ctx.node
    if not node.cluster.is_ready(partition.leader) or node.following.finds_nobody(partition.leader):
        return ErrorCode.LEADER_NOT_AVAILABLE
    if ctx.endpoint_of(partition.leader) is None:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.NONE


def _offline(ctx: Context, partition: Partition) -> list[int]:
    """The replicas on nodes that do not run, or not ready yet."""
    is_ready = ctx.node.cluster.is_ready
    return [node_id for node_id in partition.replicas if not is_ready(node_id)]


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions="0")
def describe_topic_partitions(
    ctx: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Behaviour: topics in order of name, page by page (KIP-966).

    A page ends after `response_partition_limit` partitions (at least one, at most the broker's
    limit); the cursor of the answer names the row that the next page starts with. A cursor must
    name one of the topics asked for.
    """
    cluster = ctx.node.cluster
    cursor = request.cursor
    names = sorted({row.name for row in request.topics} or set(cluster.topics))
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            return DescribeTopicPartitionsResponse(
                topics=[
                    DescribeTopicPartitionsResponse.Topic(
                        error_code=ErrorCode.INVALID_REQUEST, name=row.name
                    )
                    for row in request.topics
                ]
            )
        names = [name for name in names if name >= cursor.topic_name]
    limit = max(1, min(request.response_partition_limit, ctx.node.config.request_max_partitions))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if limit <= 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name)
            break
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        row = _described_topic(ctx, name, first, limit)
        response.topics.append(row)
        limit -= len(row.partitions)
        topic = cluster.topics.get(name)
        end = first + len(row.partitions)
        if topic is not None and end < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=end
            )
            break
    return response


def _described_topic(
    ctx: Context, name: str, first: int, limit: int
) -> DescribeTopicPartitionsResponse.Topic:
    topic = ctx.node.cluster.topics.get(name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_topic_name(name)
        except KafkaError as error:
            code = error.code
        return DescribeTopicPartitionsResponse.Topic(
            error_code=code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
        )
    return DescribeTopicPartitionsResponse.Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            _described_partition(ctx, each) for each in topic.partitions[first : first + limit]
        ],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _described_partition(
    ctx: Context, partition: Partition
) -> DescribeTopicPartitionsResponse.Partition:
    code = _leader_error(ctx, partition)
    return DescribeTopicPartitionsResponse.Partition(
        error_code=code,
        partition_index=partition.index,
        leader_id=partition.leader if code == ErrorCode.NONE else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=[],
        offline_replicas=_offline(ctx, partition),
    )
