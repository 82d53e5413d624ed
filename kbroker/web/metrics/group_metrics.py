"""What is told of consumer groups, by the node that coordinates each of them."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.coordinator_runtime.groups import GroupShard
from kbroker.node.node import Node
from kbroker.runtime.time_slices import DutyCycle

from .exposition import Family, escaped

ROWS_MAX = 50_000
"""Partitions of groups that are told one by one: clients name groups. Of the others there are sums."""
GROUP = "kafka_consumergroup_"


class GroupMetrics:
    """One look at the groups of a node."""

    def __init__(self, node: Node, rows_max: int = ROWS_MAX) -> None:
        self._node = node
        self._rows_left = rows_max
        self.left_out = 0
        """Rows that would have been too many."""
        self._members = Family(f"{GROUP}members", "gauge", "Members of a group.")
        self._current = Family(f"{GROUP}current_offset", "gauge", "What a group has committed.")
        self._lag = Family(f"{GROUP}lag", "gauge", "Records between that and the high watermark.")
        self._current_sum = Family(
            f"{GROUP}current_offset_sum", "gauge", "What a group has committed, of all of a topic."
        )
        self._lag_sum = Family(f"{GROUP}lag_sum", "gauge", "The lag in all partitions of a topic.")

    async def look(self, duty_cycle: DutyCycle) -> None:
        """Look at all groups, with rests."""
        for shard in self._node.groups.shards():
            for group_id, members in shard.coordinator.member_counts():
                if self._node.groups.serves(shard):
                    self._look_at(shard, group_id, members)
                await duty_cycle.pause()

    def _look_at(self, shard: GroupShard, group_id: str, members: int) -> None:
        group = escaped(group_id)
        if self._rows_left <= 0:
            self.left_out += 1
            return
        self._rows_left -= 1
        self._members.add(f'{{consumergroup="{group}"}}', members)
        sums: dict[str, tuple[int, int | None]] = {}
        for (topic, index), offset in shard.coordinator.committed(group_id).items():
            lag = self._lag_of(topic, index, offset)
            before, lag_before = sums.get(topic, (0, 0))
            known = None if lag is None or lag_before is None else lag_before + lag
            sums[topic] = before + offset, known
            self._add_row(group, topic, index, offset, lag)
        for topic, (offsets, lags) in sums.items():
            labels = f'{{consumergroup="{group}",topic="{escaped(topic)}"}}'
            self._current_sum.add(labels, offsets)
            if lags is not None:
                self._lag_sum.add(labels, lags)

    def _add_row(self, group: str, topic: str, index: int, offset: int, lag: int | None) -> None:
        if self._rows_left <= 0:
            self.left_out += 1
            return
        self._rows_left -= 1
        labels = f'{{consumergroup="{group}",partition="{index}",topic="{escaped(topic)}"}}'
        self._current.add(labels, offset)
        if lag is not None:
            self._lag.add(labels, lag)

    def _lag_of(self, topic_name: str, index: int, offset: int) -> int | None:
        """None where this node does not know how far the partition goes."""
        topic = self._node.cluster.topics.get(topic_name)
        replica = None if topic is None else self._node.partitions.opened_replica(topic, index)
        return None if replica is None else max(replica.log.high_watermark - offset, 0)

    def families(self) -> Iterator[Family]:
        """All that was seen."""
        yield self._members
        yield self._current
        yield self._lag
        yield self._current_sum
        yield self._lag_sum
