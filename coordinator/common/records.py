"""Records of committed offsets, and the tombstone of a classic group."""

from __future__ import annotations

from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)

from .record import CoordinatorRecord


def offset_record(
    group_id: str, topic: str, partition: int, value: OffsetCommitValue
) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), value)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), None)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that deletes a classic group."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def _offset_key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)
