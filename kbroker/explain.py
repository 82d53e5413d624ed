"""Why a group or a partition is as it is: the changes that led there, each with its cause.

Groups report their changes to `GroupService.run`, partitions to the `Node`; both keep them in a
`History`. Here they become sentences.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cluster import NO_LEADER, Partition, PartitionChange
from kbroker.coordinator import Event
from kbroker.protocol.errors import KafkaError

if TYPE_CHECKING:
    from .node import Node

PREPARING = "PreparingRebalance"


class Line(NamedTuple):
    """One change, or something else that happened, at a moment of log time."""

    at_ms: int
    text: str

    def __str__(self) -> str:
        return f"{clock_time(self.at_ms)}.{self.at_ms % 1000:03d} {self.text}"


class Explanation(NamedTuple):
    """How something stands now, and what led there, oldest first."""

    now: str
    past: list[Line]

    def beside(self, lines: Iterable[Line]) -> Explanation:
        """The same with what happened from outside, in order of time: causes before effects."""
        return Explanation(self.now, sorted([*lines, *self.past], key=lambda line: line.at_ms))

    def __str__(self) -> str:
        return "\n".join([self.now, *(f"  {line}" for line in self.past)])


def explain_group(node: Node, group_id: str) -> Explanation:
    """Why a group is in the state in which it is."""
    past = list(group_lines(node.groups.history.of(group_id)))
    try:
        coordinator = node.groups.shard(group_id).coordinator
        standing = coordinator.standing(group_id, node.groups.now())
    except KafkaError as error:
        return Explanation(f"group {group_id} has no coordinator here: {error}", past)
    return Explanation(standing or f"there is no group {group_id}", past)


def group_lines(events: Iterable[Event]) -> Iterator[Line]:
    """Sentences about the changes of one group."""
    before = None
    for event in events:
        if event.state == PREPARING != before:
            text = f"rebalance {event.generation + 1} because {cause_of(event)}"
        else:
            text = f"{cause_of(event)}; {event.state}, generation {event.generation}"
        before = event.state
        yield Line(event.at_ms, text)


def cause_of(event: Event) -> str:
    """The cause of a group's change, with the time that it took."""
    if event.since_ms is None:
        return event.cause
    return f"{event.cause} {clock_time(event.since_ms)}-{clock_time(event.at_ms)}"


def explain_partition(node: Node, topic: str, index: int) -> Explanation:
    """Why a partition is served, or is not."""
    past = [*node.history.of((topic, None)), *node.history.of((topic, index))]
    return Explanation(_partition_now(node, topic, index), []).beside(past)


def _partition_now(node: Node, topic: str, index: int) -> str:
    name = f"partition {topic}-{index}"
    partition = node.cluster.partition(topic, index)
    if partition is None:
        known = node.cluster.topic(topic)
        if known is None:
            return f"there is no {name}: there is no topic {topic}"
        return f"there is no {name}: topic {topic} has {len(known.partitions)} partitions"
    if partition.leader == NO_LEADER:
        return f"{name} has no leader: none of its nodes {partition.replicas} runs; start one"
    if partition.leader != node.id:
        return f"{name} is led by node {partition.leader}; ask that one"
    reason = node.why_offline(topic, index)
    if reason is not None:
        return f"{name} is offline on node {node.id}: {reason}"
    return f"{name} is online: {_placing(partition)}"


def change_of(change: PartitionChange) -> str:
    """What changed in a partition's place in the cluster, in words."""
    after = change.after
    if after.leader == NO_LEADER:
        return f"lost its leader, node {change.before.leader}"
    return _placing(after)


def _placing(partition: Partition) -> str:
    in_sync = ", ".join(map(str, partition.isr))
    return f"node {partition.leader} leads in epoch {partition.leader_epoch}, in sync: {in_sync}"


def clock_time(at_ms: int) -> str:
    """A moment of log time as logs show it: the time of day, to the second."""
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))
