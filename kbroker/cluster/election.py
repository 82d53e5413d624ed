"""Who leads a partition, who is in sync, and who may lead when nobody in sync is there.

Pure functions from one state of a partition to the next. What they keep true: every member of the
ISR and of the ELR has all committed records (KIP-966), so any of them may lead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kbroker.protocol.schema import BrokerEpoch

from .model import NO_LEADER, Partition
from .registrations import NO_EPOCH

Epochs = Mapping[int, BrokerEpoch]
"""Node ids and the broker epochs that they have."""


def leads_soundly(partition: Partition, live: Epochs) -> bool:
    """Whether the leader still runs as it did when it was elected."""
    epoch = live.get(partition.leader)
    return epoch is not None and epoch == partition.leader_registration


def elect(
    partition: Partition, *, ready: Epochs, live: Epochs, min_in_sync: int
) -> Partition | None:
    """Return the state that fits the nodes that there are now; None when it is that one already.

    A leader that runs stays; one that is live but not ready is leaving, and hands over to another
    node in sync. Nodes that are not ready leave the ISR. With nobody to elect the partition has no
    leader, and its ISR stays as it is: who comes back first of it leads. While one of them is live
    and about to be ready, nothing changes.
    """
    sound = leads_soundly(partition, live)
    if not (sound and partition.leader in ready):
        in_sync = _ready_of(partition, partition.isr, ready)
        if in_sync:
            partition_led = led_by(partition, in_sync[0], ready)
            return after_isr_change(partition_led, in_sync, min_in_sync, before=partition)
        if not sound:
            return _elect_of_elr(partition, ready, live, min_in_sync)
    isr = [each for each in partition.isr if each in ready or each == partition.leader]
    if len(isr) == len(partition.isr):
        return None
    return after_isr_change(partition, isr, min_in_sync)


def _elect_of_elr(
    partition: Partition, ready: Epochs, live: Epochs, min_in_sync: int
) -> Partition | None:
    eligible = _ready_of(partition, partition.elr, ready)
    if eligible:
        elected = led_by(partition, eligible[0], ready)
        return after_isr_change(elected, eligible[:1], min_in_sync, before=partition)
    comes_soon = any(each in live for each in (*partition.isr, *partition.elr))
    if comes_soon or partition.leader == NO_LEADER:
        return None
    return without_leader(partition)


def _ready_of(partition: Partition, nodes: Sequence[int], ready: Epochs) -> list[int]:
    """Those of `nodes` that are ready, in order of preference."""
    return [each for each in partition.replicas if each in nodes and each in ready]


def led_by(partition: Partition, node_id: int, ready: Epochs) -> Partition:
    """The same with a leader that was just elected."""
    return replace(
        partition,
        leader=node_id,
        leader_epoch=partition.leader_epoch + 1,
        leader_registration=ready[node_id],
    )


def without_leader(partition: Partition) -> Partition:
    """The same when nobody leads it."""
    return replace(
        partition,
        leader=NO_LEADER,
        leader_epoch=partition.leader_epoch + 1,
        leader_registration=NO_EPOCH,
    )


def after_isr_change(
    partition: Partition, isr: Sequence[int], min_in_sync: int, *, before: Partition | None = None
) -> Partition:
    """The same with another ISR, and the ELR that follows from it.

    While fewer than `min_in_sync` are in sync nothing is committed, so those that left since then
    have everything and stay eligible. `before` is the state with the old ISR and ELR if `partition`
    is not.
    """
    before = before or partition
    elr: tuple[int, ...] = ()
    if len(isr) < min(min_in_sync, len(partition.replicas)):
        had_all = {*before.isr, *before.elr} - set(isr)
        elr = tuple(each for each in partition.replicas if each in had_all)
    if list(isr) == partition.isr and elr == tuple(partition.elr):
        return partition  # at a start this is so for every partition, of which there may be many
    return replace(partition, isr=list(isr), elr=elr)


def withdraw(partition: Partition, node_id: int, *, lost_disk: bool) -> Partition | None:
    """Take out of ISR and ELR a node that may have lost committed records; None if it stays.

    The last one of all stays, because nobody knows more than it does; but one that lost its disk
    and is not the only replica knows nothing, and only an unclean election brings it back.
    """
    if node_id not in partition.isr and node_id not in partition.elr:
        return None
    isr = [each for each in partition.isr if each != node_id]
    elr = tuple(each for each in partition.elr if each != node_id)
    knows_most = not isr and not elr
    if knows_most and (not lost_disk or len(partition.replicas) == 1):
        return None
    return replace(partition, isr=isr, elr=elr)


def resign(
    partition: Partition,
    node_id: int,
    *,
    ready: Epochs,
    live: Epochs,
    min_in_sync: int,
    eligible: bool,
) -> Partition | None:
    """Let others lead and be in sync in place of a node that cannot append to its log.

    `eligible`: its log can be read, so it may lead again when nobody else can. None when nobody else
    can now, or when the node has no part in it.
    """
    others = {each: epoch for each, epoch in ready.items() if each != node_id}
    if node_id not in partition.isr or not _ready_of(partition, partition.isr, others):
        return None
    after = elect(partition, ready=others, live=live, min_in_sync=min_in_sync)
    if after is None or eligible:
        return after
    return replace(after, elr=tuple(each for each in after.elr if each != node_id))


def elect_preferred(partition: Partition, *, ready: Epochs, live: Epochs) -> Partition | None:
    """Let the first of the replicas lead if it is in sync and another one leads."""
    preferred = partition.replicas[0]
    if partition.leader == preferred and leads_soundly(partition, live):
        return None
    if preferred not in ready or preferred not in partition.isr:
        return None
    return led_by(partition, preferred, ready)


def elect_unclean(partition: Partition, *, ready: Epochs) -> Partition | None:
    """Let any replica that is ready lead; what only others had is lost (KIP-460)."""
    candidates = _ready_of(partition, partition.replicas, ready)
    if not candidates:
        return None
    return replace(led_by(partition, candidates[0], ready), isr=candidates[:1], elr=())
