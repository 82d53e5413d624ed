"""Consumer-group metrics; each node reports the groups that it coordinates."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.coordinator_runtime.groups import GroupShard
from kbroker.node.node import Node
from kbroker.runtime.time_slices import DutyCycle

from .exposition import Family, escaped

# Maximum number of series with partitions or members; groups beyond it are dropped.
ROWS_MAX = 50_000
GROUP = "kafka_consumergroup_"


class GroupMetrics:
    """One scrape of the groups of a node; `dropped_series` counts groups and rows beyond the limit."""

    def __init__(self, node: Node, rows_max: int = ROWS_MAX) -> None:
        self._node = node
        self._rows_left = rows_max
        self.dropped_series = 0
        self._members = Family(f"{GROUP}members", "gauge", "Number of members of a group.")
        self._current = Family(f"{GROUP}current_offset", "gauge", "Committed offset of a group.")
        self._lag = Family(
            f"{GROUP}lag", "gauge", "Records between the committed offset and the high watermark."
        )
        self._current_sum = Family(
            f"{GROUP}current_offset_sum", "gauge", "Sum of the committed offsets in a topic."
        )
        self._lag_sum = Family(f"{GROUP}lag_sum", "gauge", "Sum of the lags in a topic.")

    async def collect(self, duty_cycle: DutyCycle) -> None:
        """Collect all groups, pausing in between."""
        for shard in self._node.groups.shards():
            for group_id, members in shard.coordinator.member_counts():
                if self._node.groups.serves(shard):
                    self._add_group(shard, group_id, members)
                await duty_cycle.pause()

    def _add_group(self, shard: GroupShard, group_id: str, members: int) -> None:
        group = escaped(group_id)
        if self._rows_left <= 0:
            self.dropped_series += 1
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
            self.dropped_series += 1
            return
        self._rows_left -= 1
        labels = f'{{consumergroup="{group}",partition="{index}",topic="{escaped(topic)}"}}'
        self._current.add(labels, offset)
        if lag is not None:
            self._lag.add(labels, lag)

    def _lag_of(self, topic_name: str, index: int, offset: int) -> int | None:
        """Return the lag; None if this node does not know the high watermark."""
        topic = self._node.cluster.topics.get(topic_name)
        replica = None if topic is None else self._node.partitions.opened_replica(topic, index)
        return None if replica is None else max(replica.log.high_watermark - offset, 0)

    def families(self) -> Iterator[Family]:
        """Return the collected families."""
        yield self._members
        yield self._current
        yield self._lag
        yield self._current_sum
        yield self._lag_sum
