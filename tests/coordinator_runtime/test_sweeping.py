"""Long-running work of coordinators."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kbroker.coordinator_runtime.sweeping import EMPTY_AT_ONCE

from ..brokers import started


async def test_few_pieces_without_records_are_processed_immediately() -> None:
    """A piece that only computes may take some milliseconds."""
    done: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(100):
            time.sleep(0.01)  # as a computation
            done.append(number)
            yield 0

    async with started() as broker:
        broker.node.groups._begin([pieces()])
        assert EMPTY_AT_ONCE <= len(done) < 20
