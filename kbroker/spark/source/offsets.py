"""Offsets of many partitions: how checkpoints write them, and what a batch of them is.

Everything here is arithmetic; who asks a broker is `partitions`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kbroker.text.documents import read_json

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]
"""Of each partition the offset of the next record to read."""

LATEST = -1
EARLIEST = -2
"""What stands for a partition's end and begin in the options, and nowhere else."""


@dataclass(frozen=True)
class OffsetRange:
    """A piece of a partition."""

    topic: str
    partition: int
    start: int
    end: int
    """The first offset that does not belong to it."""
    from_earliest: bool = False
    """The range was to begin with the earliest record: records that are deleted later are no loss."""

    @property
    def size(self) -> int:
        """How many offsets it has; with compaction and transactions there are fewer records."""
        return self.end - self.start


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as checkpoints hold them, which is as the connector writes them."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The reverse of `to_json`."""
    return {
        (topic, int(partition)): offset
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def parse(text: str) -> Offsets:
    """Read offsets (or timestamps) as options give them: ``{"topic": {"0": 23, "1": -2}}``.

    Raises:
        ValueError: it is something else.
    """
    value: object = read_json(text)
    if not isinstance(value, dict) or not all(
        isinstance(partitions, dict)
        and all(isinstance(number, int) for number in partitions.values())
        for partitions in value.values()
    ):
        raise ValueError("not an object of topics with an object of partitions in each")
    return from_json(value)


def named(partitions: Mapping[TopicPartition, object] | set[TopicPartition]) -> str:
    """Partitions as messages name them: ``flights-0, flights-1``."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))


def limited(start: Offsets, end: Offsets, rows: int) -> Offsets:
    """The end of a batch of about `rows` records: each partition gives its share of what it has.

    Parameters: `start` has an offset for each partition of `end`. A partition that has anything
    gives at least one record, so that none is left behind for ever.
    """
    sizes = {each: max(0, end[each] - start[each]) for each in end}
    total = sum(sizes.values())
    if total <= rows:
        return end
    return {
        each: start[each] + min(size, max(1, rows * size // total)) if size else end[each]
        for each, size in sizes.items()
    }


def split(
    ranges: list[OffsetRange], least: int | None = None, longest: int | None = None
) -> list[OffsetRange]:
    """Cut long ranges, so that more tasks than partitions read them; empty ones are left out.

    Parameters: `least` is about how many there shall be at least, `longest` the most offsets that
    one may have.
    """
    ranges = [each for each in ranges if each.size > 0]
    if longest:
        ranges = [part for each in ranges for part in _cut(each, math.ceil(each.size / longest))]
    if least and len(ranges) < least:
        ranges = [part for each in ranges for part in _cut(each, _share(each, ranges, least))]
    return ranges


def _share(one: OffsetRange, ranges: list[OffsetRange], least: int) -> int:
    """Into how many parts a range is cut; those that are too small for two do not count."""
    total = sum(each.size for each in ranges)
    small = [each for each in ranges if round(least * each.size / total) <= 1]
    if one in small:
        return 1
    rest = total - sum(each.size for each in small)
    return max(1, round((least - len(small)) * one.size / rest))


def _cut(whole: OffsetRange, parts: int) -> Iterator[OffsetRange]:
    parts = min(parts, whole.size)
    edges = [whole.start + whole.size * number // parts for number in range(parts + 1)]
    for start, end in itertools.pairwise(edges):
        yield replace(whole, start=start, end=end)
