"""Metadata and DescribeTopicPartitions: brokers, topics and partition leaders."""

from __future__ import annotations

import logging
from collections.abc import Generator, Hashable, Iterable, Iterator
from uuid import UUID

from kbroker.client.endpoint import Endpoint
from kbroker.cluster import NO_LEADER, Partition, Registration, Topic
from kbroker.cluster.cluster import MAX_NEW_PARTITIONS
from kbroker.cluster.model import check_topic_name
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded, encode_for_many
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kbroker.protocol.schema import ZERO_UUID
from kbroker.runtime.time_slices import Later
from kbroker.security.acls import CLUSTER, AclOperation, Resource

from .context import TOPIC, Context
from .registry import handles

logger = logging.getLogger(__name__)

# Value of an authorized operations field that the request did not ask for.
NOT_ASKED = -(2**31)
FIRST_VERSION_BY_ID = 12
# Number of topics and of partitions between two checks of the time slice.
TOPICS_AT_ONCE, PARTITIONS_AT_ONCE = 16, 64
# First version with LISTENER_NOT_FOUND; older versions get LEADER_NOT_AVAILABLE.
FIRST_VERSION_WITH_LISTENERS = 6


# Skipping a disconnected client's request is safe: the next client that needs the topic creates it.
@handles(ApiKey.METADATA, versions="0-13", read_only=True)
def metadata(
    ctx: Context, request: MetadataRequest
) -> MetadataResponse | Encoded | Later[MetadataResponse | Encoded]:
    """Return the brokers and the requested topics.

    Missing topics are created if the request and the broker allow automatic creation.

    Versions: 0 selects all topics with an empty list, later versions with null. 10 and 11 have
    topic IDs in the request, but their use is INVALID_REQUEST. 12 can select topics by ID.

    Differs from Kafka: the response to the request that creates a topic contains the topic. Kafka
    returns UNKNOWN_TOPIC_OR_PARTITION. If no broker is ready, this one is listed; Kafka lists none.
    """
    work = _MetadataOperation(ctx, request)
    if work.selects_all_topics and ctx.node.authorizer is None:
        return ctx.node.responses.all_topics.get(
            work.all_topics_key(), work.encode_all_topics, ctx.time_slice
        )
    unfinished = ctx.time_slice.run(work.read())
    if unfinished is not None or work.missing:
        return work.finish(unfinished)
    return work.response


