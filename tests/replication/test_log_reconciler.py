"""Truncations that wait for exclusive access to a log while the node's role changes."""

from __future__ import annotations

import trio
import trio.testing

from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.replication.followed import FollowedPartition
from kbroker.replication.log_reconciler import LogReconciler
from kbroker.runtime.backoff import Backoff

from ..brokers import started
from .harness import log_on, place_topic, replica_on, send, until_equal, until_leader, values_in


async def test_new_leader_does_not_truncate_its_log() -> None:
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"a", b"b")
        await until_equal(broker, "t", 1, 2)
        node, replica = broker.local_node(2).node, replica_on(broker, 2, "t")
        followed = FollowedPartition(replica, replica.leader_epoch, Backoff(1))
        nothing_of_it = FetchResponse.EpochEnd(epoch=0, end_offset=0)
        async with trio.open_nursery() as nursery, node.partitions.flusher.sync_lock:
            nursery.start_soon(
                LogReconciler(node.context, node.partitions).truncate_diverging,
                followed,
                nothing_of_it,
            )
            await trio.testing.wait_all_tasks_blocked(0.01)
            await broker.local_node(1).crash()
            await until_leader(broker, "t", {2})
        assert values_in(log_on(broker, 2, "t")) == [b"a", b"b"]


async def test_follower_truncates_its_log() -> None:
    """Counterpart of the test above: without the role change the records are truncated."""
    async with started(nodes=2) as broker:
        topic = await place_topic(broker, "t", 1, 2)
        await send(broker, 1, topic, b"a", b"b")
        await until_equal(broker, "t", 1, 2)
        node, replica = broker.local_node(2).node, replica_on(broker, 2, "t")
        await node.replication.fetcher_manager.stop()
        followed = FollowedPartition(replica, replica.leader_epoch, Backoff(1))
        await LogReconciler(node.context, node.partitions).truncate_diverging(
            followed, FetchResponse.EpochEnd(epoch=0, end_offset=0)
        )
        assert values_in(log_on(broker, 2, "t")) == []
