"""Keeps the stored in-sync sets of what a node leads true (KIP-497): who fell behind leaves, who
caught up joins. And this node gives up what it cannot serve because the log is offline.

Each change is one transaction that compares what it rests on. Where its outcome is unknown the
leader counts on both (see `leading`), and another change makes an end of that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from kbroker.cluster import Topic
from kbroker.cluster.store import OutcomeUnknown
from kbroker.replica import Replica
from kbroker.storage.errors import StorageError

from .leading import Leading

if TYPE_CHECKING:
    from kbroker.node import Node

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
"""The wait after a change that was refused, or that may not have come about."""


class InSync:
    """The in-sync sets of one node: one change of each partition at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: dict[Replica, None] = {}
        self._changing: dict[Replica, None] = {}
        self._offline: dict[tuple[UUID, int], None] = {}
        self._resigning: dict[tuple[UUID, int], None] = {}
        self._more = trio.Event()

    def look_at(self, replica: Replica) -> None:
        """The in-sync set of a partition may have to change."""
        if replica not in self._changing:
            self._waiting[replica] = None
            self._more.set()

    def is_offline(self, topic: Topic, index: int) -> None:
        """The log of this node's replica can be neither read nor written: others must do."""
        partition, key = topic.partitions[index], (topic.id, index)
        is_held = self._node.id in partition.isr and len(partition.isr) > 1
        if is_held and key not in self._resigning:
            self._offline[key] = None
            self._more.set()

    def look_at_all(self) -> None:
        """Nodes came or went, or time passed: look at everything that this node leads."""
        for replica in self._node.open_replicas():
            if replica.closed:  # its node stops in order, and keeps its place in sync
                continue
            if replica.log.offline is not None:
                self.is_offline(replica.topic, replica.index)
            if replica.leading is not None and not replica.leading.alone:
                replica.commit()  # it may have waited for one that went
                if replica.isr_proposal() is not None:
                    self.look_at(replica)

    async def run(self) -> None:
        """Change what has to be, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_regularly)
            while True:
                await self._more.wait()
                self._more = trio.Event()
                waiting, self._waiting = self._waiting, {}
                for replica in waiting:
                    self._changing[replica] = None
                    nursery.start_soon(self._settle, replica)
                offline, self._offline = self._offline, {}
                for key in offline:
                    self._resigning[key] = None
                    nursery.start_soon(self._resign, *key)

    async def _look_regularly(self) -> None:
        while True:
            await trio.sleep(self._node.config.replica_lag_time_max_ms / 1000 / 2)
            self.look_at_all()

    async def _settle(self, replica: Replica) -> None:
        """Store one in-sync set until it is what it should be."""
        try:
            while (isr := replica.isr_proposal()) is not None:
                assert replica.leading is not None
                if not await self._store(replica, replica.leading, isr):
                    await trio.sleep(RETRY_SECONDS)
        finally:
            del self._changing[replica]

    async def _store(self, replica: Replica, leading: Leading, isr: frozenset[int]) -> bool:
        """Propose an in-sync set; returns whether it was stored."""
        node, partition = self._node, leading.partition
        added = leading.registrations(isr)
        leading.propose(isr)
        try:
            revision = await node.cluster.change_isr(
                replica.topic,
                partition,
                [*(each for each in partition.isr if each in isr), *added],
                registrations=added,
                self_id=node.id,
                self_epoch=node.epoch,
                cause=_cause(frozenset(partition.isr), isr),
            )
        except (OutcomeUnknown, StorageError) as error:
            logger.debug(
                "%s-%d: it is not known whether %s are in sync now: %s",
                replica.topic.name,
                replica.index,
                sorted(isr),
                error.message,
            )
            return False
        if revision is None:
            leading.refused(isr)
            replica.commit()
        return revision is not None

    async def _resign(self, topic_id: UUID, index: int) -> None:
        """Let others lead and be in sync where this node's log is offline."""
        try:
            while True:
                if await self._has_resigned(topic_id, index):
                    return
                await trio.sleep(RETRY_SECONDS)
        finally:
            del self._resigning[topic_id, index]

    async def _has_resigned(self, topic_id: UUID, index: int) -> bool:
        node = self._node
        topic = node.cluster.topics_by_id.get(topic_id)
        if topic is None:
            return True
        cause = f"the log of node {node.id} is offline"
        try:
            return await node.cluster.resign(topic, index, node.id, epoch=node.epoch, cause=cause)
        except (OutcomeUnknown, StorageError):
            return False


def _cause(before: frozenset[int], after: frozenset[int]) -> str:
    said = []
    if after - before:
        said.append(f"node {_listed(after - before)} caught up")
    if before - after:
        said.append(f"node {_listed(before - after)} fell behind")
    return " and ".join(said) or "stored again, because an answer was lost"


def _listed(nodes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
