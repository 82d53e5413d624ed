"""Which partition of an internal topic keeps what."""

from __future__ import annotations

from collections.abc import Iterable


def hash_partition(key: str, partitions: int) -> int:
    """The partition for a group or a transactional id: by Java's hash of the string, as Kafka.

    Parameters: `partitions` is how many the internal topic has.
    """
    hash_code = 0
    for unit in _utf_16(key):
        hash_code = (31 * hash_code + unit) & 0xFFFFFFFF
    if hash_code >= 1 << 31:  # negative in Java, where the least int has no absolute value
        hash_code = ((1 << 32) - hash_code) & 0x7FFFFFFF
    return hash_code % partitions


def _utf_16(key: str) -> Iterable[int]:
    """The units that Java's strings have."""
    if key.isascii():
        return key.encode()
    units = key.encode("utf-16-be", "surrogatepass")
    return (high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True))
