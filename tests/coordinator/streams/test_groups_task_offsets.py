"""Task offsets that members of streams groups report."""

from __future__ import annotations

from kbroker.coordinator import GroupMemory, MemoryLimit
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

from ..harness import Harness
from .groups import QUICK

TaskOffset = StreamsGroupHeartbeatRequest.TaskOffset


def at(*offsets: tuple[str, int, int]) -> list[TaskOffset]:
    return [TaskOffset(subtopology_id=n, partition=p, offset=offset) for n, p, offset in offsets]


def reported(h: Harness) -> dict[str, int]:
    """Return how many offsets of each member the group knows."""
    return {row.member_id: len(row.task_offsets) for row in h.describe_streams().members}


def test_task_offsets_are_described_until_member_leaves(h: Harness) -> None:
    h.streams_beat("a", 0, task_offsets=at(("0", 1, 5)))
    h.streams_beat("a", 2, task_end_offsets=at(("0", 1, 9)))
    (row,) = h.describe_streams().members
    assert [(each.partition, each.offset) for each in row.task_offsets] == [(1, 5)]
    assert [(each.partition, each.offset) for each in row.task_end_offsets] == [(1, 9)]
    twice = at(("0", 1, 5), ("0", 1, 6))
    for wrong in (twice, at(("0" * 1_001, 1, 5)), at(*(("0", n, 0) for n in range(20_001)))):
        response = h.streams_beat("a", 2, task_offsets=wrong)
        assert response.error_code == ErrorCode.INVALID_REQUEST
    h.streams_beat("a", -1)
    h.streams_beat("a", 0)
    (row,) = h.describe_streams().members
    assert row.task_offsets == []


def test_task_offsets_count_against_memory_limit() -> None:
    limit = MemoryLimit(100_000)
    h = Harness(streams=QUICK, memory=GroupMemory(limit, MemoryLimit()))
    h.streams_beat("a", 0)
    used = limit.used
    h.streams_beat("a", 2, task_offsets=at(*(("0", n, 0) for n in range(100))))
    assert (reported(h), limit.used - used > 100 * 100) == ({"a": 100}, True)
    many = at(*(("0", n, 0) for n in range(1_000)))
    assert not h.streams_beat("a", 2, task_offsets=many).error_code
    assert reported(h) == {"a": 100}, "the limit does not permit more offsets"
    h.streams_beat("a", 2, task_offsets=[])
    assert (reported(h), limit.used) == ({"a": 0}, used)
    h.streams_beat("a", 2, task_offsets=at(("0", 1, 1)))
    h.streams_beat("b", 0)
    h.streams_beat("a", -1)
    h.streams_beat("a", 0)
    h.streams_beat("b", -1)
    assert limit.used == used


def test_task_offsets_of_rejected_member_are_not_kept(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert h.streams_beat("b", 0, task_offsets=at(("0", 1, 1))).error_code
    h.append_fails = None
    h.streams_beat("b", 0)
    assert reported(h) == {"a": 0, "b": 0}
