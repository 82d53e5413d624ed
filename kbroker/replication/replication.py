"""Both sides of the replication of one node."""

from __future__ import annotations

from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.partitions.leader_news import LeaderNews
from kbroker.partitions.partitions import Partitions

from .following import Following
from .in_sync import InSync
from .quota import Quota, Side


class Replication:
    """What replicates the partitions of one node. The node runs each part.

    Attributes:
        in_sync: The ISRs of the partitions that the node leads.
        following: Fetches from the leaders of the partitions that the node follows.
        leader_quota: The leader's side of the replication quota (KIP-73).
        leader_news: Requests that wait until the node learns who leads a partition.
    """

    def __init__(self, context: NodeContext, partitions: Partitions, peers: Peers) -> None:
        self.in_sync = InSync(context, partitions)
        self.following = Following(context, partitions, peers)
        self.leader_quota = Quota(context, Side.LEADER)
        self.leader_news = LeaderNews()
