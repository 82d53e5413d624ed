"""In-memory partitions that implement `kbroker.coordinator_runtime.partition_writer`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from kbroker.cluster import Cluster, Partition, Topic
from kbroker.coordinator_runtime.partition_writer import LeaderReplica
from kbroker.partitions.waiters import CommitWaiters
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.records import BatchHeader, placed
from kbroker.storage.log_config import LogConfig
from kbroker.storage.producer_state import ProducerStates
from kbroker.storage.segment import Slice


class LogInMemory:
    """A log without files."""

    def __init__(self) -> None:
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self.config = LogConfig()
        self.producers = ProducerStates()
        self._batches: list[tuple[int, int, bytes]] = []

    @property
    def segments(self) -> LogInMemory:
        """Return the log itself, because it has no segments."""
        return self

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(len(batch) for _, _, batch in self._batches)

    def append(self, batch: memoryview, header: BatchHeader, leader_epoch: int) -> None:
        """Append a batch at the end."""
        first = self.log_end_offset
        self.log_end_offset = first + header.last_offset_delta + 1
        data = b"".join(placed(batch, header, first, leader_epoch))
        self._batches.append((first, self.log_end_offset, data))

    def read(self, offset: int, max_bytes: int, *, limit: int) -> Slice:
        """Read one batch, so that each load takes several reads."""
        for first, end, batch in self._batches:
            if offset < end <= limit:
                return Slice(batch, first, end, len(batch))
        return Slice(b"", offset, offset, 0)

    def delete_records_before(self, offset: int) -> None:
        """Move the log start offset."""
        self.log_start_offset = offset
        self._batches = [each for each in self._batches if each[1] > offset]


class ReplicaInMemory:
    """A partition whose records are committed when a test requests it.

    Attributes:
        commits_at_once: True if each append moves the high watermark, as without followers.
        refusal: Error that appends raise, or None if they succeed.
    """

    def __init__(self, topic: Topic, index: int) -> None:
        self.topic, self.index = topic, index
        self.partition: Partition = topic.partitions[index]
        self.leader_epoch = self.partition.leader_epoch
        self.log = LogInMemory()
        self.commits = CommitWaiters()
        self.term = 0
        self.is_leader = self.is_high_watermark_current = True
        self.closed = False
        self.commits_at_once = True
        self.refusal: KafkaError | None = None

    def check_enough_in_sync(self) -> None:
        """Raise the refusal if it is NOT_ENOUGH_REPLICAS."""
        if self.refusal is not None and self.refusal.code == ErrorCode.NOT_ENOUGH_REPLICAS:
            raise self.refusal

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        """Append a batch, or raise the refusal."""
        if self.refusal is not None:
            raise self.refusal
        self.log.append(batch, header, self.leader_epoch)
        if self.commits_at_once:
            self.commit()

    def commit(self) -> None:
        """Move the high watermark to the log end offset."""
        self.log.high_watermark = self.log.log_end_offset
        self.commits.advance(self.log.high_watermark)

    def lose_leadership(self) -> None:
        """Become a follower: waiters for the high watermark fail."""
        self.is_leader = False
        self.term += 1
        self.commits.fail()

    def delete_records_before(self, offset: int) -> None:
        """Move the log start offset."""
        self.log.delete_records_before(offset)


class PartitionsInMemory:
    """All partitions of a cluster, led by one node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._replicas: dict[tuple[str, int], ReplicaInMemory] = {}

    def leads(self, partition: Partition) -> bool:
        """Return True: there is no other node."""
        return True

    def has_log(self, name: str, index: int) -> bool:
        """Return True if the partition was used."""
        return (name, index) in self._replicas

    def replica(self, topic: Topic, index: int) -> ReplicaInMemory:
        """Return a partition, which is created on first use."""
        found = self._replicas.get((topic.name, index))
        if found is None:
            found = self._replicas[topic.name, index] = ReplicaInMemory(topic, index)
        if not found.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found

    def named_replica(self, name: str, index: int) -> ReplicaInMemory:
        """Return a partition by topic name."""
        return self.replica(self._cluster.topics[name], index)

    def storage_errors_reported(self, replica: LeaderReplica) -> AbstractContextManager[None]:
        """Report nothing."""
        return nullcontext()
