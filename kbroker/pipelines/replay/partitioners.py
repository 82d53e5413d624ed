"""Which partition of the target a record goes to."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache

from kbroker.client.errors import ClientError
from kbroker.client.partitioner import partition_of
from kbroker.protocol.records import Record

KNOWN_KEYS_MAX = 100_000
"""How many keys' partitions are kept: hashing one takes longer than reading its record."""

RecordsByPartition = dict[int, list[Record]]
"""Records by partition of the target."""
Partitioner = Callable[[int | None, Record], int]
"""The partition of the target for a record of a partition, which is None where it is not known."""


class PartitionerName(StrEnum):
    """How partitions are chosen; AUTO keeps them where the target has as many."""

    AUTO = "auto"
    KEEP = "keep"
    KEY = "key"


def keeps_partitions(partitioner: PartitionerName, source: int | None, target: int) -> bool:
    """Whether records keep their partitions; `source` is None where only reading tells how many."""
    if partitioner == PartitionerName.AUTO:
        return source in (None, target)
    return partitioner == PartitionerName.KEEP


def kept(count: int) -> Partitioner:
    """Each record keeps its partition; what has none goes by its key.

    The result raises ClientError for a partition that a target of `count` partitions has not.
    """
    other = by_key(count)

    def partitioner(partition: int | None, record: Record) -> int:
        if partition is None:
            return other(partition, record)
        if partition >= count:
            raise ClientError(
                f"a record is of partition {partition}, the target has {count} partitions; "
                "`--partitioner key` places records by their keys"
            )
        return partition

    return partitioner


def by_key(count: int) -> Partitioner:
    """Each record goes where Java's producer puts its key.

    Records without a key stay together by their partition, so that they keep their order; what has
    neither goes round.
    """

    @lru_cache(KNOWN_KEYS_MAX)
    def of(key: bytes) -> int:
        return partition_of(key, count)

    def partitioner(partition: int | None, record: Record) -> int:
        if record.key is not None:
            return of(record.key)
        return (record.offset if partition is None else partition) % count

    return partitioner
