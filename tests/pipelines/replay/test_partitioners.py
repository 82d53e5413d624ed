"""The choice of the target partition of a record."""

from __future__ import annotations

import pytest

from kbroker.client.errors import ClientError
from kbroker.client.partitioner import partition_of
from kbroker.pipelines.replay.partitioners import PartitionerName, by_key, keeps_partitions, kept
from kbroker.protocol.records import Record


@pytest.mark.parametrize(
    ("partitioner", "source", "target", "keeps"),
    [
        (PartitionerName.AUTO, 3, 3, True),
        (PartitionerName.AUTO, 3, 2, False),
        # Java's producer would choose other partitions for the keys.
        (PartitionerName.AUTO, 3, 4, False),
        (PartitionerName.AUTO, None, 4, True),
        (PartitionerName.KEEP, 3, 4, True),
        (PartitionerName.KEY, 3, 3, False),
    ],
)
def test_partitions_are_kept_if_counts_allow_it(
    partitioner: PartitionerName, source: int | None, target: int, keeps: bool
) -> None:
    assert keeps_partitions(partitioner, source, target) == keeps


def test_keep_partitioner_rejects_missing_partition() -> None:
    partitioner = kept(3)
    assert [partitioner(index, Record(b"k")) for index in range(3)] == [0, 1, 2]
    assert partitioner(None, Record(b"k")) == partition_of(b"k", 3)
    with pytest.raises(ClientError, match="--partitioner key"):
        partitioner(3, Record(b"k"))


def test_key_partitioner_matches_kafka_partitioner() -> None:
    partitioner = by_key(4)
    for key in (b"a", b"b", b"a long key", b""):
        assert partitioner(0, Record(key)) == partition_of(key, 4) == partitioner(9, Record(key))
    assert [partitioner(7, Record(None, offset=at)) for at in range(3)] == [3, 3, 3]
    assert [partitioner(None, Record(None, offset=at)) for at in range(5)] == [0, 1, 2, 3, 0]
