"""Server-side assignors `range` and `uniform` of consumer groups (KIP-848).

An assignor reads a snapshot of the group and returns a target for each member. It has no side
effects. It works in pieces, because a group may have tens of thousands of partitions.

*range* gives each member a contiguous range of each subscribed topic, in the order of the instance
IDs or member IDs. Members with the same subscription get the same partition numbers of each topic,
as joins need (co-partitioning). Balance and stickiness come second.

*uniform* balances first: among members with the same subscription, partition counts differ by at
most one. Second, it is sticky: a partition stays with its member if balance permits. A remaining
partition goes to a member in the rack of one of its replicas, if such a member is below its quota
(KIP-881). If subscriptions differ, each partition goes to the subscriber with the fewest
partitions. Partitions are then moved from members that have too many.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from ..common.assignor import (
    PARTITIONS_AT_ONCE,
    GroupSpec,
    MemberSubscription,
    Targets,
    Topics,
    existing_subscriptions,
)

# Members to put in order in the time in which one partition is assigned.
MEMBERS_PER_PARTITION = 20

Assignor: TypeAlias = Callable[[GroupSpec, Topics], Generator[None, None, Targets]]


def assign_ranges(group: GroupSpec, topics: Topics) -> Generator[None, None, Targets]:
    """Return the targets of a group, computed by the assignor `range`.

    Args:
        group: Members of the group.
        topics: All existing topics that a member subscribes to.
    """
    targets: Targets = {member_id: {} for member_id in group}
    # Static members come first, as in Kafka, so that joining and leaving members move them least.
    order = sorted(
        group, key=lambda each: (group[each].instance_id is None, group[each].instance_id or each)
    )
    subscribers: dict[UUID, list[str]] = {topic_id: [] for topic_id in topics}
    for member_id in order:
        for topic_id in group[member_id].topics:
            if topic_id in subscribers:
                subscribers[topic_id].append(member_id)
        yield
    done = 0
    for topic_id, members in subscribers.items():
        first = 0
        for position, member_id in enumerate(members):
            quota, more = divmod(topics[topic_id].partitions, len(members))
            count = quota + (position < more)
            if count:
                targets[member_id][topic_id] = set(range(first, first + count))
            first += count
        done += topics[topic_id].partitions
        if done >= PARTITIONS_AT_ONCE:
            done = 0
            yield
    return targets


def assign_uniformly(group: GroupSpec, topics: Topics) -> Generator[None, None, Targets]:
    """Return the targets of a group, computed by the assignor `uniform`.

    Args:
        group: Members of the group.
        topics: All existing topics that a member subscribes to.
    """
    subscriptions = yield from existing_subscriptions(group, topics.keys())
    work = _Uniform(group, topics)
    if len(subscriptions) == 1:
        yield from work.assign_homogeneous(subscriptions.pop())
    elif subscriptions:
        yield from work.assign_heterogeneous()
    return work.targets


# Assignors by name.
ASSIGNORS: Mapping[str, Assignor] = MappingProxyType(
    {"uniform": assign_uniformly, "range": assign_ranges}
)


class _Uniform:
    """One run of the assignor `uniform`."""

    def __init__(self, group: GroupSpec, topics: Topics) -> None:
        self._group = group
        self._topics = topics
        self.targets: Targets = {member_id: {} for member_id in group}
        self._counts = dict.fromkeys(group, 0)
        self._taken: dict[UUID, set[int]] = {}
        # Partitions that each member may still get within its quota, without an extra partition.
        self._quota_left: dict[str, int] = {}
        # Number of members that may get one extra partition.
        self._extra = 0

    # -- identical subscriptions

    def assign_homogeneous(self, subscribed: AbstractSet[UUID]) -> Generator[None, None, None]:
        """Assign all partitions among members with the same subscription."""
        total = sum(self._topics[topic_id].partitions for topic_id in subscribed)
        quota, self._extra = divmod(total, len(self._group))
        yield from self._keep_within_quota(subscribed, quota)
        self._quota_left = {each: quota - self._counts[each] for each in self._group}
        left = yield from self._unassigned(subscribed)
        left = yield from self._fill_racks(left)
        yield from self._fill(left)

    def _keep_within_quota(
        self, subscribed: AbstractSet[UUID], quota: int
    ) -> Generator[None, None, None]:
        """Keep previous partitions up to the quota, plus one extra partition while any are left."""
        done = 0
        for member_id, member in self._group.items():
            left = quota
            for topic_id in member.previous:
                if topic_id not in subscribed:
                    continue
                for partition in self._previous(topic_id, member):
                    if not left:
                        if not self._extra or self._counts[member_id] > quota:
                            break
                        self._extra -= 1
                        left = 1
                    self._give(member_id, topic_id, partition)
                    left -= 1
                    done += 1
                    if not done % PARTITIONS_AT_ONCE:
                        yield
            yield

    def _previous(self, topic_id: UUID, member: MemberSubscription) -> list[int]:
        """Return the free previous partitions of a member, those in its rack first."""
        shape = self._topics[topic_id]
        taken = self._taken.get(topic_id, ())
        previous = [e for e in member.previous[topic_id] if e < shape.partitions and e not in taken]
        previous.sort()
        if member.rack is not None and shape.racks:
            previous.sort(key=lambda each: member.rack not in shape.racks[each])
        return previous

    def _unassigned(
        self, subscribed: AbstractSet[UUID]
    ) -> Generator[None, None, list[tuple[UUID, int]]]:
        """Return the unassigned partitions, topic by topic."""
        left: list[tuple[UUID, int]] = []
        seen = 0
        for topic_id in sorted(subscribed, key=lambda each: each.int):
            taken = self._taken.get(topic_id, ())
            count = self._topics[topic_id].partitions
            left += [(topic_id, each) for each in range(count) if each not in taken]
            seen += count
            if seen >= PARTITIONS_AT_ONCE:
                seen = 0
                yield
        return left

    def _fill_racks(
        self, left: list[tuple[UUID, int]]
    ) -> Generator[None, None, list[tuple[UUID, int]]]:
        """Assign partitions to members in the rack of a replica, and return the remaining ones."""
        near: dict[str, list[tuple[int, str]]] = {}
        for member_id, member in self._group.items():
            if member.rack is not None and self._quota_left[member_id] > 0:
                near.setdefault(member.rack, []).append((-self._quota_left[member_id], member_id))
        if not near or not any(self._topics[topic_id].racks for topic_id, _ in left):
            return left
        for heap in near.values():
            heapq.heapify(heap)
        rest = []
        for count, (topic_id, partition) in enumerate(left, 1):
            racks = self._topics[topic_id].racks
            heaps = [near[rack] for rack in (racks[partition] if racks else ()) if near.get(rack)]
            if heaps:
                heap = min(heaps, key=lambda each: each[0])
                negative, member_id = heapq.heappop(heap)
                self._give(member_id, topic_id, partition)
                self._quota_left[member_id] -= 1
                if self._quota_left[member_id] > 0:
                    heapq.heappush(heap, (negative + 1, member_id))
            else:
                rest.append((topic_id, partition))
            if not count % PARTITIONS_AT_ONCE:
                yield
        return rest

    def _fill(self, left: list[tuple[UUID, int]]) -> Generator[None, None, None]:
        """Assign the remaining partitions to the members that have the fewest."""
        heap = [(self._counts[each], each) for each in self._group]
        heapq.heapify(heap)
        for count, (topic_id, partition) in enumerate(left, 1):
            size, member_id = heap[0]
            heapq.heapreplace(heap, (size + 1, member_id))
            self._give(member_id, topic_id, partition)
            if not count % PARTITIONS_AT_ONCE:
                yield

    # -- different subscriptions

    def assign_heterogeneous(self) -> Generator[None, None, None]:
        """Assign each partition to one of the subscribers of its topic."""
        subscribers: dict[UUID, list[str]] = {topic_id: [] for topic_id in self._topics}
        for member_id, member in self._group.items():
            for topic_id in member.topics & self._topics.keys():
                subscribers[topic_id].append(member_id)
            yield
        yield from self._keep_all()
        # Topics with the fewest subscribers come first, because they have the least choice.
        for topic_id in sorted(subscribers, key=lambda each: (len(subscribers[each]), each.int)):
            yield from self._fill_topic(topic_id, subscribers[topic_id])
        yield from self._balance(subscribers)

    def _keep_all(self) -> Generator[None, None, None]:
        for member_id, member in self._group.items():
            for topic_id in member.previous:
                if topic_id in member.topics and topic_id in self._topics:
                    for partition in self._previous(topic_id, member):
                        self._give(member_id, topic_id, partition)
            yield

    def _fill_topic(self, topic_id: UUID, subscribers: list[str]) -> Generator[None, None, None]:
        if not subscribers:
            return
        racks = self._topics[topic_id].racks
        taken = self._taken.get(topic_id, ())
        heap = [(self._counts[each], each) for each in subscribers]
        heapq.heapify(heap)
        left = [e for e in range(self._topics[topic_id].partitions) if e not in taken]
        work = 0
        for partition in left:
            work += 1
            least = heap[0][0]
            position = 0
            if racks:  # prefer a member in the rack of a replica
                position = next(
                    (
                        at
                        for at, (size, each) in enumerate(heap[:PARTITIONS_AT_ONCE])
                        if size == least and self._group[each].rack in racks[partition]
                    ),
                    0,
                )
            size, member_id = heap[position]
            if position:
                heap[position] = (size + 1, member_id)
                heapq.heapify(heap)
                work += len(heap) // MEMBERS_PER_PARTITION
            else:
                heapq.heapreplace(heap, (size + 1, member_id))
            self._give(member_id, topic_id, partition)
            if work >= PARTITIONS_AT_ONCE:
                work = 0
                yield

    def _balance(self, subscribers: Mapping[UUID, list[str]]) -> Generator[None, None, None]:
        """Move partitions between subscribers of a topic whose counts differ by two or more.

        Each move decreases the sum of the squared counts, so the loop terminates.
        """
        moved = True
        while moved:
            moved = False
            for topic_id, members in subscribers.items():
                if len(members) > 1:
                    moved = (yield from self._balance_topic(topic_id, members)) or moved
                yield

    def _balance_topic(self, topic_id: UUID, members: list[str]) -> Generator[None, None, bool]:
        movable = {each: self._movable(topic_id, each) for each in members}
        givers = [(-self._counts[each], each) for each in members if movable[each]]
        takers = [(self._counts[each], each) for each in members]
        heapq.heapify(givers)
        heapq.heapify(takers)
        moves = 0
        while givers:
            most, giver = heapq.heappop(givers)
            least, taker = takers[0]
            if -most - least < 2:
                break
            if least != self._counts[taker]:  # its count has changed
                heapq.heapreplace(takers, (self._counts[taker], taker))
                heapq.heappush(givers, (most, giver))
                continue
            if -most != self._counts[giver]:
                heapq.heappush(givers, (-self._counts[giver], giver))
                continue
            self._move(topic_id, movable[giver].pop(), giver, taker)
            moves += 1
            if movable[giver]:
                heapq.heappush(givers, (most + 1, giver))
            heapq.heapreplace(takers, (least + 1, taker))
            if not moves % PARTITIONS_AT_ONCE:
                yield
        return bool(moves)

    def _movable(self, topic_id: UUID, member_id: str) -> list[int]:
        """Return a member's partitions of a topic, sorted so that new ones are moved first."""
        previous = self._group[member_id].previous.get(topic_id, frozenset())
        partitions = self.targets[member_id].get(topic_id, ())
        return sorted(partitions, key=lambda each: (each not in previous, each))

    def _move(self, topic_id: UUID, partition: int, giver: str, taker: str) -> None:
        partitions = self.targets[giver][topic_id]
        partitions.remove(partition)
        if not partitions:
            del self.targets[giver][topic_id]
        self.targets[taker].setdefault(topic_id, set()).add(partition)
        self._counts[giver] -= 1
        self._counts[taker] += 1

    def _give(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self.targets[member_id].setdefault(topic_id, set()).add(partition)
        self._taken.setdefault(topic_id, set()).add(partition)
        self._counts[member_id] += 1
