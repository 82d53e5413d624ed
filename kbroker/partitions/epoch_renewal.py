"""New leader epochs for partitions whose records are newer than the metadata."""

from __future__ import annotations

import logging

import trio

from kbroker.cluster import Cluster, Topic
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1


class EpochRenewal:
    """Raises leader epochs in the metadata above those of the records that this node leads.

    Leader epochs never fall, so a lower one means that the metadata was put back to an earlier state.
    A leader that appended under it would write epochs out of order, and followers would truncate by
    the wrong ones.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due: dict[tuple[str, int], int] = {}
        self._more = trio.Event()
        self._is_reported = False

    def request(self, topic: Topic, index: int, epoch: int) -> None:
        """Let the leader of a partition have an epoch above `epoch`, which its records have."""
        if not self._is_reported:
            self._is_reported = True
            logger.warning(
                "the cluster's metadata is older than the records: %s-%d has records of leader epoch "
                "%d, and the metadata knows epoch %d. Records are kept, and leader epochs are raised. "
                "Topics, settings, users and ACLs are as they were when the metadata was copied; if a "
                "newer copy exists, stop all nodes and restore that one",
                topic.name,
                index,
                epoch,
                topic.partitions[index].leader_epoch,
            )
        self._due[topic.name, index] = epoch
        self._more.set()

    async def run(self) -> None:
        """Raise epochs until cancelled."""
        while True:
            await self._more.wait()
            self._more = trio.Event()
            due, self._due = self._due, {}
            for (name, index), epoch in due.items():
                await self._renew(name, index, epoch)

    async def _renew(self, name: str, index: int, epoch: int) -> None:
        partition = self._cluster.partition(name, index)
        if partition is None or partition.leader_epoch > epoch:
            return
        try:
            await self._cluster.renew_leader(
                name, index, after_epoch=epoch, cause="the records have a later leader epoch"
            )
        except KafkaError:  # the store refuses, or somebody changed the partition at the same time
            await trio.sleep(RETRY_SECONDS)
            self._due.setdefault((name, index), epoch)
            self._more.set()
