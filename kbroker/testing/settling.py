"""Whether a broker has come to rest: nothing on its way, nothing left to read."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.broker import Broker
from kbroker.client.topics import Partition
from kbroker.coordinator import GroupCoordinator
from kbroker.node import Node
from kbroker.protocol.group_metadata import read_assignment
from kbroker.protocol.messages.groups import DescribeGroupsResponse

AT_REST = {"Stable", "Empty", "Dead"}


def unrest(broker: Broker, group: str | None = None) -> str | None:
    """What is still going on, in words; None when the broker (or one group of it) is at rest.

    At rest means: no request is being worked on, every parked fetch waits for records that do not
    exist yet, no rebalance is pending, no time-out is due, and each group has committed all that
    its members were assigned.
    """
    node = broker.node
    for shard in node.groups.shards():
        deadline = shard.coordinator.next_deadline()
        if deadline is not None and deadline <= node.clock.coordinator_ms():
            return "a time-out of a group is due"
        for row in shard.coordinator.list_groups():
            if group in (None, row.group_id):
                reason = _unrest_of(node, shard.coordinator, row.group_id)
                if reason is not None:
                    return f"group {row.group_id}: {reason}"
    for connection in broker.server.connections:
        if connection.is_working:
            return f"a request of {connection.peer.host} is not answered yet"
    return None


def _unrest_of(node: Node, coordinator: GroupCoordinator, name: str) -> str | None:
    group = coordinator.describe_group(name, 5)
    if group.group_state not in AT_REST:
        return f"is {group.group_state}"
    committed = coordinator.committed(name)
    for topic, index in _assigned(group):
        end = _end(node, topic, index)
        offset = committed.get((topic, index))
        if end is not None and (offset is None or offset < end):
            return f"has committed {offset} of {end} in {topic}-{index}"
    return None


def _assigned(group: DescribeGroupsResponse.Group) -> Iterator[Partition]:
    for member in group.members:
        assignment = read_assignment(member.member_assignment)
        for topic in assignment.assigned_partitions if assignment else ():
            for index in topic.partitions:
                yield topic.topic, index


def _end(node: Node, topic: str, index: int) -> int | None:
    """Where the readable records of a partition end; None when there are none."""
    log = node.logs.get(topic, index)
    if log is None or log.last_stable_offset == log.log_start_offset:
        return None
    return log.last_stable_offset
