"""Requests that come from a node which follows partitions, not from a client."""

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
    """A node that fetches as a replica, and the registration that it does so under (KIP-903)."""

    node_id: int
    broker_epoch: BrokerEpoch

    def is_registered(self, cluster: Cluster) -> bool:
        """Whether it is a node that runs, and this the run that it is in."""
        known = cluster.registration(self.node_id)
        return known is not None and known.epoch == self.broker_epoch

    def check_registered(self, cluster: Cluster) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER where `is_registered` is false, as Kafka does."""
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
        """What it copies next, up to the log end; nothing while its quota is used up (KIP-73)."""
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
        node.replication.leader_quota.took(replica, self.node_id, found.size, now)
        return found

    def has_fetched(self, node: Node, target: Target, replica: Replica) -> None:
        """Take note that it has all before the offset of `target`; its logs may be in sync now."""
        should_join = replica.follower_fetched(
            self.node_id, self.broker_epoch, target.fetch_offset, target.log_start_offset
        )
        if should_join:
            node.replication.isr_manager.look_at(replica)


def fetching_follower(request: FetchRequest) -> FetchingFollower | None:
    """Who fetches as a replica; None for a client. Versions before 15 cannot tell their epoch."""
    state = request.replica_state
    if state is not None and state.replica_id >= 0:
        return FetchingFollower(state.replica_id, state.replica_epoch)
    if state is None and request.replica_id >= 0:
        return FetchingFollower(request.replica_id, NO_EPOCH)
    return None
