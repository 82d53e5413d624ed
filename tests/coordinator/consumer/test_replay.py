"""Loading of consumer groups from their records."""

from __future__ import annotations

from ..harness import REBALANCE_MS
from .groups import SESSION_MS, harness, members


def test_restart_keeps_group_and_restarts_sessions() -> None:
    h = harness()
    h.beat("a", 0, instance_id="i", rack_id="r")
    h.beat("b", 0, subscribed_topic_regex="or.*")
    h.beat("a", 2, instance_id="i")
    restarted = h.restarted()
    assert restarted.describe_consumer() == h.describe_consumer()
    assert restarted.beat("a", 2, instance_id="i", owned={"orders": [0, 1]}).member_epoch == 3
    restarted.sleep(SESSION_MS - 1)
    assert set(members(restarted)) == {"a", "b"}
    restarted.sleep(1)
    assert not members(restarted)


def test_revocation_timeout_continues_after_restart() -> None:
    h = harness(session_timeout_ms=10 * REBALANCE_MS)
    h.beat("a", 0)
    h.beat("b", 0)
    h.beat("a", 2)
    restarted = h.restarted()
    restarted.sleep(REBALANCE_MS)
    assert set(members(restarted)) == {"b"}
