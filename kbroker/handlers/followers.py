"""Fetch requests of followers."""

from __future__ import annotations

from typing import NamedTuple

import trio

from kbroker.cluster import Cluster
from kbroker.cluster.registrations import NO_EPOCH
from kbroker.node.fetch_sessions import Target
from kbroker.node.node import Node
from kbroker.partitions.replica import Replica
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.schema import BrokerEpoch
from kbroker.storage.cached import Reading
from kbroker.storage.segment import Slice


class FetchingFollower(NamedTuple):
    """ID of a node that fetches as a follower, and the broker epoch of its request (KIP-903)."""

    node_id: int
    broker_epoch: BrokerEpoch

    def is_registered(self, cluster: Cluster) -> bool:
        """Return True if the node is registered with this broker epoch."""
        known = cluster.registration(self.node_id)
        return known is not None and known.epoch == self.broker_epoch

    def check_registered(self, cluster: Cluster) -> None:
        """Check the broker epoch.

        Raises:
            KafkaError: NOT_LEADER_OR_FOLLOWER, as in Kafka: the node is registered with another
                broker epoch, or not at all.
        """
        if not self.is_registered(cluster):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"node {self.node_id} is not registered under broker epoch {self.broker_epoch}",
            )

    def read(
        self,
        node: Node,
        target: Target,
        replica: Replica,
        max_bytes: int,
        at_least_one: bool,
        reading: Reading,
    ) -> Slice:
        """Read up to the log end offset; nothing while the leader quota is exceeded (KIP-73)."""
        now = trio.current_time()
        if node.replication.leader_quota.wait_seconds(replica, self.node_id, now):
            max_bytes, at_least_one = 0, False
        found = reading(
            replica.log.read,
            target.fetch_offset,
            max_bytes,
            limit=replica.log.log_end_offset,
            at_least_one=at_least_one,
        )
        node.replication.leader_quota.count(replica, self.node_id, found.size, now)
        return found

    def note_fetch(self, node: Node, target: Target, replica: Replica) -> None:
        """Record the follower's fetch offset, and check whether the follower can join the ISR."""
        should_join = replica.follower_fetched(
            self.node_id, self.broker_epoch, target.fetch_offset, target.log_start_offset
        )
        if should_join:
            node.replication.isr_manager.check_isr(replica)


def fetching_follower(request: FetchRequest) -> FetchingFollower | None:
    """Return the follower that sent a request, or None for a client.

    Versions before 15 have no broker epoch.
    """
    state = request.replica_state
    if state is not None and state.replica_id >= 0:
        return FetchingFollower(state.replica_id, state.replica_epoch)
    if state is None and request.replica_id >= 0:
        return FetchingFollower(request.replica_id, NO_EPOCH)
    return None
