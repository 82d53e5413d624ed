"""Server-side assignor `simple` of share groups (KIP-932).

Unlike in a consumer group, a partition may have several members. If there are at least as many
partitions as members, each partition has one member. Otherwise each partition has as many members
as are needed to give every member one partition. Members with the same subscription form one pool
for all their topics. If subscriptions differ, each topic has its own pool.

The assignor balances first: within a pool, partition counts differ by at most one. Second, it is
sticky: a member keeps its partitions if balance permits.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import cycle
from typing import TypeAlias
from uuid import UUID

from ..common.assignor import PARTITIONS_AT_ONCE, GroupSpec, Targets, existing_subscriptions

Partition: TypeAlias = tuple[UUID, int]
Assignable: TypeAlias = Mapping[UUID, Collection[int]]


def assign_simply(group: GroupSpec, topics: Assignable) -> Generator[None, None, Targets]:
    """Return the targets of a share group, computed in pieces.

    Args:
        group: Members of the group.
        topics: Assignable partitions by topic ID.
    """
    targets: Targets = {member_id: {} for member_id in group}
    subscriptions = yield from existing_subscriptions(group, topics.keys())
    if len(subscriptions) == 1:
        yield from _Pool(group, targets, list(group)).assign(
            _sorted_partitions(subscriptions.pop(), topics)
        )
        return targets
    subscribers: dict[UUID, list[str]] = {topic_id: [] for topic_id in topics}
    for member_id, member in group.items():
        for topic_id in member.topics & topics.keys():
            subscribers[topic_id].append(member_id)
        yield
    for topic_id, members in subscribers.items():
        if members:
            yield from _Pool(group, targets, members).assign(
                _sorted_partitions((topic_id,), topics)
            )
            yield
    return targets


def _sorted_partitions(topic_ids: Collection[UUID], topics: Assignable) -> list[Partition]:
    return [
        (topic_id, partition)
        for topic_id in sorted(topic_ids, key=lambda each: each.int)
        for partition in sorted(topics[topic_id])
    ]


class _Pool:
    """A set of partitions and the members that share them."""

    def __init__(self, group: GroupSpec, targets: Targets, members: list[str]) -> None:
        self._group = group
        self._targets = targets
        self._members = members
        self._holders: dict[Partition, list[str]] = {}
        # Number of partitions that each member still needs.
        self._needs: dict[str, int] = {}

    def assign(self, partitions: Sequence[Partition]) -> Generator[None, None, None]:
        """Assign each partition to the required number of members."""
        if not partitions:
            return
        self._holders = {partition: [] for partition in partitions}
        holders_max = -(-len(self._members) // len(partitions))
        yield from self._keep(holders_max)
        heap = [
            (-self._needs[each], order, each)
            for order, each in enumerate(self._members)
            if self._needs[each]
        ]
        heapq.heapify(heap)
        done = 0
        for partition in partitions:
            wanted = holders_max - len(self._holders[partition])
            done += 1 + self._fill(partition, wanted, heap)
            if done >= PARTITIONS_AT_ONCE:
                done = 0
                yield
        self._leave_none_out(partitions)

    def _keep(self, holders_max: int) -> Generator[None, None, None]:
        """Keep previous assignments up to the quota, or one more for members with the most."""
        quota, more = divmod(holders_max * len(self._holders), len(self._members))
        previous = {member_id: self._previous(member_id) for member_id in self._members}
        order = sorted(self._members, key=lambda each: -len(previous[each]))
        for position, member_id in enumerate(order):
            needed = quota + (position < more)
            for partition in previous[member_id]:
                if needed and len(self._holders[partition]) < holders_max:
                    self._give(partition, member_id)
                    needed -= 1
            self._needs[member_id] = needed
            yield

    def _previous(self, member_id: str) -> list[Partition]:
        return [
            (topic_id, partition)
            for topic_id, partitions in self._group[member_id].previous.items()
            for partition in sorted(partitions)
            if (topic_id, partition) in self._holders
        ]

    def _fill(self, partition: Partition, wanted: int, heap: list[tuple[int, int, str]]) -> int:
        """Assign a partition to the members that need the most, and return how many were tried."""
        holders = set(self._holders[partition]) if wanted else ()
        put_back = []
        asked = 0
        while wanted and heap:
            need, order, member_id = heapq.heappop(heap)
            asked += 1
            if member_id not in holders:
                self._give(partition, member_id)
                wanted -= 1
                need += 1
            if need:
                put_back.append((need, order, member_id))
        for each in put_back:
            heapq.heappush(heap, each)
        return asked

    def _leave_none_out(self, partitions: Sequence[Partition]) -> None:
        """Assign extra partitions so that no member and no partition is left out.

        The assignments that members keep may make an even distribution impossible. Some members
        then get one partition more.
        """
        busy = {member_id for holders in self._holders.values() for member_id in holders}
        idle = [member_id for member_id in self._members if member_id not in busy]
        by_holders = sorted(partitions, key=lambda each: len(self._holders[each]))
        for member_id, partition in zip(idle, cycle(by_holders), strict=False):
            self._give(partition, member_id)
        bare = [partition for partition in partitions if not self._holders[partition]]
        for partition, member_id in zip(bare, cycle(self._members), strict=False):
            self._give(partition, member_id)

    def _give(self, partition: Partition, member_id: str) -> None:
        topic_id, index = partition
        self._targets[member_id].setdefault(topic_id, set()).add(index)
        self._holders[partition].append(member_id)
