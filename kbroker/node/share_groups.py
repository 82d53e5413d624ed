"""Components of one node for share groups (KIP-932)."""

from __future__ import annotations

from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.coordinator_runtime.share_coordinator import ShareCoordinatorService
from kbroker.coordinator_runtime.share_partitions import SharePartitionManager
from kbroker.coordinator_runtime.share_persister import SharePersister
from kbroker.partitions.partitions import Partitions
from kbroker.protocol.share_state_log import SharePartitionKey

from .share_sessions import ShareSession, ShareSessions


class ShareGroups:
    """The parts of one node that serve share groups. The node runs their background work.

    Args:
        context: Context of the node.
        partitions: The partitions of the node.
        peers: Connections to share coordinators of other nodes. Nothing else may use them.

    Attributes:
        states: The share coordinators, which store the states of share partitions.
        persister: Sends requests to the share coordinators of this node and of others.
        partitions: The share partitions that the node leads.
        sessions: The sessions of members.
    """

    def __init__(self, context: NodeContext, partitions: Partitions, peers: Peers) -> None:
        self.states = ShareCoordinatorService(context, partitions)
        self.persister = SharePersister(self.states, peers, context.node_id)
        self.partitions = SharePartitionManager(context, partitions, self.persister)
        self.sessions = ShareSessions(
            context.config.share_sessions_max, self.release, self.partitions.drop_group
        )

    def release(self, session: ShareSession) -> None:
        """Release the records that a member holds, because its session ended."""
        for topic_id, index in session.targets:
            share_partition = self.partitions.known(
                SharePartitionKey(session.group_id, topic_id, index)
            )
            if share_partition is not None:
                self.partitions.release(share_partition, session.member_id)
