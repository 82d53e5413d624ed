"""Raises leader epochs of partitions whose records have later epochs than the metadata."""

from __future__ import annotations

import logging

import trio

from kbroker.cluster import Cluster, Topic
from kbroker.protocol.errors import KafkaError

logger = logging.getLogger(__name__)

# Pause before failed epoch changes are retried.
RETRY_BACKOFF_SECONDS = 0.1


class EpochRenewal:
    """Raises leader epochs in the metadata above those of the records that this node leads.

    Leader epochs never decrease, so a lower one means that an earlier state of the metadata was
    restored. A leader that appended with it would write epochs out of order, and followers would
    truncate at wrong offsets.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._due: dict[tuple[str, int], int] = {}
        self._more = trio.Event()
        self._is_reported = False

    def request(self, topic: Topic, index: int, epoch: int) -> None:
        """Have `run` raise the leader epoch of a partition above `epoch`, the latest epoch of its records."""
        if not self._is_reported:
            self._is_reported = True
            logger.warning(
                "the cluster metadata is older than the records: %s-%d has records of leader epoch %d, but "
                "the metadata has epoch %d. Records are kept, and leader epochs are raised. Topics, "
                "settings, users and ACLs are those of the metadata backup; if a newer backup exists, stop "
                "all nodes and restore it",
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
            failed = {key: due[key] for key in due if not await self._renew(*key, due[key])}
            if failed:
                await trio.sleep(RETRY_BACKOFF_SECONDS)
                self._due = failed | self._due
                self._more.set()

    async def _renew(self, name: str, index: int, epoch: int) -> bool:
        """Raise the leader epoch of a partition; return False if it must be retried."""
        partition = self._cluster.partition(name, index)
        if partition is None or partition.leader_epoch > epoch:
            return True
        try:
            await self._cluster.renew_leader(
                name, index, after_epoch=epoch, cause="the records have a later leader epoch"
            )
        except KafkaError:  # the metadata store failed, or the partition changed concurrently
            return False
        return True
