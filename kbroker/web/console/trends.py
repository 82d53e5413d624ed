"""Trends of the last ten minutes: rates, and lags of groups.

A sample of the nodes of this process is taken every `SAMPLE_SECONDS`. Other nodes are queried for the end
offsets of their partitions, and for the committed offsets of the groups that they coordinate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from kbroker.broker.local_node import LocalNode
from kbroker.cluster.model import Partition, Topic
from kbroker.coordinator_runtime.high_watermarks import high_watermarks
from kbroker.node.node import Node
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode
from kbroker.runtime.time_slices import DutyCycle

from .latencies import OTHERS, PRODUCE, Latencies
from .remote_groups import RemoteGroup, RemoteGroups, TopicPartition
from .rings import SAMPLE_SECONDS, Ring, rate

GROUPS_MAX = 1_000
# Maximum number of partitions of all groups together; each has a ring of about 1 kB.
PARTITIONS_MAX = 10_000
# Maximum number of partitions without a replica here whose leaders are queried for end offsets.
REMOTE_PARTITIONS_MAX = 2_000
# Time limit for the queries of end offsets.
ENDS_SECONDS = 2
# Number of samples after which a group that no node reports is removed.
UNSEEN_MAX = 12


@dataclass(slots=True)
class GroupTrend:
    """Lag of a group, in total and per partition.

    Attributes:
        members: Number of members; None if a node of another process coordinates the group.
        topics: Current lag by topic.
        partitions: Lag over time by partition.
    """

    total: Ring = field(default_factory=Ring)
    lag: int | None = None
    members: int | None = None
    topics: dict[str, int | None] = field(default_factory=dict)
    partitions: dict[TopicPartition, Ring] = field(default_factory=dict)


@dataclass(slots=True)
class TopicTrend:
    """Incoming records and bytes of a topic; bytes are None if another process leads a part of it."""

    records_per_second: float = 0.0
    bytes_per_second: float | None = 0.0


class OwnTrends:
    """Trends of the nodes of one process.

    Attributes:
        requests: Requests per second.
        bytes_in: Bytes per second that clients wrote.
        bytes_out: Bytes per second that clients read.
        produce: Response times of Produce requests.
        others: Response times of other requests that do not wait for records or members.
    """

    def __init__(self) -> None:
        self.requests = Ring()
        self.bytes_in = Ring()
        self.bytes_out = Ring()
        self.produce = Latencies(PRODUCE)
        self.others = Latencies(OTHERS)
        self._request_count = 0

    def sample_requests(self, nodes: Sequence[Node], seconds: float, number: int) -> None:
        """Add a sample of the requests.

        Args:
            nodes: Running nodes of this process.
            seconds: Seconds since the last sample; 0 for the first one.
            number: Number of the sample.
        """
        metrics = [each.request_metrics for each in nodes]
        count = sum(sum(each.requests) for each in metrics)
        self.requests.add(rate(count - self._request_count, seconds), number)
        self._request_count = count
        self.produce.sample(metrics, number)
        self.others.sample(metrics, number)

    def row(self) -> dict[str, object]:
        """Return all samples, oldest first; response times are in microseconds."""
        return {
            "requests_per_second": self.requests.values(),
            "bytes_in_per_second": self.bytes_in.values(),
            "bytes_out_per_second": self.bytes_out.values(),
            "produce_us": self.produce.values(),
            "request_us": self.others.values(),
        }


class Trends:
    """Trends of a cluster, as the nodes of one process know them. `run` it until cancelled.

    Attributes:
        records: Incoming records per second.
        lag: Lag of all groups together.
        own: Data that describes only the nodes of this process.
        number: Number of the last sample.
        at_ms: Time of the last sample, in milliseconds since the epoch.
    """

    def __init__(self, nodes: Sequence[LocalNode]) -> None:
        self.groups: dict[str, GroupTrend] = {}
        self.topics: dict[str, TopicTrend] = {}
        self.records = Ring()
        self.lag = Ring()
        self.own = OwnTrends()
        self.number = self.at_ms = 0
        self._nodes = nodes
        self._sampled_at = 0.0
        self._ring_count = 0
        self._ends: dict[TopicPartition, int] = {}
        # Appended bytes, and bytes that clients read, by partition that this process leads.
        self._sizes: dict[TopicPartition, int] = {}
        self._reads: dict[TopicPartition, int] = {}
        self._remote_groups = RemoteGroups(self._add_remote_group)
        # Member counts of the share groups that nodes of this process coordinate.
        self._share_members: dict[str, int] = {}

    async def run(self) -> None:
        """Take samples forever."""
        try:
            while True:
                await self.sample()
                await trio.sleep(SAMPLE_SECONDS)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections to other nodes; the next sample opens new connections."""
        await self._remote_groups.aclose()

    async def sample(self) -> None:
        """Take one sample."""
        now = trio.current_time()
        seconds = max(now - self._sampled_at, 0.001) if self.number else 0.0
        self._sampled_at, self.number = now, self.number + 1
        self.at_ms = round(time.time() * 1000)
        duty_cycle = DutyCycle()
        nodes = [each.node for each in self._nodes if each.is_running]
        if not nodes:
            return
        await self._sample_partitions(nodes, seconds, duty_cycle)
        self.own.sample_requests(nodes, seconds, self.number)
        reporting_nodes = await self._sample_groups(nodes, duty_cycle)
        self._remove_stale(nodes[0], reporting_nodes)
        lags = [each.lag for each in self.groups.values() if each.lag is not None]
        self.lag.add(sum(lags) if lags else None, self.number)

    # -- topics

    async def _sample_partitions(
        self, nodes: Sequence[Node], seconds: float, duty_cycle: DutyCycle
    ) -> None:
        local_nodes = {node.id: node for node in nodes}
        ends: dict[TopicPartition, int] = {}
        sizes: dict[TopicPartition, int] = {}
        reads: dict[TopicPartition, int] = {}
        remote: list[TopicPartition] = []
        for topic in tuple(nodes[0].cluster.topics.values()):
            for partition in topic.partitions:
                key = topic.name, partition.index
                leader = local_nodes.get(partition.leader)
                replica = _open_replica(local_nodes, topic, partition)
                if replica is not None:
                    if replica.is_high_watermark_current:
                        ends[key] = replica.log.high_watermark
                    if leader is not None:
                        sizes[key] = replica.traffic.appended_bytes
                        reads[key] = replica.traffic.read_bytes
                elif leader is None and len(remote) < REMOTE_PARTITIONS_MAX:
                    remote.append(key)
                await duty_cycle.pause()
        if remote:
            node = nodes[0]
            found = await high_watermarks(
                node.context, node.partitions, node.peers, remote, ENDS_SECONDS
            )
            ends.update((at, end) for at, end in found.items() if not isinstance(end, ErrorCode))
        await self._compare(ends, sizes, seconds, duty_cycle)
        for ring, now, before in (
            (self.own.bytes_in, sizes, self._sizes),
            (self.own.bytes_out, reads, self._reads),
        ):
            ring.add(rate(await _increase(now, before, duty_cycle), seconds), self.number)
        self._ends, self._sizes, self._reads = ends, sizes, reads

    async def _compare(
        self,
        ends: dict[TopicPartition, int],
        sizes: dict[TopicPartition, int],
        seconds: float,
        duty_cycle: DutyCycle,
    ) -> None:
        """Compute the rates since the last sample from partitions that are in both samples."""
        records: Counter[str] = Counter()
        size: Counter[str] = Counter()
        remote: set[str] = set()
        for partition, end in ends.items():
            name, _ = partition
            records[name] += max(end - self._ends.get(partition, end), 0)
            if partition in sizes:
                size[name] += max(
                    sizes[partition] - self._sizes.get(partition, sizes[partition]), 0
                )
            else:
                remote.add(name)
            await duty_cycle.pause()
        self.topics = {
            name: TopicTrend(
                count / seconds if seconds else 0.0,
                None if name in remote else size[name] / seconds if seconds else 0.0,
            )
            for name, count in records.items()
        }
        self.records.add(rate(records.total(), seconds), self.number)

    # -- groups

    async def _sample_groups(self, nodes: Sequence[Node], duty_cycle: DutyCycle) -> set[int]:
        """Sample all groups; return the IDs of the nodes that reported all their groups."""
        self._share_members = {}
        share_groups: dict[int, list[str]] = {}
        for node in nodes:
            for shard in node.groups.shards():
                for group_id, members in shard.coordinator.member_counts():
                    if node.groups.serves(shard):
                        committed = shard.coordinator.committed(group_id)
                        self._add(group_id, members, self._lags(committed))
                    await duty_cycle.pause()
                for group_id, members in shard.coordinator.share_member_counts():
                    self._share_members[group_id] = members
                    share_groups.setdefault(node.id, []).append(group_id)
                    await duty_cycle.pause()
        reporting_nodes = await self._remote_groups.poll(nodes, share_groups)
        return reporting_nodes | {node.id for node in nodes if not node.groups.is_loading}

    def _add_remote_group(self, group: RemoteGroup) -> None:
        lags = {**self._lags(group.committed), **group.lags}
        self._add(group.group, self._share_members.get(group.group), lags)

    def _lags(self, committed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return lags; None if the end offset of a partition is unknown."""
        ends = self._ends
        return {
            partition: max(ends[partition] - offset, 0) if partition in ends else None
            for partition, offset in committed.items()
        }

    def _add(
        self, group_id: str, members: int | None, lags: Mapping[TopicPartition, int | None]
    ) -> None:
        """Add a sample of a group."""
        trend = self.groups.get(group_id)
        if trend is None:
            if len(self.groups) >= GROUPS_MAX:
                return
            trend = self.groups[group_id] = GroupTrend()
        trend.members = members
        trend.topics = {}
        for partition, lag in lags.items():
            topic, _ = partition
            before = trend.topics.get(topic, 0)
            trend.topics[topic] = None if lag is None or before is None else before + lag
            ring = trend.partitions.get(partition)
            if ring is None and self._ring_count < PARTITIONS_MAX:
                self._ring_count += 1
                ring = trend.partitions[partition] = Ring()
            if ring is not None:
                ring.add(lag, self.number)
        known = [each for each in lags.values() if each is not None]
        trend.lag = sum(known) if known and len(known) == len(lags) else None
        trend.total.add(trend.lag, self.number)

    def _remove_stale(self, node: Node, reporting_nodes: set[int]) -> None:
        """Remove deleted groups; mark groups whose coordinator did not report as unknown."""
        for name, trend in tuple(self.groups.items()):
            unseen = self.number - trend.total.seen_at
            if not unseen:
                continue
            if unseen >= UNSEEN_MAX or (
                name not in self._share_members
                and node.groups.coordinator_id(name) in reporting_nodes
            ):
                self._ring_count -= len(trend.partitions)
                del self.groups[name]
            else:
                trend.lag = None
                trend.topics = dict.fromkeys(trend.topics)


async def _increase(
    now: Mapping[TopicPartition, int], before: Mapping[TopicPartition, int], duty_cycle: DutyCycle
) -> int:
    """Return the increase of the counters that are in both samples."""
    total = 0
    for partition, count in now.items():
        total += max(count - before.get(partition, count), 0)
        await duty_cycle.pause()
    return total


def _open_replica(
    local_nodes: Mapping[int, Node], topic: Topic, partition: Partition
) -> Replica | None:
    """Return an open replica of a partition in this process, preferably the leader's."""
    for node_id in (partition.leader, *partition.replicas):
        if node_id in local_nodes:
            replica = local_nodes[node_id].partitions.opened_replica(topic, partition.index)
            if replica is not None:
                return replica
    return None
