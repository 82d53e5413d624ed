"""Metadata quorum APIs. The quorum has one voter, the controller: metadata is in one store."""

from __future__ import annotations

from kbroker.cluster.features import METADATA_VERSION
from kbroker.cluster.registrations import NO_NODE
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)
from kbroker.security.acls import AclOperation

from .context import Context
from .registry import handles

METADATA_TOPIC = "__cluster_metadata"
UNKNOWN = -1
# First level of `metadata.version` with UnregisterController: Kafka 4.4.
UNREGISTRATION_SINCE = 33
NOT_DYNAMIC = "voters cannot be added or removed: the quorum is static (kraft.version 0)"


@handles(ApiKey.DESCRIBE_QUORUM, versions="0-2", read_only=True)
async def describe_quorum(ctx: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Describe the quorum: the controller is the leader and only voter, other brokers observe.

    Offsets are metadata revisions. The epoch increases with each new controller.

    Versions: 1 has timestamps, 2 directory IDs (zero, because voters are static) and addresses
    (KIP-853).

    Differs from Kafka: the address is that of this listener, because there are no controller
    listeners. While this node cannot change the metadata, the partition has an error message with
    the cause, but no error code.
    """
    try:
        ctx.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
    if not _names_metadata_partition(request):
        return await _unknown_partitions(ctx, request)
    cluster = ctx.node.cluster
    endpoints = {node.node_id: endpoint for node, endpoint in ctx.brokers()}
    leader = cluster.controller_id
    problem = cluster.store_problem
    partition = DescribeQuorumResponse.Partition(
        error_message=None if problem is None else str(problem),
        leader_id=leader,
        leader_epoch=cluster.controller_epoch,
        high_watermark=cluster.revision,
        current_voters=[_replica(ctx, leader)] if leader != NO_NODE else [],
        observers=[_replica(ctx, each) for each in endpoints if each != leader],
    )
    nodes = [
        DescribeQuorumResponse.Node(
            node_id=node_id,
            listeners=[
                DescribeQuorumResponse.Listener(
                    name=ctx.peer.listener, host=endpoint.host, port=endpoint.port
                )
            ],
        )
        for node_id, endpoint in endpoints.items()
        if node_id == leader
    ]
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponse.Topic(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=nodes,
    )


def _names_metadata_partition(request: DescribeQuorumRequest) -> bool:
    """Return True if a request names only the metadata partition."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    (topic,) = request.topics
    return topic.topic_name == METADATA_TOPIC and topic.partitions[0].partition_index == 0


def _replica(ctx: Context, node_id: int) -> DescribeQuorumResponse.Replica:
    """Return the replica state of a node.

    Every node receives every metadata change, but this node knows only its own times. The
    timestamps of other nodes are -1.
    """
    known_ms = ctx.node.clock.log_ms() if node_id == ctx.node.id else UNKNOWN
    return DescribeQuorumResponse.Replica(
        replica_id=node_id,
        log_end_offset=ctx.node.cluster.revision,
        last_fetch_timestamp=known_ms,
        last_caught_up_timestamp=known_ms,
    )


async def _unknown_partitions(
    ctx: Context, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Return an error for each partition. As in Kafka, only the metadata partition is allowed."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message = f"request must name {METADATA_TOPIC}-0 only"
    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponse.Topic(
                topic_name=topic.topic_name,
                partitions=[
                    DescribeQuorumResponse.Partition(
                        partition_index=row.partition_index,
                        error_code=code,
                        error_message=message,
                    )
                    async for row in ctx.time_slice.each(topic.partitions)
                ],
            )
            async for topic in ctx.time_slice.each(request.topics)
        ]
    )


@handles(ApiKey.ADD_RAFT_VOTER, versions="0-1")
def add_raft_voter(ctx: Context, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """Reject the request, as a Kafka with a static quorum does."""
    code, message = _voter_change_error(ctx, request.cluster_id)
    return AddRaftVoterResponse(error_code=code, error_message=message)


@handles(ApiKey.REMOVE_RAFT_VOTER, versions="0")
def remove_raft_voter(ctx: Context, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
    """Reject the request, as a Kafka with a static quorum does."""
    code, message = _voter_change_error(ctx, request.cluster_id)
    return RemoveRaftVoterResponse(error_code=code, error_message=message)


def _voter_change_error(ctx: Context, cluster_id: str | None) -> tuple[ErrorCode, str | None]:
    try:
        ctx.require_cluster(AclOperation.ALTER)
    except KafkaError as error:
        return error.code, error.message
    if cluster_id is not None and cluster_id != ctx.node.cluster.id:
        message = f"this is cluster {ctx.node.cluster.id}, not {cluster_id}"
        return ErrorCode.INCONSISTENT_CLUSTER_ID, message
    return ErrorCode.UNSUPPORTED_VERSION, NOT_DYNAMIC


@handles(ApiKey.UNREGISTER_CONTROLLER, versions="0")
def unregister_controller(
    ctx: Context, request: UnregisterControllerRequest
) -> UnregisterControllerResponse:
    """Reject the request: only the active controller is registered, and it cannot be removed."""
    code, message = _unregistration_error(ctx, request.controller_id)
    return UnregisterControllerResponse(error_code=code, error_message=message)


def _unregistration_error(ctx: Context, controller_id: int) -> tuple[ErrorCode, str | None]:
    try:
        ctx.require_cluster(AclOperation.ALTER)
    except KafkaError as error:
        return error.code, error.message
    cluster = ctx.node.cluster
    if controller_id == cluster.controller_id != NO_NODE:
        message = (
            f"controller {controller_id} is active; an active controller cannot be unregistered"
        )
        return ErrorCode.INVALID_REQUEST, message
    level = cluster.features.get(METADATA_VERSION, 0)
    if level < UNREGISTRATION_SINCE:
        message = (
            f"{METADATA_VERSION} {level} does not permit UnregisterController; upgrade it to "
            f"{UNREGISTRATION_SINCE} or higher"
        )
        return ErrorCode.UNSUPPORTED_VERSION, message
    return ErrorCode.CONTROLLER_ID_NOT_REGISTERED, f"controller {controller_id} is not registered"
