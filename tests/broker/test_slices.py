"""Long work in the event loop."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from kbroker.slices import REST, SLICE_SECONDS, Slices


async def test_a_rest_is_as_long_as_the_work_asks_for(mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    slices = Slices()
    mock_clock.jump(SLICE_SECONDS)
    await slices.pause()
    assert trio.current_time() == SLICE_SECONDS, "too little for a rest"
    mock_clock.jump(SLICE_SECONDS)
    await slices.pause()
    assert trio.current_time() == 2 * SLICE_SECONDS * (1 + REST)
    mock_clock.jump(SLICE_SECONDS / 2)
    before = trio.current_time()
    await slices.pause()
    assert trio.current_time() == before, "what was rested for is done with"
