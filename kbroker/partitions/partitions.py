"""The partitions of one node: their logs, and their roles as leader or follower.

All components that work with replicas look them up here: clients' requests, replication,
coordinators, compaction, moves. They report problems of a log here. Other components subscribe to
these reports by callbacks, so that this module does not depend on them.
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
from .history import History, Line, describe_change
from .leader_state import LeaderState
from .log_opening import LogOpening
from .log_settings import log_config
from .replica import Replica

logger = logging.getLogger(__name__)


class HostedPartition(Protocol):
    """The attributes of a replica that a report of a storage error needs."""

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
    """The partitions that one node hosts.

    Attributes:
        epoch: Registration under which the node leads, `NO_EPOCH` before it is registered.
        checkpoint_lock: Held during a checkpoint; other tasks hold it to prevent checkpoints, and
            with them the deletion of files.
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
        self.checkpoint_lock = trio.Lock()
        # Set when there are files to delete.
        self.trash = trio.Event()
        # Events of each partition with their causes; with None, of all partitions of a topic.
        self.history: History[tuple[str, int | None], Line] = History()
        # Called, possibly repeatedly, with each partition whose log cannot be appended to.
        self.on_unusable: Callable[[Topic, int], None] = lambda topic, index: None
        # Called if the operating system rejects an append.
        self.on_write_rejected: Callable[[Replica, StorageError], None] = lambda replica, error: (
            None
        )
        # Settings of the topics that have partitions here, by integer value of the topic ID.
        self._settings: dict[int, tuple[TopicConfig, LogConfig]] = {}
        self.epoch_renewal = EpochRenewal(context.cluster)
        self._opening = LogOpening(context.cluster, logs, context.node_id, self.record_event)
        # By integer value of the topic ID, whose hash is faster than that of the ID, and index.
        self._replicas: dict[tuple[int, int], Replica] = {}
        flusher.on_sync_failed = lambda replica: self.on_unusable(replica.topic, replica.index)

    # -- look-ups

    def leads(self, partition: Partition) -> bool:
        """Return True if this node was elected to lead a partition under its registration."""
        return (
            partition.leader == self._context.node_id
            and partition.leader_registration == self.epoch
        )

    def awaits_new_leader(self, partition: Partition) -> bool:
        """Return True if this node lost the leadership and does not know the new leader yet."""
        return partition.leader == self._context.node_id and not self.leads(partition)

    def replica(self, topic: Topic, index: int) -> Replica:
        """Return the replica of a partition that this node leads; opens its log if necessary.

        Args:
            topic: The topic in the metadata.
            index: Partition number.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, or KAFKA_STORAGE_ERROR
                if the partition is offline.
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
        if replica.leader_state is None:  # the leader epoch has to be raised first
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def hosted(self, topic: Topic, index: int) -> Replica:
        """Return the replica of a partition that this node leads or follows; see `replica`."""
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
        """Return True if this node has a log of a partition on disk, open or not."""
        return (name, index) in self.logs

    def opened_replica(self, topic: Topic, index: int) -> Replica | None:
        """Return the replica of a partition if its log is open."""
        return self._replicas.get((topic.id.int, index))

    def opened(self) -> list[Replica]:
        """Return the replicas with open logs."""
        return list(self._replicas.values())

    def named_replica(self, name: str, index: int) -> Replica:
        """Return the leader replica of a partition by topic name; see `replica`."""
        return self.replica(self._named_topic(name), index)

    def named_hosted(self, name: str, index: int) -> Replica:
        """Return the replica of a partition by topic name; see `hosted`."""
        return self.hosted(self._named_topic(name), index)

    def _named_topic(self, name: str) -> Topic:
        topic = self._context.cluster.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def nearer_replica(self, replica: Replica, rack: str, offset: int) -> int:
        """Return the node in `rack` from which consumers should read `offset`; -1 for this node."""
        if replica.leader_state is None or self._context.config.rack == rack:
            return NO_NODE
        candidates = [
            (end, node_id)
            for node_id, end in replica.leader_state.readable_at(offset).items()
            if self._context.cluster.nodes[node_id].rack == rack
        ]
        return max(candidates)[1] if candidates else NO_NODE

    def offline_reason(self, topic: str, index: int) -> str | None:
        """Return the reason why a hosted partition cannot be served, or None."""
        try:
            self.named_hosted(topic, index)
        except KafkaError as error:
            return error.message or error.code.name
        return None

    def topic_config(self, topic: Topic) -> TopicConfig:
        """Return the settings of a topic, with the settings of this node as defaults."""
        config = TopicConfig.stored(topic.configs, self._context.config)
        for reason in config.errors:
            text = f"topic {topic.name}: ignoring an invalid stored setting: {reason}"
            if self._context.error_log.is_new(text):
                logger.error("%s", text)
        return config

    def _settings_of(self, topic: Topic) -> tuple[TopicConfig, LogConfig]:
        """Return the settings of a topic and of its logs, shared by all its partitions."""
        known = self._settings.get(topic.id.int)
        if known is None:
            config = self.topic_config(topic)
            known = self._settings[topic.id.int] = config, log_config(config)
        return known

    # -- opening and roles

    async def open_all(self) -> None:
        """Open every log on disk, to check it after a crash and to apply retention."""
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
        self.record_offline_events(log)
        replica = Replica(
            topic, topic.partitions[index], log, config, self.flusher, self._on_append_rejected
        )
        self._replicas[topic.id.int, index] = replica
        if self.leads(replica.partition):
            self._lead(replica, replica.partition)
        self.flusher.opened(replica)
        return replica

    def move_strays_aside(self) -> None:
        """Move the directories of partitions aside that the metadata does not assign to this node.

        A directory that belongs to another topic of the same name is moved aside when it is opened.
        """
        self._opening.move_strays_aside()

    def _on_append_rejected(self, replica: Replica, error: StorageError) -> None:
        if isinstance(error, WriteRefusedError):
            self.on_write_rejected(replica, error)
        else:
            self.report_storage_error(replica.topic, replica.index, error)

    def registered(self, epoch: BrokerEpoch) -> None:
        """Lead under a new registration; with NO_EPOCH, take no new leadership.

        The node keeps leading the partitions of its previous registration until their leader epochs
        change in the metadata: see `_still_leads`.
        """
        self.epoch = epoch
        for replica in self.opened():
            self._take_role(replica, replica.topic.partitions[replica.index])

    def _take_role(self, replica: Replica, partition: Partition) -> None:
        """Make a replica leader or follower, according to the metadata and the registration."""
        leads = self.leads(partition)
        is_same_term = partition.leader_epoch == replica.leader_epoch
        if is_same_term and leads == replica.is_leader:
            replica.update_partition(partition)
        elif is_same_term and self._still_leads(replica, partition):
            replica.keep_leading_unregistered(partition)
        elif leads:
            self._lead(replica, partition)
        else:
            replica.become_follower(partition)
        self._report_if_unusable(replica)

    def _still_leads(self, replica: Replica, partition: Partition) -> bool:
        """Return True if this node lost its registration and the partition has no new leader yet.

        Batches that wait for followers stay in the log and may still be committed, by this node in
        its next leader epoch or by another leader. An error now would tell their producers that the
        batches are not stored. The leader appends new batches with acks=all only, as if its lease
        may have expired (see `is_registered_leader`).
        """
        return replica.is_leader and self.awaits_new_leader(partition)

    def is_registered_leader(self, replica: Replica) -> bool:
        """Return True if this node still has the registration under which it leads a partition."""
        return replica.partition.leader_registration == self.epoch

    def _lead(self, replica: Replica, partition: Partition) -> None:
        """Make a replica the leader, unless the metadata is older than its records."""
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
        """Return True if a node has this registration and is not fenced (KIP-841)."""
        registration = self._context.cluster.registration(node_id)
        return (
            registration is not None and registration.ready and registration.epoch == broker_epoch
        )

    # -- metadata changes

    def topics_changed(self, event: TopicsChanged) -> None:
        """Apply changed roles and settings, and drop replicas that are no longer hosted."""
        self._record_topic_events(event)
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
        """Apply changed settings of the node, which are the defaults of topics."""
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
        """Close replicas that this node no longer hosts, and delete their files."""
        for index in indexes:
            replica = self._replicas.pop((topic.id.int, index), None)
            if replica is not None:
                self.flusher.forget(replica)
                replica.close(deleted=deleted)
        try:
            kept = self.logs.delete_logs([(topic.name, index) for index in indexes], topic.id)
            if kept:
                logger.warning(
                    "directories of deleted partitions of topic %s held other topic IDs or partitions than "
                    "the metadata has: %s. They are kept but not served; remove them if their records "
                    "are not needed",
                    topic.name,
                    some_of(kept),
                )
        except StorageError as error:
            if isinstance(error, SyncFailedError):
                self.sync_failed(error)
            logger.error(
                "topic %s: could not delete its files until the next start: %s",
                topic.name,
                error.message,
            )
        self.empty_trash_soon()

    def empty_trash_soon(self) -> None:
        """Delete unused files in the background; at once if the storage is in memory."""
        if self._context.in_memory:
            self.logs.empty_trash()  # the memory may be full
        else:
            self.trash.set()

    # -- events of partitions

    def _record_topic_events(self, event: TopicsChanged) -> None:
        named = {"created": event.created, "deleted": event.deleted, "changed": event.changed}
        for what, topics in named.items():
            for topic in topics:
                self.record_event(topic.name, None, f"topic {topic.name} {what}: {event.cause}")
        for change in event.moved:
            text = f"{describe_change(change)}: {event.cause}"
            self.record_event(change.topic.name, change.after.index, text)

    def record_event(self, topic: str, index: int | None, text: str) -> None:
        """Add an event to the history of a partition, or with None of a topic."""
        self.history.add((topic, index), Line(self._context.clock.log_ms(), text))

    def record_offline_events(self, log: Log) -> None:
        """Add an event to the history when a log goes offline."""
        log.on_offline = self._record_offline

    def _record_offline(self, log: Log) -> None:
        self.record_event(log.topic, log.partition, f"offline because {log.offline}")
        topic = self._context.cluster.topics.get(log.topic)
        replica = None if topic is None else self._replicas.get((topic.id.int, log.partition))
        # A failure in a thread is reported by the task that waits for the thread.
        if replica is not None and trio.lowlevel.in_trio_task():
            self._report_if_unusable(replica)

    def _report_if_unusable(self, replica: Replica) -> None:
        # A node in a controlled shutdown stays in the ISR.
        if replica.log.offline is not None and not replica.closed:
            self.on_unusable(replica.topic, replica.index)

    @contextlib.contextmanager
    def storage_errors_reported(self, replica: HostedPartition) -> Iterator[None]:
        """Report storage errors of work on a replica.

        Every reader of stored records uses this context manager or `report_storage_error`, so that
        an unreadable file takes the replica offline.

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
        if is_refusal and self.logs.read_only_reason(topic.name, index) is not None:
            return  # already reported for the whole directory
        log = self.logs.get(topic.name, index)
        if log is not None and isinstance(error, LostBytesError) and error.is_below(log.directory):
            log.fail(error.message or str(error))
        is_offline = log is None or log.offline is not None
        if self._context.error_log.is_new(str(error)):
            logger.error("partition %s-%d: %s", topic.name, index, error.message)
            known = self.history.of((topic.name, index))
            if not known or str(error.message) not in known[-1].text:
                self.record_event(topic.name, index, f"rejected because {error.message}")
        if is_offline:
            replica = self.opened_replica(topic, index)
            if replica is not None:
                replica.log_failed()
            self.on_unusable(topic, index)

    def report_lost_bytes(self, error: LostBytesError) -> None:
        """Take the partition of an unreadable file offline; ignore files of other directories."""
        for replica in self.opened():
            if error.is_below(replica.log.directory):
                self.report_storage_error(replica.topic, replica.index, error)

    def sync_failed(self, error: SyncFailedError) -> None:
        """Take the directory of a failed fsync offline, and fail all waiters of its logs."""
        self.logs.fail_directory_of(error)
        for replica in self.opened():
            if replica.log.offline is not None and not replica.closed:
                replica.commits.fail()
                replica.writes.fail()
                self._report_if_unusable(replica)
        if self._context.error_log.is_new(str(error)):
            logger.error(DIRECTORY_IS_OFFLINE, error.message)

    # -- shutdown

    def wake_fetches(self) -> None:
        """Complete all pending fetches."""
        for replica in self._replicas.values():
            replica.wake()

    def close(self) -> None:
        """Close all replicas; the owner of the logs closes the logs."""
        for replica in self._replicas.values():
            replica.close(deleted=False)
