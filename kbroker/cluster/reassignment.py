"""Reassignment of a partition to other nodes (KIP-455).

`adding` contains the new replicas, `removing` the old ones, and `replicas` both. When all new
replicas are in sync, the old ones are removed. Pure functions from one partition state to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .election import Epochs, after_isr_change, led_by
from .model import Partition


def is_moving(partition: Partition) -> bool:
    """Return True if a reassignment is in progress."""
    return bool(partition.adding or partition.removing)


def target(partition: Partition) -> list[int]:
    """Return the replicas after the reassignment."""
    return [each for each in partition.replicas if each not in partition.removing]


def begin(partition: Partition, nodes: Sequence[int]) -> Partition:
    """Start a reassignment to `nodes`, in place of a reassignment in progress."""
    before = [each for each in partition.replicas if each not in partition.adding]
    removing = [each for each in before if each not in nodes]
    replicas = [*nodes, *removing]
    return replace(
        partition,
        replicas=replicas,
        isr=[each for each in partition.isr if each in replicas],
        elr=tuple(each for each in partition.elr if each in replicas),
        adding=tuple(each for each in nodes if each not in before),
        removing=tuple(removing),
    )


def cancel(partition: Partition) -> Partition:
    """Restore the original replicas, and remove the added ones even if they are in sync."""
    return begin(partition, [each for each in partition.replicas if each not in partition.adding])


def complete(partition: Partition, *, ready: Epochs, min_in_sync: int) -> Partition | None:
    """Finish the reassignment if all added replicas are in sync; return None if it must continue.

    If the leader is removed, the first ready replica of the new ones becomes leader.
    """
    isr = [each for each in partition.isr if each not in partition.removing]
    leaders = [each for each in target(partition) if each in isr and each in ready]
    if not leaders or not set(partition.adding) <= set(isr):
        return None
    after = replace(
        partition,
        replicas=target(partition),
        elr=tuple(each for each in partition.elr if each not in partition.removing),
        adding=(),
        removing=(),
    )
    if after.leader not in after.replicas:
        after = led_by(after, leaders[0], ready)
    return after_isr_change(replace(after, isr=isr), isr, min_in_sync)
