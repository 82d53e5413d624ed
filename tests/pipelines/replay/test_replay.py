"""Replays from lists to lists: the records written, and the time of each to 10 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
import trio

from kbroker.pipelines.replay.pace import Pace, Rate, Speed, Unpaced
from kbroker.pipelines.replay.partitioners import by_key, kept
from kbroker.pipelines.replay.replay import RECORDS_MAX, TICK_SECONDS, Replay, ResumeState, Shift
from kbroker.pipelines.replay.sources import Chunks
from kbroker.protocol.records import NO_TIMESTAMP, Record

from .given import ListSource, ListTarget, records


def replay_of(source: ListSource, target: ListTarget, pace: Pace, **options: Any) -> Replay:
    shift = options.pop("shift", Shift(0))
    return Replay(source, target.write, options.pop("partitioner", kept(9)), pace, shift, **options)


async def played(source: ListSource, pace: Pace, **options: Any) -> ListTarget:
    target = ListTarget()
    assert await replay_of(source, target, pace, **options).run()
    return target


# -- timing


async def test_records_are_written_at_given_rate(autojump_clock: trio.testing.MockClock) -> None:
    source = ListSource(records(1, 3, 5), records(2, 4))
    target = await played(source, Rate(2))
    assert [(round(at, 9), value) for at, _, value in target.rows] == [
        (0.0, b"1"), (0.5, b"2"), (1.0, b"3"), (1.5, b"4"), (2.0, b"5"),
    ]  # fmt: skip


async def test_high_rate_is_written_in_ticks(autojump_clock: trio.testing.MockClock) -> None:
    target = await played(ListSource(records(*range(5000))), Rate(10_000))
    for number, (at, _, _) in enumerate(target.rows):
        due = number / 10_000
        assert due <= at + 1e-9
        assert at <= due + TICK_SECONDS + 1e-9
    assert len({at for at, _, _ in target.rows}) <= 52


async def test_speed_keeps_scaled_intervals_of_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = ListSource(records(10_000, 14_000), records(11_000, 10_500, 20_000))
    target = await played(source, Speed(2))
    assert [(round(at, 9), index, value) for at, index, value in target.rows] == [
        (0.0, 0, b"10000"),
        (0.5, 1, b"11000"),
        # late in its partition: written at once
        (0.5, 1, b"10500"),
        (2.0, 0, b"14000"),
        (5.0, 1, b"20000"),
    ]


async def test_records_without_timestamp_are_written_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = await played(ListSource(records(-1, 5_000, -1, 6_000)), Speed(1))
    assert [round(at, 9) for at, _, _ in target.rows] == [0, 0, 0, 1]


async def test_stalled_target_causes_no_burst(autojump_clock: trio.testing.MockClock) -> None:
    class Stalling(ListTarget):
        async def write(self, placed: Any) -> None:
            if len(self.rows) == 2:
                await trio.sleep(60)
            await super().write(placed)

    target = Stalling()
    await replay_of(ListSource(records(*range(5))), target, Rate(1)).run()
    assert [round(at, 9) for at, _, _ in target.rows] == [0, 1, 62, 62.01, 63.01]


async def test_fetched_records_are_written_before_slow_source_continues(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow(ListSource):
        @asynccontextmanager
        async def reading(self, *args: Any, **options: Any) -> AsyncIterator[Chunks]:
            async with (
                super().reading(*args, **options) as chunks,
                aclosing(slow(chunks)) as slowly,
            ):
                yield slowly

    async def slow(chunks: Chunks) -> Chunks:
        async for chunk in chunks:
            yield chunk
            await trio.sleep(10)

    target = await played(Slow(records(1, 2, 3)), Unpaced())
    assert [int(at) for at, _, _ in target.rows] == [0, 0, 10]


@pytest.mark.parametrize(
    ("pace", "seconds"), [(Unpaced(), 0), (Rate(50), 1.98), (Speed(2), 15), (Speed(0.5), 60)]
)
def test_pace_estimates_duration(pace: Pace, seconds: float) -> None:
    assert pace.seconds(100, 1000, 31_000) == pytest.approx(seconds)


# -- records


async def test_timestamps_are_shifted_so_that_earliest_is_now() -> None:
    kept_records: list[Record] = []

    async def write(placed: dict[int, list[Record]]) -> None:
        kept_records.extend(record for listed in placed.values() for record in listed)

    found: list[int] = []
    shift = Shift(None, lambda: 1_000_000, found.append)
    source = ListSource(
        records(500, 700), [*records(400), Record(b"k", b"none", NO_TIMESTAMP, (), 1)]
    )
    await Replay(source, write, kept(2), Unpaced(), shift).run()
    times = {record.value: record.timestamp for record in kept_records}
    assert times == {b"500": 1_000_100, b"700": 1_000_300, b"400": 1_000_000, b"none": NO_TIMESTAMP}
    assert found == [999_600]


async def test_filtered_replay_counts_written_records_and_keeps_positions() -> None:
    target = ListTarget()
    source = ListSource(records(1, 2, 3, 4), records(5, 6))
    wanted = [b"2", b"3", b"6"]
    replay = replay_of(
        source, target, Unpaced(), wanted=lambda _topic, _partition, record: record.value in wanted
    )
    await replay.run()
    assert [value for _, _, value in target.rows] == wanted
    assert replay.positions == {"0": 3, "1": 2}
    assert replay.count == 3
    assert {index: tally.records for index, tally in replay.tallies.items()} == {0: 2, 1: 1}
    assert replay.tallies[0].size == sum(
        map(len, (b"k1", b"2", b"h", b"v", b"k2", b"3", b"h", b"v"))
    )
    assert (replay.tallies[0].first_ms, replay.tallies[0].latest_ms) == (2, 3)


async def test_stopped_replay_resumes_at_its_positions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    source = ListSource(records(1, 3, 5, 7), records(2, 4, 6))
    target = ListTarget()
    replay = replay_of(source, target, Rate(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replay.run)
        await trio.sleep(3.5)
        replay.stop()
    assert [value for _, _, value in target.rows] == [b"1", b"2", b"3", b"4"]
    assert replay.positions == {"0": 2, "1": 2}
    second = await played(source, Rate(1), begun=ResumeState(replay.positions))
    assert [value for _, _, value in second.rows] == [b"5", b"6", b"7"]


async def test_records_already_in_target_are_skipped() -> None:
    source = ListSource(records(1, 2, 3), records(4, 5, 6))
    target = await played(source, Unpaced(), begun=ResumeState({"0": 1}, {0: 1, 1: 2}))
    assert [value for _, _, value in target.rows] == [b"3", b"6"]


async def test_stopped_replay_counts_records_of_started_write() -> None:
    target = ListTarget()
    replay = replay_of(ListSource(records(*range(5))), target, Unpaced())
    replay.stop()
    assert not await replay.run()
    assert replay.positions == {str(0): len(target.rows)} or not target.rows


@pytest.mark.slow
async def test_failed_target_write_keeps_positions_of_written_records(
    autojump_clock: trio.testing.MockClock,
) -> None:
    target = ListTarget()

    async def write(placed: Any) -> None:
        if len(target.rows) >= RECORDS_MAX:
            raise OSError("full")
        await target.write(placed)

    source = ListSource(records(*range(3 * RECORDS_MAX)))
    replay = Replay(source, write, by_key(3), Unpaced(), Shift(0))
    with pytest.raises(OSError, match="full"):
        await replay.run()
    assert replay.positions == {"0": len(target.rows)}
    assert replay.count == len(target.rows) >= RECORDS_MAX
