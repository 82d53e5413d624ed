"""How things went in the last ten minutes: rates, and how far groups are behind.

Every few seconds the nodes of this process are looked at, as they are: no request is made for it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from kbroker.broker.local_node import LocalNode
from kbroker.coordination.groups import GroupShard
from kbroker.node.node import Node
from kbroker.runtime.slices import Slices

SAMPLE_SECONDS = 5
SAMPLES = 120
GROUPS_MAX = 1_000
PARTITIONS_MAX = 10_000
"""Of all groups together; each has a ring of a kilobyte."""
UNKNOWN = -1


class Ring:
    """The last samples of a number, oldest first; `UNKNOWN` where there is none."""

    __slots__ = ("_at", "_values", "seen_at")

    def __init__(self) -> None:
        self._values = array("q", [UNKNOWN]) * SAMPLES
        self._at = 0
        self.seen_at = 0

    def add(self, value: int | None, sample: int) -> None:
        """Those between are unknown."""
        for _ in range(min(sample - self.seen_at - 1, SAMPLES) if self.seen_at else 0):
            self._put(UNKNOWN)
        self._put(UNKNOWN if value is None else value)
        self.seen_at = sample

    def _put(self, value: int) -> None:
        self._values[self._at] = value
        self._at = (self._at + 1) % SAMPLES

    def values(self) -> list[int | None]:
        """All of them."""
        ordered = [*self._values[self._at :], *self._values[: self._at]]
        return [None if each == UNKNOWN else each for each in ordered]


@dataclass(slots=True)
class GroupTrend:
    """How far one group is behind, in total and in each partition."""

    total: Ring = field(default_factory=Ring)
    lag: int | None = None
    members: int = 0
    topics: dict[str, int | None] = field(default_factory=dict)
    """The lag in each topic now."""
    partitions: dict[tuple[str, int], Ring] = field(default_factory=dict)


@dataclass(slots=True)
class TopicTrend:
    """What comes into one topic."""

    records: int = 0
    bytes: int = 0
    records_per_second: float = 0.0
    bytes_per_second: float = 0.0
    seen_at: int = 0


class Trends:
    """Those of the nodes of one process. `run` it until cancelled."""

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        self.groups: dict[str, GroupTrend] = {}
        self.topics: dict[str, TopicTrend] = {}
        self.records = Ring()
        """Records that come in each second."""
        self.requests = Ring()
        self.number = 0
        """Of the last sample."""
        self._nodes = nodes
        self._looked_at = 0.0
        self._asked = 0
        self._partitions = 0

    async def run(self) -> None:
        """Take samples, for ever."""
        while True:
            await self.sample()
            await trio.sleep(SAMPLE_SECONDS)

    async def sample(self) -> None:
        """Take one."""
        now = trio.current_time()
        seconds = max(now - self._looked_at, 0.001) if self.number else 0.0
        self._looked_at, self.number = now, self.number + 1
        slices = Slices()
        nodes = [each.node for each in self._nodes if each.is_running]
        await self._look_at_topics(nodes, seconds, slices)
        asked = sum(sum(node.meters.requests) for node in nodes)
        self.requests.add(_rate(asked - self._asked, seconds), self.number)
        self._asked = asked
        for node in nodes:
            for shard in node.groups.shards():
                for group_id, members in shard.coordinator.census():
                    if node.groups.serves(shard):
                        self._look_at_group(nodes, shard, group_id, members)
                    await slices.pause()
        self._forget()

    async def _look_at_topics(self, nodes: list[Node], seconds: float, slices: Slices) -> None:
        records: Counter[str] = Counter()
        size: Counter[str] = Counter()
        for node in nodes:
            for topic in tuple(node.cluster.topics.values()):
                for partition in topic.partitions:
                    replica = node.partitions.opened_replica(topic, partition.index)
                    if replica is not None and node.partitions.leads(partition):
                        records[topic.name] += replica.appended_records
                        size[topic.name] += replica.appended_bytes
                    await slices.pause()
        came = 0.0
        for name, count in records.items():
            known = self.topics.setdefault(name, TopicTrend())
            is_known = known.seen_at == self.number - 1 and seconds
            more = max(count - known.records, 0) if is_known else 0
            more_bytes = max(size[name] - known.bytes, 0) if is_known else 0
            known.records_per_second = more / seconds if seconds else 0.0
            known.bytes_per_second = more_bytes / seconds if seconds else 0.0
            known.records, known.bytes, known.seen_at = count, size[name], self.number
            came += known.records_per_second
        self.records.add(round(came), self.number)

    def _look_at_group(
        self, nodes: list[Node], shard: GroupShard, group_id: str, members: int
    ) -> None:
        trend = self.groups.get(group_id)
        if trend is None:
            if len(self.groups) >= GROUPS_MAX:
                return
            trend = self.groups[group_id] = GroupTrend()
        trend.members = members
        trend.topics = {}
        lags: list[int | None] = []
        for (topic, index), offset in shard.coordinator.committed(group_id).items():
            lag = _lag(nodes, topic, index, offset)
            lags.append(lag)
            before = trend.topics.get(topic, 0)
            trend.topics[topic] = None if lag is None or before is None else before + lag
            ring = trend.partitions.get((topic, index))
            if ring is None and self._partitions < PARTITIONS_MAX:
                self._partitions += 1
                ring = trend.partitions[topic, index] = Ring()
            if ring is not None:
                ring.add(lag, self.number)
        known = [each for each in lags if each is not None]
        trend.lag = sum(known) if known and len(known) == len(lags) else None
        trend.total.add(trend.lag, self.number)

    def _forget(self) -> None:
        """Groups and topics that are gone."""
        for name, trend in tuple(self.groups.items()):
            if trend.total.seen_at < self.number:
                self._partitions -= len(trend.partitions)
                del self.groups[name]
        for name, topic in tuple(self.topics.items()):
            if topic.seen_at < self.number:
                del self.topics[name]


def _rate(count: int, seconds: float) -> int:
    return round(max(count, 0) / seconds) if seconds else 0


def _lag(nodes: list[Node], topic_name: str, index: int, offset: int) -> int | None:
    """None where no node of this process knows how far the partition goes."""
    for node in nodes:
        topic = node.cluster.topics.get(topic_name)
        replica = None if topic is None else node.partitions.opened_replica(topic, index)
        if replica is not None:
            return max(replica.log.high_watermark - offset, 0)
    return None
