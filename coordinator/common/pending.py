"""Pending offsets: committed in transactions that are still open (KIP-98)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple, TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

from .memory import OFFSET_BYTES, ShardMemory, group_bytes, offset_bytes

# Topic name and partition index.
TopicPartition: TypeAlias = tuple[str, int]


class CommittedOffset(NamedTuple):
    """An offset that became visible because its transaction was committed."""

    group_id: str
    topic_partition: TopicPartition
    value: OffsetCommitValue


class PendingTransactionalOffsets:
    """Pending transactional offsets of one shard, by group, partition and producer ID.

    The offsets of one partition are kept in log order. The log order decides which offset remains,
    not the order in which the transactions end (KAFKA-5600). An offset is *superseded* when an
    offset that was written later becomes visible first. A superseded offset stays as None until its
    own transaction ends, because the partition is not stable until then.
    """

    __slots__ = ("_groups", "_memory", "_producers")

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._groups: dict[str, dict[TopicPartition, dict[int, OffsetCommitValue | None]]] = {}
        self._producers: dict[int, dict[str, dict[TopicPartition, None]]] = {}

    def add(
        self,
        producer_id: int,
        group_id: str,
        topic_partition: TopicPartition,
        value: OffsetCommitValue,
    ) -> None:
        """Add an offset of a producer, replacing an earlier one of the same producer."""
        topic_partitions = self._groups.get(group_id)
        if topic_partitions is None:
            topic_partitions = self._groups[group_id] = {}
            self._memory.change_offsets(group_bytes(group_id))
        pending = topic_partitions.setdefault(topic_partition, {})
        if producer_id in pending:  # append it again at the end
            self._memory.change_offsets(-_bytes(topic_partition, pending.pop(producer_id)))
        pending[producer_id] = value
        self._memory.change_offsets(_bytes(topic_partition, value))
        self._producers.setdefault(producer_id, {}).setdefault(group_id, {})[topic_partition] = None

    def supersede(self, group_id: str, topic_partition: TopicPartition) -> None:
        """Mark the pending offsets of a partition as superseded by a non-transactional commit."""
        pending = self._groups.get(group_id, {}).get(topic_partition, {})
        for producer_id in pending:
            self._supersede(pending, producer_id, topic_partition)

    def _supersede(
        self,
        pending: dict[int, OffsetCommitValue | None],
        producer_id: int,
        topic_partition: TopicPartition,
    ) -> None:
        self._memory.change_offsets(
            _bytes(topic_partition, None) - _bytes(topic_partition, pending[producer_id])
        )
        pending[producer_id] = None

    def size_of(self, producer_id: int, group_id: str, topic_partition: TopicPartition) -> int:
        """Return the bytes of a producer's pending offset, or 0 if there is none."""
        pending = self._groups.get(group_id, {}).get(topic_partition, {})
        return _bytes(topic_partition, pending[producer_id]) if producer_id in pending else 0

    def drop(self, group_id: str, topic_partition: TopicPartition) -> None:
        """Delete all pending offsets of a partition."""
        pending = self._groups.get(group_id, {}).get(topic_partition, {})
        for producer_id in tuple(pending):
            self._remove(producer_id, group_id, topic_partition)
            groups = self._producers.get(producer_id, {})
            groups.get(group_id, {}).pop(
                topic_partition, None
            )  # absent while its transaction is ending
            if group_id in groups and not groups[group_id]:
                del groups[group_id]
            if not groups:
                self._producers.pop(producer_id, None)

    def groups(self, producer_id: int) -> Collection[str]:
        """Return the groups in which a producer has pending offsets."""
        return self._producers.get(producer_id, {}).keys()

    def end(self, producer_id: int, *, commit: bool) -> Iterator[CommittedOffset | None]:
        """End the transaction of a producer.

        Offsets that the producer writes after this call belong to its next transaction. The caller
        must exhaust the iterator before the producer writes to one of these groups again.

        Args:
            producer_id: Producer whose transaction ended.
            commit: True to make the offsets visible, False to drop them.

        Yields:
            Each offset that becomes visible, or None for an offset that does not. There may be
            many offsets: consume the iterator in pieces.
        """
        return self._end(producer_id, self._producers.pop(producer_id, {}), commit=commit)

    def _end(
        self, producer_id: int, groups: dict[str, dict[TopicPartition, None]], *, commit: bool
    ) -> Iterator[CommittedOffset | None]:
        for group_id, topic_partitions in groups.items():
            while topic_partitions:  # release one at a time: freeing many at once takes long
                topic_partition = topic_partitions.popitem()[0]
                pending = self._groups.get(group_id, {}).get(topic_partition, {})
                if producer_id not in pending:
                    continue  # the offset was deleted in the meantime
                if commit:
                    self._supersede_before(producer_id, pending, topic_partition)
                value = self._remove(producer_id, group_id, topic_partition)
                yield (
                    CommittedOffset(group_id, topic_partition, value)
                    if commit and value is not None
                    else None
                )

    def _supersede_before(
        self,
        producer_id: int,
        pending: dict[int, OffsetCommitValue | None],
        topic_partition: TopicPartition,
    ) -> None:
        for other in pending:
            if other == producer_id:
                return
            self._supersede(pending, other, topic_partition)

    def _remove(
        self, producer_id: int, group_id: str, topic_partition: TopicPartition
    ) -> OffsetCommitValue | None:
        topic_partitions = self._groups[group_id]
        pending = topic_partitions[topic_partition]
        value = pending.pop(producer_id)
        self._memory.change_offsets(-_bytes(topic_partition, value))
        if not pending:
            del topic_partitions[topic_partition]
        if not topic_partitions:
            del self._groups[group_id]
            self._memory.change_offsets(-group_bytes(group_id))
        return value

    def values(self, group_id: str, topic_partition: TopicPartition) -> list[OffsetCommitValue]:
        """Return the pending offsets of one partition that may still become visible."""
        pending = self._groups.get(group_id, {}).get(topic_partition, {})
        return [value for value in pending.values() if value is not None]

    def topic_partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions in which a group has pending offsets."""
        return self._groups.get(group_id, {}).keys()

    def producers(self, group_id: str) -> list[int]:
        """Return the sorted IDs of the producers that have pending offsets in a group."""
        topic_partitions = self._groups.get(group_id, {}).values()
        return sorted({producer_id for pending in topic_partitions for producer_id in pending})


def _bytes(topic_partition: TopicPartition, value: OffsetCommitValue | None) -> int:
    """Return the bytes in memory of a pending offset; None is a superseded offset."""
    return OFFSET_BYTES if value is None else offset_bytes(topic_partition[0], value)
