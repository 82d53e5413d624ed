"""Updates the stored ISRs of the partitions that a node leads (KIP-497).

Followers that fall behind leave the ISR, followers that catch up join it. The node resigns the
leadership of partitions to which it cannot append.

One transaction of the metadata store changes many partitions if they have the same reason. It
compares the state on which each change is based. If the outcome is unknown, the leader counts the
members of both ISRs (see `leader_state`) until another change settles it.
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

# Maximum number of partitions per transaction. Every metadata store accepts this size.
BATCH_MAX = 100
TRANSACTIONS_AT_ONCE = 4
# Partitions to check per event-loop iteration.
CHECKED_AT_ONCE = 200
# Pause after an ISR change that was rejected, or whose outcome is unknown.
RETRY_BACKOFF_SECONDS = 0.1


class _Proposal(NamedTuple):
    """An ISR to store, and its cause."""

    replica: Replica
    leader_state: LeaderState
    isr: frozenset[int]
    cause: str

    def change(self) -> IsrChange:
        """Return the change for the store; remaining members keep their order."""
        partition, added = self.leader_state.partition, self.leader_state.registrations(self.isr)
        isr = [*(each for each in partition.isr if each in self.isr), *added]
        return IsrChange(self.replica.topic, partition, isr, added)


class IsrManager:
    """The ISRs of the partitions that one node leads, with one change per partition at a time."""

    def __init__(self, context: NodeContext, partitions: Partitions) -> None:
        self._context = context
        self._partitions = partitions
        # Calls `resign_leadership` for the partitions in read-only log directories.
        self.resign_read_only: Callable[[], None] = lambda: None
        self._waiting: dict[Replica, None] = {}
        self._changing: dict[Replica, None] = {}
        # Partitions that this node cannot append to, and whether it is still eligible to lead them.
        self._resignations: dict[tuple[UUID, int], bool] = {}
        # Number of stored ISR changes that removed or added a member.
        self.shrinks = self.expands = 0
        self._more_resignations = trio.Event()
        self._more = trio.Event()
        self._all = trio.Event()

    def check_isr(self, replica: Replica) -> None:
        """Queue a partition whose ISR may have to change."""
        if replica not in self._changing:
            self._waiting[replica] = None
            self._more.set()

    def resign_leadership(self, topic: Topic, index: int, *, eligible: bool) -> None:
        """Leave the ISR and the leadership of a partition that this node cannot append to.

        Nothing changes if this node is the only member of the ISR.

        Args:
            topic: Topic of the partition.
            index: Index of the partition.
            eligible: True if the log is readable, so this node may lead it if no other node can.
        """
        partition = topic.partitions[index]
        if self._context.node_id in partition.isr and len(partition.isr) > 1:
            self._resignations[topic.id, index] = eligible
            self._more_resignations.set()

    def check_all_isrs(self) -> None:
        """Check all led partitions, because nodes changed or time passed."""
        self.resign_read_only()
        self._all.set()

    async def _check_all_isrs(self) -> None:
        while True:
            await self._all.wait()
            self._all = trio.Event()
            for count, replica in enumerate(self._partitions.opened(), 1):
                self._check_replica(replica)
                if not count % CHECKED_AT_ONCE:
                    await trio.lowlevel.checkpoint()

    def _check_replica(self, replica: Replica) -> None:
        if replica.closed:  # a node in a controlled shutdown stays in the ISR
            return
        if replica.log.offline is not None:
            self.resign_leadership(replica.topic, replica.index, eligible=False)
        if replica.leader_state is not None and not replica.leader_state.alone:
            replica.commit()  # the high watermark may have waited for a node that has stopped
            if replica.isr_proposal() is not None:
                self.check_isr(replica)

    async def run(self) -> None:
        """Change ISRs until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._check_regularly)
            nursery.start_soon(self._check_all_isrs)
            nursery.start_soon(self._resign_queued)
            for _ in range(TRANSACTIONS_AT_ONCE):
                nursery.start_soon(self._store_waiting)

    async def _store_waiting(self) -> None:
        """Store the changes of waiting partitions in batches.

        Partitions that arrive during a transaction share the next one: a returning node joins
        thousands of ISRs.
        """
        while True:
            await trio.lowlevel.checkpoint()  # a local store never yields
            while not self._waiting:
                await self._more.wait()
            batch = [*islice(self._waiting, BATCH_MAX)]
            for replica in batch:
                del self._waiting[replica]
                self._changing[replica] = None
            if not self._waiting:
                self._more = trio.Event()
            try:
                await self._store_batch(batch)
            finally:
                for replica in batch:
                    del self._changing[replica]
            for replica in batch:
                if replica.isr_proposal() is not None:
                    self.check_isr(replica)  # at the end of the queue

    async def _check_regularly(self) -> None:
        while True:
            seconds = self._context.config.replica_lag_time_max_ms / 1000 / 2
            due = trio.current_time() + seconds
            await trio.sleep_until(due)
            delay = trio.current_time() - due
            if delay > seconds / 2:  # the event loop was blocked, or the process was stopped
                self._excuse_delay(delay)
            self.check_all_isrs()

    def _excuse_delay(self, seconds: float) -> None:
        """Do not count a delay of this node as lag: fetches of followers may wait to be read."""
        now = trio.current_time()
        for replica in self._partitions.opened():
            if replica.leader_state is not None:
                replica.leader_state.excuse_delay(seconds, now)

    async def _store_batch(self, batch: Sequence[Replica]) -> None:
        """Store ISRs once; after a failure, pause."""
        stored = [await self._store(cause, group) for cause, group in _by_cause(batch)]
        if not all(stored):
            await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _store(self, cause: str, group: Sequence[Replica]) -> bool:
        """Propose the ISRs that still change for this cause; return True if all were stored.

        If the store rejects them, each is proposed separately.
        """
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
            text = "%s: unknown outcome of %s in %d partitions, such as %s-%d"
            first = proposals[0].replica
            count, name = len(proposals), first.topic.name
            logger.debug(text, error.message, cause, count, name, first.index)
            return False
        if revision is not None:
            self.shrinks += sum(not set(isr).issuperset(known.isr) for _, known, isr, _ in changes)
            self.expands += sum(not set(known.isr).issuperset(isr) for _, known, isr, _ in changes)
            return True
        for replica, leader_state, isr, _ in proposals:
            leader_state.withdraw(isr)
            replica.commit()
        if len(proposals) == 1:
            return False
        return all([await self._store(cause, [each.replica]) for each in proposals])

    async def _resign_queued(self) -> None:
        """Resign the queued partitions until cancelled."""
        while True:
            await self._more_resignations.wait()
            self._more_resignations = trio.Event()
            topics = self._context.cluster.topics_by_id
            resignations = [
                Resignation(topics[topic_id], index, eligible)
                for (topic_id, index), eligible in self._resignations.items()
                if topic_id in topics
            ]
            self._resignations.clear()
            for first in range(0, len(resignations), BATCH_MAX):
                await self._resign(resignations[first : first + BATCH_MAX])
            if self._resignations:
                await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _resign(self, resignations: Sequence[Resignation]) -> None:
        """Resign partitions, and queue them again if they could not be resigned."""
        node_id, cluster = self._context.node_id, self._context.cluster
        epoch = self._partitions.epoch
        cause = f"node {node_id} cannot append to its log"
        try:
            not_resigned = await cluster.resign(resignations, node_id, epoch=epoch, cause=cause)
        except (OutcomeUnknown, StorageError):
            not_resigned = resignations
        for topic, index, eligible in not_resigned:
            if topic.id in cluster.topics_by_id:
                self.resign_leadership(topic, index, eligible=eligible)


