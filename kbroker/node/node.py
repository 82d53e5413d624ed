"""Node: construction, wiring, start and shutdown of one broker's components."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.cluster import (
    Cluster,
    ConfigResource,
    Topic,
    TopicsChanged,
)
from kbroker.cluster.controller import Controller
from kbroker.cluster.live_config import LiveConfig
from kbroker.cluster.membership import Membership
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.peers import PLAIN_TRANSPORT, Peers, PeerTransport
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.config import BrokerConfig, ConfigError
from kbroker.coordinator import some_of
from kbroker.coordinator_runtime.groups import GroupCoordinatorService
from kbroker.coordinator_runtime.shards import Shards
from kbroker.coordinator_runtime.transactions import TransactionCoordinatorService
from kbroker.partitions.flusher import Flusher
from kbroker.partitions.maintenance import LogMaintenance
from kbroker.partitions.partitions import Partitions
from kbroker.protocol.schema import BrokerEpoch
from kbroker.replication.replication import Replication
from kbroker.runtime.batch_reads import BatchReads
from kbroker.runtime.clock import Clock
from kbroker.runtime.disk_reads import DiskReads
from kbroker.runtime.error_log import ErrorLog
from kbroker.runtime.heavy_work import HeavyWork
from kbroker.runtime.threads import InThread, run_in_thread
from kbroker.runtime.time_slices import FairQueue
from kbroker.security.acls import AuthorizerSettings
from kbroker.security.authorizer import Authorizer
from kbroker.storage.directories import EVERY_DIRECTORY, LogDirectories
from kbroker.storage.errors import StorageError

from .activity import Activity
from .auditing import NodeAudit
from .client_metrics import ClientMetrics
from .client_quota_manager import ClientQuotaManager
from .delegation import Delegation
from .fetch_sessions import FetchSessions
from .listener_security import ListenerSecurity
from .request_limits import RequestLimits
from .request_metrics import RequestMetrics
from .response_caches import ResponseCaches
from .share_groups import ShareGroups

logger = logging.getLogger(__name__)


class Node:
    """One broker: owner of all components, through which handlers reach them.

    `join` registers the broker, and `lead` takes leadership and begins to load the coordinators.
    `run` does the background work until cancelled. `membership.leave`, `release_waits` and `close`
    are the steps of a shutdown.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: LogDirectories,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Clock,
        *,
        in_memory: bool,
        in_thread: InThread = run_in_thread,
        transport: PeerTransport = PLAIN_TRANSPORT,
        listener_security: Sequence[ListenerSecurity] = (),
    ) -> None:
        self.context = context = NodeContext(
            node_id=config.node_id,
            live_config=LiveConfig(cluster, config),
            cluster=cluster,
            clock=clock,
            error_log=ErrorLog(),
            changes=flusher.changes,
            in_memory=in_memory,
            in_thread=in_thread,
            disk_reads=DiskReads(in_thread),
            batch_reads=BatchReads(in_thread),
            fair_queue=FairQueue(),
        )
        self.id, self.cluster = config.node_id, cluster
        self.stopping = False
        self.partitions = Partitions(context, logs, flusher)
        self.maintenance = LogMaintenance(context, self.partitions)
        self.membership = Membership(
            cluster,
            config,
            directories={each.meta.directory_id: each.data_dir for each in logs.managers},
            is_clean=logs.clean,
            keeps_records=flusher.waits_for_disk,
            on_epoch=self.registered,
        )
        self.cordoned_directories(config)  # raises ConfigError for invalid startup settings
        self.controller = Controller(cluster, self.membership, config)
        self.peers = Peers(cluster, self.context.live_config, transport)
        self.replication = Replication(context, self.partitions, self.peers)
        self._create_coordinators(transport)
        self.fetch_sessions = FetchSessions(config.fetch_sessions_max, cluster.count_partitions)
        self.quota_manager = ClientQuotaManager(cluster.client_quotas, config, clock)
        self.client_metrics = ClientMetrics(cluster, config, clock)
        self.limits = RequestLimits(config)
        self.heavy_work = HeavyWork(in_thread)
        self.delegation = Delegation(cluster, config, clock, in_thread)
        self.listener_security = listener_security
        self.audit, self.request_metrics = NodeAudit(), RequestMetrics()
        # Client activity for the web console; None without HTTP.
        self.activity = Activity(clock.log_ms) if config.http_port >= 0 else None
        # None if ACLs are not enforced.
        self.authorizer = _authorizer(cluster, config)
        self.responses = ResponseCaches(cluster)
        self._apply_config()
        self._connect()

    def _create_coordinators(self, transport: PeerTransport) -> None:
        """Create the group, transaction and share coordinators."""
        context, partitions = self.context, self.partitions
        producer_ids = ProducerIds(
            self.cluster,
            partitions.logs,
            in_thread=context.in_thread,
            sync_failed=partitions.sync_failed,
        )
        self.share = ShareGroups(
            context,
            partitions,
            Peers(self.cluster, context.live_config, transport),
            producer_ids,
        )
        self.groups = GroupCoordinatorService(context, partitions, self.share.persister)
        self.transactions = TransactionCoordinatorService(
            context, partitions, self.peers, producer_ids, self.groups.end_transaction
        )

    def _connect(self) -> None:
        """Connect the components: callbacks and metadata subscriptions, in the order of calls."""
        partitions, isr_manager = self.partitions, self.replication.isr_manager
        partitions.on_unusable = partial(isr_manager.resign_leadership, eligible=False)
        partitions.on_write_rejected = self.maintenance.log_dir_monitor.on_append_rejected
        isr_manager.resign_read_only = self.maintenance.log_dir_monitor.resign_leaderships
        self.maintenance.log_dir_monitor.resign_leadership = partial(
            isr_manager.resign_leadership, eligible=True
        )
        self.maintenance.log_dir_monitor.on_read_only = (
            self.replication.fetcher_manager.pause_read_only
        )
        cluster = self.cluster
        for security in self.listener_security:
            security.stored_users, security.delegation = cluster.scram_users, self.delegation
        cluster.subscribe_nodes(self.membership.nodes_changed)
        cluster.subscribe_nodes(self.controller.nodes_changed)
        cluster.subscribe_nodes(lambda _: isr_manager.check_all_isrs())
        cluster.subscribe_nodes(self.replication.fetcher_manager.nodes_changed)
        cluster.subscribe(partitions.topics_changed)  # first: other subscribers query its leaders
        cluster.subscribe(self._log_topics)
        for coordinators in self.coordinators:
            cluster.subscribe(coordinators.topics_changed)
        cluster.subscribe(self.share.partitions.topics_changed)
        cluster.subscribe(self.membership.topics_changed)
        cluster.subscribe(self.controller.topics_changed)
        cluster.subscribe(self.replication.fetcher_manager.topics_changed)
        cluster.subscribe(self.replication.leader_change_waiters.topics_changed)
        cluster.subscribe(self.maintenance.log_dir_monitor.topics_changed)
        cluster.subscribe_configs(self._on_configs_changed)
        cluster.subscribe_configs(lambda _: self.share.partitions.settings_changed())

    @property
    def config(self) -> BrokerConfig:
        """Current settings of this node."""
        return self.context.live_config.now

    @property
    def clock(self) -> Clock:
        """Clock of this node."""
        return self.context.clock

    # -- lifecycle

    async def join(self, listeners: Mapping[str, Endpoint] = MappingProxyType({})) -> None:
        """Register with the cluster.

        Args:
            listeners: Advertised addresses of this node by listener name.

        Raises:
            StorageError: The metadata cannot be changed.
        """
        await self.membership.register(listeners)
        await self.membership.become_ready()

    async def start(self, listeners: Mapping[str, Endpoint] = MappingProxyType({})) -> None:
        """Call `join` and `lead`, for a node that starts on its own."""
        await self.join(listeners)
        await self.lead()

    async def lead(self) -> None:
        """Take leadership, move stray directories aside, and load the coordinators.

        Call `join` first. `run` loads the rest of large coordinator partitions.
        """
        await self.controller.process_changes()
        await self._prepare_listener_security()
        self.partitions.move_strays_aside()
        for coordinators in self.coordinators:
            await coordinators.load()
        self.maintenance.log_dir_mover.resume()

    async def _prepare_listener_security(self) -> None:
        """Prepare the users of all listeners, before clients are served.

        Raises:
            StorageError: The cluster's SCRAM secret cannot be stored.
        """
        if any(security.users is not None for security in self.listener_security):
            await self.cluster.make_scram_secret()
        for security in self.listener_security:
            await security.prepare(self.context.in_thread)

    @property
    def coordinators(self) -> tuple[Shards[Any], ...]:
        """Group, transaction and share coordinators."""
        return self.groups, self.transactions, self.share.states

    @property
    def is_loading(self) -> bool:
        """True while a coordinator of this node is loading."""
        return any(coordinators.is_loading for coordinators in self.coordinators)

    async def run(self) -> None:
        """Do the background work until cancelled."""
        partitions = self.partitions
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.clock.run)
            nursery.start_soon(partitions.flusher.run)
            nursery.start_soon(partitions.epoch_renewal.run)
            nursery.start_soon(self.membership.run)
            nursery.start_soon(self.controller.run)
            if self.config.auto_leader_rebalance_enable and not self.membership.is_alone:
                nursery.start_soon(self.controller.balance_regularly)
            nursery.start_soon(self.replication.fetcher_manager.run)
            nursery.start_soon(self.replication.leader_change_waiters.run)
            nursery.start_soon(self.replication.isr_manager.run)
            nursery.start_soon(self.maintenance.log_dir_monitor.run)
            for coordinators in self.coordinators:
                nursery.start_soon(coordinators.work)
            nursery.start_soon(self.share.run)
            nursery.start_soon(self.maintenance.log_manager_tasks.run)
            nursery.start_soon(self.maintenance.log_dir_mover.run)
            if self.config.log_cleaner_enable:
                nursery.start_soon(self.maintenance.cleaner.run)
            if not self.context.in_memory:
                nursery.start_soon(self.maintenance.scrubber.run)
            nursery.start_soon(self.delegation.remove_expired_regularly)
            for security in self.listener_security:
                nursery.start_soon(security.run, self.context.in_thread)
            nursery.start_soon(self.audit.run)

    def registered(self, epoch: BrokerEpoch) -> None:
        """Lead with a new broker epoch from now on; with NO_EPOCH, take no new leadership."""
        self.partitions.registered(epoch)
        self.share.partitions.drop_not_led()
        for coordinators in self.coordinators:
            coordinators.apply_leadership()

    async def release_waits(self) -> None:
        """Begin the shutdown: drop the coordinators, wake pending fetches, and sync appends."""
        self.stopping = True
        self.share.partitions.retire()
        for coordinators in self.coordinators:
            coordinators.retire()
        self.partitions.wake_fetches()
        await self.partitions.flusher.sync_now()

    async def close(self) -> None:
        """Make everything durable and write the clean-shutdown marker."""
        self.audit.log_counts()
        await self.replication.fetcher_manager.stop()
        await self.peers.aclose()
        await self.share.aclose()
        partitions = self.partitions
        partitions.close()
        # Wait for work that a thread has begun, so that it is neither lost nor repeated.
        async with partitions.flusher.sync_lock, partitions.checkpoint_lock:
            try:
                partitions.logs.close(now_ms=self.clock.log_ms())
                clean = True
            except StorageError as error:
                logger.error("shutdown is not clean: %s", error)
                clean = False
        await self.membership.end(clean=clean)
        await self.cluster.aclose()

    # -- changes

    def _log_topics(self, event: TopicsChanged) -> None:
        if self.controller.in_charge:  # only the controller logs the change
            for change, topics in (("created", event.created), ("deleted", event.deleted)):
                if topics:
                    names = some_of([topic.name for topic in topics])
                    logger.info("topic %s %s: %s", names, change, event.cause)

    def _on_configs_changed(self, resource: ConfigResource) -> None:
        if not self.context.live_config.apply_change(resource):
            return
        self._apply_config()
        self.maintenance.settings_changed()
        for notice in self.config.notices:
            if notice.level == "warning" and self.context.error_log.is_new(notice.text):
                logger.warning("%s", notice.text)
        self.partitions.settings_changed()

    def _apply_config(self) -> None:
        self.cluster.default_min_in_sync = self.config.min_insync_replicas
        self.cordon_as_configured()
        for security in self.listener_security:
            try:
                security.apply(self.config)
            except ConfigError as error:
                logger.error(
                    "cannot apply the new listener security settings, keeping the previous ones: %s",
                    error,
                )

    def check_settings(self, config: BrokerConfig) -> None:
        """Check that this node can apply settings.

        Raises:
            ConfigError: A setting is invalid.
        """
        self.cordoned_directories(config)
        for security in self.listener_security:
            security.check(config)

    def cordoned_directories(self, config: BrokerConfig) -> set[str]:
        """Return the cordoned log directories, which get no new partitions.

        Raises:
            ConfigError: A directory of `cordoned.log.dirs` is not in `log.dirs`.
        """
        paths = [
            each if each == EVERY_DIRECTORY else Path(each).absolute().as_posix()
            for each in config.cordoned_log_dirs
        ]
        try:
            return self.partitions.logs.named(paths)
        except ValueError as error:
            raise ConfigError(f"cordoned.log.dirs: {error}") from None

    def cordon_as_configured(self) -> None:
        """Apply `cordoned.log.dirs`. A dynamic value may name a directory that was removed."""
        logs = self.partitions.logs
        try:
            logs.cordoned = self.cordoned_directories(self.config)
        except ConfigError as error:
            logger.error("%s", error)
        self.membership.cordon(len(logs.cordoned) == len(logs.managers))

    # -- topics

    async def auto_create_topic(self, name: str) -> Topic:
        """Create a topic that a client named, with the defaults or as the internal topic."""
        for coordinators in self.coordinators:
            if name == coordinators.topic:
                return await coordinators.create_topic()
        return await create_topic(
            self.cluster, self.config, NewTopic(name), cause="first use by a client"
        )


def _authorizer(cluster: Cluster, config: BrokerConfig) -> Authorizer | None:
    if not config.authorizer_class:
        return None
    rules = AuthorizerSettings.read(
        config.super_users, allows_without_acls=config.allow_everyone_if_no_acl_found
    )
    return Authorizer(cluster.acls, rules)
