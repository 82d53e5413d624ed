"""Updates the stored ISRs of the partitions that a node leads (KIP-497).

Followers that fall behind leave the ISR, followers that catch up join it. The node resigns the
leadership of partitions to which it cannot append.

One transaction of the metadata store changes many partitions if they have the same reason. It compares
the state on which each change is based. If the outcome is unknown, the leader counts the members of both
ISRs (see `leader_state`) until another change settles it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple
from uuid import UUID

import trio

from kbroker.cluster import IsrChange, Resignation, Topic
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.store import OPERATIONS_MAX, OutcomeUnknown
from kbroker.partitions.leader_state import LeaderState
from kbroker.partitions.partitions import Partitions
from kbroker.partitions.replica import Replica
from kbroker.storage.errors import StorageError

logger = logging.getLogger(__name__)

BATCH_MAX = 100
"""Partitions of one transaction: every store takes that many."""
TRANSACTIONS_AT_ONCE = 4
LOOKED_AT_ONCE = 200
"""Partitions of one turn of the event loop."""
RETRY_BACKOFF_SECONDS = 0.1
"""Pause after an ISR change that was rejected, or whose outcome is unknown."""


class _Proposal(NamedTuple):
    """An in-sync set that is to be stored, and why."""

    replica: Replica
    leader_state: LeaderState
    isr: frozenset[int]
    cause: str

    def change(self) -> IsrChange:
        """The same for the store: who stays keeps its place."""
        partition, added = self.leader_state.partition, self.leader_state.registrations(self.isr)
        isr = [*(each for each in partition.isr if each in self.isr), *added]
        return IsrChange(self.replica.topic, partition, isr, added)


class IsrManager:
    """The ISRs of the partitions that one node leads, with one change per partition at a time."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions
        self.resign_read_only: Callable[[], None] = lambda: None
        """Calls `resign_leadership` for the partitions in read-only log directories."""
        self._waiting: dict[Replica, None] = {}
        self._changing: dict[Replica, None] = {}
        self._leaving: dict[tuple[UUID, int], bool] = {}
        """What this node can append nothing to, and whether it is eligible all the same."""
        self.shrinks = self.expands = 0
        """How often a set was stored that lacks somebody, or has somebody more."""
        self._leaves = trio.Event()
        self._more = trio.Event()
        self._all = trio.Event()

    def look_at(self, replica: Replica) -> None:
        """The in-sync set of a partition may have to change."""
        if replica not in self._changing:
            self._waiting[replica] = None
            self._more.set()

    def resign_leadership(self, topic: Topic, index: int, *, eligible: bool) -> None:
        """Leave the ISR and the leadership of a partition, because this node cannot append to its log.

        Nothing changes if this node is the only member of the ISR.

        Args:
            topic: Topic of the partition.
            index: Index of the partition.
            eligible: True if the log is readable, so this node may lead it if no other node can.
        """
        partition = topic.partitions[index]
        if self._context.node_id in partition.isr and len(partition.isr) > 1:
            self._leaving[topic.id, index] = eligible
            self._leaves.set()

    def look_at_all(self) -> None:
        """Nodes came or went, or time passed: look at everything that this node leads."""
        self.resign_read_only()
        self._all.set()

    async def _look_at_all(self) -> None:
        while True:
            await self._all.wait()
            self._all = trio.Event()
            for count, replica in enumerate(self._partitions.opened(), 1):
                self._look(replica)
                if not count % LOOKED_AT_ONCE:
                    await trio.lowlevel.checkpoint()

    def _look(self, replica: Replica) -> None:
        if replica.closed:  # its node stops in order, and keeps its place in sync
            return
        if replica.log.offline is not None:
            self.resign_leadership(replica.topic, replica.index, eligible=False)
        if replica.leader_state is not None and not replica.leader_state.alone:
            replica.commit()  # it may have waited for one that went
            if replica.isr_proposal() is not None:
                self.look_at(replica)

    async def run(self) -> None:
        """Change what has to be, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_regularly)
            nursery.start_soon(self._look_at_all)
            nursery.start_soon(self._leave)
            for _ in range(TRANSACTIONS_AT_ONCE):
                nursery.start_soon(self._settle_waiting)

    async def _settle_waiting(self) -> None:
        """Take as many as one transaction takes of those that wait, again and again.

        Those that come while the store is asked are more in the next one: a node that comes back
        joins thousands of in-sync sets.
        """
        while True:
            await trio.lowlevel.checkpoint()  # a store of this process never waits
            while not self._waiting:
                await self._more.wait()
            batch = [*islice(self._waiting, BATCH_MAX)]
            for replica in batch:
                del self._waiting[replica]
                self._changing[replica] = None
            if not self._waiting:
                self._more = trio.Event()
            try:
                await self._settle(batch)
            finally:
                for replica in batch:
                    del self._changing[replica]
            for replica in batch:
                if replica.isr_proposal() is not None:
                    self.look_at(replica)  # behind those that wait: none of them waits for this one

    async def _look_regularly(self) -> None:
        while True:
            await trio.sleep(self._context.config.replica_lag_time_max_ms / 1000 / 2)
            self.look_at_all()

    async def _settle(self, batch: Sequence[Replica]) -> None:
        """Store in-sync sets once; where that fails it is not tried again at once."""
        stored = [await self._store(cause, group) for cause, group in _by_cause(batch)]
        if not all(stored):
            await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _store(self, cause: str, group: Sequence[Replica]) -> bool:
        """Propose the in-sync sets of those that still change for this cause; where one of them
        cannot be stored any more, each by itself. Returns whether all were stored."""
        context = self._context
        proposals = [each for each in map(_proposal, group) if each and each.cause == cause]
        for _, leader_state, isr, _ in proposals:
            leader_state.propose(isr)
        if not proposals:
            return True
        changes = [each.change() for each in proposals]
        try:
            revision = await context.cluster.change_isr(
                changes,
                self_id=context.node_id,
                self_epoch=self._partitions.epoch,
                cause=cause,
            )
        except (OutcomeUnknown, StorageError) as error:
            text = "%s: it is not known whether %s is so in %d partitions, such as %s-%d"
            first = proposals[0].replica
            count, name = len(proposals), first.topic.name
            logger.debug(text, error.message, cause, count, name, first.index)
            return False
        if revision is not None:
            self.shrinks += sum(not set(isr).issuperset(known.isr) for _, known, isr, _ in changes)
            self.expands += sum(not set(known.isr).issuperset(isr) for _, known, isr, _ in changes)
            return True
        for replica, leader_state, isr, _ in proposals:
            leader_state.refused(isr)
            replica.commit()
        if len(proposals) == 1:
            return False
        return all([await self._store(cause, [each.replica]) for each in proposals])

    async def _leave(self) -> None:
        """Let others lead and be in sync with what is to be given away, for ever."""
        while True:
            await self._leaves.wait()
            self._leaves = trio.Event()
            topics = self._context.cluster.topics_by_id
            leavings = [
                Resignation(topics[topic_id], index, eligible)
                for (topic_id, index), eligible in self._leaving.items()
                if topic_id in topics
            ]
            self._leaving.clear()
            for first in range(0, len(leavings), BATCH_MAX):
                await self._resign(leavings[first : first + BATCH_MAX])
            if self._leaving:
                await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _resign(self, leavings: Sequence[Resignation]) -> None:
        """Give partitions away; those with which something else happened meanwhile are left."""
        node_id, cluster = self._context.node_id, self._context.cluster
        epoch = self._partitions.epoch
        cause = f"node {node_id} cannot append to its log"
        try:
            left = await cluster.resign(leavings, node_id, epoch=epoch, cause=cause)
        except (OutcomeUnknown, StorageError):
            left = leavings
        for topic, index, eligible in left:
            if topic.id in cluster.topics_by_id:
                self.resign_leadership(topic, index, eligible=eligible)


def _proposal(replica: Replica) -> _Proposal | None:
    """The in-sync set that is to be stored; None where it is stored already."""
    isr, leader_state = replica.isr_proposal(), replica.leader_state
    if isr is None or leader_state is None:
        return None
    return _Proposal(replica, leader_state, isr, _cause(frozenset(leader_state.partition.isr), isr))


def _by_cause(batch: Iterable[Replica]) -> list[tuple[str, list[Replica]]]:
    """Those of which something is to be stored, as groups of one cause that a transaction takes."""
    groups: dict[str, list[Replica]] = {}
    rooms: dict[str, int] = {}
    for proposal in filter(None, map(_proposal, batch)):
        groups.setdefault(proposal.cause, []).append(proposal.replica)
        # Of this node, and of each that is added, it is compared who they are.
        added = len(proposal.isr.difference(proposal.leader_state.partition.isr))
        rooms[proposal.cause] = max(OPERATIONS_MAX - 1 - 2 * added, 1)
    return [
        (cause, group[first : first + rooms[cause]])
        for cause, group in groups.items()
        for first in range(0, len(group), rooms[cause])
    ]


def _cause(before: frozenset[int], after: frozenset[int]) -> str:
    said = []
    if after - before:
        said.append(f"node {_listed(after - before)} caught up")
    if before - after:
        said.append(f"node {_listed(before - after)} fell behind")
    return " and ".join(said) or "stored again, because an answer was lost"


def _listed(nodes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
