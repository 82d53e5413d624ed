"""Long requests about partitions of topics in steps: what is done at once for one step is bounded.

Requests here have `topics` with `partitions`, and so have their answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

from kbroker.runtime.time_slices import TimeSlice

ROWS_AT_ONCE = 200
"""Topics and partitions of one step."""


def is_long(request: Any) -> bool:
    """Whether a request takes more than one step."""
    rows = len(request.topics)
    for topic in request.topics:
        rows += len(topic.partitions)
    return rows > ROWS_AT_ONCE


async def last_rows(time_slice: TimeSlice, topics: Iterable[Any]) -> list[Any]:
    """The topics that are named, each once, with the last row for each partition."""
    found: dict[Any, tuple[Any, dict[int, Any]]] = {}
    async for topic in time_slice.each(topics):
        _, rows = found.setdefault(_key(topic), (topic, {}))
        async for row in time_slice.each(topic.partitions):
            rows[row.partition_index] = row
    return [
        _with(topic, list(rows.values())) async for topic, rows in time_slice.each(found.values())
    ]


def steps_of(request: Any, topics: Iterable[Any]) -> Iterator[Any]:
    """Requests like `request` about these topics that are not long."""
    some: list[Any] = []
    room = ROWS_AT_ONCE
    for topic in topics:
        rows = topic.partitions
        first = 0
        while first < len(rows) or not rows:
            some.append(_with(topic, rows[first : first + room - 1]))
            first += room - 1
            room -= 1 + len(some[-1].partitions)
            if room < 2:
                yield about(request, some)
                some, room = [], ROWS_AT_ONCE
            if not rows:
                break
    if some:
        yield about(request, some)


def join(topics: list[Any], more: Iterable[Any]) -> None:
    """Add the rows of an answer to those of the steps before it."""
    for topic in more:
        if topics and _key(topics[-1]) == _key(topic):
            topics[-1].partitions += topic.partitions
        else:
            topics.append(topic)


def _key(topic: Any) -> Any:
    """A topic as it is named: by its name, or in newer versions by its id."""
    return topic.name, getattr(topic, "topic_id", None)


def _with(topic: Any, rows: list[Any]) -> Any:
    topic = copy(topic)
    topic.partitions = rows
    return topic


def about(request: Any, topics: list[Any]) -> Any:
    """A request like `request` about these topics."""
    request = copy(request)
    request.topics = topics
    return request