class _MetadataOperation:
    """Execution of one Metadata request, which may create topics."""

    __slots__ = ("_ctx", "_failures", "_nodes", "_request", "_requested", "missing", "response")

    def __init__(self, ctx: Context, request: MetadataRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._nodes = _Nodes(ctx)
        self._requested: dict[tuple[str | None, UUID], None] = {}
        self._failures: dict[str, ErrorCode] = {}
        # Topics to create before the response.
        self.missing: list[str] = []
        self.response = MetadataResponse()

    @property
    def selects_all_topics(self) -> bool:
        """True if the request selects all topics."""
        return self._request.topics is None or (self._ctx.version == 0 and not self._request.topics)

    def all_topics_key(self) -> Hashable:
        """Return a cache key: what the response with all topics depends on besides the metadata."""
        ctx, request = self._ctx, self._request
        return (
            ctx.version,
            request.include_topic_authorized_operations,
            request.include_cluster_authorized_operations,
            tuple((node.node_id, endpoint) for node, endpoint in _brokers(ctx)),
            tuple(map(self._nodes.leader_error, ctx.node.cluster.node_ids)),
        )

    def encode_all_topics(self) -> Generator[None, None, Encoded]:
        """Return the encoded response with all topics."""
        yield from self._build_response(tuple(self._ctx.node.cluster.topics.values()))
        return (yield from encode_for_many(self.response, self._ctx.version))

    def read(self) -> Generator[None, None, None]:
        """Read the request, and set the response unless topics must be created first."""
        may_create = (
            self._request.allow_auto_topic_creation
            and self._ctx.node.config.allow_auto_create_topics
        )
        if self.selects_all_topics:
            ctx = self._ctx
            visible = []
            for count, topic in enumerate(tuple(ctx.node.cluster.topics.values()), 1):
                if ctx.may_list_topic(topic.name):
                    visible.append(topic)
                if not count % TOPICS_AT_ONCE:
                    yield
            yield from self._build_response(visible)
            return
        for row in self._request.topics or ():
            if self._ctx.version < FIRST_VERSION_BY_ID and _is_by_id(row):
                yield from self._reject_ids()
                return
            key = row.name, row.topic_id
            if key not in self._requested:
                self._requested[key] = None
                if may_create and self._must_be_created(row):
                    self.missing.append(row.name or "")
                if not len(self._requested) % TOPICS_AT_ONCE:
                    yield
        if not self.missing:
            yield from self._build_response(self._find_all())

    def _must_be_created(self, row: MetadataRequest.Topic) -> bool:
        """Return True if a row names a missing topic that the client may create."""
        name = row.name
        if name is None or name in self._ctx.node.cluster.topics or row.topic_id != ZERO_UUID:
            return False
        if not self._ctx.may_list_topic(name):
            return False
        try:
            check_topic_name(name)
            if not self._ctx.allows(AclOperation.CREATE, CLUSTER, is_filter=True):
                self._ctx.require_topic(AclOperation.CREATE, name)
        except KafkaError as error:
            if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self._failures[name] = error.code
            return False
        return True

    def _may_describe(self, name: str) -> bool:
        return self._ctx.allows(AclOperation.DESCRIBE, Resource(TOPIC, name))

    def _reject_ids(self) -> Generator[None, None, None]:
        """Set a response that rejects the whole request: versions 10 and 11 cannot use IDs."""
        self.missing.clear()
        self.response = MetadataResponse(cluster_id=None, controller_id=-1)
        for row in self._request.topics or ():
            self.response.topics.append(
                MetadataResponse.Topic(
                    error_code=ErrorCode.INVALID_REQUEST, name=row.name or "", topic_id=row.topic_id
                )
            )
            yield

    async def finish(self, reading: Later[None] | None) -> MetadataResponse:
        """Finish reading, create the missing topics, and return the response.

        If the client disconnects, create no further topics.
        """
        ctx = self._ctx
        if reading is not None:
            await reading
        if self.missing:
            self._limit_missing()
            async for name in ctx.time_slice.each(self.missing):
                if ctx.quota_charge is not None:
                    ctx.quota_charge.charge_partitions(ctx.node.config.num_partitions, strict=False)
                try:
                    await ctx.node.auto_create_topic(name)
                except KafkaError as error:
                    if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                        self._failures[name] = error.code
                if ctx.peer.has_disconnected():
                    return self.response
            await ctx.time_slice.finish(self._build_response(self._find_all()))
        return self.response

    def _limit_missing(self) -> None:
        """Create no topics if the request would exceed the limit of new partitions."""
        partitions = len(self.missing) * self._ctx.node.config.num_partitions
        if partitions > MAX_NEW_PARTITIONS:
            problem = f"a Metadata request would create {partitions} partitions"
            if self._ctx.node.context.error_log.is_new(problem):
                logger.warning(
                    "%s; the limit of one request is %d, so it creates none",
                    problem,
                    MAX_NEW_PARTITIONS,
                )
            self.missing.clear()

    def _build_response(
        self, found: Iterable[Topic | MetadataResponse.Topic]
    ) -> Generator[None, None, None]:
        ctx, cluster = self._ctx, self._ctx.node.cluster
        response = self.response = MetadataResponse(
            brokers=[
                MetadataResponse.Broker(
                    node_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack
                )
                for node, endpoint in _brokers(ctx)
            ],
            cluster_id=cluster.id,
            controller_id=cluster.controller_id,
            cluster_authorized_operations=(
                cluster_operations(ctx)
                if self._request.include_cluster_authorized_operations
                else NOT_ASKED
            ),
        )
        for topic in found:
            if isinstance(topic, Topic):
                row = self._topic_row(topic)
                if len(row.partitions) < len(topic.partitions):
                    yield from self._add_partitions(row, topic)
            else:
                row = topic
            response.topics.append(row)
            if not len(response.topics) % TOPICS_AT_ONCE:
                yield

    def _find_all(self) -> Iterator[Topic | MetadataResponse.Topic]:
        """Return the topics that the request names by name or ID."""
        return (self._find(name, topic_id) for name, topic_id in self._requested)

    def _find(self, name: str | None, topic_id: UUID) -> Topic | MetadataResponse.Topic:
        """Return a requested topic, or an error row."""
        cluster = self._ctx.node.cluster
        if name is None or topic_id != ZERO_UUID:
            known = cluster.topics_by_id.get(topic_id)
            if known is not None and self._may_describe(known.name):
                return known
            code = (
                ErrorCode.UNKNOWN_TOPIC_ID
                if known is None
                else ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            return MetadataResponse.Topic(error_code=code, name=None, topic_id=topic_id)
        if not self._may_describe(name):
            return MetadataResponse.Topic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
            )
        topic = cluster.topics.get(name)
        if topic is not None:
            return topic
        code = self._failures.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            try:
                check_topic_name(name)
            except KafkaError as error:
                code = error.code
        operations = NOT_ASKED
        if code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            operations = self._operations(name)
        return MetadataResponse.Topic(
            error_code=code, name=name, topic_authorized_operations=operations
        )

    def _operations(self, name: str) -> int:
        """Return the client's operations on a topic name, if the request includes them."""
        if not self._request.include_topic_authorized_operations:
            return NOT_ASKED
        return self._ctx.operations(Resource(TOPIC, name))

    def _topic_row(self, topic: Topic) -> MetadataResponse.Topic:
        """Return the row of a topic with its first partitions; most topics have no more."""
        first = topic.partitions[:PARTITIONS_AT_ONCE]
        return MetadataResponse.Topic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=[self._partition_row(partition) for partition in first],
            topic_authorized_operations=self._operations(topic.name),
        )

    def _add_partitions(
        self, row: MetadataResponse.Topic, topic: Topic
    ) -> Generator[None, None, None]:
        for partition in topic.partitions[len(row.partitions) :]:
            if not len(row.partitions) % PARTITIONS_AT_ONCE:
                yield
            row.partitions.append(self._partition_row(partition))

    def _partition_row(self, partition: Partition) -> MetadataResponse.Partition:
        code = self._nodes.leader_error(partition.leader)
        if (
            code == ErrorCode.LISTENER_NOT_FOUND
            and self._ctx.version < FIRST_VERSION_WITH_LISTENERS
        ):
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return MetadataResponse.Partition(
            error_code=code,
            partition_index=partition.index,
            leader_id=partition.leader if code == ErrorCode.NONE else NO_LEADER,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=self._nodes.offline(partition.replicas),
        )


