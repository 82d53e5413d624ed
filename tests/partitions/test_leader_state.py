"""ISR and high watermark of the leader: single rules, and random sequences of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.cluster import Partition
from kbroker.partitions.leader_state import UNKNOWN, LeaderState
from kbroker.protocol.schema import BrokerEpoch

LAG_MAX = 10.0
ME = 1


def partition(isr: list[int], *, replicas: list[int] | None = None, revision: int = 1) -> Partition:
    return Partition(0, replicas or [1, 2, 3], isr, ME, 5, revision=revision)


def leader_state(
    isr: list[int],
    *,
    replicas: list[int] | None = None,
    log_end: int = 100,
    in_sync_min: int = 1,
    fenced: frozenset[int] = frozenset(),
) -> LeaderState:
    return LeaderState(
        partition(isr, replicas=replicas),
        ME,
        log_end,
        now=0,
        lag_max=LAG_MAX,
        in_sync_min=in_sync_min,
        eligible=lambda node_id, _: node_id not in fenced,
    )


def fetched(state: LeaderState, log_end: int, now: float, **offsets: int) -> None:
    """Simulate fetches: `_2=100` is node 2 at offset 100, with its ID as broker epoch."""
    for name, offset in offsets.items():
        node_id = int(name[1:])
        state.record_fetch(node_id, BrokerEpoch(node_id), offset, log_end, now)


# -- the high watermark


@pytest.mark.parametrize(
    ("isr", "ends", "in_sync_min", "expected"),
    [
        pytest.param([1], {}, 1, 100, id="only the leader"),
        pytest.param([1, 2], {}, 1, UNKNOWN, id="a member that has not fetched yet"),
        pytest.param([1, 2], {"_2": 70}, 1, 70, id="a member that is behind"),
        pytest.param([1, 2, 3], {"_2": 70, "_3": 60}, 1, 60, id="the last one counts"),
        pytest.param([1, 2], {"_2": 100}, 1, 90, id="this node has not synced yet"),
        pytest.param([1, 2], {"_2": 70, "_3": 20}, 1, 70, id="one that is not in sync"),
        pytest.param([1], {"_2": 70}, 2, UNKNOWN, id="fewer than acks=all asks for"),
        pytest.param([1, 2], {"_2": 70}, 2, 70, id="just as many"),
    ],
)
def test_high_watermark_is_the_minimum_of_the_in_sync_replicas(
    isr: list[int], ends: dict[str, int], in_sync_min: int, expected: int
) -> None:
    state = leader_state(isr, in_sync_min=in_sync_min)
    fetched(state, 100, 1, **ends)
    own_end = 90 if expected == 90 else 100
    assert state.high_watermark(own_end, 100, 1) == expected


def test_high_watermark_waits_for_a_follower_that_catches_up() -> None:
    """The leader does not wait for fenced or lagging followers."""
    for fenced, now, expected in (
        (frozenset[int](), 5, 100),
        (frozenset[int](), LAG_MAX + 2, 110),
        (frozenset({2}), 5, 110),
    ):
        state = leader_state([1], fenced=fenced)
        fetched(state, 100, 1, _2=100)
        assert state.high_watermark(110, 110, now) == expected


def test_leader_without_followers_commits_at_once() -> None:
    assert leader_state([1], replicas=[1]).alone
    assert not leader_state([1]).alone


# -- the maximal in-sync set


def test_proposed_isr_member_counts_at_once() -> None:
    state = leader_state([1, 3])
    fetched(state, 100, 1, _2=60, _3=100)
    state.record_fetch(2, BrokerEpoch(2), 60, 100, 50)  # lagging for a long time
    assert state.high_watermark(100, 100, 50) == 100
    state.propose(frozenset({1, 2, 3}))
    assert state.high_watermark(100, 100, 50) == 60
    state.withdraw(frozenset({1, 2, 3}))
    assert state.high_watermark(100, 100, 50) == 100


def test_isr_member_counts_until_its_removal_is_stored() -> None:
    state = leader_state([1, 2, 3])
    fetched(state, 100, 1, _2=60, _3=100)
    state.propose(frozenset({1, 3}))
    assert state.high_watermark(100, 100, 50) == 60
    state.follow(partition([1, 3], revision=2))
    assert state.high_watermark(100, 100, 50) == 100


def test_high_watermark_ignores_a_member_removed_by_others() -> None:
    """The follower was in sync before but no longer fetches."""
    state = leader_state([1, 2, 3])
    fetched(state, 100, 1, _2=100, _3=100)
    state.follow(partition([1, 3], revision=2))
    fetched(state, 110, 2, _3=110)
    assert state.high_watermark(110, 110, 2) == 110
    fetched(state, 110, 3, _2=110)
    assert state.joining(110, 110, 3) == {2}


def test_proposal_with_unknown_outcome_counts_until_another_revision_is_seen() -> None:
    """The rejection of a second proposal with the same revision says nothing about the first."""
    state = leader_state([1])
    fetched(state, 100, 0, _2=100, _3=40)
    joined, other = frozenset({1, 3}), frozenset({1, 2})
    state.propose(joined)  # the response is lost
    state.propose(other)
    state.withdraw(other)
    state.follow(partition([1], revision=1))  # a read of the same revision
    assert state.maximal_isr == {1, 3}
    assert state.high_watermark(100, 100, 50) == 40
    state.follow(partition([1], revision=2))
    assert state.maximal_isr == {1}


def test_unknown_outcome_is_settled_by_storing_the_isr_again() -> None:
    state = leader_state([1, 2, 3])
    fetched(state, 100, 1, _2=100, _3=100)
    assert state.proposal(100, 100, 1) is None
    state.propose(frozenset({1, 2}))
    assert state.proposal(100, 100, 1) == frozenset({1, 2, 3})


# -- ISR changes


@pytest.mark.parametrize(
    ("fetches", "now", "expected"),
    [
        pytest.param([], LAG_MAX, set(), id="the election counts as a fetch"),
        pytest.param([], LAG_MAX + 1, {2}, id="never fetched"),
        pytest.param([(1, 100, 100)], 50, set(), id="it has everything"),
        pytest.param([(1, 90, 100)], 10, set(), id="behind, but not for long"),
        pytest.param([(1, 90, 100), (11, 99, 120)], 12, {2}, id="fetches, yet never catches up"),
        pytest.param([(9, 90, 100), (15, 100, 120)], 18, set(), id="had what was there before"),
        pytest.param([(9, 90, 100), (15, 100, 120)], 20, {2}, id="that was too long ago"),
    ],
)
def test_follower_lag_is_measured_in_time(
    fetches: list[tuple[float, int, int]], now: float, expected: set[int]
) -> None:
    state = leader_state([1, 2])
    log_end = 100
    for at, offset, end in fetches:
        log_end = end
        state.record_fetch(2, BrokerEpoch(2), offset, end, at)
    assert state.lagging(log_end, now) == expected


@pytest.mark.parametrize(
    ("offset", "high_watermark", "expected"),
    [
        pytest.param(110, 110, {2}, id="all that is committed"),
        pytest.param(109, 110, set(), id="one record is missing"),
        pytest.param(99, 50, set(), id="less than the leader had at its election"),
        pytest.param(100, 50, {2}, id="as much as that"),
    ],
)
def test_follower_joins_the_isr_once_it_is_caught_up(
    offset: int, high_watermark: int, expected: set[int]
) -> None:
    state = leader_state([1, 3])
    state.record_fetch(2, BrokerEpoch(2), offset, offset, 1)
    assert state.joining(high_watermark, 112, 2) == expected
    assert not state.joining(high_watermark, 112, 2 + LAG_MAX), (
        "it has not fetched within the lag limit"
    )


def test_fenced_follower_does_not_join_the_isr() -> None:
    state = leader_state([1, 3], fenced=frozenset({2}))
    fetched(state, 100, 1, _2=100)
    assert not state.joining(100, 100, 1)


def test_stopped_member_leaves_the_isr_once() -> None:
    """Below the minimum ISR the high watermark stands still, so it has all committed records."""
    state = leader_state([1, 2], replicas=[1, 2], in_sync_min=2)
    fetched(state, 100, 1, _2=100)
    assert state.proposal(100, 105, 50) == frozenset({1})
    state.follow(partition([1], replicas=[1, 2], revision=2))
    assert state.proposal(100, 105, 50) is None


def test_joining_followers_are_compared_with_their_last_registration() -> None:
    state = leader_state([1])
    state.record_fetch(2, BrokerEpoch(7), 100, 100, 1)
    state.record_fetch(3, BrokerEpoch(8), 100, 100, 1)
    state.record_fetch(2, BrokerEpoch(9), 100, 100, 1)
    assert state.registrations(frozenset({1, 2, 3})) == {2: 9, 3: 8}
    assert state.registrations(frozenset({1})) == {}


def test_reassignment_keeps_the_progress_of_other_replicas() -> None:
    """A reassignment adds a replica and keeps the progress of the others."""
    state = leader_state([1, 2], replicas=[1, 2])
    fetched(state, 100, 1, _2=100)
    state.follow(partition([1, 2], replicas=[1, 2, 4], revision=2))
    assert sorted(state.followers) == [2, 4]
    assert state.high_watermark(100, 100, 1) == 100
    state.follow(partition([1], replicas=[1], revision=3))
    assert state.alone


def test_low_watermark_is_that_of_eligible_replicas() -> None:
    state = leader_state([1, 2, 3], fenced=frozenset({3}))
    assert state.low_watermark(50) == UNKNOWN
    state.record_fetch(2, BrokerEpoch(2), 100, 100, 1, log_start=20)
    state.record_fetch(3, BrokerEpoch(3), 100, 100, 1, log_start=0)
    assert state.low_watermark(50) == 20
    assert leader_state([1], replicas=[1]).low_watermark(50) == 50


# -- random sequences


class Store:
    """A metadata store that applies and reports proposals with random delays."""

    def __init__(self, isr: list[int]) -> None:
        self.isr, self.revision = isr, 1
        self.reported = partition(isr)
        self.in_flight: list[tuple[frozenset[int], int]] = []

    def apply_proposal(self, index: int) -> tuple[frozenset[int], bool]:
        isr, compared = self.in_flight.pop(index)
        if compared != self.revision:
            return isr, False
        self.isr, self.revision = sorted(isr), self.revision + 1
        return isr, True

    def report(self) -> Partition:
        self.reported = partition(self.isr, revision=self.revision)
        return self.reported


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "fetch", "propose", "land", "lose", "tell", "controller", "wait"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=300)
@given(steps=steps, in_sync_min=st.integers(1, 3), isr=st.sampled_from([[1], [1, 2], [1, 2, 3]]))
def test_committed_records_are_on_all_isr_members(
    steps: list[tuple[str, int]], in_sync_min: int, isr: list[int]
) -> None:
    """All replicas of the stored or proposed ISR have all committed records.

    Elections rely on this. Followers only advance, and responses may be late or lost.
    """
    store = Store(isr)
    state = leader_state(isr, log_end=0, in_sync_min=in_sync_min)
    has = {2: 0, 3: 0}
    end, now, committed = 0, 0.0, 0
    for step, number in steps:
        node_id = 2 + number % 2
        if step == "append":
            end += 1 + number
        elif step == "fetch":
            has[node_id] = min(has[node_id] + number, end)
            state.record_fetch(node_id, BrokerEpoch(node_id), has[node_id], end, now)
        elif step == "wait":
            now += number
        elif step == "propose":
            wanted = state.proposal(committed, end, now)
            if wanted is not None:
                state.propose(wanted)
                store.in_flight.append((wanted, state.partition.revision))
        elif step in ("land", "lose") and store.in_flight:
            proposed, stored = store.apply_proposal(number % len(store.in_flight))
            if step == "land" and not stored:
                state.withdraw(proposed)
        elif step == "tell":
            state.follow(store.report())
        elif step == "controller" and node_id in store.isr:
            store.isr = [each for each in store.isr if each != node_id]
            store.revision += 1
        committed = max(committed, state.high_watermark(end, end, now))
        for member in store.isr:
            assert member == ME or has[member] >= committed, f"{member} lacks committed records"


def test_silent_follower_leaves_the_isr() -> None:
    assert leader_state([1, 2, 3]).lagging(101, math.inf) == {2, 3}
