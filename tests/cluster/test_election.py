"""Leader, ISR and ELR after state transitions of a partition."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from kbroker.cluster import Partition
from kbroker.cluster.election import (
    after_isr_change,
    elect,
    elect_preferred,
    elect_unclean,
    resign,
    withdraw,
)
from kbroker.cluster.registrations import NO_EPOCH
from kbroker.protocol.schema import BrokerEpoch

EPOCHS = {1: BrokerEpoch(10), 2: BrokerEpoch(20), 3: BrokerEpoch(30)}
SAME = "same"


def partition(leader: int, isr: list[int], elr: tuple[int, ...] = (), epoch: int = 5) -> Partition:
    """Return a partition on nodes 1, 2 and 3 whose leader still has its broker epoch."""
    registration = EPOCHS.get(leader, NO_EPOCH)
    return Partition(0, [1, 2, 3], isr, leader, epoch, 7, registration, elr)


@dataclass
class Case:
    """A state with live and ready nodes; `after` is (leader, epoch, ISR, ELR)."""

    before: Partition
    ready: list[int]
    after: tuple[int, int, list[int], tuple[int, ...]] | str
    min_in_sync: int = 1
    # Nodes that are live but not ready.
    live: list[int] = field(default_factory=list)


CASES = {
    "all is well": Case(partition(1, [1, 2, 3]), [1, 2, 3], SAME),
    "the leader dies": Case(partition(1, [1, 2, 3]), [2, 3], (2, 6, [2, 3], ())),
    "the order of replicas counts": Case(partition(1, [3, 2, 1]), [2, 3], (2, 6, [2, 3], ())),
    "not one out of sync": Case(partition(1, [1, 3]), [2, 3], (3, 6, [3], ())),
    "a follower dies": Case(partition(1, [1, 2, 3]), [1, 3], (1, 5, [1, 3], ())),
    "nobody is left": Case(partition(1, [1, 2]), [3], (-1, 6, [1, 2], ())),
    "nobody, still": Case(partition(-1, [1, 2]), [3], SAME),
    "one comes back": Case(partition(-1, [1, 2]), [2, 3], (2, 6, [2], ())),
    "one comes soon": Case(partition(1, [1, 2]), [3], SAME, live=[2]),
    "the leader leaves": Case(partition(1, [1, 2]), [2, 3], (2, 6, [2], ()), live=[1]),
    "it leaves, nobody can follow": Case(partition(1, [1]), [2, 3], SAME, live=[1]),
    "it leaves, and its follower is gone": Case(
        partition(1, [1, 2]), [3], (1, 5, [1], ()), live=[1]
    ),
    "too few: who left is eligible": Case(
        partition(1, [1, 2]), [1], (1, 5, [1], (2,)), min_in_sync=2
    ),
    "too few: the leader too": Case(partition(1, [1, 2]), [2], (2, 6, [2], (1,)), min_in_sync=2),
    "eligible ones stay": Case(partition(1, [1], (2,)), [1, 2, 3], SAME, min_in_sync=2),
    "an eligible one leads": Case(
        partition(1, [1], (2, 3)), [2, 3], (2, 6, [2], (1, 3)), min_in_sync=2
    ),
    "no eligible one is there": Case(partition(1, [1], (2,)), [3], (-1, 6, [1], (2,)), 2),
    "in sync before eligible": Case(
        partition(-1, [3], (1, 2)), [1, 3], (3, 6, [3], (1, 2)), min_in_sync=2
    ),
    "an eligible one comes soon": Case(partition(-1, [1], (2,)), [3], SAME, 2, live=[2]),
    "more asked for than there are": Case(
        partition(1, [1, 2, 3]), [1, 2], (1, 5, [1, 2], (3,)), min_in_sync=9
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_elect_returns_expected_state(name: str) -> None:
    case = CASES[name]
    ready = {each: EPOCHS[each] for each in case.ready}
    live = ready | {each: EPOCHS[each] for each in case.live}
    after = elect(case.before, ready=ready, live=live, min_in_sync=case.min_in_sync)
    if after is None:
        assert case.after == SAME
        return
    assert (after.leader, after.leader_epoch, after.isr, tuple(after.elr)) == case.after
    assert after.leader_registration == EPOCHS.get(after.leader, -1)
    second = elect(after, ready=ready, live=live, min_in_sync=case.min_in_sync)
    assert second is None, "what is settled stays"


def test_restarted_leader_is_elected_again() -> None:
    before = replace(partition(1, [1, 2]), leader_registration=BrokerEpoch(9))
    after = elect(before, ready=EPOCHS, live=EPOCHS, min_in_sync=1)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.leader_registration) == (1, 6, 10)


@pytest.mark.parametrize(
    ("before", "isr", "elr"),
    [
        (partition(1, [1, 2, 3]), [1], (2, 3)),
        (partition(1, [1], (2,)), [1, 2], ()),
        (partition(1, [1], (2, 3)), [1], (2, 3)),
        (partition(1, [1, 2], ()), [1, 2, 3], ()),
    ],
)
def test_isr_change_sets_elr(before: Partition, isr: list[int], elr: tuple[int, ...]) -> None:
    assert after_isr_change(before, isr, 2).elr == elr


@pytest.mark.parametrize(
    ("before", "lost_disk", "after"),
    [
        (partition(1, [1, 2]), False, ([1], ())),
        (partition(1, [1], (2, 3)), False, ([1], (3,))),
        (partition(-1, [2], (3,)), False, ([], (3,))),
        (partition(-1, [2]), False, None),
        (partition(-1, [2]), True, ([], ())),
        (partition(1, [1]), True, None),
        (Partition(0, [2], [2], -1, 0), True, None),
    ],
)
def test_withdraw_keeps_last_member_with_records(
    before: Partition,
    lost_disk: bool,
    after: tuple[list[int], tuple[int, ...]] | None,
) -> None:
    left = withdraw(before, 2, lost_disk=lost_disk)
    assert (left and (left.isr, left.elr)) == after


def test_preferred_leader_is_elected_only_if_in_sync() -> None:
    after = elect_preferred(partition(2, [1, 2]), ready=EPOCHS, live=EPOCHS)
    assert after is not None
    assert (after.leader, after.leader_epoch, after.isr) == (1, 6, [1, 2])
    assert elect_preferred(partition(1, [1, 2]), ready=EPOCHS, live=EPOCHS) is None
    assert elect_preferred(partition(2, [2, 3]), ready=EPOCHS, live=EPOCHS) is None
    assert elect_preferred(partition(2, [1, 2]), ready={2: EPOCHS[2]}, live=EPOCHS) is None


def test_unclean_leader_is_only_isr_member() -> None:
    after = elect_unclean(partition(-1, [1], (3,)), ready={2: EPOCHS[2], 3: EPOCHS[3]})
    assert after is not None
    assert (after.leader, after.isr, after.elr) == (2, [2], ())
    assert elect_unclean(partition(-1, [1]), ready={}) is None


@pytest.mark.parametrize(
    ("before", "node_id", "ready", "after"),
    [
        pytest.param(partition(1, [1, 2, 3]), 1, [1, 2, 3], (2, 6, [2, 3], ()), id="the leader"),
        pytest.param(partition(1, [1, 2, 3]), 2, [1, 2, 3], (1, 5, [1, 3], ()), id="a follower"),
        pytest.param(partition(1, [1, 2]), 1, [1, 2], (2, 6, [2], ()), id="not eligible either"),
        pytest.param(partition(1, [1, 3]), 2, [1, 2, 3], None, id="it had no part in it"),
        pytest.param(partition(1, [1]), 1, [1, 2, 3], None, id="nobody else is in sync"),
        pytest.param(partition(1, [1, 2]), 1, [1, 3], None, id="the other one is down"),
    ],
)
def test_resign_replaces_node_with_offline_log(
    before: Partition,
    node_id: int,
    ready: list[int],
    after: tuple[int, int, list[int], tuple[int, ...]] | None,
) -> None:
    epochs = {each: EPOCHS[each] for each in ready}
    found = resign(before, node_id, ready=epochs, live=epochs, min_in_sync=2, eligible=False)
    got = None if found is None else (found.leader, found.leader_epoch, found.isr, found.elr)
    assert got == after


def test_resign_keeps_readable_log_eligible() -> None:
    found = resign(partition(1, [1, 2]), 1, ready=EPOCHS, live=EPOCHS, min_in_sync=2, eligible=True)
    assert found is not None
    assert (found.leader, found.isr, found.elr) == (2, [2], (1,))
