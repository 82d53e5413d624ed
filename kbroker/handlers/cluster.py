"""DescribeCluster, features, elections, moves of partitions, brokers that leave."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kbroker.cluster import Partition
from kbroker.cluster.features import UpdateType, check_update
from kbroker.cluster.reassignment import is_moving
from kbroker.context import Context
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
from kbroker.registry import handles

from .metadata import CLUSTER_OPERATIONS, NOT_ASKED

BROKERS, CONTROLLERS = 1, 2
PREFERRED, UNCLEAN = 0, 1


@handles(ApiKey.DESCRIBE_CLUSTER, versions="0-2")
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Behaviour: cluster id, the nodes that are ready, and which of them is the controller.

    Versions: 1 can ask for controllers (KIP-919), which a broker's listener does not know; 2 for
    nodes that run but are not ready (KIP-1073).
    """
    if request.endpoint_type != BROKERS:
        return _wrong_endpoint(request)
    return DescribeClusterResponse(
        cluster_id=ctx.node.cluster.id,
        controller_id=ctx.node.cluster.controller_id,
        brokers=[
            DescribeClusterResponse.Broker(
                broker_id=node.node_id,
                host=endpoint.host,
                port=endpoint.port,
                rack=node.rack,
                is_fenced=not node.ready,
            )
            for node, endpoint in ctx.brokers(fenced=request.include_fenced_brokers)
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _wrong_endpoint(request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        code, message = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this listener is a broker's"
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"there is no endpoint type {request.endpoint_type}"
    return DescribeClusterResponse(error_code=code, error_message=message)


@handles(ApiKey.ELECT_LEADERS, versions="0-2")
async def elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Behaviour: each partition by itself; null asks for all, and the answer leaves
    out partitions that need no election.

    Versions: 0 knows preferred elections only, 1 unclean ones too (KIP-460).
    """
    if request.election_type not in (PREFERRED, UNCLEAN):
        return _refuse_elections(request)
    asked = request.topic_partitions
    if asked is None:
        topics = ctx.node.cluster.topics.values()
        every = {topic.name: list(range(len(topic.partitions))) for topic in topics}
        rows = [await _elect(ctx, request, *one) for one in every.items()]
        for row in rows:
            row.partition_result = [
                each
                for each in row.partition_result
                if each.error_code != ErrorCode.ELECTION_NOT_NEEDED
            ]
        return ElectLeadersResponse(replica_election_results=rows)
    return ElectLeadersResponse(
        replica_election_results=[
            await _elect(ctx, request, row.topic, row.partitions) for row in asked
        ]
    )


def _refuse_elections(request: ElectLeadersRequest) -> ElectLeadersResponse:
    """An election type that does not exist is an error of the whole and of each partition."""
    code = ErrorCode.INVALID_REQUEST
    message = f"there is no election type {request.election_type}; 0 is preferred, 1 unclean"
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ElectLeadersResponse.Topic(
                topic=topic.topic,
                partition_result=[
                    ElectLeadersResponse.Partition(
                        partition_id=index, error_code=code, error_message=message
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


async def _elect(
    ctx: Context, request: ElectLeadersRequest, name: str, indexes: list[int]
) -> ElectLeadersResponse.Topic:
    answer = ElectLeadersResponse.Topic(topic=name)
    for index in indexes:
        row = ElectLeadersResponse.Partition(partition_id=index)
        answer.partition_result.append(row)
        try:
            await ctx.node.cluster.elect_leader(
                name,
                index,
                unclean=request.election_type == UNCLEAN,
                cause=f"ElectLeaders by {ctx.client_id}",
            )
        except KafkaError as error:
            row.error_code, row.error_message = error.code, error.message
    return answer


@handles(ApiKey.ALTER_PARTITION_REASSIGNMENTS, versions="0-1")
async def alter_partition_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Behaviour: each partition by itself. Nodes that come copy it first; when they are in sync, the
    others are dropped (KIP-455). Null instead of nodes cancels a move that is under way.

    Versions: 1 can forbid that the number of replicas changes.
    """
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    for topic in request.topics:
        answer = AlterPartitionReassignmentsResponse.Topic(name=topic.name)
        response.responses.append(answer)
        for partition in topic.partitions:
            row = AlterPartitionReassignmentsResponse.Partition(
                partition_index=partition.partition_index
            )
            answer.partitions.append(row)
            try:
                await _reassign(ctx, request, topic.name, partition)
            except KafkaError as error:
                row.error_code, row.error_message = error.code, error.message
    return response


async def _reassign(
    ctx: Context,
    request: AlterPartitionReassignmentsRequest,
    name: str,
    asked: AlterPartitionReassignmentsRequest.Partition,
) -> None:
    cluster, index = ctx.node.cluster, asked.partition_index
    cause = f"AlterPartitionReassignments by {ctx.client_id}"
    if asked.replicas is None:
        await cluster.cancel_reassignment(name, index, cause=cause)
        return
    await cluster.reassign(
        name,
        index,
        asked.replicas,
        factor_may_change=request.allow_replication_factor_change,
        cause=cause,
    )


@handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, versions="0")
def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Behaviour: what moves now; null asks for all topics, others are left out of the answer."""
    cluster = ctx.node.cluster
    rows = request.topics
    asked: dict[str, Sequence[int]]
    if rows is None:
        asked = {topic.name: range(len(topic.partitions)) for topic in cluster.topics.values()}
    else:
        asked = {row.name: row.partition_indexes for row in rows}
    response = ListPartitionReassignmentsResponse()
    for name, indexes in asked.items():
        moving = [each for each in map(partial(cluster.partition, name), indexes) if each]
        partitions = [_moving_row(each) for each in moving if is_moving(each)]
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
    """Behaviour: all updates or none; levels are what `kbroker.cluster.features` says.

    Versions: 0 has a flag for downgrades, 1 a type and validate_only (KIP-778); 2 answers no rows.
    """
    cluster = ctx.node.cluster
    levels = dict(cluster.features)
    for update in request.feature_updates:
        try:
            check_update(
                cluster.features,
                update.feature,
                update.max_version_level,
                _update_type(ctx, update),
            )
        except KafkaError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        levels[update.feature] = update.max_version_level
    if not request.validate_only and levels != cluster.features:
        await cluster.finalize_features(levels, cause=f"UpdateFeatures by {ctx.client_id}")
    return UpdateFeaturesResponse(
        results=[
            UpdateFeaturesResponse.Feature(feature=update.feature)
            for update in request.feature_updates
        ]
    )


def _update_type(ctx: Context, update: UpdateFeaturesRequest.Feature) -> int:
    if ctx.version >= 1:
        return update.upgrade_type
    return UpdateType.SAFE_DOWNGRADE if update.allow_downgrade else UpdateType.UPGRADE


@handles(ApiKey.UNREGISTER_BROKER, versions="0")
async def unregister_broker(
    ctx: Context, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Behaviour: a broker that is down is forgotten.

    Differs from Kafka: one that partitions are still to be on is not; Kafka forgets it, and its
    partitions go on naming it.
    """
    try:
        await ctx.node.cluster.unregister(
            request.broker_id, cause=f"UnregisterBroker by {ctx.client_id}"
        )
    except KafkaError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse()
