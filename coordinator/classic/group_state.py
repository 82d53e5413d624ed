"""States of a classic group, their transitions, and the errors that each state returns."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from kbroker.protocol.errors import ErrorCode


class ClassicGroupState(StrEnum):
    """States of a classic group; the values are the names in the protocol."""

    # The group has no members. It may have offsets, and it keeps its generation.
    EMPTY = "Empty"
    # The group waits until all known members have rejoined. JoinGroup requests are pending.
    PREPARING_REBALANCE = "PreparingRebalance"
    # A new generation has begun and the group waits for the leader's assignment. SyncGroup requests
    # are pending.
    COMPLETING_REBALANCE = "CompletingRebalance"
    # The assignment is stored. Every member has fetched it or can fetch it.
    STABLE = "Stable"
    # Not a real state: descriptions return it for a group that does not exist.
    DEAD = "Dead"


EMPTY = ClassicGroupState.EMPTY
PREPARING = ClassicGroupState.PREPARING_REBALANCE
COMPLETING = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE
DEAD = ClassicGroupState.DEAD

# Valid next states. Stable and Empty are entered only by replaying a record.
VALID_TRANSITIONS: Mapping[ClassicGroupState, frozenset[ClassicGroupState]] = MappingProxyType(
    {
        EMPTY: frozenset({PREPARING, DEAD}),
        PREPARING: frozenset({COMPLETING, EMPTY}),
        COMPLETING: frozenset({STABLE, PREPARING}),
        STABLE: frozenset({PREPARING}),
        DEAD: frozenset(),
    }
)

# Error for a heartbeat of a member in the current generation.
HEARTBEAT_ERROR: Mapping[ClassicGroupState, ErrorCode] = MappingProxyType(
    {
        EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
        # The member stays alive and is asked to rejoin.
        PREPARING: ErrorCode.REBALANCE_IN_PROGRESS,
        # Some clients send heartbeats between join and sync.
        COMPLETING: ErrorCode.NONE,
        STABLE: ErrorCode.NONE,
    }
)

# Error for an offset commit of a valid member.
COMMIT_ERROR: Mapping[ClassicGroupState, ErrorCode] = MappingProxyType(
    {
        EMPTY: ErrorCode.NONE,
        # Offsets of the ending generation are still accepted.
        PREPARING: ErrorCode.NONE,
        COMPLETING: ErrorCode.REBALANCE_IN_PROGRESS,
        STABLE: ErrorCode.NONE,
    }
)
