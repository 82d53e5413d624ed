"""The leader's and the follower's side of the replication of one node."""

from __future__ import annotations

from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.partitions.leader_change_waiters import LeaderChangeWaiters
from kbroker.partitions.partitions import Partitions

from .isr_manager import IsrManager
from .quota import Quota, Side
from .replica_fetcher_manager import ReplicaFetcherManager


class Replication:
    """The components that replicate the partitions of one node. The node runs each of them.

    Attributes:
        isr_manager: The ISRs of the partitions that the node leads.
        fetcher_manager: Fetches from the leaders of the partitions that the node follows.
        leader_quota: The leader's side of the replication quota (KIP-73).
        leader_change_waiters: Requests that wait until the node learns the leader of a partition.
    """

    def __init__(self, context: NodeContext, partitions: Partitions, peers: Peers) -> None:
        self.isr_manager = IsrManager(context, partitions)
        self.fetcher_manager = ReplicaFetcherManager(context, partitions, peers)
        self.leader_quota = Quota(context, Side.LEADER)
        self.leader_change_waiters = LeaderChangeWaiters()
