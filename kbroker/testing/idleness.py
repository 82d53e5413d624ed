"""Check of whether a broker is idle: no work in progress, nothing left to consume."""

from __future__ import annotations

import contextlib

from kbroker.broker import Broker
from kbroker.coordinator import GroupCoordinator, TransactionState
from kbroker.coordinator.share.coordinator import ShareState
from kbroker.node.node import Node
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.storage.log import Log

from .arguments import IDLE_GROUP_STATES
from .node_lookup import leader_of


def pending_work(broker: Broker, group: str | None = None) -> str | None:
    """Describe work that is pending; return None if the broker, or one group, is idle.

    Idle means: no request is in progress, no rebalance is pending, no timeout is due, no
    transaction is open and all dead letters of share groups are written. A fetch that waits for new
    records does not count as in progress. Each group has committed all records of the partitions
    that are assigned to its members. A compacted topic in which a group never commits, for example a
    changelog, does not count.
    """
    for node in broker.running_nodes:
        reason = _pending_work_of_groups(broker, node, group)
        if reason is not None:
            return reason
        for share_partition in node.share.partitions:
            name = share_partition.key.group_id
            if group in (None, name) and share_partition.dead_letters.is_running:
                return f"group {name}: dead letters are not written yet"
        for _, name, transaction in node.transactions.known() if group is None else ():
            if transaction.state is TransactionState.ONGOING or transaction.state.is_prepared:
                return f"the transaction of {name} is {transaction.state.label}"
    for each in broker.nodes:
        for connection in each.server.connections:
            if connection.is_working:
                return f"a request of {connection.peer.host} is not answered yet"
    return None


def _pending_work_of_groups(broker: Broker, node: Node, group: str | None) -> str | None:
    """Describe pending work of the groups that a node coordinates, or of one of them."""
    for shard in node.groups.shards():
        deadline = shard.coordinator.next_deadline()
        if deadline is not None and deadline <= node.clock.coordinator_ms():
            return "a timeout of a group is due"
        for row in shard.coordinator.list_groups():
            if group in (None, row.group_id):
                reason = _pending_work_of(broker, shard.coordinator, row.group_id)
                if reason is not None:
                    return f"group {row.group_id}: {reason}"
    return None


def _pending_work_of(broker: Broker, coordinator: GroupCoordinator, name: str) -> str | None:
    group = coordinator.view(name)
    if coordinator.has_share_group(name):
        return coordinator.pending_share_work(name) or _pending_share_work(
            broker, coordinator, name
        )
    if group.state not in IDLE_GROUP_STATES:
        return f"is {group.state}"
    committed = coordinator.committed(name)
    input_topics = {topic for topic, _ in committed}
    for topic, index in (each for member in group.members for each in member.partitions):
        log = _log(leader_of(broker, topic, index), topic, index)
        if log is None or log.last_stable_offset == log.log_start_offset:
            continue
        if committed and topic not in input_topics and log.config.compacted:
            continue
        offset, end = committed.get((topic, index)), log.last_stable_offset
        if offset is None or offset < end:
            return f"has committed {offset} of {end} in {topic}-{index}"
    return None


def _pending_share_work(broker: Broker, coordinator: GroupCoordinator, name: str) -> str | None:
    """Describe records that a share group with members has not completed; None if there are none."""
    topics = broker.running().cluster.topics_by_id
    for share in (
        coordinator.share_offsets.partitions(name) if coordinator.view(name).members else ()
    ):
        state = _share_state(broker, share)
        topic = topics.get(share.topic_id)
        if state is None or topic is None or state.start_offset < 0:
            continue  # the start offset is not initialized
        log = _log(leader_of(broker, topic.name, share.partition), topic.name, share.partition)
        done = state.start_offset + max(state.complete_count, 0)
        if log is not None and done < log.high_watermark:
            place = f"{topic.name}-{share.partition}"
            return f"has completed {done} of {log.high_watermark} in {place}"
    return None


def _share_state(broker: Broker, share: SharePartitionKey) -> ShareState | None:
    for node in broker.running_nodes:
        with contextlib.suppress(KafkaError):
            return node.share.states.shard(share.name).coordinator.states.get(share)
    return None


def _log(node: Node, topic: str, index: int) -> Log | None:
    """Return the log of a partition; open it if it is not open yet."""
    with contextlib.suppress(KafkaError):  # the partition is deleted, or its disk is broken
        node.partitions.named_replica(topic, index)
    return node.partitions.logs.get(topic, index)
