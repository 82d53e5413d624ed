"""Tests of storing the target assignments of large groups in pieces."""

from __future__ import annotations

from uuid import UUID

import pytest

from kbroker.coordinator.common.modern_group import Target
from kbroker.coordinator.common.record import CoordinatorRecord
from kbroker.coordinator.common.result import Now, Pieces, Result
from kbroker.coordinator.common.target_assignments import (
    RECORDS_AT_ONCE,
    TargetRecords,
    store_targets,
)
from kbroker.protocol.errors import ErrorCode

NOW = Now(1000, 1000)
TARGET: Target = {UUID(int=1): frozenset({0})}
PIECES = 3
EPOCH = 5


class Group:
    """A group whose target assignment is computed in the background."""

    id = "g"

    def __init__(self) -> None:
        self.targets: dict[str, Target] = {}
        self.is_assigning = True
        self.assignment_epoch = EPOCH - 1
        self.members = {f"m{number}": None for number in range(PIECES * RECORDS_AT_ONCE)}


def record(*fields: object) -> CoordinatorRecord:
    return CoordinatorRecord(fields, None)  # type: ignore[arg-type]


def pieces_of(group: Group) -> Pieces:
    targets = dict.fromkeys(group.members, TARGET)
    return store_targets(group, targets, EPOCH, NOW, lambda: True, TargetRecords(record, record))


def fail(piece: Result[None] | None) -> None:
    assert piece is not None
    assert piece.on_failure is not None
    piece.on_failure(ErrorCode.NOT_ENOUGH_REPLICAS, NOW)


def test_targets_are_stored_before_their_epoch() -> None:
    group = Group()
    sizes = [len(piece.records) for piece in pieces_of(group) if piece is not None]
    assert sizes == [RECORDS_AT_ONCE] * PIECES + [1]
    assert not group.is_assigning


@pytest.mark.parametrize("stored", range(PIECES))
@pytest.mark.parametrize("is_restarted", [False, True])
def test_failed_piece_ends_computation(stored: int, is_restarted: bool) -> None:
    """A heartbeat may start a new computation before the failed one continues."""
    group = Group()
    pieces = pieces_of(group)
    for _ in range(stored):
        next(pieces)
    fail(next(pieces))
    assert not group.is_assigning
    group.is_assigning = is_restarted
    assert not list(pieces)
    assert group.is_assigning == is_restarted


def test_epoch_does_not_decrease_after_all_members_have_left() -> None:
    group = Group()
    pieces = pieces_of(group)
    next(pieces)
    group.members.clear()
    group.assignment_epoch = EPOCH + 1
    assert list(pieces) == [None] * (PIECES - 1)
    assert not group.is_assigning
