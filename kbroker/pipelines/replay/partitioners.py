"""Choice of the target partition of a record."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache

from kbroker.client.errors import ClientError
from kbroker.client.partitioner import partition_of
from kbroker.protocol.records import Record

# Number of keys whose partition is cached; hashing a key takes longer than reading its record.
KNOWN_KEYS_MAX = 100_000

# Records by target partition.
RecordsByPartition = dict[int, list[Record]]
# Returns the target partition for a record and its source partition (None if unknown).
Partitioner = Callable[[int | None, Record], int]


class PartitionerName(StrEnum):
    """Partitioners; AUTO keeps partitions if the target has as many."""

    AUTO = "auto"
    KEEP = "keep"
    KEY = "key"


def keeps_partitions(partitioner: PartitionerName, source: int | None, target: int) -> bool:
    """Return True if records keep their partitions; `source` is None if its count is unknown."""
    if partitioner == PartitionerName.AUTO:
        return source in (None, target)
    return partitioner == PartitionerName.KEEP


def kept(count: int) -> Partitioner:
    """Return a partitioner that keeps partitions, or uses the key if the partition is unknown.

    It raises ClientError for a partition that the target of `count` partitions lacks.
    """
    other = by_key(count)

    def partitioner(partition: int | None, record: Record) -> int:
        if partition is None:
            return other(partition, record)
        if partition >= count:
            raise ClientError(
                f"a record has partition {partition}, but the target has {count} partitions; use "
                "`--partitioner key` to place records by their keys"
            )
        return partition

    return partitioner


def by_key(count: int) -> Partitioner:
    """Return a partitioner that places keys like Java's producer.

    Records without a key stay together by source partition, so that their order is kept. Records
    without key and partition are distributed evenly.
    """

    @lru_cache(KNOWN_KEYS_MAX)
    def of(key: bytes) -> int:
        return partition_of(key, count)

    def partitioner(partition: int | None, record: Record) -> int:
        if record.key is not None:
            return of(record.key)
        return (record.offset if partition is None else partition) % count

    return partitioner
