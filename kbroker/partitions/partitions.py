"""The partitions of one node: their logs, and whether each leads or follows.

Who serves clients, copies from leaders, coordinates groups, compacts or moves logs finds its replicas
here. What they find out about a log they tell here; who is to know of it hears it by a hook, because
nothing here knows who that is.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import trio

from kbroker.cluster import Partition, Topic, TopicsChanged
from kbroker.cluster.node_context import NodeContext
from kbroker.cluster.registrations import NO_EPOCH, NO_NODE
from kbroker.config import TopicConfig
from kbroker.coordinator import some_of
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.schema import BrokerEpoch
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.directories import LogDirectories
from kbroker.storage.errors import (
    LostBytesError,
    StorageError,
    SyncFailedError,
    WriteRefusedError,
)
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig

from .epoch_renewal import EpochRenewal
from .flusher import DIRECTORY_IS_OFFLINE, Flusher
from .history import History, Line, change_of
from .leader_state import LeaderState
from .log_opening import LogOpening
from .log_settings import log_config
from .replica import Replica

logger = logging.getLogger(__name__)


class HostedPartition(Protocol):
    """What a report of a storage error needs of a replica."""

    @property
    def topic(self) -> Topic:
        """The topic in the metadata."""
        ...

    @property
    def index(self) -> int:
        """Partition number."""
        ...

    @property
    def closed(self) -> bool:
        """True if this node no longer serves the partition."""
        ...


class Partitions:
    """What one node hosts.

    `epoch` is the registration that the node leads under, `NO_EPOCH` before it has one.
    `no_checkpoint` is held by whoever checkpoints; while another one holds it, nothing is removed.
    """

    def __init__(
        self,
        context: NodeContext,
        logs: LogDirectories,
        flusher: Flusher,
    ) -> None:
        self._context = context
        self.epoch = NO_EPOCH
        self.logs = logs
        self.flusher = flusher
        self.no_checkpoint = trio.Lock()
        self.trash = trio.Event()
        """Set when there are files that nobody needs any more."""
        self.history: History[tuple[str, int | None], Line] = History()
        """What changed in each partition and why; with None, in all partitions of a topic."""
        self.when_unusable: Callable[[Topic, int], None] = lambda topic, index: None
        """Told of each partition to whose log nothing can be appended here, again and again."""
        self.when_refused: Callable[[Replica, StorageError], None] = lambda replica, error: None
        """Told when the system refuses an append."""
        self._settings: dict[int, tuple[TopicConfig, LogConfig]] = {}
        """Of topics that have partitions here, by the number of the topic's id."""
        self.epoch_renewal = EpochRenewal(context.cluster)
        self._opening = LogOpening(context.cluster, logs, context.node_id, self.note)
        self._replicas: dict[tuple[int, int], Replica] = {}
        """By the number of the topic's id, whose hash is faster than that of the id, and index."""
        flusher.when_failed = lambda replica: self.when_unusable(replica.topic, replica.index)

    # -- look-ups

    def leads(self, partition: Partition) -> bool:
        """Whether this node was elected to lead a partition, since it registered."""
        return (
            partition.leader == self._context.node_id
            and partition.leader_registration == self.epoch
        )

    def awaits_new_leader(self, partition: Partition) -> bool:
        """Return True if this node lost the leadership and does not know the new leader yet."""
        return partition.leader == self._context.node_id and not self.leads(partition)

    def replica(self, topic: Topic, index: int) -> Replica:
        """Return the replica of a partition that this node leads, opening its log if need be.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or
        KAFKA_STORAGE_ERROR when the partition is offline.
        """
        replica = self._replicas.get((topic.id.int, index))
        if replica is not None and replica.leader_state is not None:
            if replica.log.offline is not None:
                raise StorageError(replica.log.offline)
            return replica
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not self.leads(topic.partitions[index]):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        replica = self.hosted(topic, index)
        if replica.leader_state is None:  # its leader epoch has to be raised first
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def hosted(self, topic: Topic, index: int) -> Replica:
        """As `replica`, of a partition that this node leads or follows."""
        replica = self._replicas.get((topic.id.int, index))
        if replica is not None:
            if replica.log.offline is not None:
                raise StorageError(replica.log.offline)
            return replica
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if self._context.node_id not in topic.partitions[index].replicas:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._open(topic, index)

    def has_log(self, name: str, index: int) -> bool:
        """Return True if this node has stored a log of a partition, opened or not."""
        return (name, index) in self.logs

    def opened_replica(self, topic: Topic, index: int) -> Replica | None:
        """The replica of a partition if its log is open."""
        return self._replicas.get((topic.id.int, index))

    def opened(self) -> list[Replica]:
        """The replicas whose logs are open."""
        return list(self._replicas.values())

    def named_replica(self, name: str, index: int) -> Replica:
        """As `replica`, by topic name."""
        return self.replica(self._named_topic(name), index)

    def named_hosted(self, name: str, index: int) -> Replica:
        """As `hosted`, by topic name."""
        return self.hosted(self._named_topic(name), index)

    def _named_topic(self, name: str) -> Topic:
        topic = self._context.cluster.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def nearer_replica(self, replica: Replica, rack: str, offset: int) -> int:
        """The node in `rack` from which a consumer should read on at `offset`; -1 for this one."""
        if replica.leader_state is None or self._context.config.rack == rack:
            return NO_NODE
        there = [
            (end, node_id)
            for node_id, end in replica.leader_state.readable_at(offset).items()
            if self._context.cluster.nodes[node_id].rack == rack
        ]
        return max(there)[1] if there else NO_NODE

    def why_offline(self, topic: str, index: int) -> str | None:
        """Why a partition that this node hosts cannot be served; None when it can."""
        try:
            self.named_hosted(topic, index)
        except KafkaError as error:
            return error.message or error.code.name
        return None

    def topic_config(self, topic: Topic) -> TopicConfig:
        """The settings of a topic over those of this node."""
        config = TopicConfig.stored(topic.configs, self._context.config)
        for reason in config.errors:
            text = f"a stored setting of topic {topic.name} is left out: {reason}"
            if self._context.error_log.is_new(text):
                logger.error("%s", text)
        return config

    def _settings_of(self, topic: Topic) -> tuple[TopicConfig, LogConfig]:
        """The settings of a topic and of its logs, which all its partitions share."""
        known = self._settings.get(topic.id.int)
        if known is None:
            config = self.topic_config(topic)
            known = self._settings[topic.id.int] = config, log_config(config)
        return known

    # -- opening, and roles

    async def open_all(self) -> None:
        """Open every log on disk: to check it soon after a crash, and to apply retention to it."""
        duty_cycle = DutyCycle()
        for name, index in self.logs.directories():
            with contextlib.suppress(KafkaError):
                self.named_hosted(name, index)
            await duty_cycle.pause()

    def _open(self, topic: Topic, index: int) -> Replica:
        config, of_log = self._settings_of(topic)
        try:
            log = self._opening.open(topic, index, of_log, now_ms=self._context.clock.log_ms())
        except StorageError as error:
            self.report_storage_error(topic, index, error)
            raise
        self.note_when_offline(log)
        replica = Replica(
            topic, topic.partitions[index], log, config, self.flusher, self._append_refused
        )
        self._replicas[topic.id.int, index] = replica
        if self.leads(replica.partition):
            self._lead(replica, replica.partition)
        self.flusher.opened(replica)
        return replica

    def set_strays_aside(self) -> None:
        """Set the directories aside of partitions that the metadata does not place on this node.

        A directory that belongs to another topic of the same name is set aside when it is opened.
        """
        self._opening.set_strays_aside()

    def _append_refused(self, replica: Replica, error: StorageError) -> None:
        if isinstance(error, WriteRefusedError):
            self.when_refused(replica, error)
        else:
            self.report_storage_error(replica.topic, replica.index, error)

    def registered(self, epoch: BrokerEpoch) -> None:
        """Lead under another registration from now on; with NO_EPOCH, begin to lead nothing.

        This node keeps leading the partitions that it led under its former registration until the
        metadata has another leader epoch: see `_still_leads`.
        """
        self.epoch = epoch
        for replica in self.opened():
            self._take_role(replica, replica.topic.partitions[replica.index])

    def _take_role(self, replica: Replica, partition: Partition) -> None:
        """Let a replica lead or follow, as the cluster and this node's registration say."""
        leads = self.leads(partition)
        is_same_term = partition.leader_epoch == replica.leader_epoch
        if is_same_term and leads == replica.is_leader:
            replica.follow_cluster(partition)
        elif is_same_term and self._still_leads(replica, partition):
            replica.keep_leading_unregistered(partition)
        elif leads:
            self._lead(replica, partition)
        else:
            replica.become_follower(partition)
        self._tell_if_unusable(replica)

    def _still_leads(self, replica: Replica, partition: Partition) -> bool:
        """Return True if this node lost its registration and the partition has no new leader yet.

        Batches that wait for followers stay in the log and may still be committed, by this node in its
        next leader epoch or by another leader. An error now would tell their producers that the batches
        are not stored. The leader appends new batches with acks=all only, like a leader whose lease may
        have expired (see `is_registered_leader`).
        """
        return replica.is_leader and self.awaits_new_leader(partition)

    def is_registered_leader(self, replica: Replica) -> bool:
        """Return True if this node still has the registration under which it leads a partition."""
        return replica.partition.leader_registration == self.epoch

    def _lead(self, replica: Replica, partition: Partition) -> None:
        """Let a replica lead, unless the metadata is older than its records."""
        latest = replica.log.epochs.latest
        if latest > partition.leader_epoch:
            replica.become_follower(partition)
            self.epoch_renewal.request(replica.topic, replica.index, latest)
            return
        replica.become_leader(
            LeaderState(
                partition,
                self._context.node_id,
                replica.log.log_end_offset,
                trio.current_time(),
                self._context.config.replica_lag_time_max_ms / 1000,
                eligible=self._may_be_in_sync,
            )
        )

    def _may_be_in_sync(self, node_id: int, broker_epoch: BrokerEpoch) -> bool:
        """Whether a node is in the cluster under this registration, and not fenced (KIP-841)."""
        registration = self._context.cluster.registration(node_id)
        return (
            registration is not None and registration.ready and registration.epoch == broker_epoch
        )

    # -- what has changed

    def topics_changed(self, event: TopicsChanged) -> None:
        """Take the roles that the cluster gives, and let go of what is here no longer."""
        self._note_topics(event)
        for topic in event.deleted:
            self._settings.pop(topic.id.int, None)
            self._drop(topic, range(len(topic.partitions)), deleted=True)
        for change in event.partitions:
            replica = self._replicas.get((change.topic.id.int, change.after.index))
            if replica is not None:
                self._take_role(replica, change.after)
        for topic in event.altered:
            self._configure(topic)
        for change in event.moved:
            if (
                self._context.node_id in change.before.replicas
                and self._context.node_id not in change.after.replicas
            ):
                self._drop(change.topic, [change.after.index], deleted=False)

    def settings_changed(self) -> None:
        """The settings of the node have changed, and with them the defaults of topics."""
        for topic in self._context.cluster.topics.values():
            self._configure(topic)

    def _configure(self, topic: Topic) -> None:
        self._settings.pop(topic.id.int, None)
        config, _ = self._settings_of(topic)
        for index in range(len(topic.partitions)):
            replica = self._replicas.get((topic.id.int, index))
            if replica is not None:
                replica.configure(config)

    def _drop(self, topic: Topic, indexes: Sequence[int], *, deleted: bool) -> None:
        """Let go of partitions that this node has no part in any more, and of their files."""
        for index in indexes:
            replica = self._replicas.pop((topic.id.int, index), None)
            if replica is not None:
                self.flusher.forget(replica)
                replica.close(deleted=deleted)
        try:
            kept = self.logs.delete_logs([(topic.name, index) for index in indexes], topic.id)
            if kept:
                logger.warning(
                    "directories of deleted partitions of topic %s held other topic ids or partitions "
                    "than the metadata says: %s. They are kept and not served; remove them if their "
                    "records are not needed",
                    topic.name,
                    some_of(kept),
                )
        except StorageError as error:
            if isinstance(error, SyncFailedError):
                self.sync_failed(error)
            logger.error(
                "files of topic %s stay until the next start: %s", topic.name, error.message
            )
        self.empty_trash_soon()

    def empty_trash_soon(self) -> None:
        """Let go of files that nobody needs any more."""
        if self._context.in_memory:
            self.logs.empty_trash()  # at once: a full memory waits for it
        else:
            self.trash.set()

    # -- what happened to a partition

    def _note_topics(self, event: TopicsChanged) -> None:
        named = {"created": event.created, "deleted": event.deleted, "changed": event.changed}
        for what, topics in named.items():
            for topic in topics:
                self.note(topic.name, None, f"topic {topic.name} {what}: {event.cause}")
        for change in event.moved:
            text = f"{change_of(change)}: {event.cause}"
            self.note(change.topic.name, change.after.index, text)

    def note(self, topic: str, index: int | None, text: str) -> None:
        """Remember what happened to a partition, or with None to all of a topic, and why."""
        self.history.note((topic, index), Line(self._context.clock.log_ms(), text))

    def note_when_offline(self, log: Log) -> None:
        """Remember when and why a log of this node goes offline."""
        log.when_offline = self._note_offline

    def _note_offline(self, log: Log) -> None:
        self.note(log.topic, log.partition, f"offline because {log.offline}")
        topic = self._context.cluster.topics.get(log.topic)
        replica = None if topic is None else self._replicas.get((topic.id.int, log.partition))
        # What fails in a thread is told by whoever waits for the thread.
        if replica is not None and trio.lowlevel.in_trio_task():
            self._tell_if_unusable(replica)

    def _tell_if_unusable(self, replica: Replica) -> None:
        # A node that stops in order keeps its place in sync.
        if replica.log.offline is not None and not replica.closed:
            self.when_unusable(replica.topic, replica.index)

    @contextlib.contextmanager
    def storage_errors_reported(self, replica: HostedPartition) -> Iterator[None]:
        """Report storage errors of work on a replica.

        Every reader of stored records uses this context manager or `report_storage_error`, so that
        an unreadable file takes the replica offline whoever finds it.

        Raises:
            StorageError: As raised by the work, after it is reported.
        """
        try:
            yield
        except StorageError as error:
            if not replica.closed:
                self.report_storage_error(replica.topic, replica.index, error)
            raise

    def report_storage_error(self, topic: Topic, index: int, error: StorageError) -> None:
        """Log once why a partition cannot be opened, read or appended to.

        If one of its files does not return the bytes that were written, the replica goes offline.
        """
        if isinstance(error, SyncFailedError):
            self.sync_failed(error)
            return
        is_refusal = isinstance(error, WriteRefusedError)
        if is_refusal and self.logs.refusal(topic.name, index) is not None:
            return  # that was said of the whole directory
        log = self.logs.get(topic.name, index)
        if log is not None and isinstance(error, LostBytesError) and error.is_below(log.directory):
            log.fail(error.message or str(error))
        is_offline = log is None or log.offline is not None
        if self._context.error_log.is_new(str(error)):
            logger.error("partition %s-%d: %s", topic.name, index, error.message)
            known = self.history.of((topic.name, index))
            if not known or str(error.message) not in known[-1].text:
                self.note(topic.name, index, f"refused because {error.message}")
        if is_offline:
            replica = self.opened_replica(topic, index)
            if replica is not None:
                replica.log_failed()
            self.when_unusable(topic, index)

    def report_lost_bytes(self, error: LostBytesError) -> None:
        """Take the partition offline to which a file belongs; files of other directories are ignored."""
        for replica in self.opened():
            if error.is_below(replica.log.directory):
                self.report_storage_error(replica.topic, replica.index, error)

    def sync_failed(self, error: SyncFailedError) -> None:
        """Take the directory offline in which an fsync failed, and fail all waiters of its logs."""
        self.logs.fail_at(error)
        for replica in self.opened():
            if replica.log.offline is not None and not replica.closed:
                replica.commits.fail()
                replica.writes.fail()
                self._tell_if_unusable(replica)
        if self._context.error_log.is_new(str(error)):
            logger.error(DIRECTORY_IS_OFFLINE, error.message)

    # -- the end

    def wake_fetches(self) -> None:
        """Answer the fetches that wait for records."""
        for replica in self._replicas.values():
            replica.wake()

    def close(self) -> None:
        """Nobody appends or reads any more; the logs are closed by whoever has opened them."""
        for replica in self._replicas.values():
            replica.close(deleted=False)
