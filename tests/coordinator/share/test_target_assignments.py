"""Target assignments of share groups."""

from __future__ import annotations

from .groups import ALL, assignment_in, harness, initialized_group


def test_partitions_are_shared_when_members_outnumber_them() -> None:
    h = initialized_group()
    assert len(assignment_in(h, h.share_beat("b", 0)) or ()) == 1
    assert len((assignment_in(h, h.share_beat("a", 3)) or {})["orders"]) == 2
    for member in "cde":
        h.share_beat(member, 0)
    rows = h.describe_share().members
    h.sleep(1)
    for row in rows:
        h.share_beat(row.member_id, row.member_epoch)
    has = {
        row.member_id: row.assignment.topic_partitions[0].partitions
        for row in h.describe_share().members
    }
    assert all(has.values()), "each of the five members has a partition"
    assert {each for some in has.values() for each in some} == {0, 1, 2, 3}


def test_targets_respect_assignment_interval() -> None:
    h = harness(assignment_interval_ms=1_000)
    h.share_beat("a", 0)
    h.make_states()
    response = h.share_beat("a", 2)
    assert (response.member_epoch, assignment_in(h, response)) == (2, None)
    row = h.describe_share()
    assert (row.group_epoch, row.assignment_epoch) == (3, 2)
    h.sleep(1_000)
    response = h.share_beat("a", 2)
    assert (response.member_epoch, assignment_in(h, response)) == (3, ALL)
