"""Loading of share groups from their records."""

from __future__ import annotations

from kbroker.coordinator import CoordinatorRecord
from kbroker.coordinator.share.group import ShareGroup
from kbroker.coordinator.share.records import shared_record

from .groups import SESSION_MS, initialized_group


def test_restart_keeps_group_and_restarts_sessions() -> None:
    h = initialized_group()
    h.share_beat("b", 0, ["orders", "audit"])
    before = h.describe_share()
    h = h.restarted()
    assert h.describe_share() == before
    h.sleep(SESSION_MS)
    assert not h.describe_share().members, "sessions start after loading"


def test_tombstone_of_missing_group_is_ignored() -> None:
    h = initialized_group()
    (group,) = h.coordinator._state.groups_of(ShareGroup)
    key = shared_record("gone", group.shared).key
    h.coordinator.replay(CoordinatorRecord(key, None))
    assert not h.coordinator.has_share_group("gone")
