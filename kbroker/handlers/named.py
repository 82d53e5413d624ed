"""What requests name: each topic and partition once, however often it is named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kbroker.slices import Turn

Row = TypeVar("Row")


async def named_once(
    turn: Turn, rows: Iterable[tuple[str, Iterable[int]]]
) -> dict[str, dict[int, None]]:
    """The partitions of each topic, in the order in which they were named first.

    Parameters: `rows` are topics with the partitions that a request names for them.
    """
    topics: dict[str, dict[int, None]] = {}
    async for name, indexes in turn.each(rows):
        topics.setdefault(name, {}).update(dict.fromkeys(indexes))
    return topics
