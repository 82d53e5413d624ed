"""Loading of streams groups from their records."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode

from ..harness import Harness
from .groups import active


def test_restart_keeps_group(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    before = h.describe_streams()
    again = h.restarted()
    assert again.describe_streams() == before
    assert again.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    assert active(again.streams_beat("b", 3)) == {"0": [2, 3]}
    again.streams_beat("a", -1)
    again.streams_beat("b", -1)
    for result in again.coordinator.delete_group("g", again.now):
        again.settle(result)
    assert again.restarted().describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND
