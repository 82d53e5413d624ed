"""Status texts of groups."""

from __future__ import annotations

from kbroker.coordinator import GroupSettings

from .harness import Harness


def describe_status(h: Harness, group: str = "g") -> str | None:
    return h.coordinator.describe_status(group, h.now)


def test_status_of_missing_group_is_none() -> None:
    assert describe_status(Harness()) is None


def test_status_follows_group_through_rebalance() -> None:
    h = Harness()
    leader, follower = h.make_stable(2)
    assert describe_status(h) == (
        f"group g is Stable: generation 2 has member {leader}, member {follower}"
    )
    h.join(leader, protocols=(("range", b"new"),))
    h.sleep(1_500)
    waits = f"group g is PreparingRebalance: rebalance 3 waits for member {follower} to rejoin"
    assert str(describe_status(h)).startswith(waits + ", at most ")
    h.join(follower)
    waits = "group g is CompletingRebalance: generation 3 waits for the assignment of its leader"
    assert str(describe_status(h)).startswith(f"{waits}, member {leader}, at most ")
    h.sync(leader, 3)
    assert str(describe_status(h)).endswith(f"; waits for {follower} to fetch the assignment")
    h.leave((leader, None), (follower, None))
    assert describe_status(h) == "group g is Empty after generation 4"


def test_status_shows_remaining_time() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.join(rebalance_ms=60_000, version=3)
    before = float(str(describe_status(h)).rpartition("at most ")[2].split()[0])
    h.sleep(2_000)
    after = float(str(describe_status(h)).rpartition("at most ")[2].split()[0])
    assert before - after == 2.0
    assert f"member {member} to rejoin" in str(describe_status(h))


def test_status_shows_initial_delay_and_pending_member_ids() -> None:
    h = Harness(GroupSettings(initial_rebalance_delay_ms=3_000))
    h.join(version=3)
    assert "waits for more members (group.initial.rebalance.delay.ms), at most 3.0 s" in str(
        describe_status(h)
    )
    h = Harness()
    (member,) = h.make_stable(1)
    given_out = h.join(version=5).response.member_id
    h.join(member, protocols=(("range", b"new"),))
    assert f"waits for member {given_out} to join" in str(describe_status(h))


def test_status_is_printable() -> None:
    h = Harness()
    h.join(version=0, client="evil\nname")
    assert str(describe_status(h)).isprintable()
