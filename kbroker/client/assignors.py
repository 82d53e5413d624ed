"""Partition assignors for classic consumer groups; the group leader runs one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from types import MappingProxyType

from .topics import Partition

# Subscribed topics by member ID.
Subscriptions = Mapping[str, Sequence[str]]
Assignments = dict[str, list[Partition]]


def assign_ranges(members: Subscriptions, counts: Mapping[str, int]) -> Assignments:
    """Assign consecutive partitions of each topic to each member, like Kafka's RangeAssignor.

    The first members get one more partition if a topic's count is not divisible.

    Args:
        members: Subscribed topics by member ID.
        counts: Number of partitions by topic.

    Returns:
        The assigned partitions by member ID.
    """
    assignments: Assignments = {member: [] for member in members}
    for topic, count in sorted(counts.items()):
        readers = sorted(member for member, topics in members.items() if topic in topics)
        first = 0
        for number, member in enumerate(readers):
            share = count // len(readers) + (number < count % len(readers))
            assignments[member] += [(topic, index) for index in range(first, first + share)]
            first += share
    return assignments


def assign_round_robin(members: Subscriptions, counts: Mapping[str, int]) -> Assignments:
    """Assign partitions of all topics to the members in turn, like Kafka's RoundRobinAssignor.

    Args:
        members: Subscribed topics by member ID.
        counts: Number of partitions by topic.

    Returns:
        The assigned partitions by member ID.
    """
    assignments: Assignments = {member: [] for member in members}
    members_in_turn = cycle(sorted(members))
    for topic, count in sorted(counts.items()):
        if not any(topic in topics for topics in members.values()):
            continue
        for index in range(count):
            member = next(each for each in members_in_turn if topic in members[each])
            assignments[member].append((topic, index))
    return assignments


# Assignors by protocol name, in order of preference.
ASSIGNORS: Mapping[str, Callable[[Subscriptions, Mapping[str, int]], Assignments]] = (
    MappingProxyType({"range": assign_ranges, "roundrobin": assign_round_robin})
)
