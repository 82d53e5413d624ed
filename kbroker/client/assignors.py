"""Who reads which partitions: the leader of a classic group decides, by a way that all support."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from types import MappingProxyType

from .topics import Partition

Subscriptions = Mapping[str, Sequence[str]]
"""The topics of each member, by its id."""
Assignments = dict[str, list[Partition]]


def by_range(members: Subscriptions, counts: Mapping[str, int]) -> Assignments:
    """Neighbours of each topic go together; the first members get one more where it does not come
    out even. It is Kafka's RangeAssignor.

    Parameters: `counts` has the number of partitions of each topic.
    """
    given: Assignments = {member: [] for member in members}
    for topic, count in sorted(counts.items()):
        readers = sorted(member for member, topics in members.items() if topic in topics)
        first = 0
        for number, member in enumerate(readers):
            share = count // len(readers) + (number < count % len(readers))
            given[member] += [(topic, index) for index in range(first, first + share)]
            first += share
    return given


def by_turns(members: Subscriptions, counts: Mapping[str, int]) -> Assignments:
    """One partition for each member in turn, over all topics. It is Kafka's RoundRobinAssignor."""
    given: Assignments = {member: [] for member in members}
    turns = cycle(sorted(members))
    for topic, count in sorted(counts.items()):
        if not any(topic in topics for topics in members.values()):
            continue
        for index in range(count):
            member = next(each for each in turns if topic in members[each])
            given[member].append((topic, index))
    return given


ASSIGNORS: Mapping[str, Callable[[Subscriptions, Mapping[str, int]], Assignments]] = (
    MappingProxyType({"range": by_range, "roundrobin": by_turns})
)
"""By the names that they have among clients, the first one preferred."""
