"""Components of one node for share groups (KIP-932)."""

from __future__ import annotations

import trio

from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import Peers
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.coordinator_runtime.share_coordinator import ShareCoordinatorService
from kbroker.coordinator_runtime.share_group_dlq import ShareGroupDLQManager
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
        producer_ids: Producer IDs of the node.

    Attributes:
        states: The share coordinators, which store the states of share partitions.
        persister: Sends requests to the share coordinators of this node and of others.
        dlq: Writes records that groups cannot process to dead-letter queues.
        partitions: The share partitions that the node leads.
        sessions: The sessions of members.
    """

    def __init__(
        self,
        context: NodeContext,
        partitions: Partitions,
        peers: Peers,
        producer_ids: ProducerIds,
    ) -> None:
        self.states = ShareCoordinatorService(context, partitions)
        self.persister = SharePersister(self.states, peers, context.node_id)
        self.dlq = ShareGroupDLQManager(
            context, partitions, peers.with_own_connections(), producer_ids
        )
        self.partitions = SharePartitionManager(context, partitions, self.persister, self.dlq)
        self.sessions = ShareSessions(
            context.config.share_sessions_max, self.release, self.partitions.drop_group
        )

    async def run(self) -> None:
        """Do the background work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.partitions.run)
            nursery.start_soon(self.dlq.run)

    async def aclose(self) -> None:
        """Close the connections to other nodes."""
        await self.persister.aclose()
        await self.dlq.aclose()

    def release(self, session: ShareSession) -> None:
        """Release the records that a member holds, because its session ended."""
        for topic_id, index in session.targets:
            share_partition = self.partitions.known(
                SharePartitionKey(session.group_id, topic_id, index)
            )
            if share_partition is not None:
                self.partitions.release(share_partition, session.member_id)