def cluster_operations(ctx: Context) -> int:
    """Return the client's operations on the cluster, or 0 if it may not describe the cluster."""
    return ctx.operations(CLUSTER) if ctx.allows(AclOperation.DESCRIBE, CLUSTER) else 0


def _brokers(ctx: Context) -> list[tuple[Registration, Endpoint]]:
    """Return the brokers of a response with their addresses: this one if no broker is ready.

    librdkafka drops all its brokers when a response contains none, and never connects again. The
    list is empty only on a listener that is not advertised, as in Kafka.
    """
    found = list(ctx.brokers())
    if found:
        return found
    own = ctx.node.membership.registration
    return [(own, ctx.endpoint())] if ctx.peer.listener in own.listeners else []


def _is_by_id(row: MetadataRequest.Topic) -> bool:
    return row.name is None or row.topic_id != ZERO_UUID


class _Nodes:
    """Errors of leaders for one client, cached for one response."""

    __slots__ = ("_ctx", "_errors")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._errors: dict[int, ErrorCode] = {}

    def leader_error(self, leader: int) -> ErrorCode:
        """Return the error of partitions with this leader, or NONE.

        Differs from Kafka: a leader whose process has ended is not returned, even before its
        session expires. A client that gets the dead leader does not refresh its metadata for
        seconds (librdkafka checks its partitions once per second). A client without a leader
        retries soon.
        """
        code = self._errors.get(leader)
        if code is None:
            code = self._errors[leader] = self._find_error(leader)
        return code

    def _find_error(self, leader: int) -> ErrorCode:
        node = self._ctx.node
        if not node.cluster.is_ready(
            leader
        ) or node.replication.fetcher_manager.is_leader_unreachable(leader):
            return ErrorCode.LEADER_NOT_AVAILABLE
        if self._ctx.endpoint_of(leader) is None:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.NONE

    def offline(self, replicas: Iterable[int]) -> list[int]:
        """Return the replicas whose nodes are fenced or not registered."""
        is_ready = self._ctx.node.cluster.is_ready
        return [node_id for node_id in replicas if not is_ready(node_id)]


