"""Long requests, split into requests of bounded size.

The requests and their responses have `topics` with `partitions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any

from kbroker.runtime.time_slices import TimeSlice

# Maximum number of topics and partitions of one step.
ROWS_AT_ONCE = 200


def is_long(request: Any) -> bool:
    """Return True if a request takes more than one step."""
    rows = len(request.topics)
    return (
        rows > ROWS_AT_ONCE
        or rows + sum(len(topic.partitions) for topic in request.topics) > ROWS_AT_ONCE
    )


async def last_rows(time_slice: TimeSlice, topics: Iterable[Any]) -> list[Any]:
    """Return each distinct topic with the last row of each of its partitions."""
    found: dict[Any, tuple[Any, dict[int, Any]]] = {}
    async for topic in time_slice.each(topics):
        _, rows = found.setdefault(_key(topic), (topic, {}))
        async for row in time_slice.each(topic.partitions):
            rows[row.partition_index] = row
    return [
        _with_rows(topic, list(rows.values()))
        async for topic, rows in time_slice.each(found.values())
    ]


def steps_of(request: Any, topics: Iterable[Any]) -> Iterator[Any]:
    """Yield copies of a request for consecutive parts of `topics`, each within one step."""
    some: list[Any] = []
    left = ROWS_AT_ONCE
    for topic in topics:
        rows = topic.partitions
        first = 0
        while first < len(rows) or not rows:
            some.append(_with_rows(topic, rows[first : first + left - 1]))
            first += left - 1
            left -= 1 + len(some[-1].partitions)
            if left < 2:
                yield with_topics(request, some)
                some, left = [], ROWS_AT_ONCE
            if not rows:
                break
    if some:
        yield with_topics(request, some)


def append_rows(topics: list[Any], more: Iterable[Any]) -> None:
    """Append the response rows of one step to the rows of the previous steps."""
    for topic in more:
        if topics and _key(topics[-1]) == _key(topic):
            topics[-1].partitions += topic.partitions
        else:
            topics.append(topic)


def _key(topic: Any) -> Any:
    """Return the name and the ID of a topic; newer versions use the ID."""
    return topic.name, getattr(topic, "topic_id", None)


def _with_rows(topic: Any, rows: list[Any]) -> Any:
    topic = copy(topic)
    topic.partitions = rows
    return topic


def with_topics(request: Any, topics: list[Any]) -> Any:
    """Return a copy of a request with other topics."""
    request = copy(request)
    request.topics = topics
    return request
