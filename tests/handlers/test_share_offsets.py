"""Tests of the lag of share groups for extreme stored states."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kbroker.handlers.share_offsets import _row
from kbroker.protocol.messages.share_state import ReadShareGroupStateSummaryResponse
from kbroker.protocol.share_state_log import SharePartitionKey

MOST = (1 << 63) - 1


@pytest.mark.parametrize(
    ("start", "done", "lag"), [(3, 2, 5), (-MOST, 0, MOST), (MOST, 1 << 30, -MOST)]
)
def test_lag_is_capped_to_int64(start: int, done: int, lag: int) -> None:
    summary = ReadShareGroupStateSummaryResponse.Partition(
        partition=0, start_offset=start, delivery_complete_count=done
    )
    row = _row(SharePartitionKey("g", uuid4(), 0), summary, "t", {("t", 0): 10})
    assert row.lag == lag
