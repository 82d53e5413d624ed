"""Offsets of many partitions: checkpoint format, batch limits and range splitting.

This module contains only arithmetic; `partitions` queries brokers or files.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kbroker.text.documents import read_json

TopicPartition = tuple[str, int]
# The next offset to read, by partition.
Offsets = dict[TopicPartition, int]

# Placeholders in options for the end and the start of a partition.
LATEST = -1
EARLIEST = -2


@dataclass(frozen=True)
class OffsetRange:
    """A range of offsets in a partition."""

    topic: str
    partition: int
    start: int
    # End of the range, exclusive.
    end: int
    # True if the range starts at the earliest record: records deleted before they are read are not
    # reported as a loss.
    from_earliest: bool = False

    @property
    def size(self) -> int:
        """Number of offsets; compaction and transactions may leave fewer records."""
        return self.end - self.start


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets in the checkpoint format, which is that of Spark's connector."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Convert offsets from the checkpoint format: the reverse of `to_json`."""
    return {
        (topic, int(partition)): offset
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def parse(text: str) -> Offsets:
    """Parse offsets or timestamps of an option, such as ``{"topic": {"0": 23, "1": -2}}``.

    Raises:
        ValueError: The text has another form.
    """
    value: object = read_json(text)
    if not isinstance(value, dict) or not all(
        isinstance(partitions, dict)
        and all(isinstance(number, int) for number in partitions.values())
        for partitions in value.values()
    ):
        raise ValueError("expected an object of topics, each with an object of partitions")
    return from_json(value)


def named(partitions: Mapping[TopicPartition, object] | set[TopicPartition]) -> str:
    """Return partitions for messages, such as ``flights-0, flights-1``."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))


def limited(start: Offsets, end: Offsets, rows: int) -> Offsets:
    """Return the end offsets of a batch of about `rows` records.

    Each partition contributes in proportion to its available records, but at least one record, so
    that no partition starves.

    Args:
        start: Start offset of each partition in `end`.
        end: Latest offset of each partition.
        rows: Maximum number of records of the batch (approximate).

    Returns:
        The end offset of each partition.
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
    """Split long ranges for parallel tasks, and drop empty ranges.

    Args:
        ranges: Offset ranges.
        least: Minimum number of ranges to return (approximate).
        longest: Maximum number of offsets per range.

    Returns:
        The ranges in order.
    """
    ranges = [each for each in ranges if each.size > 0]
    if longest:
        ranges = [part for each in ranges for part in _cut(each, math.ceil(each.size / longest))]
    if least and len(ranges) < least:
        ranges = [part for each in ranges for part in _cut(each, _share(each, ranges, least))]
    return ranges


def _share(one: OffsetRange, ranges: list[OffsetRange], least: int) -> int:
    """Return the number of parts for a range; ranges too small to be split are not counted."""
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
