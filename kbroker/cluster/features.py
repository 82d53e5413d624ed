"""Feature levels that apply to a whole cluster (KIP-584).

A node *supports* a range of levels of a feature. The cluster *finalizes* one level that all its nodes
support, including those that are down. A node that does not support a finalized level refuses to
start. So different versions of kbroker can run together, and new behaviour starts when an operator
finalizes a higher level after the upgrade of all nodes. Clients check finalized levels, so a feature
is listed here only if it is implemented.
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

# Levels that this version of kbroker supports; at level 0 a feature is disabled.
#
# The metadata format has one version so far, so the levels of `metadata.version` differ only in what
# they permit: 30 is Kafka 4.3, 32 permits networks as hosts of ACLs, and 33 (Kafka 4.4) permits
# UnregisterController. Transactional producers follow KIP-890 at `transaction.version` 2. Consumer
# groups (KIP-848) need `group.version` 1, share groups (KIP-932) `share.version` 1 and streams groups
# (KIP-1071) `streams.version` 1. Older nodes ignore the records of these groups.
# Dead-letter queues of share groups (KIP-1191) need `share.version` 2: older nodes cannot read the
# state of a record that waits for the queue.
SUPPORTED: Mapping[str, range] = {
    METADATA_VERSION: range(30, 34),
    GROUP_VERSION: range(2),
    SHARE_VERSION: range(3),
    STREAMS_VERSION: range(2),
    TRANSACTION_VERSION: range(3),
}
# Levels of a new cluster.
INITIAL: Mapping[str, int] = {name: levels[-1] for name, levels in SUPPORTED.items()}

# Lowest and highest supported level, by feature.
Ranges = Mapping[str, Sequence[int]]

# Level ranges of nodes whose registration has no ranges. Their clusters run the highest levels.
UNREGISTERED_RANGES: Ranges = {METADATA_VERSION: [30, 30], TRANSACTION_VERSION: [0, 2]}


def supported() -> Ranges:
    """Return the level ranges that this node registers."""
    return {name: [levels[0], levels[-1]] for name, levels in SUPPORTED.items()}


def check_levels(finalized: Mapping[str, int]) -> None:
    """Raise StorageError if this version of kbroker does not support a finalized level."""
    for name, level in finalized.items():
        if level not in SUPPORTED.get(name, range(0)):
            raise StorageError(
                f"the cluster runs {name} at level {level}, which this kbroker does not support; start "
                f"a newer one, or downgrade first: kafka-features downgrade --feature {name}"
            )


class UpdateType(IntEnum):
    """Types of feature updates (KIP-778)."""

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
    """Check whether a feature can be finalized at a level.

    Args:
        finalized: Finalized levels.
        nodes: Supported level ranges of all nodes, by node ID.
        name: Feature.
        level: Requested level.
        update_type: Value of `UpdateType`.

    Raises:
        KafkaError: INVALID_UPDATE_VERSION.
    """
    if update_type not in tuple(UpdateType):
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: invalid update type {update_type} (valid: 1 for upgrade, 2 or 3 for downgrade)",
        )
    levels = SUPPORTED.get(name)
    if levels is None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"unknown feature {name!r} (valid: {', '.join(SUPPORTED)})",
        )
    if level not in levels:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: level {level} is not supported (valid: {levels[0]} to {levels[-1]})",
        )
    for node_id, ranges in nodes.items():
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name}: node {node_id} does not support level {level} (valid: {low} to {high})",
            )
    current = finalized.get(name, 0)
    if level < current and update_type == UpdateType.UPGRADE:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: level {level} is below {current}; use a downgrade",
        )
    if level > current and update_type != UpdateType.UPGRADE:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name}: level {level} is above {current}; use an upgrade",
        )
