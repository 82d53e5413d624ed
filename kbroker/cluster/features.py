"""Features: what changes for a whole cluster at once, when all its nodes can do it (KIP-584).

A node *supports* levels of a feature, the cluster *finalizes* one of them. Clients look at the
finalized levels before they use what depends on them, so a feature stands here only when it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kbroker.protocol.errors import ErrorCode, KafkaError

METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"

SUPPORTED: Mapping[str, range] = {METADATA_VERSION: range(30, 31), TRANSACTION_VERSION: range(3)}
"""Levels that this version of kbroker can run; at level 0 a feature is off.

What is stored of a cluster has one format so far, so there is one level of `metadata.version`:
that of Kafka 4.3, whose versions of the APIs are served. Producers of transactions go by the level
of `transaction.version`: with 2 they follow KIP-890.
"""

INITIAL: Mapping[str, int] = {name: levels[-1] for name, levels in SUPPORTED.items()}
"""What a cluster runs until somebody finalizes something else."""


class UpdateType(IntEnum):
    """What an update of a feature may do (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def check_update(finalized: Mapping[str, int], name: str, level: int, update_type: int) -> None:
    """Raise what keeps a feature from being finalized at `level`.

    Raises KafkaError: INVALID_UPDATE_VERSION, INVALID_REQUEST.
    """
    if update_type not in tuple(UpdateType):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: there is no update type {update_type}; 1 is an upgrade, 2 a downgrade",
        )
    levels = SUPPORTED.get(name)
    if levels is None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"there is no feature '{name}'; there are {', '.join(SUPPORTED)}",
        )
    if level not in levels:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: level {level}, but only {levels[0]} to {levels[-1]} can be run",
        )
    current = finalized.get(name, 0)
    if level < current and update_type == UpdateType.UPGRADE:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: level {level} is below {current}; ask for a downgrade",
        )
    if level > current and update_type != UpdateType.UPGRADE:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: level {level} is above {current}; ask for an upgrade",
        )
