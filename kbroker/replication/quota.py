"""The replication quotas of one node (KIP-73)."""

from __future__ import annotations

import math
from enum import Enum

from kbroker.cluster.node_context import NodeContext
from kbroker.partitions.replica import Replica

from .throttle import Throttle, names_replica

# Value of Kafka's rate settings for no limit.
UNLIMITED = 2**63 - 1


class Side(Enum):
    """The throttled side, with the settings of the node (bytes per second) and of the topic."""

    LEADER = ("leader.replication.throttled.rate", "leader.replication.throttled.replicas")
    FOLLOWER = ("follower.replication.throttled.rate", "follower.replication.throttled.replicas")


class Quota:
    """The rate limit of a node for sending or fetching records of throttled replicas.

    A follower in the ISR is never throttled. `follower_id` is the node that fetches.
    """

    def __init__(self, context: NodeContext, side: Side) -> None:
        self._context = context
        self._rate_name, self._replicas_name = side.value
        self._throttle = Throttle()

    def wait_seconds(self, replica: Replica, follower_id: int, now: float) -> float:
        """Return how long the next records of a replica must wait in seconds; 0 if not at all."""
        return self._throttle.wait_seconds(now) if self._is_throttled(replica, follower_id) else 0.0

    def count(self, replica: Replica, follower_id: int, size: int, now: float) -> None:
        """Count transferred bytes."""
        if self._is_throttled(replica, follower_id):
            self._throttle.count(size, now)

    def _is_throttled(self, replica: Replica, follower_id: int) -> bool:
        rate = self._context.config.integer(self._rate_name)
        self._throttle.set_rate(math.inf if rate == UNLIMITED else rate)
        if rate == UNLIMITED or follower_id in replica.partition.isr:
            return False
        throttled = replica.config.items(self._replicas_name)
        return names_replica(throttled, replica.index, self._context.node_id)
