"""Loading of streams groups from their records."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode

from ..harness import Harness
from .groups import active_tasks


def test_restart_keeps_group(h: Harness) -> None:
    h.streams_beat("a", 0)
    h.streams_beat("b", 0)
    h.streams_beat("a", 2)
    before = h.describe_streams()
    restarted = h.restarted()
    assert restarted.describe_streams() == before
    assert restarted.streams_beat("a", 2, owned={"0": [0, 1]}).member_epoch == 3
    assert active_tasks(restarted.streams_beat("b", 3)) == {"0": [2, 3]}
    restarted.streams_beat("a", -1)
    restarted.streams_beat("b", -1)
    for result in restarted.coordinator.delete_group("g", restarted.now):
        restarted.settle(result)
    assert restarted.restarted().describe_streams().error_code == ErrorCode.GROUP_ID_NOT_FOUND
