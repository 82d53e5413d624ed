"""Election of partition leaders, and the changes of ISR and ELR that follow from it.

Pure functions from one partition state to the next. Invariant: every member of the ISR and of the
ELR has all committed records (KIP-966), so each of them may become leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kbroker.protocol.schema import BrokerEpoch

from .model import NO_LEADER, Partition
from .registrations import NO_EPOCH

# Broker epochs by node ID.
Epochs = Mapping[int, BrokerEpoch]


def leads_soundly(partition: Partition, live: Epochs) -> bool:
    """Return True if the leader has the same broker epoch as when it was elected."""
    epoch = live.get(partition.leader)
    return epoch is not None and epoch == partition.leader_registration


def elect(
    partition: Partition, *, ready: Epochs, live: Epochs, min_in_sync: int
) -> Partition | None:
    """Return the partition state for the current nodes, or None if nothing changes.

    A live and ready leader stays. A leader that is live but not ready is shutting down, and another
    in-sync node replaces it. Nodes that are not ready leave the ISR. Without a candidate the
    partition has no leader and keeps its ISR, whose first member to return becomes leader. While a
    member of the ISR or the ELR is live but not ready yet, nothing changes.
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
    """Return those of `nodes` that are ready, in replica order."""
    return [each for each in partition.replicas if each in nodes and each in ready]


def led_by(partition: Partition, node_id: int, ready: Epochs) -> Partition:
    """Return the partition with a newly elected leader."""
    return replace(
        partition,
        leader=node_id,
        leader_epoch=partition.leader_epoch + 1,
        leader_registration=ready[node_id],
    )


def without_leader(partition: Partition) -> Partition:
    """Return the partition without a leader."""
    return replace(
        partition,
        leader=NO_LEADER,
        leader_epoch=partition.leader_epoch + 1,
        leader_registration=NO_EPOCH,
    )


def after_isr_change(
    partition: Partition, isr: Sequence[int], min_in_sync: int, *, before: Partition | None = None
) -> Partition:
    """Return the partition with another ISR and the resulting ELR.

    With fewer than `min_in_sync` members nothing is committed, so nodes that leave such an ISR have
    all committed records and stay eligible. Pass the state with the old ISR and ELR as `before` if
    `partition` no longer has them.
    """
    before = before or partition
    elr: tuple[int, ...] = ()
    if len(isr) < min(min_in_sync, len(partition.replicas)):
        had_all = {*before.isr, *before.elr} - set(isr)
        elr = tuple(each for each in partition.replicas if each in had_all)
    if list(isr) == partition.isr and elr == tuple(partition.elr):
        return partition  # the common case at startup, for possibly many partitions
    return replace(partition, isr=list(isr), elr=elr)


def withdraw(partition: Partition, node_id: int, *, lost_disk: bool) -> Partition | None:
    """Remove a node that may lack committed records from ISR and ELR; return None if it stays.

    The last member of both stays, because no other node has more records. It is removed only if it
    lost its disk and there are other replicas; then only an unclean election can select it again.
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
    """Replace a node that cannot append to its log as leader and ISR member.

    Args:
        partition: Current state.
        node_id: The node.
        ready: Broker epochs of the nodes that may lead.
        live: Broker epochs of the running nodes.
        min_in_sync: Value of min.insync.replicas.
        eligible: True if the log is readable, so the node can lead again if no other node can.

    Returns:
        The next state. None if no other node can replace the node, or if the node is not in the
        ISR.
    """
    others = {each: epoch for each, epoch in ready.items() if each != node_id}
    if node_id not in partition.isr or not _ready_of(partition, partition.isr, others):
        return None
    after = elect(partition, ready=others, live=live, min_in_sync=min_in_sync)
    if after is None or eligible:
        return after
    return replace(after, elr=tuple(each for each in after.elr if each != node_id))


def elect_preferred(partition: Partition, *, ready: Epochs, live: Epochs) -> Partition | None:
    """Return the partition led by its preferred leader.

    Return None if the preferred leader leads already, or is not in sync.
    """
    preferred = partition.replicas[0]
    if partition.leader == preferred and leads_soundly(partition, live):
        return None
    if preferred not in ready or preferred not in partition.isr:
        return None
    return led_by(partition, preferred, ready)


def elect_unclean(partition: Partition, *, ready: Epochs) -> Partition | None:
    """Elect any ready replica (KIP-460). Records that only other nodes have are lost."""
    candidates = _ready_of(partition, partition.replicas, ready)
    if not candidates:
        return None
    return replace(led_by(partition, candidates[0], ready), isr=candidates[:1], elr=())
