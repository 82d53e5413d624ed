"""Explanations of the state of share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.coordinator.share.partition_status import describe_share_partition_status
from kbroker.coordinator_runtime.share_partitions import SharePartition
from kbroker.protocol.share_state_log import SharePartitionKey

from .explain import Explanation, explain_partition

if TYPE_CHECKING:
    from .node import Node


def explain_share(node: Node, group_id: str, topic: str, index: int) -> Explanation:
    """Explain the state of a share partition on its leader."""
    partition = node.cluster.partition(topic, index)
    known = node.cluster.topic(topic)
    if partition is None or known is None or partition.leader != node.id:
        return explain_partition(node, topic, index)
    name = f"group {group_id} in {topic}-{index}"
    share_partition = node.share.partitions.known(SharePartitionKey(group_id, known.id, index))
    past = explain_partition(node, topic, index).past
    if share_partition is None:
        text = (
            f"{name}: no connected member has fetched records; "
            f"`kbroker explain group {group_id}` lists the members with this partition"
        )
        return Explanation(text, past)
    return Explanation(f"{name} {_describe_status(node, share_partition)}", past)


def _describe_status(node: Node, share_partition: SharePartition) -> str:
    waits = len(share_partition.waits)
    fetches = f"{waits} pending fetches" if waits else "no pending fetch"
    if share_partition.delivery is None:
        return f"waits for its state from the share coordinator; {fetches}"
    status = describe_share_partition_status(
        share_partition.delivery,
        share_partition.readable_end,
        share_partition.replica.log.high_watermark,
        node.clock.coordinator_ms(),
    )
    return f"{status}; {fetches}"
