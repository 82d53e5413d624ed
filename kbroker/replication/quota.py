"""The quotas of one node for copying replicas that are behind (KIP-73)."""

from __future__ import annotations

import math
from enum import Enum

from kbroker.cluster.node_context import NodeContext
from kbroker.partitions.replica import Replica

from .throttle import Throttle, names_replica

UNLIMITED = 2**63 - 1
"""The rate that Kafka writes for none."""


class Side(Enum):
    """Who holds back: settings of the node (bytes per second) and the topic (which replicas)."""

    LEADER = ("leader.replication.throttled.rate", "leader.replication.throttled.replicas")
    FOLLOWER = ("follower.replication.throttled.rate", "follower.replication.throttled.replicas")


class Quota:
    """How fast a node gives, or takes, records of throttled replicas.

    A follower in sync is never held back. `follower_id` is the node that copies.
    """

    def __init__(self, context: NodeContext, side: Side) -> None:
        self._context = context
        self._rate_name, self._replicas_name = side.value
        self._throttle = Throttle()

    def wait_seconds(self, replica: Replica, follower_id: int, now: float) -> float:
        """How long the next records of a replica have to wait; 0 when they need not."""
        return self._throttle.wait_seconds(now) if self._holds(replica, follower_id) else 0.0

    def took(self, replica: Replica, follower_id: int, size: int, now: float) -> None:
        """Count bytes that went."""
        if self._holds(replica, follower_id):
            self._throttle.took(size, now)

    def _holds(self, replica: Replica, follower_id: int) -> bool:
        rate = self._context.config.integer(self._rate_name)
        self._throttle.set_rate(math.inf if rate == UNLIMITED else rate)
        if rate == UNLIMITED or follower_id in replica.partition.isr:
            return False
        throttled = replica.config.items(self._replicas_name)
        return names_replica(throttled, replica.index, self._context.node_id)
