"""Features: what changes for a whole cluster at once, when all its nodes can do it (KIP-584).

A node *supports* levels of a feature, the cluster *finalizes* one of them: a level that each of its
nodes supports, also those that are down. A node that does not support it does not start. So versions of
kbroker that differ run together, and what only the newer one knows is used when the last older one is
gone and somebody says so. Clients look at the finalized levels before they use what depends on them, so
a feature stands here only when it works.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.errors import StorageError

METADATA_VERSION = "metadata.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
TRANSACTION_VERSION = "transaction.version"

SUPPORTED: Mapping[str, range] = {
    METADATA_VERSION: range(30, 31),
    GROUP_VERSION: range(2),
    SHARE_VERSION: range(2),
    STREAMS_VERSION: range(2),
    TRANSACTION_VERSION: range(3),
}
"""Levels that this version of kbroker can run; at level 0 a feature is off.

What is stored of a cluster has one format so far, so there is one level of `metadata.version`:
that of Kafka 4.3, whose versions of the APIs are served. Producers of transactions go by the level
of `transaction.version`: with 2 they follow KIP-890. Consumer groups of KIP-848 need
`group.version` 1, share groups of KIP-932 `share.version` 1, streams groups of KIP-1071
`streams.version` 1: a node that does not know them passes over their records.
"""

INITIAL: Mapping[str, int] = {name: levels[-1] for name, levels in SUPPORTED.items()}
"""What a new cluster runs until somebody finalizes something else."""

Ranges = Mapping[str, Sequence[int]]
"""The lowest and the highest level of each feature that a node supports."""

UNSAID: Ranges = {METADATA_VERSION: [30, 30], TRANSACTION_VERSION: [0, 2]}
"""Of nodes that said nothing yet; clusters of those run the highest levels."""


def supported() -> Ranges:
    """What this version of kbroker supports, as nodes tell each other."""
    return {name: [levels[0], levels[-1]] for name, levels in SUPPORTED.items()}


def check_levels(finalized: Mapping[str, int]) -> None:
    """Raise StorageError when this version of kbroker cannot be a part of a cluster."""
    for name, level in finalized.items():
        if level not in SUPPORTED.get(name, range(0)):
            raise StorageError(
                f"the cluster runs {name} at level {level}, which this kbroker does not know; start "
                f"a newer one, or downgrade the cluster before: kafka-features downgrade --feature {name}"
            )


class UpdateType(IntEnum):
    """What an update of a feature may do (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def check_update(
    finalized: Mapping[str, int],
    nodes: Mapping[int, Ranges],
    name: str,
    level: int,
    update_type: int,
) -> None:
    """Raise what keeps a feature from being finalized at `level`.

    Parameters: `nodes` are what all nodes of the cluster support, by id.

    Raises KafkaError: INVALID_UPDATE_VERSION.
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
    for node_id, ranges in nodes.items():
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name}: level {level}, but node {node_id} can run {low} to {high} only",
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
