"""The registration of a node in the cluster, from startup to controlled shutdown."""

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

# Maximum number of partitions per transaction. Every store accepts this size.
WITHDRAWALS_MAX = 100


class Membership:
    """The registration of one node, and its lease.

    Args:
        cluster: The cluster metadata.
        config: Settings of the node.
        directories: Paths of the node's log directories by directory ID.
        is_clean: True if the last shutdown was clean.
        keeps_records: True if no acknowledged records can be missing since the last run, because
            of a clean shutdown or because the flush policy waits for the disk.
        on_epoch: Called with each new broker epoch, -1 when the registration ends.
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
        # Broker epoch; -1 while the node is not registered.
        self.epoch = NO_EPOCH
        self._cluster = cluster
        self._config = config
        self._directories = directories
        self._is_clean = is_clean
        self._on_epoch = on_epoch
        self._keeps_records = keeps_records
        self._incarnation = str(random_uuid())
        self._lease: Lease | None = None
        # Lost log directories; the metadata lists them until no ISR or ELR relies on them.
        self._lost: dict[str, str] = {}
        self._listeners: Mapping[str, Endpoint] = {}
        self._hands_over = config.controlled_shutdown_enable
        self._leaving = False
        self._heartbeats = trio.CancelScope()
        # True once `end` was called. Later events do not concern this registration.
        self._has_ended = False
        # True if another process uses this node ID.
        self._has_duplicate = False
        # True if the last heartbeat failed.
        self._has_missed_heartbeat = False
        self._changes = Changes()
        # Set when the registration is lost, so that the node registers again immediately.
        self._registration_lost = trio.Event()
        self._cordoned = False
        self._cordon_changes = Changes()
        # True if the last attempt to publish the cordon failed.
        self._has_unpublished_cordon = False

    @property
    def lease(self) -> Lease:
        """The lease of this node's entries; only available after `register`."""
        assert self._lease is not None
        return self._lease

    @property
    def may_have_expired(self) -> bool:
        """True if the lease may have expired, so that other nodes may lead its partitions already."""
        return self._lease is not None and self._lease.may_be_over()

    @property
    def is_registered(self) -> bool:
        """True if this node is registered now."""
        return self.epoch != NO_EPOCH

    @property
    def registration(self) -> Registration:
        """The registration of this process, which the metadata lacks while it is lost."""
        return Registration(
            self.node_id,
            self.epoch,
            self._incarnation,
            self._listeners,
            self._config.rack,
            ready=False,
        )

    @property
    def is_alone(self) -> bool:
        """True for a single-node cluster, whose registration lasts as long as the process."""
        return self._config.nodes == 1

    @property
    def _known_node(self) -> KnownNode:
        return self._cluster.registrations.known.get(self.node_id, KnownNode())

    async def register(self, listeners: Mapping[str, Endpoint]) -> None:
        """Register this node as running but not ready.

        An earlier registration of this node ends: this process holds the locks of its log directories,
        so the earlier process must have terminated. Raises StorageError.
        """
        before = self._known_node
        self._lost = {
            each: path for each, path in before.directories.items() if each not in self._directories
        }
        ended_well = self._is_clean and before.clean_epoch != NO_EPOCH
        self._keeps_records = self._keeps_records or ended_well
        self._listeners = listeners
        self._lease = await self._grant_lease()
        await self._store_node(clean_epoch=NO_EPOCH)
        self._set_epoch(await self._put_live(replaces_others=True))

    def _set_epoch(self, epoch: BrokerEpoch) -> None:
        self.epoch = epoch
        self._on_epoch(epoch)

    def cordon(self, cordoned: bool) -> None:
        """Exclude this node from new partitions, or include it again (KIP-1066)."""
        self._cordoned = cordoned
        self._cordon_changes.notify()

    async def run(self) -> None:
        """Send heartbeats, and register again if the registration is lost, until cancelled.

        A single-node cluster needs no heartbeats.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._publish_cordons)
            if not self.is_alone:
                nursery.start_soon(self._send_heartbeats)

    async def _publish_cordons(self) -> None:
        while True:
            changed = self._cordon_changes.next()
            # Without a registration, the next one notifies this task.
            if not self.is_registered or await self._publish_cordon():
                await changed.wait()
            else:
                await trio.sleep(self._config.broker_heartbeat_interval_ms / 1000)

    async def _publish_cordon(self) -> bool:
        """Store whether this node is cordoned; return False if the metadata cannot be written."""
        try:
            await self._store_node(clean_epoch=NO_EPOCH)
        except StorageError as error:
            if not self._has_unpublished_cordon:
                text = "cannot publish the cordoned log directories, retrying: %s"
                logger.error(text, error.message)
            self._has_unpublished_cordon = True
            return False
        self._has_unpublished_cordon = False
        return True

    async def _send_heartbeats(self) -> None:
        with self._heartbeats:
            await self._send_heartbeats_until_cancelled()

    async def _send_heartbeats_until_cancelled(self) -> None:
        while True:
            with trio.move_on_after(self._config.broker_heartbeat_interval_ms / 1000):
                await self._registration_lost.wait()
            self._registration_lost = trio.Event()
            try:
                await self._send_heartbeat()
                self._has_missed_heartbeat = False
            except StorageError as error:
                if not self._has_missed_heartbeat:
                    text = "node %d cannot renew its registration, retrying: %s"
                    logger.warning(text, self.node_id, error.message)
                self._has_missed_heartbeat = True

    async def _send_heartbeat(self) -> None:
        if self._leaving:
            await self.lease.keep_alive()
        elif not self.is_registered:
            await self._register_again()
        elif await self.lease.keep_alive():
            await self._stay_ready()
        else:
            self._handle_lost_registration()
            await self._register_again()

    async def _stay_ready(self) -> None:
        """Store readiness again if the first write was lost."""
        registration = self._cluster.registration(self.node_id)
        if registration is not None and registration.epoch == self.epoch and not registration.ready:
            await self._put_ready()

    def nodes_changed(self, event: NodesChanged) -> None:
        """Handle started and stopped nodes; this node may have lost its registration."""
        is_about_this = self.node_id in event.node_ids and not self._has_ended
        if is_about_this and self.is_registered and not self._has_current_registration():
            self._handle_lost_registration()
        self._changes.notify()

    def topics_changed(self, _: TopicsChanged) -> None:
        """Wake a controlled shutdown, which waits for other leaders."""
        self._changes.notify()

    def _has_current_registration(self) -> bool:
        """Return True if this process wrote the registration in the metadata."""
        registration = self._cluster.registration(self.node_id)
        return registration is not None and registration.epoch == self.epoch

    def _handle_lost_registration(self) -> None:
        logger.warning("node %d lost its registration; registering again", self.node_id)
        self._set_epoch(NO_EPOCH)
        self._registration_lost.set()

    async def _register_again(self) -> None:
        """Register again. The process never stopped, so its logs are complete."""
        if self._is_replaced:
            self._log_duplicate()
            return
        self._lease = await self._grant_lease()
        epoch = await self._put_live(replaces_others=False)
        if epoch == NO_EPOCH:
            self._log_duplicate()
            return
        self._set_epoch(epoch)
        await self._put_ready()
        self._cordon_changes.notify()

    @property
    def _is_replaced(self) -> bool:
        """True if another process has registered this node ID, even if that process has ended.

        Such a process may have joined ISRs with records that this one lacks. With the same
        directories it cannot have run, because this process holds their locks.
        """
        registration = self._cluster.registration(self.node_id)
        if registration is not None:
            return registration.incarnation != self._incarnation
        known = self._known_node.directories
        return bool(known) and known.keys().isdisjoint(self._directories)

    def _log_duplicate(self) -> None:
        if not self._has_duplicate:
            self._has_duplicate = True
            logger.error(
                "another process was started as node %d; stop this one, or give it another node.id",
                self.node_id,
            )

    async def _grant_lease(self) -> Lease:
        seconds = math.inf if self.is_alone else self._config.broker_session_timeout_ms / 1000
        return await self._cluster.grant(seconds, holder=f"node {self.node_id}")

    async def _store_node(self, *, clean_epoch: BrokerEpoch) -> None:
        """Write the node's persistent data if it has changed. Raises StorageError.

        A concurrent write, such as of a cordon, must not replace the clean end of the registration.
        """
        while clean_epoch != NO_EPOCH or not self._has_ended:
            check_levels(self._cluster.features)
            before = self._known_node
            after = before._replace(
                directories={**self._lost, **self._directories},
                cordoned=self._cordoned,
                clean_epoch=clean_epoch,
                rack=self._config.rack,
                features=supported(),
                listeners=self._listeners,
            )
            if after == before and before.revision != ABSENT:
                return
            key = node_key(self.node_id)
            cause = f"node {self.node_id} started"
            if clean_epoch != NO_EPOCH:
                cause = f"node {self.node_id} shut down cleanly"
            puts: dict[str, Document | None] = {key: after.to_document()}
            compares = {key: before.revision}
            if before.revision == ABSENT or after.features != before.features:
                # Makes a concurrent finalization of a feature level check this node's levels again.
                puts[FEATURES] = self._cluster.features
                compares[FEATURES] = self._cluster.features_revision
            if await self._cluster.transact(puts, compares=compares, cause=cause):
                return

    async def _put_live(self, *, replaces_others: bool) -> BrokerEpoch:
        """Store the registration and return the broker epoch.

        Args:
            replaces_others: True to end the registration of another process of this node. If False,
                the method returns NO_EPOCH: that process may have records that this one lacks.
        """
        key = live_key(self.node_id)
        document = self.registration.to_document()
        while replaces_others or not self._is_replaced:
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
                # This node need not wait: one write instead of several shortens startup.
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
            if not await self.lease.keep_alive():  # it has expired
                self._lease = await self._grant_lease()
        return NO_EPOCH

    @property
    def _must_withdraw(self) -> bool:
        """True if this node's logs may lack committed records."""
        return bool(self._lost) or not self._keeps_records

    async def become_ready(self) -> None:
        """Withdraw from ISRs if records may be missing, then become eligible as leader.

        Raises StorageError.
        """
        if self._must_withdraw:
            await self._withdraw()
        elif self._cluster.registrations.ready.get(self.node_id) == self.epoch:
            return
        if not await self._put_ready():
            raise self._new_stale_epoch_error()

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
        """Leave every ISR and ELR whose committed records this node's log may lack."""
        reason = "lost a log directory" if self._lost else "did not shut down cleanly"
        cause = f"node {self.node_id} {reason}"
        count = 0
        while wanted := list(itertools.islice(self._withdrawals(), WITHDRAWALS_MAX)):
            count += await self._write_withdrawals(wanted, cause)
        if count:
            text = "%s: it leaves the ISRs of its partitions (%d) until it has caught up"
            logger.warning(text, cause, count)
        if self._lost:
            self._lost = {}
            await self._store_node(clean_epoch=NO_EPOCH)

    async def _write_withdrawals(self, wanted: list[PartitionChange], cause: str) -> int:
        """Write withdrawals, together or else one by one; return the number of written ones."""
        fences = {live_key(self.node_id): self.epoch}
        if await self._cluster.put_partitions(wanted, fences=fences, cause=cause):
            return len(wanted)
        if not self._has_current_registration():
            raise self._new_stale_epoch_error()
        return (
            0
            if len(wanted) == 1
            else sum([await self._write_withdrawals([each], cause) for each in wanted])
        )

    def _new_stale_epoch_error(self) -> KafkaError:
        return KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"node {self.node_id} was started by another process"
        )

    def _withdrawals(self) -> Iterator[PartitionChange]:
        for topic in self._cluster.topics.values():
            for partition in topic.partitions:
                after = withdraw(partition, self.node_id, lost_disk=bool(self._lost))
                if after is not None:
                    yield PartitionChange(topic, partition, after)

    def disable_handover(self) -> None:
        """Disable controlled shutdown, because all nodes stop together."""
        self._hands_over = False

    async def leave(self) -> None:
        """Hand leaderships over to other nodes before this node stops (controlled shutdown).

        This can take long. Remaining leaderships move when the registration ends.
        """
        is_last = len(self._cluster.nodes) < 2
        if is_last or not self.is_registered or not self._hands_over:
            return
        self._leaving = True
        try:
            revision = await self._cluster.transact(
                {ready_key(self.node_id): None},
                compares={live_key(self.node_id): self.epoch},
                cause=f"node {self.node_id} is leaving",
            )
        except StorageError as error:
            logger.warning(
                "node %d cannot hand over its leaderships: %s", self.node_id, error.message
            )
            return
        while revision is not None and self._has_successors():
            await self._changes.next().wait()

    def _has_successors(self) -> bool:
        """Return True if other nodes could lead a partition that this node leads."""
        ready = self._cluster.registrations.ready
        return any(
            partition.leader == self.node_id and any(each in ready for each in partition.isr)
            for topic in self._cluster.topics.values()
            for partition in topic.partitions
        )

    async def end(self, *, clean: bool) -> None:
        """End the registration; `clean` if all acknowledged records are durable."""
        self._has_ended = True
        self._heartbeats.cancel()  # a heartbeat would register the node again
        epoch, self.epoch = self.epoch, NO_EPOCH
        try:
            if clean and epoch != NO_EPOCH:
                await self._store_node(clean_epoch=epoch)
            if self._lease is not None:
                await self._lease.revoke()
        except StorageError as error:
            logger.error("node %d cannot end its registration: %s", self.node_id, error.message)
