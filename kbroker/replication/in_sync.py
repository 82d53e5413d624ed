"""Keeps the stored in-sync sets of what a node leads true (KIP-497): who fell behind leaves, who
caught up joins. And this node gives up what it can append nothing to.

Each change is one transaction that compares what it rests on. Where its outcome is unknown the
leader counts on both (see `leading`), and another change makes an end of that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

import trio

from kbroker.cluster import Leaving, Topic
from kbroker.cluster.store import OutcomeUnknown
from kbroker.partitions.leading import Leading
from kbroker.partitions.partitions import Partitions
from kbroker.partitions.replica import Replica
from kbroker.storage.errors import StorageError

logger = logging.getLogger(__name__)

BATCH_MAX = 100
"""Partitions of one transaction: every store takes that many."""
RETRY_SECONDS = 0.1
"""The wait after a change that was refused, or that may not have come about."""


class InSync:
    """The in-sync sets of one node: one change of each partition at a time."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self.give_away_refused: Callable[[], None] = lambda: None
        """Has `give_away` called for what lies in folders that take no records."""
        self._waiting: dict[Replica, None] = {}
        self._changing: dict[Replica, None] = {}
        self._leaving: dict[tuple[UUID, int], bool] = {}
        """What this node can append nothing to, and whether it is eligible all the same."""
        self.shrinks = self.expands = 0
        """How often a set was stored that lacks somebody, or has somebody more."""
        self._leaves = trio.Event()
        self._more = trio.Event()

    def look_at(self, replica: Replica) -> None:
        """The in-sync set of a partition may have to change."""
        if replica not in self._changing:
            self._waiting[replica] = None
            self._more.set()

    def give_away(self, topic: Topic, index: int, *, eligible: bool) -> None:
        """This node can append nothing to its log: others must lead it and be in sync, if there are
        any. `eligible`: the log can be read, so it may lead when nobody else can."""
        partition = topic.partitions[index]
        if self._partitions.node_id in partition.isr and len(partition.isr) > 1:
            self._leaving[topic.id, index] = eligible
            self._leaves.set()

    def look_at_all(self) -> None:
        """Nodes came or went, or time passed: look at everything that this node leads."""
        self.give_away_refused()
        for replica in self._partitions.opened():
            if replica.closed:  # its node stops in order, and keeps its place in sync
                continue
            if replica.log.offline is not None:
                self.give_away(replica.topic, replica.index, eligible=False)
            if replica.leading is not None and not replica.leading.alone:
                replica.commit()  # it may have waited for one that went
                if replica.isr_proposal() is not None:
                    self.look_at(replica)

    async def run(self) -> None:
        """Change what has to be, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_regularly)
            nursery.start_soon(self._leave)
            while True:
                await self._more.wait()
                self._more = trio.Event()
                waiting, self._waiting = self._waiting, {}
                for replica in waiting:
                    self._changing[replica] = None
                    nursery.start_soon(self._settle, replica)

    async def _look_regularly(self) -> None:
        while True:
            await trio.sleep(self._partitions.config.replica_lag_time_max_ms / 1000 / 2)
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
        partitions, partition = self._partitions, leading.partition
        added = leading.registrations(isr)
        leading.propose(isr)
        try:
            revision = await partitions.cluster.change_isr(
                replica.topic,
                partition,
                [*(each for each in partition.isr if each in isr), *added],
                registrations=added,
                self_id=partitions.node_id,
                self_epoch=partitions.epoch,
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
        else:
            self.shrinks += bool(set(partition.isr) - isr)
            self.expands += bool(isr - set(partition.isr))
        return revision is not None

    async def _leave(self) -> None:
        """Let others lead and be in sync with what is to be given away, for ever."""
        while True:
            await self._leaves.wait()
            self._leaves = trio.Event()
            topics = self._partitions.cluster.topics_by_id
            leavings = [
                Leaving(topics[topic_id], index, eligible)
                for (topic_id, index), eligible in self._leaving.items()
                if topic_id in topics
            ]
            self._leaving.clear()
            for first in range(0, len(leavings), BATCH_MAX):
                await self._resign(leavings[first : first + BATCH_MAX])
            if self._leaving:
                await trio.sleep(RETRY_SECONDS)

    async def _resign(self, leavings: Sequence[Leaving]) -> None:
        """Give partitions away; those with which something else happened meanwhile are left."""
        partitions = self._partitions
        node_id, cluster = partitions.node_id, partitions.cluster
        cause = f"node {node_id} cannot append to its log"
        try:
            left = await cluster.resign(leavings, node_id, epoch=partitions.epoch, cause=cause)
        except (OutcomeUnknown, StorageError):
            left = leavings
        for topic, index, eligible in left:
            if topic.id in cluster.topics_by_id:
                self.give_away(topic, index, eligible=eligible)


def _cause(before: frozenset[int], after: frozenset[int]) -> str:
    said = []
    if after - before:
        said.append(f"node {_listed(after - before)} caught up")
    if before - after:
        said.append(f"node {_listed(before - after)} fell behind")
    return " and ".join(said) or "stored again, because an answer was lost"


def _listed(nodes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
