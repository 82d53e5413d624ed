"""The controller: the node that elects partition leaders when nodes start and stop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import trio

from kbroker.config import BrokerConfig
from kbroker.coordinator import some_of
from kbroker.runtime.changes import Changes
from kbroker.storage.errors import StorageError

from . import Cluster, NodesChanged, Partition, PartitionChange, Topic, TopicsChanged
from .election import Epochs, elect, elect_preferred, leads_soundly
from .keys import CONTROLLER, CONTROLLER_ALIVE, live_key
from .membership import Membership
from .reassignment import complete, is_moving
from .registrations import NO_NODE
from .store import ABSENT

logger = logging.getLogger(__name__)

# Maximum number of partitions per transaction. Every store accepts this size, and the store of a
# single node has no limit.
BATCH_MAX = 100
# Partitions checked per event-loop iteration.
CHECKED_AT_ONCE = 200
NO_TERM = 0
RETRY_BACKOFF_SECONDS = 0.5

Place = tuple[Topic, int]


class Cause(NamedTuple):
    """The reason of partition changes. `is_ordered` is True if a node was stopped deliberately."""

    text: str
    is_ordered: bool = False


class Step(NamedTuple):
    """The next state of a partition."""

    topic: Topic
    before: Partition
    after: Partition
    cause: Cause


# Number of partitions by new leader, for each cause.
Moved = dict[Cause, Counter[int]]


class Controller:
    """The controller role of a node; every node has one, and the newest to take over is active.

    The role is level-triggered: events only mark partitions to check, and actions follow from the
    current state. So events may be late or repeated, and a new controller checks all partitions.
    """

    def __init__(self, cluster: Cluster, membership: Membership, config: BrokerConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._membership = membership
        # Revision of the `controller` entry with which this node took over.
        self._term = NO_TERM
        self._retired = False
        self._wake = Changes()
        self._check_all = True
        self._marked: dict[tuple[int, int], Place] = {}

    @property
    def in_charge(self) -> bool:
        """True if this node is the active controller, as far as it knows."""
        registrations = self._cluster.registrations
        return (
            self._term != NO_TERM
            and registrations.controller_revision == self._term
            and registrations.controller_id == self._membership.node_id
            and self._membership.is_registered
        )

    def nodes_changed(self, event: NodesChanged) -> None:
        """Handle started and stopped nodes: all partitions may need other leaders."""
        self._check_all = True
        self._wake.notify()

    def topics_changed(self, event: TopicsChanged) -> None:
        """Mark the changed partitions to be checked, and wake up to remove strays."""
        for change in event.partitions:
            place = change.topic, change.after.index
            self._marked[change.topic.id.int, change.after.index] = place
        if event.partitions or event.deleted or event.strays:
            self._wake.notify()

    def retire(self) -> None:
        """Stop acting: the whole cluster shuts down, and its state must not change."""
        self._retired = True

    async def process_changes(self) -> None:
        """Become the controller if there is none, and process all changes. Raises StorageError."""
        if self._retired or not self._membership.is_registered:
            return
        if self._cluster.controller_id == NO_NODE:
            await self._claim()
        if self._cluster.controller_id == self._membership.node_id and not self.in_charge:
            await self._take_over()
        if self.in_charge:
            await self._work()
            await self._cluster.remove_strays()

    async def run(self) -> None:
        """Process changes until cancelled."""
        while True:
            changed = self._wake.next()
            try:
                await self.process_changes()
            except StorageError as error:
                logger.error(
                    "the controller cannot write to the metadata store, retrying: %s", error.message
                )
                self._check_all = True
                await trio.sleep(RETRY_BACKOFF_SECONDS)
            else:
                await changed.wait()

    async def balance_regularly(self) -> None:
        """Elect preferred leaders at regular intervals, until cancelled."""
        while True:
            await trio.sleep(self._config.leader_imbalance_check_interval_seconds)
            try:
                await self.balance()
            except StorageError as error:
                logger.error("preferred leader election failed: %s", error.message)

    async def balance(self) -> None:
        """Elect preferred leaders where they are in sync. Raises StorageError."""
        if self.in_charge and not self._retired:
            await self._apply(self._preferred_steps())

    def _preferred_steps(self) -> Iterator[Step | None]:
        registrations = self._cluster.registrations
        ready, live = registrations.ready, registrations.live_epochs
        for topic in tuple(self._cluster.topics.values()):
            for before in tuple(topic.partitions):
                if not before.index % CHECKED_AT_ONCE:
                    yield None
                after = elect_preferred(before, ready=ready, live=live)
                if after is not None:
                    cause = Cause(f"node {after.leader} is the preferred leader")
                    yield Step(topic, before, after, cause)

    async def _claim(self) -> None:
        """Claim the controller role, unless another node is faster."""
        node_id, epoch = self._membership.node_id, self._membership.epoch
        await self._cluster.transact(
            {CONTROLLER_ALIVE: {"node": node_id}},
            compares={CONTROLLER_ALIVE: ABSENT, live_key(node_id): epoch},
            cause=f"node {node_id} became the controller",
            lease=self._membership.lease,
        )

    async def _take_over(self) -> None:
        """Take over; from now on writes of earlier controllers are rejected."""
        registrations, node_id = self._cluster.registrations, self._membership.node_id
        term = await self._cluster.transact(
            {CONTROLLER: {"node": node_id, "epoch": registrations.controller_epoch + 1}},
            compares={
                CONTROLLER_ALIVE: registrations.controller_alive_revision,
                CONTROLLER: registrations.controller_revision,
            },
            cause=f"node {node_id} became the controller",
        )
        if term is not None:
            self._term = term
            self._check_all = True

    async def _work(self) -> None:
        """Process the marked partitions until none is left."""
        while self.in_charge and not self._retired and (self._check_all or self._marked):
            places = self._partitions_to_check()
            self._check_all = False
            self._marked.clear()
            led: list[Place] = []
            await self._apply(self._elections(places, led))  # clients wait for these
            await self._apply(self._steps(led))

    def _partitions_to_check(self) -> list[Place]:
        if not self._check_all:
            return list(self._marked.values())
        topics = self._cluster.topics.values()
        return [(topic, index) for topic in topics for index in range(len(topic.partitions))]

    def _elections(self, places: Iterable[Place], led: list[Place]) -> Iterator[Step | None]:
        """Yield the steps of partitions that need another leader; append the others to `led`."""
        ready, live = self._cluster.registrations.ready, self._cluster.registrations.live_epochs
        for count, place in enumerate(places, 1):
            if not count % CHECKED_AT_ONCE:
                yield None
            partition = self._partition(place)
            if partition is None:
                continue
            if partition.leader in ready and leads_soundly(partition, live):
                led.append(place)
            elif step := self._step(place[0], partition, ready, live):
                yield step

    def _steps(self, places: Iterable[Place]) -> Iterator[Step | None]:
        """Yield the steps of partitions lazily, each computed on the current state."""
        ready, live = self._cluster.registrations.ready, self._cluster.registrations.live_epochs
        for count, place in enumerate(places, 1):
            if not count % CHECKED_AT_ONCE:
                yield None
            partition = self._partition(place)
            if partition is not None and (step := self._step(place[0], partition, ready, live)):
                yield step

    def _partition(self, place: Place) -> Partition | None:
        """Return the current state; None if the topic was deleted."""
        topic, index = place
        return topic.partitions[index] if topic.id in self._cluster.topics_by_id else None

    def _step(self, topic: Topic, before: Partition, ready: Epochs, live: Epochs) -> Step | None:
        """Return the necessary change of a partition, if any."""
        required = self._cluster.min_in_sync(topic)
        after = elect(before, ready=ready, live=live, min_in_sync=required)
        if after is not None:
            return Step(topic, before, after, self._cause(before, after, live))
        if is_moving(before):
            after = complete(before, ready=ready, min_in_sync=required)
            if after is not None:
                return Step(topic, before, after, Cause("the move to other nodes is done"))
        return None

    async def _apply(self, steps: Iterable[Step | None]) -> None:
        """Write steps in batches of one cause each. If a batch fails, write its steps one by one.

        Args:
            steps: The steps, with None where the event loop must run other tasks.
        """
        batches: dict[Cause, list[Step]] = {}
        moved: Moved = {}
        try:
            for step in steps:
                if step is None:
                    await trio.lowlevel.checkpoint()
                    continue
                batch = batches.setdefault(step.cause, [])
                batch.append(step)
                if len(batch) == BATCH_MAX and not self._membership.is_alone:
                    await self._write(batches.pop(step.cause), moved)
            for batch in batches.values():
                await self._write(batch, moved)
        finally:
            _log_moves(moved)

    async def _write(self, batch: list[Step], moved: Moved) -> None:
        await trio.lowlevel.checkpoint()  # an in-process store never yields
        if await self._try_write(batch, moved) or len(batch) == 1:
            return
        for step in batch:
            await self._try_write([step], moved)

    async def _try_write(self, batch: list[Step], moved: Moved) -> bool:
        """Write steps; return False if a partition or the controller has changed concurrently."""
        revision = await self._cluster.put_partitions(
            [PartitionChange(step.topic, step.before, step.after) for step in batch],
            fences={CONTROLLER: self._term},
            cause=batch[0].cause.text,
        )
        if revision is not None:
            # A new epoch of the same leader is not logged.
            leaders = (
                each.after.leader for each in batch if each.after.leader != each.before.leader
            )
            moved.setdefault(batch[0].cause, Counter()).update(leaders)
        return revision is not None

    def _cause(self, before: Partition, after: Partition, live: Epochs) -> Cause:
        """Return why a partition changes, for its history."""
        if before.leader not in live and before.leader != NO_NODE:
            known = self._cluster.registrations.known.get(before.leader)
            if known is not None and known.clean_epoch == before.leader_registration:
                return Cause(f"node {before.leader} was stopped", is_ordered=True)
            return Cause(f"node {before.leader} is down")
        if not leads_soundly(before, live):
            return Cause(f"node {after.leader} started")
        if after.leader != before.leader:
            return Cause(f"node {before.leader} is leaving", is_ordered=True)
        gone = sorted(set(before.isr) - set(after.isr))
        return Cause(f"{', '.join(f'node {each}' for each in gone)} is down or leaving")


def _log_moves(moved: Moved) -> None:
    """Log the new leaders, one line per cause."""
    for cause, leaders in moved.items():
        leaderless = leaders.pop(NO_NODE, 0)
        if leaders:
            counts = some_of([f"node {each}: {count:,}" for each, count in sorted(leaders.items())])
            logger.info(
                "%s: %s another leader now (%s)", cause.text, _count_phrase(leaders.total()), counts
            )
        if leaderless:
            logger.log(
                logging.WARNING if cause.is_ordered else logging.ERROR,
                "%s: %s no leader until a node that was in sync is back",
                cause.text,
                _count_phrase(leaderless),
            )


def _count_phrase(partitions: int) -> str:
    return "1 partition has" if partitions == 1 else f"{partitions:,} partitions have"
