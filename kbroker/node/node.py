"""One member of the cluster: the logs it hosts, the coordinators it leads, its background work."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import trio

from kbroker.client.endpoint import Endpoint
from kbroker.cluster import (
    EVERY_NODE,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    Cluster,
    ConfigResource,
    Partition,
    ResourceType,
    Topic,
    TopicsChanged,
)
from kbroker.cluster.controller import Controller
from kbroker.cluster.membership import Membership
from kbroker.cluster.peers import Dial, Peers, dial_tcp
from kbroker.cluster.producer_ids import ProducerIds
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.config import BrokerConfig, ConfigError, Source, TopicConfig
from kbroker.coordination.groups import GroupService
from kbroker.coordination.transactions import TransactionService
from kbroker.coordinator import some_of
from kbroker.partitions.cleaner import Cleaner
from kbroker.partitions.flusher import Flusher
from kbroker.partitions.folder_watch import FolderWatch
from kbroker.partitions.history import History
from kbroker.partitions.leading import Leading
from kbroker.partitions.log_settings import log_config
from kbroker.partitions.moves import ReplicaMoves
from kbroker.partitions.replica import Replica
from kbroker.partitions.scrubber import Scrubber
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.replication.following import Following
from kbroker.replication.in_sync import InSync
from kbroker.replication.quota import Quota, Side
from kbroker.runtime.clock import Clock
from kbroker.runtime.heavy_work import HeavyWork
from kbroker.runtime.memory_errors import MemoryErrors
from kbroker.runtime.slices import Slices, TurnQueue
from kbroker.runtime.threads import InThread
from kbroker.storage.errors import StorageError, WriteRefusedError
from kbroker.storage.folders import EVERY_FOLDER, LogFolders
from kbroker.storage.log import Log

from .explain import Line, change_of
from .fetch_sessions import FetchSessions
from .request_memory import RequestMemory
from .shared_answers import SharedAnswers

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 0.5
SET_BY_CLIENTS = "set by clients"
LOGGED_MAX = 1000
NOT_REGISTERED = -1


class Node:
    """What one node owns. Handlers reach everything through it.

    Resource handling: `join` makes it one of the cluster, `lead` takes leadership and begins to load
    the coordinators, `run` does the background work until cancelled; `membership.leave`, `release_waits`
    and `close` are the steps of a stop.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: LogFolders,
        flusher: Flusher,
        config: BrokerConfig,
        clock: Clock,
        *,
        in_memory: bool,
        in_thread: InThread = trio.to_thread.run_sync,
        dial: Dial = dial_tcp,
    ) -> None:
        self.id = config.node_id
        self.epoch = NOT_REGISTERED
        """The broker epoch: the registration that this node leads under."""
        self.cluster = cluster
        cluster.subscribe(self._on_topics_changed)  # before those that ask who leads
        cluster.subscribe_configs(self._on_configs_changed)
        cluster.min_in_sync = self._min_in_sync
        self.static_config = config
        self.config = self._with_dynamic_settings()
        self.clock = clock
        self.logs = logs
        self.in_memory = in_memory
        self.in_thread = in_thread
        self.flusher = flusher
        self.changes = flusher.changes
        self._replicas: dict[tuple[int, int], Replica] = {}
        """By the number of the topic's id, whose hash is faster than that of the id, and index."""
        self.membership = Membership(
            cluster,
            config,
            directories={each.meta.directory_id: each.data_dir for each in logs.managers},
            is_clean=logs.clean,
            keeps_records=flusher.waits_for_disk,
            on_epoch=self.registered,
        )
        self.cordoned_folders(config)  # what this node was started with is right, or it does not
        self._cordon()
        self.controller = Controller(cluster, self.membership, config)
        self.in_sync = InSync(self)
        flusher.when_failed = self._give_up
        cluster.subscribe_nodes(lambda _: self.in_sync.look_at_all())
        self.groups = GroupService(self)
        self.transactions = TransactionService(self)
        self.peers = Peers(self, dial)
        self.following = Following(self)
        self.folder_watch = FolderWatch(self)
        self.leader_quota = Quota(self, Side.LEADER)
        self.producer_ids = ProducerIds(cluster)
        self.fetch_sessions = FetchSessions(config.fetch_sessions_max, cluster.count_partitions)
        self.request_memory = RequestMemory(config.queued_max_request_bytes)
        self.turns = TurnQueue()
        self.heavy_work = HeavyWork(in_thread)
        self.cleaner = Cleaner(self)
        self.scrubber = Scrubber(self)
        self.moves = ReplicaMoves(self)
        self.stopping = False
        self._trash = trio.Event()
        self.no_checkpoint = trio.Lock()
        """Held by whoever checkpoints; while another one holds it, nothing is removed."""
        self.unhandled_errors = 0
        self.memory_errors = MemoryErrors()
        self.answers_about_all = SharedAnswers(lambda: cluster.changes_seen)
        """What clients are told that ask for the metadata of all topics."""
        self._logged: set[str] = set()
        self.history: History[tuple[str, int | None], Line] = History()
        """What changed in each partition and why; with None, in all partitions of a topic."""

    # -- life

    async def join(self, listeners: Mapping[str, Endpoint] = MappingProxyType({})) -> None:
        """Become part of the cluster; `listeners` says where the others reach this node, by name.

        Raises StorageError.
        """
        await self.membership.register(listeners)
        await self.membership.become_ready()

    async def start(self, listeners: Mapping[str, Endpoint] = MappingProxyType({})) -> None:
        """`join` and `lead` in one, for a node that starts by itself."""
        await self.join(listeners)
        await self.lead()

    async def lead(self) -> None:
        """After `join`: take leadership, set aside what belongs to no topic, load the coordinators.

        Of those that have much to load, `run` does the rest.
        """
        await self.controller.settle()
        # A folder that belongs to an earlier topic of the same name is put aside when it is opened.
        strangers = self.logs.set_aside(
            (name, index)
            for name, index in self.logs.folders()
            if self.cluster.partition(name, index) is None
        )
        if strangers:
            logger.warning(
                "folders of partitions that belong to no topic of this cluster: %s. They are kept "
                "and not served; remove them when you do not miss their records",
                some_of(strangers),
            )
        await self.groups.load()
        await self.transactions.load()
        self.moves.resume()

    @property
    def is_loading(self) -> bool:
        """Whether a coordinator of this node cannot be asked yet."""
        return self.groups.is_loading or self.transactions.is_loading

    def cordoned_folders(self, config: BrokerConfig) -> set[str]:
        """The folders that `config` lets take no new partitions. Raises ConfigError."""
        paths = [
            each if each == EVERY_FOLDER else Path(each).absolute().as_posix()
            for each in config.cordoned_log_dirs
        ]
        try:
            return self.logs.named(paths)
        except ValueError as error:
            raise ConfigError(f"cordoned.log.dirs: {error}") from None

    def _cordon(self) -> None:
        """Obey cordoned.log.dirs; what clients gave it may name a folder that is gone since."""
        try:
            self.logs.cordoned = self.cordoned_folders(self.config)
        except ConfigError as error:
            logger.error("%s", error)
        takes_none = len(self.logs.cordoned) == len(self.logs.managers)
        self.membership.cordon(takes_none)

    async def run(self) -> None:
        """Background work, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flusher.run)
            nursery.start_soon(self.membership.run)
            nursery.start_soon(self.controller.run)
            if self.config.auto_leader_rebalance_enable and not self.membership.is_alone:
                nursery.start_soon(self.controller.balance_regularly)
            nursery.start_soon(self.following.run)
            nursery.start_soon(self.in_sync.run)
            nursery.start_soon(self.folder_watch.run)
            nursery.start_soon(self.groups.run_loads)
            nursery.start_soon(self.groups.run_sweeps)
            nursery.start_soon(self.groups.run_timers)
            nursery.start_soon(self.groups.expire_regularly)
            nursery.start_soon(self.transactions.run_loads)
            nursery.start_soon(self.transactions.run_timers)
            nursery.start_soon(self.transactions.send_markers)
            nursery.start_soon(self.transactions.retry_markers)
            nursery.start_soon(self.transactions.end_wide_transactions)
            nursery.start_soon(self.transactions.expire_regularly)
            nursery.start_soon(self._checkpoint_regularly)
            nursery.start_soon(self.moves.run)
            nursery.start_soon(self._apply_retention_regularly)
            if self.config.log_cleaner_enable:
                nursery.start_soon(self.cleaner.run)
            if self.in_memory:
                self.logs.empty_trash()
            else:
                nursery.start_soon(self._empty_trash)
                nursery.start_soon(self.scrubber.run)
            if self.logs.crashed and self.logs.folders():
                nursery.start_soon(self._recover)

    async def _recover(self) -> None:
        """Look at every log soon after a crash."""
        began = trio.current_time()
        try:
            with self.flusher.beside_another():
                await self.in_thread(self.logs.settle)
        except StorageError as error:
            logger.error(
                "what the crash left is not all durable: %s; check the disk", error.message
            )
        await self.open_all()
        logger.info(
            "opened all %d partitions after the crash in %.1f s",
            len(self._replicas),
            trio.current_time() - began,
        )

    async def open_all(self) -> None:
        """Open every log on disk: to check it soon after a crash, and to apply retention to it."""
        slices = Slices()
        for name, index in self.logs.folders():
            with contextlib.suppress(KafkaError):
                self.named_hosted(name, index)
            await slices.pause()

    async def release_waits(self) -> None:
        """Begin to stop: parked fetches and group members are answered, acks that wait are given."""
        self.stopping = True
        self.groups.stop()
        self.transactions.stop()
        self.wake_fetches()
        await self.flusher.sync_now()

    async def close(self) -> None:
        """Make everything durable and write the clean-shutdown marker."""
        await self.following.stop()
        await self.peers.aclose()
        for replica in self._replicas.values():
            replica.close(deleted=False)
        # What a thread has in hand already is neither lost nor done twice.
        async with self.flusher.no_pass, self.no_checkpoint:
            try:
                self.logs.close(now_ms=self.clock.log_ms())
                clean = True
            except StorageError as error:
                logger.error("no clean shutdown: %s", error)
                clean = False
        await self.membership.end(clean=clean)
        await self.cluster.aclose()

    def wake_fetches(self) -> None:
        for replica in self._replicas.values():
            replica.wake()

    async def _checkpoint_regularly(self) -> None:
        while True:
            await trio.sleep(CHECKPOINT_SECONDS)
            if self.logs.checkpoint_due(self.clock.log_ms()):
                await self.checkpoint()

    async def checkpoint(self) -> None:
        """Make durable what recovery starts from: how far logs are synced, and where they begin."""
        async with self.no_checkpoint:
            try:
                job = self.logs.checkpoint(self.clock.log_ms())
                with self.flusher.beside_another():
                    await self.in_thread(job.run)
            except StorageError as error:
                text = f"checkpoint failed: {error.message}"
                is_known = self.logs.refuses or not self.is_news(text)
                logger.log(logging.DEBUG if is_known else logging.ERROR, "%s", text)

    async def _empty_trash(self) -> None:
        """Remove the files of deleted partitions, off the event loop."""
        while True:
            self._trash = trio.Event()  # first, so that what comes meanwhile is not missed
            await self.in_thread(self.logs.empty_trash)
            await self._trash.wait()

    def empty_trash_soon(self) -> None:
        """Let go of files that nobody needs any more."""
        if self.in_memory:
            self.logs.empty_trash()  # at once: a full memory waits for it
        else:
            self._trash.set()

    async def _apply_retention_regularly(self) -> None:
        while True:
            await trio.sleep(self.config.retention_check_interval_ms / 1000)
            await self.apply_retention_now()

    async def apply_retention_now(self) -> None:
        """Look at every partition, also those that nobody has used yet."""
        await self.open_all()
        if await self.apply_retention():
            # A crash must not bring back what clients saw going.
            await self.checkpoint()

    async def apply_retention(self) -> bool:
        """Give up what each topic's limits let go; returns whether anything went."""
        now_ms = self.clock.log_ms()
        slices = Slices()
        moved = 0
        for replica in self.open_replicas():
            moved += _retain(replica, now_ms)
            await slices.pause()
        if moved:
            logger.info("retention moved the start of %d partitions", moved)
        return moved > 0

    def is_news(self, message: str) -> bool:
        """True for a message that was not logged before; remembers a bounded number of them."""
        if message in self._logged or len(self._logged) >= LOGGED_MAX:
            return False
        self._logged.add(message)
        return True

    # -- replicas

    def leads(self, partition: Partition) -> bool:
        """Whether this node was elected to lead a partition, since it registered."""
        return partition.leader == self.id and partition.leader_registration == self.epoch

    def replica(self, topic: Topic, index: int) -> Replica:
        """Return the replica of a partition that this node leads, opening its log if need be.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or
        KAFKA_STORAGE_ERROR when the partition is offline.
        """
        replica = self._replicas.get((topic.id.int, index))
        if replica is not None and replica.leading is not None:
            if replica.log.offline is not None:
                self.in_sync.give_away(topic, index, eligible=False)
                raise StorageError(replica.log.offline)
            return replica
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not self.leads(topic.partitions[index]):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.hosted(topic, index)

    def hosted(self, topic: Topic, index: int) -> Replica:
        """As `replica`, of a partition that this node leads or follows."""
        replica = self._replicas.get((topic.id.int, index))
        if replica is not None:
            if replica.log.offline is not None:
                self.in_sync.give_away(topic, index, eligible=False)
                raise StorageError(replica.log.offline)
            return replica
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self.id not in topic.partitions[index].replicas:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._open_replica(topic, index)

    def open_replicas(self) -> list[Replica]:
        """The replicas whose logs are open."""
        return list(self._replicas.values())

    def named_replica(self, name: str, index: int) -> Replica:
        """As `replica`, by topic name."""
        return self.replica(self._named_topic(name), index)

    def named_hosted(self, name: str, index: int) -> Replica:
        """As `hosted`, by topic name."""
        return self.hosted(self._named_topic(name), index)

    def _named_topic(self, name: str) -> Topic:
        topic = self.cluster.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def topic_config(self, topic: Topic) -> TopicConfig:
        """The settings of a topic over those of this node."""
        config = TopicConfig.stored(topic.configs, self.config)
        for reason in config.unfit:
            text = f"a stored setting of topic {topic.name} is left out: {reason}"
            if self.is_news(text):
                logger.error("%s", text)
        return config

    def _min_in_sync(self, topic: Topic) -> int:
        own = topic.configs.get("min.insync.replicas")
        return self.config.min_insync_replicas if own is None else int(own)

    async def auto_create_topic(self, name: str) -> Topic:
        """Create a topic that a client named, with the defaults; internal ones as they must be."""
        if name == OFFSETS_TOPIC:
            return await self.groups.create_topic()
        if name == TRANSACTIONS_TOPIC:
            return await self.transactions.create_topic()
        return await create_topic(
            self.cluster, self.config, NewTopic(name), cause="first use by a client"
        )

    def _open_replica(self, topic: Topic, index: int) -> Replica:
        config = self.topic_config(topic)
        try:
            log = self.logs.open_log(
                topic.name, topic.id, index, log_config(config), now_ms=self.clock.log_ms()
            )
        except StorageError as error:
            self.report_storage_error(topic, index, error)
            raise
        self.note_when_offline(log)
        replica = Replica(
            topic, topic.partitions[index], log, config, self.flusher, self.folder_watch.refused
        )
        self._replicas[topic.id.int, index] = replica
        if self.leads(replica.partition):
            self._lead(replica, replica.partition)
        self.flusher.opened(replica)
        return replica

    def _lead(self, replica: Replica, partition: Partition) -> None:
        replica.become_leader(
            Leading(
                partition,
                self.id,
                replica.log.log_end_offset,
                trio.current_time(),
                self.config.replica_lag_time_max_ms / 1000,
                eligible=self._may_be_in_sync,
            )
        )

    def _may_be_in_sync(self, node_id: int, broker_epoch: int) -> bool:
        """Whether a node is in the cluster under this registration, and not fenced (KIP-841)."""
        registration = self.cluster.registration(node_id)
        return (
            registration is not None and registration.ready and registration.epoch == broker_epoch
        )

    def nearer_replica(self, replica: Replica, rack: str, offset: int) -> int:
        """The node in `rack` from which a consumer should read on at `offset`; -1 for this one."""
        if replica.leading is None or self.config.rack == rack:
            return NOT_REGISTERED
        there = [
            (end, node_id)
            for node_id, end in replica.leading.readable_at(offset).items()
            if self.cluster.nodes[node_id].rack == rack
        ]
        return max(there)[1] if there else NOT_REGISTERED

    def registered(self, epoch: int) -> None:
        """Lead under another registration from now on; with NOT_REGISTERED, nothing at all."""
        self.epoch = epoch
        for replica in self.open_replicas():
            self._take_role(replica, replica.topic.partitions[replica.index])
        self.groups.settle()
        self.transactions.settle()

    def _take_role(self, replica: Replica, partition: Partition) -> None:
        """Let a replica lead or follow, as the cluster and this node's registration say."""
        leads = self.leads(partition)
        is_same_term = partition.leader_epoch == replica.leader_epoch
        if leads == replica.is_leader and is_same_term:
            replica.follow_cluster(partition)
        elif leads:
            self._lead(replica, partition)
        else:
            replica.become_follower(partition)

    def report_storage_error(self, topic: Topic, index: int, error: StorageError) -> None:
        """Say once why a partition can be neither opened, read nor appended to."""
        is_refusal = isinstance(error, WriteRefusedError)
        if is_refusal and self.logs.refusal(topic.name, index) is not None:
            return  # that was said of the whole folder
        if self.is_news(str(error)):
            logger.error("partition %s-%d: %s", topic.name, index, error.message)
            known = self.history.of((topic.name, index))
            if not known or str(error.message) not in known[-1].text:
                self.note(topic.name, index, f"refused because {error.message}")
        log = self.logs.get(topic.name, index)
        if log is None or log.offline is not None:
            self.in_sync.give_away(topic, index, eligible=False)

    def _give_up(self, replica: Replica) -> None:
        self.in_sync.give_away(replica.topic, replica.index, eligible=False)

    def note_when_offline(self, log: Log) -> None:
        """Remember when and why a log of this node goes offline."""
        log.when_offline = self._note_offline

    def _note_offline(self, log: Log) -> None:
        self.note(log.topic, log.partition, f"offline because {log.offline}")

    def note(self, topic: str, index: int | None, text: str) -> None:
        """Remember what happened to a partition, or with None to all of a topic, and why."""
        self.history.note((topic, index), Line(self.clock.log_ms(), text))

    def why_offline(self, topic: str, index: int) -> str | None:
        """Why a partition that this node hosts cannot be served; None when it can."""
        try:
            self.named_hosted(topic, index)
        except KafkaError as error:
            return error.message or error.code.name
        return None

    def _on_topics_changed(self, event: TopicsChanged) -> None:
        self._note_topics(event)
        for topic in event.deleted:
            self._drop_topic(topic)
        for change in event.partitions:
            replica = self._replicas.get((change.topic.id.int, change.after.index))
            if replica is not None:
                self._take_role(replica, change.after)
        for topic in event.altered:
            config = self.topic_config(topic)
            for index in range(len(topic.partitions)):
                replica = self._replicas.get((topic.id.int, index))
                if replica is not None:
                    replica.configure(config)
        for change in event.moved:
            if self.id in change.before.replicas and self.id not in change.after.replicas:
                self._drop_partitions(change.topic, [change.after.index], deleted=False)
        if self.controller.in_charge:  # one of the nodes says it
            for what, topics in (("created", event.created), ("deleted", event.deleted)):
                if topics:
                    names = some_of([topic.name for topic in topics])
                    logger.info("topic %s %s: %s", names, what, event.cause)
        self.groups.topics_changed(event)
        self.transactions.topics_changed(event)

    def _note_topics(self, event: TopicsChanged) -> None:
        named = {"created": event.created, "deleted": event.deleted, "changed": event.changed}
        for what, topics in named.items():
            for topic in topics:
                self.note(topic.name, None, f"topic {topic.name} {what}: {event.cause}")
        for change in event.moved:
            text = f"{change_of(change)}: {event.cause}"
            self.note(change.topic.name, change.after.index, text)

    def dynamic_resources(self) -> tuple[tuple[ConfigResource, Source], ...]:
        """What has settings of this node that change while it runs, the weaker first."""
        return (
            (ConfigResource(ResourceType.BROKER, EVERY_NODE), Source.DYNAMIC_DEFAULT_BROKER),
            (ConfigResource(ResourceType.BROKER, str(self.id)), Source.DYNAMIC_BROKER),
        )

    def _with_dynamic_settings(self) -> BrokerConfig:
        """What this node was started with, under what clients set since."""
        config = self.static_config
        for resource, source in self.dynamic_resources():
            config = _with_settings_that_fit(config, self.cluster.own_configs(resource), source)
        return config

    def _on_configs_changed(self, resource: ConfigResource) -> None:
        if resource not in (each for each, _ in self.dynamic_resources()):
            return
        self.config = self._with_dynamic_settings()
        self._cordon()
        self.cleaner.look_again()
        self.scrubber.look_again()
        for notice in self.config.notices:
            if notice.level == "warning" and self.is_news(notice.text):
                logger.warning("%s", notice.text)
        for topic in self.cluster.topics.values():
            config = self.topic_config(topic)
            for index in range(len(topic.partitions)):
                replica = self._replicas.get((topic.id.int, index))
                if replica is not None:
                    replica.configure(config)

    def _drop_topic(self, topic: Topic) -> None:
        self._drop_partitions(topic, range(len(topic.partitions)), deleted=True)

    def _drop_partitions(self, topic: Topic, indexes: Sequence[int], *, deleted: bool) -> None:
        """Let go of partitions that this node has no part in any more, and of their files."""
        for index in indexes:
            replica = self._replicas.pop((topic.id.int, index), None)
            if replica is not None:
                self.flusher.forget(replica)
                replica.close(deleted=deleted)
        try:
            self.logs.delete_logs((topic.name, index) for index in indexes)
        except StorageError as error:
            logger.error(
                "files of topic %s stay until the next start: %s", topic.name, error.message
            )
        self.empty_trash_soon()


