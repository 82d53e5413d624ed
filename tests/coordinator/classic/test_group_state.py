"""States of a classic group and their transitions."""

from __future__ import annotations

import itertools

import pytest

from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.coordinator.classic.group_state import (
    COMMIT_ERROR,
    DEAD,
    EMPTY,
    HEARTBEAT_ERROR,
    STABLE,
    VALID_TRANSITIONS,
    ClassicGroupState,
)

from ..harness import unlimited


def test_all_tables_contain_every_state() -> None:
    assert set(VALID_TRANSITIONS) == set(ClassicGroupState)
    assert set(HEARTBEAT_ERROR) == set(COMMIT_ERROR) == set(ClassicGroupState) - {DEAD}


def test_every_state_is_reachable_and_has_successors() -> None:
    reached = {EMPTY}
    while len(reached) < len(
        reached := reached | {t for s in reached for t in VALID_TRANSITIONS[s]}
    ):
        pass
    assert reached == set(ClassicGroupState)
    assert all(VALID_TRANSITIONS[state] for state in set(ClassicGroupState) - {DEAD})


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(ClassicGroupState, ClassicGroupState))
)
def test_group_accepts_only_valid_transitions(
    before: ClassicGroupState, after: ClassicGroupState
) -> None:
    group = ClassicGroup("g", unlimited())
    group.state = before
    if after in VALID_TRANSITIONS[before]:
        group.move(after)
        assert group.state is after
    else:
        with pytest.raises(ValueError, match=f"{before} cannot become {after}"):
            group.move(after)


def test_state_names_match_protocol() -> None:
    assert [str(state) for state in ClassicGroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]
    assert f"{STABLE}" == "Stable"
