"""Cluster description, features, leader elections, reassignments and unregistration of brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from kbroker.cluster import Partition
from kbroker.cluster.features import UpdateType, check_update
from kbroker.cluster.reassignment import is_moving
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kbroker.security.acls import AclOperation

from .context import Context
from .deduplicate import distinct_partitions
from .metadata import NOT_ASKED, cluster_operations
from .registry import handles

BROKERS, CONTROLLERS = 1, 2
PREFERRED, UNCLEAN = 0, 1
# Maximum number of leaders that one metadata transaction elects. Every metadata store accepts
# transactions of this size.
ELECTED_AT_ONCE = 100


@handles(ApiKey.DESCRIBE_CLUSTER, versions="0-2", read_only=True)
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Return the cluster ID, the unfenced brokers and the controller.

    Versions: 1 can request controller endpoints (KIP-919), which a broker listener rejects. 2 can
    include fenced brokers (KIP-1073): those that are down, and those that are not ready.
    """
    if request.endpoint_type != BROKERS:
        return _wrong_endpoint(request)
    return DescribeClusterResponse(
        cluster_id=ctx.node.cluster.id,
        controller_id=ctx.node.cluster.controller_id,
        brokers=_broker_rows(ctx, with_fenced=request.include_fenced_brokers),
        cluster_authorized_operations=(
            cluster_operations(ctx) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _broker_rows(ctx: Context, *, with_fenced: bool) -> list[DescribeClusterResponse.Broker]:
    cls = DescribeClusterResponse.Broker
    rows = [
        cls(broker_id=node.node_id, host=endpoint.host, port=endpoint.port, rack=node.rack)
        for node, endpoint in ctx.brokers()
    ]
    if with_fenced:
        rows += [
            cls(broker_id=node_id, host=host, port=port, rack=rack, is_fenced=True)
            for node_id, rack, (host, port) in ctx.fenced_brokers()
        ]
    return sorted(rows, key=lambda row: row.broker_id)


def _wrong_endpoint(request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "this is a broker listener, not a controller listener"
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"unknown endpoint type {request.endpoint_type} (valid: 1, 2)"
    return DescribeClusterResponse(error_code=code, error_message=message)


@handles(ApiKey.ELECT_LEADERS, versions="0-2")
async def elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders, for each partition independently.

    Null selects all partitions; the response then omits partitions that need no election.

    Versions: 0 has preferred elections only, 1 adds unclean elections (KIP-460).

    Differs from Kafka: a partition that is named several times has one row.
    """
    try:
        ctx.require_cluster(AclOperation.ALTER)
        if request.election_type not in (PREFERRED, UNCLEAN):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"unknown election type {request.election_type} (valid: 0 preferred, 1 unclean)",
            )
    except KafkaError as error:
        return await _reject_elections(ctx, request, error)
    topics = await _partitions_to_elect(ctx, request)
    rows: dict[str, list[ElectLeadersResponse.Partition]] = {
        name: [] async for name in ctx.time_slice.each(topics)
    }
    batch: list[tuple[str, int]] = []
    async for place in ctx.time_slice.each(
        (name, each) for name in topics for each in topics[name]
    ):
        batch.append(place)
        if len(batch) == ELECTED_AT_ONCE:
            await _elect(ctx, request, batch, rows)
            batch = []
    await _elect(ctx, request, batch, rows)
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.Topic(topic=name, partition_result=rows[name])
            async for name in ctx.time_slice.each(topics)
        ]
    )


async def _partitions_to_elect(
    ctx: Context, request: ElectLeadersRequest
) -> Mapping[str, Iterable[int]]:
    asked = request.topic_partitions
    if asked is None:
        topics = ctx.node.cluster.topics.values()
        return {topic.name: range(len(topic.partitions)) for topic in topics}
    return await distinct_partitions(ctx.time_slice, ((row.topic, row.partitions) for row in asked))


async def _reject_elections(
    ctx: Context, request: ElectLeadersRequest, error: KafkaError
) -> ElectLeadersResponse:
    """Return an error for the request and for each partition that it names."""
    code, message = error.code, error.message
    if request.topic_partitions is None:
        return ElectLeadersResponse(error_code=code)
    topics = await _partitions_to_elect(ctx, request)
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ElectLeadersResponse.Topic(
                topic=name,
                partition_result=[
                    ElectLeadersResponse.Partition(
                        partition_id=index, error_code=code, error_message=message
                    )
                    async for index in ctx.time_slice.each(indexes)
                ],
            )
            async for name, indexes in ctx.time_slice.each(topics.items())
        ],
    )


async def _elect(
    ctx: Context,
    request: ElectLeadersRequest,
    places: Sequence[tuple[str, int]],
    rows: Mapping[str, list[ElectLeadersResponse.Partition]],
) -> None:
    """Elect leaders of some partitions and add their rows.

    If the request selects all partitions, omit those that need no election.
    """
    outcomes = await ctx.node.cluster.elect_leaders(
        places,
        unclean=request.election_type == UNCLEAN,
        cause=f"ElectLeaders by {ctx.client_id}",
    )
    for (name, index), error in zip(places, outcomes, strict=True):
        row = ElectLeadersResponse.Partition(partition_id=index)
        if error is not None:
            if error.code == ErrorCode.ELECTION_NOT_NEEDED and request.topic_partitions is None:
                continue
            row.error_code, row.error_message = error.code, error.message
        rows[name].append(row)


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0-1")
async def alter_partition_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel reassignments, for each partition independently.

    New replicas copy the partition first. When they are in the ISR, the other replicas are removed
    (KIP-455). Null instead of replicas cancels a reassignment in progress.

    Versions: 1 can forbid a change of the replication factor.

    Differs from Kafka: if a partition is named several times, only the last row counts.
    """
    try:
        ctx.require_cluster(AclOperation.ALTER)
    except KafkaError as error:
        return await _reject_reassignments(ctx, request, error)
    topics: dict[str, dict[int, AlterPartitionReassignmentsRequest.Partition]] = {}
    async for topic in ctx.time_slice.each(request.topics):
        rows = topics.setdefault(topic.name, {})
        async for row in ctx.time_slice.each(topic.partitions):
            rows[row.partition_index] = row
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            AlterPartitionReassignmentsResponse.Topic(
                name=name,
                partitions=[
                    await _reassign(ctx, request, name, row)
                    async for row in ctx.time_slice.each(rows.values())
                ],
            )
            async for name, rows in ctx.time_slice.each(topics.items())
        ],
    )


async def _reject_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest, error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    """Return an error for the request and, as in Kafka, for each partition."""
    cls = AlterPartitionReassignmentsResponse
    return cls(
        error_code=error.code,
        error_message=error.message,
        responses=[
            cls.Topic(
                name=topic.name,
                partitions=[
                    cls.Partition(
                        partition_index=row.partition_index,
                        error_code=error.code,
                        error_message=error.message,
                    )
                    async for row in ctx.time_slice.each(topic.partitions)
                ],
            )
            async for topic in ctx.time_slice.each(request.topics)
        ],
    )


async def _reassign(
    ctx: Context,
    request: AlterPartitionReassignmentsRequest,
    name: str,
    asked: AlterPartitionReassignmentsRequest.Partition,
) -> AlterPartitionReassignmentsResponse.Partition:
    cluster, index = ctx.node.cluster, asked.partition_index
    cause = f"AlterPartitionReassignments by {ctx.client_id}"
    answer = AlterPartitionReassignmentsResponse.Partition(partition_index=index)
    try:
        if asked.replicas is None:
            await cluster.cancel_reassignment(name, index, cause=cause)
        else:
            may_change = request.allow_replication_factor_change
            await cluster.reassign(
                name, index, asked.replicas, factor_may_change=may_change, cause=cause
            )
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
    return answer


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0", read_only=True)
async def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the reassignments in progress. Null selects all topics."""
    try:
        ctx.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message
        )
    cluster = ctx.node.cluster
    rows = request.topics
    asked: Mapping[str, Iterable[int]]
    if rows is None:
        asked = {topic.name: range(len(topic.partitions)) for topic in cluster.topics.values()}
    else:
        asked = await distinct_partitions(
            ctx.time_slice, ((row.name, row.partition_indexes) for row in rows)
        )
    response = ListPartitionReassignmentsResponse()
    async for name, indexes in ctx.time_slice.each(asked.items()):
        partitions = [
            _moving_row(found)
            async for found in ctx.time_slice.each(map(partial(cluster.partition, name), indexes))
            if found is not None and is_moving(found)
        ]
        if partitions:
            response.topics.append(
                ListPartitionReassignmentsResponse.Topic(name=name, partitions=partitions)
            )
    return response


def _moving_row(partition: Partition) -> ListPartitionReassignmentsResponse.Partition:
    return ListPartitionReassignmentsResponse.Partition(
        partition_index=partition.index,
        replicas=partition.replicas,
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )


@handles(ApiKey.UPDATE_FEATURES, versions="0-2")
async def update_features(ctx: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Update the finalized feature levels, all or none; see `kbroker.cluster.features`.

    Versions: 0 has a downgrade flag, 1 an upgrade type and validate_only (KIP-778). 2 returns no
    rows.
    """
    cluster = ctx.node.cluster
    cause = f"UpdateFeatures by {ctx.client_id}"
    while True:
        revision = cluster.features_revision
        try:
            ctx.require_cluster(AclOperation.ALTER)
            levels = await _updated_levels(ctx, request)
        except KafkaError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        if request.validate_only or levels == cluster.features:
            break
        if await cluster.finalize_features(levels, revision=revision, cause=cause):
            break
    named = dict.fromkeys(update.feature for update in request.feature_updates)
    return UpdateFeaturesResponse(
        results=[UpdateFeaturesResponse.Feature(feature=feature) for feature in named]
    )


async def _updated_levels(ctx: Context, request: UpdateFeaturesRequest) -> dict[str, int]:
    """Return all feature levels after the updates.

    Raises:
        KafkaError: An update is invalid.
    """
    cluster = ctx.node.cluster
    levels = dict(cluster.features)
    nodes = {each: known.features for each, known in cluster.registrations.known.items()}
    async for update in ctx.time_slice.each(request.feature_updates):
        kind = _update_type(ctx, update)
        check_update(cluster.features, nodes, update.feature, update.max_version_level, kind)
        levels[update.feature] = update.max_version_level
    return levels


def _update_type(ctx: Context, update: UpdateFeaturesRequest.Feature) -> int:
    if ctx.version >= 1:
        return update.upgrade_type
    return UpdateType.SAFE_DOWNGRADE if update.allow_downgrade else UpdateType.UPGRADE


@handles(ApiKey.UNREGISTER_BROKER, versions="0")
async def unregister_broker(
    ctx: Context, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Remove the registration of a broker that is down.

    Differs from Kafka: a broker with replicas is rejected. Kafka unregisters it, and its partitions
    still list it as a replica.
    """
    try:
        ctx.require_cluster(AclOperation.ALTER)
        await ctx.node.cluster.unregister(
            request.broker_id, cause=f"UnregisterBroker by {ctx.client_id}"
        )
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()