def _with_settings_that_fit(
    config: BrokerConfig, values: Mapping[str, str], source: Source
) -> BrokerConfig:
    """Lay what clients gave brokers over `config`.

    What was good once need not be so after a change of what the node is started with, or in
    another version: then the rest still holds, because dropping a retention with it would drop
    records.
    """
    try:
        return config.overlay(values, origin=SET_BY_CLIENTS, source=source)
    except ConfigError:
        pass
    result = config
    fitting: dict[str, str] = {}
    for name, value in values.items():
        try:
            result = config.overlay({**fitting, name: value}, origin=SET_BY_CLIENTS, source=source)
        except ConfigError as error:
            logger.error("a setting that clients gave brokers is left out: %s", error)
        else:
            fitting[name] = value
    return result


def _retain(replica: Replica, now_ms: int) -> bool:
    """Apply retention to one partition; one that is offline stays as it is.

    Followers begin where their leader does, so that all replicas begin at the same offset.
    """
    log = replica.log
    if not replica.is_leader:
        log.expire_producers(now_ms)
        return False
    try:
        moved = log.apply_retention(now_ms) > 0
    except StorageError:
        return False
    if moved:
        logger.debug(
            "%s-%d: retention moved the start to %d",
            replica.topic.name,
            replica.index,
            log.log_start_offset,
        )
    return moved
