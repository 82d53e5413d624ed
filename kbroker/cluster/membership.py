"""A node's place in the cluster: it registers, gets ready, stays alive and leaves in order."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import BrokerEpoch
from kbroker.runtime.changes import Changes
from kbroker.runtime.ids import random_uuid
from kbroker.storage.errors import StorageError

from . import Cluster, NodesChanged, PartitionChange, Registration, TopicsChanged
from .election import withdraw
from .features import check_levels, supported
from .keys import CONTROLLER_ALIVE, FEATURES, live_key, node_key, ready_key
from .registrations import NO_EPOCH, KnownNode
from .store import ABSENT, Document, Lease

logger = logging.getLogger(__name__)

WITHDRAWALS_MAX = 100
"""Partitions of one transaction: every store takes that many."""


class Membership:
    """The registration of one node, and the lease that it hangs on.

    Parameters: `directories` are the node's data directories, id and path; `keeps_records` says that
    nothing acknowledged can be missing from them since the last run: it ended in order, or the
    flush policy waits for the disk; `on_epoch` is told the broker epoch, and -1 when it is over.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: BrokerConfig,
        *,
        directories: Mapping[str, str],
        is_clean: bool,
        keeps_records: bool,
        on_epoch: Callable[[BrokerEpoch], None] = lambda _: None,
    ) -> None:
        self.node_id = config.node_id
        self.epoch = NO_EPOCH
        """The broker epoch; -1 while this node is not registered."""
        self._cluster = cluster
        self._config = config
        self._directories = directories
        self._is_clean = is_clean
        self._on_epoch = on_epoch
        self._keeps_records = keeps_records
        self._incarnation = str(random_uuid())
        self._lease: Lease | None = None
        self._lost: dict[str, str] = {}
        """Data directories that are gone; the cluster knows of them until nothing counts on them."""
        self._listeners: Mapping[str, Endpoint] = {}
        self._hands_over = config.controlled_shutdown_enable
        self._leaving = False
        self._beats = trio.CancelScope()
        self._is_over = False
        """`end` was called: nothing that is heard from then on is about this registration."""
        self._is_elsewhere = False
        """Another process took this node's id."""
        self._unheard = False
        """The last attempt to keep the lease alive failed."""
        self._news = Changes()
        self._registration_lost = trio.Event()
        """Set when the registration is lost, so that this node registers again at once."""
        self._cordoned = False
        self._cordons = Changes()

    @property
    def lease(self) -> Lease:
        """What this node's entries hang on. Only after `register`."""
        assert self._lease is not None
        return self._lease

    @property
    def may_be_missed(self) -> bool:
        """Whether others may have given this node up, and lead what it led, before it has heard."""
        return self._lease is not None and self._lease.may_be_over()

    @property
    def is_registered(self) -> bool:
        """Whether this node is part of the cluster now."""
        return self.epoch != NO_EPOCH

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole cluster: then it lives as long as its process."""
        return self._config.nodes == 1

    @property
    def _known(self) -> KnownNode:
        return self._cluster.registrations.known.get(self.node_id, KnownNode())

    async def register(self, listeners: Mapping[str, Endpoint]) -> None:
        """Let the others know that this node runs, but is not ready yet.

        An earlier run of this node that has not ended for the others ends now: this process has its
        data directories, so that one is gone. Raises StorageError.
        """
        before = self._known
        self._lost = {
            each: path for each, path in before.directories.items() if each not in self._directories
        }
        ended_well = self._is_clean and before.clean_epoch != NO_EPOCH
        self._keeps_records = self._keeps_records or ended_well
        self._listeners = listeners
        self._lease = await self._granted()
        await self._remember(clean_epoch=NO_EPOCH)
        self._set_epoch(await self._put_live())

    def _set_epoch(self, epoch: BrokerEpoch) -> None:
        self.epoch = epoch
        self._on_epoch(epoch)

    def cordon(self, cordoned: bool) -> None:
        """Take new partitions no more, or again (KIP-1066)."""
        self._cordoned = cordoned
        self._cordons.happened()

    async def run(self) -> None:
        """Keep the registration alive, and register anew when it was lost, until cancelled.

        A node alone needs nothing of that.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_cordons)
            if not self.is_alone:
                nursery.start_soon(self._beat_regularly)

    async def _publish_cordons(self) -> None:
        while True:
            changed = self._cordons.next()
            if self.is_registered:
                try:
                    await self._remember(clean_epoch=NO_EPOCH)
                except StorageError as error:
                    logger.error("the others do not know what is cordoned: %s", error.message)
            await changed.wait()

    async def _beat_regularly(self) -> None:
        with self._beats:
            await self._beat_until_cancelled()

    async def _beat_until_cancelled(self) -> None:
        while True:
            with trio.move_on_after(self._config.broker_heartbeat_interval_ms / 1000):
                await self._registration_lost.wait()
            self._registration_lost = trio.Event()
            try:
                await self._beat()
                self._unheard = False
            except StorageError as error:
                if not self._unheard:
                    text = "node %d cannot say that it is alive, and goes on trying: %s"
                    logger.warning(text, self.node_id, error.message)
                self._unheard = True

    async def _beat(self) -> None:
        if self._leaving:
            await self.lease.keep_alive()
        elif not self.is_registered:
            await self._return()
        elif await self.lease.keep_alive():
            await self._stay_ready()
        else:
            self._lose()
            await self._return()

    async def _stay_ready(self) -> None:
        """Say it again if it was lost on its way to the store."""
        registration = self._cluster.registration(self.node_id)
        if registration is not None and registration.epoch == self.epoch and not registration.ready:
            await self._put_ready()

    def nodes_changed(self, event: NodesChanged) -> None:
        """Nodes came or went; this one may be missed by the others."""
        is_about_this = self.node_id in event.node_ids and not self._is_over
        if is_about_this and self.is_registered and not self._stands_there():
            self._lose()
        self._news.happened()

    def topics_changed(self, _: TopicsChanged) -> None:
        """Who waits for others to take over looks again."""
        self._news.happened()

    def _stands_there(self) -> bool:
        """Whether the registration is still this one, as far as this node has heard."""
        registration = self._cluster.registration(self.node_id)
        return registration is not None and registration.epoch == self.epoch

    def _lose(self) -> None:
        logger.warning("node %d was given up by the others: it begins anew", self.node_id)
        self._set_epoch(NO_EPOCH)
        self._registration_lost.set()

    async def _return(self) -> None:
        """Register anew. The process went on, so its logs have everything that they had."""
        registration = self._cluster.registration(self.node_id)
        if registration is not None and registration.incarnation != self._incarnation:
            if not self._is_elsewhere:
                self._is_elsewhere = True
                logger.error(
                    "another process runs node %d; stop this one, or give it another node.id",
                    self.node_id,
                )
            return
        self._lease = await self._granted()
        self._set_epoch(await self._put_live())
        await self._put_ready()

    async def _granted(self) -> Lease:
        seconds = math.inf if self.is_alone else self._config.broker_session_timeout_ms / 1000
        return await self._cluster.grant(seconds, holder=f"node {self.node_id}")

    async def _remember(self, *, clean_epoch: BrokerEpoch) -> None:
        """Write what outlives this run, unless it stands there already. Raises StorageError."""
        while True:
            check_levels(self._cluster.features)
            before = self._known
            after = before._replace(
                directories={**self._lost, **self._directories},
                cordoned=self._cordoned,
                clean_epoch=clean_epoch,
                rack=self._config.rack,
                features=supported(),
            )
            if after == before and before.revision != ABSENT:
                return
            key = node_key(self.node_id)
            cause = f"node {self.node_id} started"
            if clean_epoch != NO_EPOCH:
                cause = f"node {self.node_id} ended in order"
            puts: dict[str, Document | None] = {key: after.to_document()}
            compares = {key: before.revision}
            if before.revision == ABSENT or after.features != before.features:
                # Who finalizes a level at this moment has to look again: what this node supports.
                puts[FEATURES] = self._cluster.features
                compares[FEATURES] = self._cluster.features_revision
            if await self._cluster.transact(puts, compares=compares, cause=cause):
                return

    async def _put_live(self) -> BrokerEpoch:
        """Returns the broker epoch."""
        key = live_key(self.node_id)
        document = Registration(
            self.node_id,
            NO_EPOCH,
            self._incarnation,
            self._listeners,
            self._config.rack,
            ready=False,
        ).to_document()
        while True:
            registrations = self._cluster.registrations
            puts: dict[str, Document | None] = {key: document}
            earlier = registrations.live.get(self.node_id)
            compares = {key: earlier.epoch if earlier else ABSENT}
            if self.node_id in registrations.ready_revisions:
                puts[ready_key(self.node_id)] = None
            if registrations.controller_id == self.node_id:
                puts[CONTROLLER_ALIVE] = None
                compares[CONTROLLER_ALIVE] = registrations.controller_alive_revision
            if self.is_alone and not self._must_withdraw:
                # Nothing to wait for: each write less is a shorter start.
                puts[ready_key(self.node_id)] = {}
                puts[CONTROLLER_ALIVE] = {"node": self.node_id}
            revision = await self._cluster.transact(
                puts,
                compares=compares,
                cause=f"node {self.node_id} started",
                lease=self.lease,
            )
            if revision is not None:
                return BrokerEpoch(revision)
            if not await self.lease.keep_alive():  # it ended meanwhile
                self._lease = await self._granted()

    @property
    def _must_withdraw(self) -> bool:
        """Whether this node's logs may miss committed records."""
        return bool(self._lost) or not self._keeps_records

    async def become_ready(self) -> None:
        """Give up what this node may not hold, then let it lead and be in sync.

        Raises StorageError.
        """
        if self._must_withdraw:
            await self._withdraw()
        elif self._cluster.registrations.ready.get(self.node_id) == self.epoch:
            return
        if not await self._put_ready():
            raise self._started_elsewhere()

    async def _put_ready(self) -> bool:
        key = ready_key(self.node_id)
        done = await self._cluster.transact(
            {key: {}},
            compares={live_key(self.node_id): self.epoch},
            cause=f"node {self.node_id} is ready",
            lease=self.lease,
        )
        return done is not None

    async def _withdraw(self) -> None:
        """Leave every ISR and ELR in which this node's log may miss committed records."""
        reason = "lost a data directory" if self._lost else "did not end in order"
        cause = f"node {self.node_id} {reason}"
        left = 0
        while wanted := list(itertools.islice(self._not_to_hold(), WITHDRAWALS_MAX)):
            left += await self._give_up(wanted, cause)
        if left:
            text = "%s: it leaves the in-sync replicas of its partitions (%d) until it caught up"
            logger.warning(text, cause, left)
        if self._lost:
            self._lost = {}
            await self._remember(clean_epoch=NO_EPOCH)

    async def _give_up(self, wanted: list[PartitionChange], cause: str) -> int:
        """Write withdrawals at once, or what can be of them; returns how many."""
        fences = {live_key(self.node_id): self.epoch}
        if await self._cluster.put_partitions(wanted, fences=fences, cause=cause):
            return len(wanted)
        if not self._stands_there():
            raise self._started_elsewhere()
        return (
            0 if len(wanted) == 1 else sum([await self._give_up([each], cause) for each in wanted])
        )

    def _started_elsewhere(self) -> KafkaError:
        return KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"node {self.node_id} started elsewhere")

    def _not_to_hold(self) -> Iterator[PartitionChange]:
        for topic in self._cluster.topics.values():
            for partition in topic.partitions:
                after = withdraw(partition, self.node_id, lost_disk=bool(self._lost))
                if after is not None:
                    yield PartitionChange(topic, partition, after)

    def stay(self) -> None:
        """Hand nothing over when this node stops: the others stop with it."""
        self._hands_over = False

    async def leave(self) -> None:
        """Let other nodes lead what this one leads, as far as they can, before it stops.

        May take long; what is not handed over then is, when the registration ends.
        """
        is_last = len(self._cluster.nodes) < 2
        if is_last or not self.is_registered or not self._hands_over:
            return
        self._leaving = True
        try:
            gone = await self._cluster.transact(
                {ready_key(self.node_id): None},
                compares={live_key(self.node_id): self.epoch},
                cause=f"node {self.node_id} is leaving",
            )
        except StorageError as error:
            logger.warning("node %d cannot hand over: %s", self.node_id, error.message)
            return
        while gone is not None and self._has_successors():
            await self._news.next().wait()

    def _has_successors(self) -> bool:
        """Whether this node leads what others could."""
        ready = self._cluster.registrations.ready
        return any(
            partition.leader == self.node_id and any(each in ready for each in partition.isr)
            for topic in self._cluster.topics.values()
            for partition in topic.partitions
        )

    async def end(self, *, clean: bool) -> None:
        """Say that this node is gone; `clean` when all that it acknowledged is durable."""
        self._is_over = True
        self._beats.cancel()  # a heartbeat would register the node again
        epoch, self.epoch = self.epoch, NO_EPOCH
        try:
            if clean and epoch != NO_EPOCH:
                await self._remember(clean_epoch=epoch)
            if self._lease is not None:
                await self._lease.revoke()
        except StorageError as error:
            logger.error("node %d could not deregister: %s", self.node_id, error.message)
