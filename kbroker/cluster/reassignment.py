"""Moving a partition to other nodes while it is used (KIP-455).

The nodes that come are `adding`, those that go are `removing`; `replicas` has both. When all that
come are in sync, those that go are dropped. Pure functions from one state of a partition to the
next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .election import Epochs, after_isr_change, led_by
from .model import Partition


def is_moving(partition: Partition) -> bool:
    """Whether a reassignment is under way."""
    return bool(partition.adding or partition.removing)


def target(partition: Partition) -> list[int]:
    """The nodes that it will have when the reassignment is done."""
    return [each for each in partition.replicas if each not in partition.removing]


def begin(partition: Partition, nodes: Sequence[int]) -> Partition:
    """Let a partition move to `nodes`, from where it was before a move that is under way."""
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
    """Let a partition stay where it was; those that were coming are dropped, in sync or not."""
    return begin(partition, [each for each in partition.replicas if each not in partition.adding])


def complete(partition: Partition, *, ready: Epochs, min_in_sync: int) -> Partition | None:
    """Drop those that go when those that come are in sync; None while that cannot be.

    A leader that goes hands over to the first that is ready.
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
