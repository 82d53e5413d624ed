"""The states of a classic group, as data: which follow each other, and what each one answers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from kbroker.protocol.errors import ErrorCode


class ClassicGroupState(StrEnum):
    """States of a classic group; the values are the names in the protocol."""

    EMPTY = "Empty"
    """No members. Offsets may be there, and the generation lives on."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits until all known members have joined again. Joins are parked."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation is agreed; waits for the assignment of its leader. Syncs are parked."""
    STABLE = "Stable"
    """The assignment is stored. Every member has it, or may fetch it."""
    DEAD = "Dead"
    """Only a name: what descriptions say of a group that does not exist."""


EMPTY = ClassicGroupState.EMPTY
PREPARING = ClassicGroupState.PREPARING_REBALANCE
COMPLETING = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE
DEAD = ClassicGroupState.DEAD

FOLLOWS: Mapping[ClassicGroupState, frozenset[ClassicGroupState]] = MappingProxyType(
    {
        EMPTY: frozenset({PREPARING, DEAD}),
        PREPARING: frozenset({COMPLETING, EMPTY}),
        COMPLETING: frozenset({STABLE, PREPARING}),
        STABLE: frozenset({PREPARING}),
        DEAD: frozenset(),
    }
)
"""Which states may follow. Stable and Empty are entered by replaying the record that says so."""

HEARTBEAT_ANSWER: Mapping[ClassicGroupState, ErrorCode] = MappingProxyType(
    {
        EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
        # The member stays alive: it is only told to join.
        PREPARING: ErrorCode.REBALANCE_IN_PROGRESS,
        # Some clients send heartbeats between join and sync.
        COMPLETING: ErrorCode.NONE,
        STABLE: ErrorCode.NONE,
    }
)
"""What a heartbeat of a member in the right generation gets."""

COMMIT_ANSWER: Mapping[ClassicGroupState, ErrorCode] = MappingProxyType(
    {
        EMPTY: ErrorCode.NONE,
        # Offsets of the generation that ends are still welcome.
        PREPARING: ErrorCode.NONE,
        COMPLETING: ErrorCode.REBALANCE_IN_PROGRESS,
        STABLE: ErrorCode.NONE,
    }
)
"""What an offset commit gets whose sender is in order."""