def _proposal(replica: Replica) -> _Proposal | None:
    """Return the ISR to store, or None if the stored ISR is up to date."""
    isr, leader_state = replica.isr_proposal(), replica.leader_state
    if isr is None or leader_state is None:
        return None
    return _Proposal(replica, leader_state, isr, _cause(frozenset(leader_state.partition.isr), isr))


def _by_cause(batch: Iterable[Replica]) -> list[tuple[str, list[Replica]]]:
    """Group the partitions with changes by cause, in groups that fit into one transaction."""
    groups: dict[str, list[Replica]] = {}
    sizes: dict[str, int] = {}
    for proposal in filter(None, map(_proposal, batch)):
        groups.setdefault(proposal.cause, []).append(proposal.replica)
        # The transaction compares the registrations of this node and of each added node.
        added = len(proposal.isr.difference(proposal.leader_state.partition.isr))
        sizes[proposal.cause] = max(OPERATIONS_MAX - 1 - 2 * added, 1)
    return [
        (cause, group[first : first + sizes[cause]])
        for cause, group in groups.items()
        for first in range(0, len(group), sizes[cause])
    ]


def _cause(before: frozenset[int], after: frozenset[int]) -> str:
    reasons = []
    if after - before:
        reasons.append(f"node {_list_nodes(after - before)} caught up")
    if before - after:
        reasons.append(f"node {_list_nodes(before - after)} fell behind")
    return " and ".join(reasons) or "stored again, because a response was lost"


def _list_nodes(nodes: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(nodes)))
