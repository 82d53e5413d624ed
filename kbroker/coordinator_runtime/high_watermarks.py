"""High watermarks of partitions, from their leaders on any node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TypeAlias

import trio

from kbroker.cluster import NO_LEADER
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

from .partition_writer import PartitionWriter

# Default timeout for the responses of other leaders, in seconds.
ANSWER_SECONDS = 10
# Maximum number of partitions per request.
ROWS_MAX = 500
LATEST = -1

TopicPartition: TypeAlias = tuple[str, int]
Ends: TypeAlias = dict[TopicPartition, int | ErrorCode]


async def high_watermarks(
    context: NodeContext,
    partitions: PartitionWriter,
    peers: Peers,
    requested: Collection[TopicPartition],
    seconds: float = ANSWER_SECONDS,
) -> Ends:
    """Return the high watermark of each partition, or the error code if it is unknown.

    Args:
        context: The node.
        partitions: Partitions of the node.
        peers: Connections to the other nodes.
        requested: Topic and partition of each requested partition.
        seconds: Timeout for the responses of other leaders, in seconds.
    """
    ends: Ends = {}
    by_leader: defaultdict[int, list[TopicPartition]] = defaultdict(list)
    for partition in requested:
        known = context.cluster.partition(*partition)
        if known is None:
            ends[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif known.leader == NO_LEADER:
            ends[partition] = ErrorCode.LEADER_NOT_AVAILABLE
        elif known.leader == context.node_id:
            ends[partition] = _local_high_watermark(partitions, partition)
        else:
            by_leader[known.leader].append(partition)
            ends[partition] = (
                ErrorCode.LEADER_NOT_AVAILABLE
            )  # replaced by the response of the leader
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for node_id, some in by_leader.items():
                nursery.start_soon(_ask, peers, node_id, some, ends)
    return ends


def _local_high_watermark(
    partitions: PartitionWriter, partition: TopicPartition
) -> int | ErrorCode:
    try:
        replica = partitions.named_replica(*partition)
    except KafkaError as error:
        return error.code
    return (
        replica.log.high_watermark
        if replica.is_high_watermark_current
        else ErrorCode.OFFSET_NOT_AVAILABLE
    )


async def _ask(peers: Peers, node_id: int, requested: list[TopicPartition], ends: Ends) -> None:
    for start in range(0, len(requested), ROWS_MAX):
        try:
            answer = await peers.ask(node_id, _request(requested[start : start + ROWS_MAX]))
        except OSError:
            return
        assert isinstance(answer, ListOffsetsResponse)
        for topic in answer.topics:
            for row in topic.partitions:
                found = ErrorCode(row.error_code) if row.error_code else row.offset
                ends[topic.name, row.partition_index] = found


def _request(requested: list[TopicPartition]) -> ListOffsetsRequest:
    cls = ListOffsetsRequest
    topics: defaultdict[str, list[ListOffsetsRequest.Partition]] = defaultdict(list)
    for name, index in requested:
        topics[name].append(cls.Partition(partition_index=index, timestamp=LATEST))
    return cls(
        replica_id=-1,
        topics=[cls.Topic(name=name, partitions=rows) for name, rows in topics.items()],
    )