@handles(ApiKey.DESCRIBE_TOPIC_PARTITIONS, versions="0", read_only=True)
async def describe_topic_partitions(
    ctx: Context, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return topics in order of their names, in pages (KIP-966).

    A page has at most `response_partition_limit` partitions (at least one, at most the broker's
    limit). The cursor of the response names the first row of the next page. The cursor of a
    request must name one of the requested topics.
    """
    cluster = ctx.node.cluster
    cursor = request.cursor
    asked = {row.name async for row in ctx.time_slice.each(request.topics)}
    begin = cursor.topic_name if cursor is not None else ""
    if cursor is not None and (
        cursor.partition_index < 0 or (request.topics and begin not in asked)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponse.Topic(
                    error_code=ErrorCode.INVALID_REQUEST, name=row.name
                )
                async for row in ctx.time_slice.each(request.topics)
            ]
        )
    limit = max(1, min(request.response_partition_limit, ctx.node.config.request_max_partitions))
    nodes = _Nodes(ctx)
    response = DescribeTopicPartitionsResponse()
    names = await ctx.time_slice.in_order(
        asked or tuple(cluster.topics), lambda name: name if name >= begin else None
    )
    denied: list[DescribeTopicPartitionsResponse.Topic] = []
    async for name in ctx.time_slice.each(names):
        if not ctx.allows(
            AclOperation.DESCRIBE, Resource(TOPIC, name), is_filter=not request.topics
        ):
            if request.topics:
                denied.append(
                    DescribeTopicPartitionsResponse.Topic(
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
                    )
                )
            continue
        if limit <= 0:
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name)
            break
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        row = _described_topic(ctx, nodes, name, first, limit)
        response.topics.append(row)
        limit -= len(row.partitions)
        topic = cluster.topics.get(name)
        end = first + len(row.partitions)
        if topic is not None and end < len(topic.partitions):
            response.next_cursor = DescribeTopicPartitionsResponse.Cursor(
                topic_name=name, partition_index=end
            )
            break
    response.topics += denied
    return response


def _described_topic(
    ctx: Context, nodes: _Nodes, name: str, first: int, limit: int
) -> DescribeTopicPartitionsResponse.Topic:
    topic = ctx.node.cluster.topics.get(name)
    if topic is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_topic_name(name)
        except KafkaError as error:
            code = error.code
        return DescribeTopicPartitionsResponse.Topic(
            error_code=code,
            name=name,
            topic_authorized_operations=ctx.operations(Resource(TOPIC, name)),
        )
    return DescribeTopicPartitionsResponse.Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            _described_partition(nodes, each) for each in topic.partitions[first : first + limit]
        ],
        topic_authorized_operations=ctx.operations(Resource(TOPIC, name)),
    )


def _described_partition(
    nodes: _Nodes, partition: Partition
) -> DescribeTopicPartitionsResponse.Partition:
    code = nodes.leader_error(partition.leader)
    return DescribeTopicPartitionsResponse.Partition(
        error_code=code,
        partition_index=partition.index,
        leader_id=partition.leader if code == ErrorCode.NONE else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=list(partition.elr),
        last_known_elr=[],
        offline_replicas=nodes.offline(partition.replicas),
    )
