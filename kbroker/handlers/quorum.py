"""The metadata quorum: one voter, the controller, because metadata lives in one place."""

from __future__ import annotations

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
)
from kbroker.security.acls import AclOperation

from .context import Context
from .registry import handles

METADATA_TOPIC = "__cluster_metadata"
NOT_KNOWN = -1
NOT_DYNAMIC = (
    "voters cannot be added or removed: metadata is not kept by a quorum (kraft.version 0)"
)


@handles(ApiKey.DESCRIBE_QUORUM, versions="0-2", only_looks=True)
async def describe_quorum(ctx: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Behaviour: the controller is the leader and the only voter, the other nodes that are ready
    observe. Offsets count changes of the metadata, the epoch rises with each controller.

    Versions: 1 has times, 2 directory ids (zero: voters are fixed) and addresses (KIP-853).

    Differs from Kafka: the address is that of this listener; there is none for controllers. While this
    node cannot change the metadata, the partition has an error message that says why, without an
    error code.
    """
    try:
        ctx.require_cluster(AclOperation.DESCRIBE)
    except KafkaError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
    if not _asks_for_the_quorum(request):
        return await _unknown(ctx, request)
    cluster = ctx.node.cluster
    endpoints = {node.node_id: endpoint for node, endpoint in ctx.brokers()}
    leader = cluster.controller_id
    trouble = cluster.store_trouble
    partition = DescribeQuorumResponse.Partition(
        error_message=None if trouble is None else str(trouble),
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


def _asks_for_the_quorum(request: DescribeQuorumRequest) -> bool:
    """Whether it names the one partition that there is."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    (topic,) = request.topics
    return topic.topic_name == METADATA_TOPIC and topic.partitions[0].partition_index == 0


def _replica(ctx: Context, node_id: int) -> DescribeQuorumResponse.Replica:
    """A node, with what is known of its metadata: that of this one is as it is now. Each node hears of
    each change, but when another one did, nobody is told (-1)."""
    heard_ms = ctx.node.clock.log_ms() if node_id == ctx.node.id else NOT_KNOWN
    return DescribeQuorumResponse.Replica(
        replica_id=node_id,
        log_end_offset=ctx.node.cluster.revision,
        last_fetch_timestamp=heard_ms,
        last_caught_up_timestamp=heard_ms,
    )


async def _unknown(ctx: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Kafka refuses everything but the one partition that there is."""
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message = f"ask for {METADATA_TOPIC}-0 alone"
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
    """Behaviour: refused as by a Kafka whose voters are fixed in its configuration."""
    code, message = _refusal(ctx, request.cluster_id)
    return AddRaftVoterResponse(error_code=code, error_message=message)


@handles(ApiKey.REMOVE_RAFT_VOTER, versions="0")
def remove_raft_voter(ctx: Context, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
    """Behaviour: refused as by a Kafka whose voters are fixed in its configuration."""
    code, message = _refusal(ctx, request.cluster_id)
    return RemoveRaftVoterResponse(error_code=code, error_message=message)


def _refusal(ctx: Context, cluster_id: str | None) -> tuple[ErrorCode, str | None]:
    try:
        ctx.require_cluster(AclOperation.ALTER)
    except KafkaError as error:
        return error.code, error.message
    if cluster_id is not None and cluster_id != ctx.node.cluster.id:
        message = f"this is cluster {ctx.node.cluster.id}, not {cluster_id}"
        return ErrorCode.INCONSISTENT_CLUSTER_ID, message
    return ErrorCode.UNSUPPORTED_VERSION, NOT_DYNAMIC
