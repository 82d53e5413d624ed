"""Several partitions merged into one stream in timestamp order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipelines.replay.merging import CHUNK_RECORDS, merge

from .given import in_chunks, records


async def merged(*partitions: list[int], size: int = 2) -> list[tuple[int | None, int]]:
    streams = [in_chunks(index, records(*times), size) for index, times in enumerate(partitions)]
    found = []
    async for chunk in merge(streams):
        assert 0 < len(chunk.records) <= CHUNK_RECORDS
        found += [
            (index, record.timestamp)
            for index, record in zip(chunk.partitions, chunk.records, strict=True)
        ]
    return found


async def test_records_are_merged_by_timestamp() -> None:
    assert await merged([1, 4, 5], [2, 3, 9], []) == [
        (0, 1),
        (1, 2),
        (1, 3),
        (0, 4),
        (0, 5),
        (1, 9),
    ]


async def test_partition_order_is_kept_for_decreasing_timestamps() -> None:
    assert await merged([5, 1, 6], [2, 7]) == [(1, 2), (0, 5), (0, 1), (0, 6), (1, 7)]


async def test_equal_timestamps_are_ordered_by_partition() -> None:
    assert await merged([3, 3], [3]) == [(0, 3), (0, 3), (1, 3)]


async def test_many_records_are_merged_in_timestamp_order() -> None:
    even, odd = list(range(0, 5000, 2)), list(range(1, 5000, 2))
    assert [time for _, time in await merged(even, odd, size=300)] == list(range(5000))


@given(st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=4), st.integers(1, 5))
def test_resumed_merge_keeps_order_from_any_position(
    partitions: list[list[int]], size: int
) -> None:
    import trio

    async def run() -> None:
        whole = await merged(*partitions, size=size)
        for done in range(len(whole) + 1):
            counts = [
                sum(at == index for at, _ in whole[:done]) for index in range(len(partitions))
            ]
            left = [times[count:] for times, count in zip(partitions, counts, strict=True)]
            assert await merged(*left, size=3) == whole[done:]

    trio.run(run)
