"""Producer ids: unique in the cluster for ever, handed out from reserved blocks (KIP-730)."""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.errors import StorageError

from . import Cluster

BLOCK_SIZE = 1000


class ProducerIds:
    """Hands out producer ids of one node.

    A block is reserved in the cluster's metadata before its first id is used; what is left of it
    at a restart is never used again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._block = iter(range(0))

    async def next(self) -> int:
        """Return an id that nobody had before.

        Raises COORDINATOR_LOAD_IN_PROGRESS, as Kafka, while none can be reserved.
        """
        while True:
            for producer_id in self._block:
                return producer_id
            try:
                self._block = iter(await self._cluster.allocate_producer_ids(BLOCK_SIZE))
            except StorageError as error:
                raise KafkaError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"no producer ids can be reserved now: {error.message}",
                ) from error
