"""The partitions of a node, as share partitions use them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from kbroker.cluster import Topic
from kbroker.partitions.replica import Replica


class LeaderReplicas(Protocol):
    """The partitions of a node, as share partitions use them."""

    def replica(self, topic: Topic, index: int) -> Replica:
        """Return a partition that this node leads.

        Raises:
            KafkaError: This node does not lead it, or its log is offline.
        """
        ...

    def storage_errors_reported(self, replica: Replica) -> AbstractContextManager[None]:
        """Report storage errors of the block, which take the replica offline if a file is damaged.

        Raises:
            StorageError: As raised by the block, after it is reported.
        """
        ...
