"""State transition tables, and the diagrams of the documentation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from kbroker.coordinator.classic import group_state
from kbroker.coordinator.classic.group_state import ClassicGroupState
from kbroker.coordinator.transactions import transaction
from kbroker.coordinator.transactions.transaction import (
    DEAD,
    EMPTY,
    VALID_TRANSITIONS,
    TransactionState,
    check_transition,
)

PAGE = (Path(__file__).parents[2] / "docs/explanation/architecture.md").read_text()
NEVER_STORED = TransactionState.PREPARE_EPOCH_FENCE


def arrows(table: Mapping[ClassicGroupState, frozenset[ClassicGroupState]]) -> set[tuple[str, str]]:
    return {(str(before), str(after)) for before in table for after in table[before]}


def pictures() -> list[set[tuple[str, str]]]:
    drawn = re.findall(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [set(re.findall(r"^ *(\w+) --> (\w+)$", each, re.MULTILINE)) for each in drawn]


def test_state_diagrams_match_tables() -> None:
    groups, transactions = pictures()
    assert groups == arrows(group_state.VALID_TRANSITIONS)
    assert transactions == {
        (before.label, after.label)
        for before in VALID_TRANSITIONS
        for after in VALID_TRANSITIONS[before]
    }


def test_every_transaction_state_is_reachable_and_has_successors() -> None:
    assert set(VALID_TRANSITIONS) == set(TransactionState)
    reached = {EMPTY}
    while len(reached) < len(
        reached := reached | {t for s in reached for t in VALID_TRANSITIONS[s]}
    ):
        pass
    assert reached == set(TransactionState) - {NEVER_STORED}
    assert all(VALID_TRANSITIONS[state] for state in reached - {DEAD})


@pytest.mark.parametrize(
    ("before", "after"), list(itertools.product(TransactionState, TransactionState))
)
def test_check_transition_accepts_only_table_entries(
    before: TransactionState, after: TransactionState
) -> None:
    if after is before or after in transaction.VALID_TRANSITIONS[before]:
        check_transition(before, after)
    else:
        with pytest.raises(ValueError, match=f"{before.label} cannot become {after.label}"):
            check_transition(before, after)
