"""Opens the logs of a node, and moves directories aside that do not match the metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from kbroker.cluster import Cluster, Topic
from kbroker.coordinator import some_of
from kbroker.storage.directories import LogDirectories
from kbroker.storage.errors import ForeignLogError, StorageError
from kbroker.storage.log import Log
from kbroker.storage.log_config import LogConfig
from kbroker.storage.naming import directory_name

logger = logging.getLogger(__name__)


class LogOpening:
    """Opens the logs of one node. The directory of another topic is moved aside, never deleted.

    Args:
        cluster: The metadata.
        logs: The log directories of the node.
        node_id: ID of the node.
        record_event: Records an event of a partition: topic name, partition number, text.
    """

    def __init__(
        self,
        cluster: Cluster,
        logs: LogDirectories,
        node_id: int,
        record_event: Callable[[str, int | None, str], None],
    ) -> None:
        self._cluster = cluster
        self._logs = logs
        self._node_id = node_id
        self._record_event = record_event
        # Partitions whose directories this process moved aside, by topic ID and number.
        self._began_empty: set[tuple[UUID, int]] = set()

    def open(self, topic: Topic, index: int, config: LogConfig, *, now_ms: int) -> Log:
        """Open the log of a partition.

        If the directory holds a topic that is not in the metadata, move it aside, as Kafka does
        with stray replicas, and create an empty log.

        Args:
            topic: The topic in the metadata.
            index: Partition number.
            config: Settings of the log.
            now_ms: Log clock, in milliseconds.

        Returns:
            The open log.

        Raises:
            StorageError: The log cannot be opened, the directory belongs to another partition of
                this cluster, or the new log would be empty although this node is in the ISR.
        """
        if (topic.id, index) in self._began_empty:
            self._check_may_begin_empty(topic, index)
        try:
            return self._logs.open_log(topic.name, topic.id, index, config, now_ms=now_ms)
        except ForeignLogError as error:
            self._check_misplaced(error)
            self._move_aside(topic, index, error)
            self._check_may_begin_empty(topic, index)
            return self._logs.open_log(topic.name, topic.id, index, config, now_ms=now_ms)

    def move_strays_aside(self) -> None:
        """Move directories aside whose partitions the metadata does not assign to this node.

        The topic does not exist, has fewer partitions, or has no replica on this node.
        """
        strays = [
            key
            for key in self._logs.directories()
            if not self._is_placed_here(*key) and self._logs.is_directory(key)
        ]
        try:
            kept = self._logs.move_aside(strays)
        except StorageError:  # one directory cannot be renamed: move the others nevertheless
            kept = [directory for key in strays for directory in self._move_one_aside(key)]
        if kept:
            logger.warning(
                "directories of partitions that the cluster metadata does not assign to node %d are kept "
                "but not served: %s. If the metadata is an older backup, stop the server and restore the "
                "newest one; otherwise remove the directories when their records are not needed",
                self._node_id,
                some_of(kept),
            )

    def _is_placed_here(self, name: str, index: int) -> bool:
        partition = self._cluster.partition(name, index)
        return partition is not None and self._node_id in partition.replicas

    def _move_one_aside(self, key: tuple[str, int]) -> list[str]:
        try:
            return self._logs.move_aside([key])
        except StorageError as error:
            name = directory_name(*key)
            logger.error(
                "%s: the directory belongs to no partition of this node, but cannot be moved aside: %s; it "
                "is not served; move it away",
                name,
                error.message,
            )
            return []

    def _move_aside(self, topic: Topic, index: int, error: ForeignLogError) -> None:
        directories = self._logs.move_aside([(topic.name, index)])
        self._began_empty.add((topic.id, index))
        logger.warning(
            "partition %s-%d starts empty: %s. The records are kept in %s but not served. If the metadata "
            "is an older backup, stop the server and restore the newest one; if the directory was put "
            "there by mistake, restore the right one; otherwise remove the kept directory",
            topic.name,
            index,
            error.message,
            " and ".join(directories),
        )
        self._record_event(topic.name, index, f"starts empty: {error.message}")

    def _check_misplaced(self, error: ForeignLogError) -> None:
        """Raise StorageError if the directory belongs to another partition of this cluster."""
        held = self._cluster.topics_by_id.get(error.topic_id)
        if held is None:
            return
        name = held.name if error.partition is None else f"{held.name}-{error.partition}"
        raise StorageError(
            f"{error.message}: it is the directory of {name}. The partition is offline and the directory "
            "is unchanged; stop the server and rename the directories of this node's partitions to their "
            f"right names, or move {error.directory} away"
        ) from error

    def _check_may_begin_empty(self, topic: Topic, index: int) -> None:
        """Raise StorageError if this node is in the ISR of a partition with other replicas.

        A leader with an empty log would make its followers truncate theirs.
        """
        partition = topic.partitions[index]
        if len(partition.replicas) > 1 and self._node_id in partition.isr:
            raise StorageError(
                f"{topic.name}-{index} would start empty on node {self._node_id}, which is in the ISR; it "
                "is offline here until another replica leads. If no other replica is in the ISR, restore "
                "the directory, or set unclean.leader.election.enable=true to elect a replica that may "
                "lack records"
            )
