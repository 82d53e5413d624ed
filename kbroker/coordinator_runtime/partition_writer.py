"""Partition operations that coordinators need, like Kafka's `PartitionWriter`.

`kbroker.partitions` implements these protocols. Tests of coordinators use in-memory partitions.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from kbroker.cluster import Partition, Topic
from kbroker.partitions.waiters import CommitWaiters
from kbroker.protocol.records import BatchHeader
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerStates
from kbroker.storage.segment import Slice


class StoredSize(Protocol):
    """Segments of a log."""

    @property
    def size(self) -> int:
        """Total bytes of the segments."""
        ...


class LeaderLog(Protocol):
    """The log of a partition that this node leads."""

    @property
    def log_start_offset(self) -> int:
        """First offset of the log."""
        ...

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        ...

    @property
    def high_watermark(self) -> int:
        """Offset before which all records are committed."""
        ...

    @property
    def config(self) -> LogConfig:
        """Settings of the log, for example the maximum size of a batch."""
        ...

    @property
    def producers(self) -> ProducerStates:
        """Open transactions and sequence numbers of producers."""
        ...

    @property
    def segments(self) -> StoredSize:
        """Segments of the log."""
        ...

    def read(self, offset: int, max_bytes: int, *, limit: int) -> Slice:
        """Read whole batches, beginning with the batch that contains `offset`.

        Args:
            offset: First offset to read.
            max_bytes: Maximum size in bytes; the first batch may be larger.
            limit: Offset at which to stop.

        Raises:
            KafkaError: The offset is outside the log, or the log cannot be read.
        """
        ...


class LeaderReplica(Protocol):
    """A partition that this node leads, or has led."""

    @property
    def topic(self) -> Topic:
        """The topic in the metadata."""
        ...

    @property
    def index(self) -> int:
        """Partition number."""
        ...

    @property
    def partition(self) -> Partition:
        """The partition in the metadata."""
        ...

    @property
    def log(self) -> LeaderLog:
        """The log with the records."""
        ...

    @property
    def commits(self) -> CommitWaiters:
        """Waiters for the high watermark. They fail if this node loses the leadership."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch."""
        ...

    @property
    def term(self) -> int:
        """A number that changes with the leader, the leader epoch or the role of this node."""
        ...

    @property
    def is_leader(self) -> bool:
        """True while this node leads the partition."""
        ...

    @property
    def closed(self) -> bool:
        """True if this node no longer serves the partition."""
        ...

    @property
    def is_high_watermark_current(self) -> bool:
        """True if the high watermark includes all that earlier leaders committed."""
        ...

    def check_enough_in_sync(self) -> None:
        """Check that enough replicas are in sync for acks=all.

        Raises:
            KafkaError: NOT_ENOUGH_REPLICAS.
        """
        ...

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> object:
        """Append a batch.

        Args:
            batch: Encoded batch.
            header: Header of the batch.
            now_ms: Current time in ms since 1970.

        Raises:
            KafkaError: The batch was not appended.
        """
        ...

    def delete_records_before(self, offset: int) -> None:
        """Move the start of the log to `offset`."""
        ...


class PartitionWriter(Protocol):
    """The partitions of a node, as coordinators use them."""

    def leads(self, partition: Partition) -> bool:
        """Return True if this node was elected leader since it registered."""
        ...

    def has_log(self, name: str, index: int) -> bool:
        """Return True if this node has stored a log of a partition, opened or not."""
        ...

    def replica(self, topic: Topic, index: int) -> LeaderReplica:
        """Return a partition that this node leads.

        Raises:
            KafkaError: This node does not lead it, or its log is offline.
        """
        ...

    def named_replica(self, name: str, index: int) -> LeaderReplica:
        """Return a partition that this node leads, by topic name.

        Raises:
            KafkaError: The topic does not exist, this node does not lead the partition, or its log
                is offline.
        """
        ...

    def storage_errors_reported(self, replica: LeaderReplica) -> AbstractContextManager[None]:
        """Report storage errors of the block. A damaged file takes the replica offline.

        Raises:
            StorageError: Re-raised after the error was reported.
        """
        ...
