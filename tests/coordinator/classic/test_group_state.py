"""The table of states."""

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


def test_every_state_has_its_place_in_every_table() -> None:
    assert set(VALID_TRANSITIONS) == set(ClassicGroupState)
    assert set(HEARTBEAT_ERROR) == set(COMMIT_ERROR) == set(ClassicGroupState) - {DEAD}


def test_every_state_can_be_reached_and_left() -> None:
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
def test_a_group_moves_as_the_table_says(
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


def test_names_are_those_on_the_wire() -> None:
    assert [str(state) for state in ClassicGroupState] == [
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        "Dead",
    ]
    assert f"{STABLE}" == "Stable"
