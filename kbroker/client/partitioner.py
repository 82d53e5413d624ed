"""Default partitioner, compatible with the Java producer (murmur2)."""

from __future__ import annotations

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit murmur2 hash of `data`, with Kafka's seed."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        value = value * _FACTOR & _MASK ^ word
    if length > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key in a topic with `count` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % count
