"""Share groups that a coordinator restores from their records."""

from __future__ import annotations

from kbroker.coordinator import CoordinatorRecord
from kbroker.coordinator.share.group import ShareGroup
from kbroker.coordinator.share.records import shared_record

from .groups import SESSION_MS, begun


def test_a_group_survives_a_restart() -> None:
    h = begun()
    h.share_beat("b", 0, ["orders", "audit"])
    before = h.describe_share()
    h = h.restarted()
    assert h.describe_share() == before
    h.sleep(SESSION_MS)
    assert not h.describe_share().members, "sessions start when it is loaded"


def test_a_record_of_a_group_that_is_gone_changes_nothing() -> None:
    h = begun()
    (group,) = h.coordinator._state.groups_of(ShareGroup)
    key = shared_record("gone", group.shared).key
    h.coordinator.replay(CoordinatorRecord(key, None))
    assert not h.coordinator.has_share_group("gone")
