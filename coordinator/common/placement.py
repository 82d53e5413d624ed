"""Partitioning of the internal topics."""

from __future__ import annotations

from collections.abc import Iterable


def hash_partition(key: str, partitions: int) -> int:
    """Return the partition of an internal topic for a group ID or a transactional ID.

    The hash is Java's `String.hashCode`, as in Apache Kafka.

    Args:
        key: Group ID or transactional ID.
        partitions: Number of partitions of the internal topic.
    """
    hash_code = 0
    for unit in _utf_16(key):
        hash_code = (31 * hash_code + unit) & 0xFFFFFFFF
    if hash_code >= 1 << 31:  # negative in Java; Math.abs(Integer.MIN_VALUE) is masked to 0
        hash_code = ((1 << 32) - hash_code) & 0x7FFFFFFF
    return hash_code % partitions


def _utf_16(key: str) -> Iterable[int]:
    """Return the UTF-16 code units of a string, as Java stores them."""
    if key.isascii():
        return key.encode()
    units = key.encode("utf-16-be", "surrogatepass")
    return (high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True))
