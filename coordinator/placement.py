"""Which partition of an internal topic keeps what."""

from __future__ import annotations


def hash_partition(key: str, partitions: int) -> int:
    """The partition for a group or a transactional id: by Java's hash of the string, as Kafka.

    Parameters: `partitions` is how many the internal topic has.
    """
    hash_code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hash_code = (31 * hash_code + (high << 8 | low)) & 0xFFFFFFFF
    if hash_code >= 1 << 31:  # negative in Java, where the least int has no absolute value
        hash_code = ((1 << 32) - hash_code) & 0x7FFFFFFF
    return hash_code % partitions
