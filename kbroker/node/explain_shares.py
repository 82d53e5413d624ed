"""Why the members of a share group get no records of a partition, or do (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.coordinator.share.standing import share_partition_standing
from kbroker.coordinator_runtime.share_partitions import LedShare
from kbroker.protocol.share_state_log import SharePartition

from .explain import Explanation, explain_partition

if TYPE_CHECKING:
    from .node import Node


def explain_share(node: Node, group_id: str, topic: str, index: int) -> Explanation:
    """What a share group has of a partition; as its leader knows it."""
    partition = node.cluster.partition(topic, index)
    known = node.cluster.topic(topic)
    if partition is None or known is None or partition.leader != node.id:
        return explain_partition(node, topic, index)
    name = f"group {group_id} in {topic}-{index}"
    led = node.share.partitions.known(SharePartition(group_id, known.id, index))
    past = explain_partition(node, topic, index).past
    if led is None:
        said = (
            f"{name}: no member has asked for records, or the last one that did is gone; "
            f"`kbroker explain group {group_id}` says who has been given the partition"
        )
        return Explanation(said, past)
    return Explanation(f"{name} {_standing(node, led)}", past)


def _standing(node: Node, led: LedShare) -> str:
    waits = len(led.waits)
    asked = f"{waits} fetches wait" if waits else "no fetch waits"
    if led.delivery is None:
        return f"waits for its share coordinator to tell its state; {asked}"
    said = share_partition_standing(
        led.delivery,
        led.readable_end,
        led.replica.log.high_watermark,
        node.clock.coordinator_ms(),
    )
    return f"{said}; {asked}"
