"""The partitioner chooses the same partitions as Java's producer."""

from __future__ import annotations

import pytest

from kbroker.client.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_kafkas_hash(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % (1 << 32)


def test_partitioner_uses_every_partition() -> None:
    assert {partition_of(b"%d" % i, 5) for i in range(100)} == set(range(5))
