"""Records of committed offsets, and the record that deletes a classic group."""

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
    """A committed offset."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), value)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """A committed offset is gone."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), None)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """A group is gone."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)


def _offset_key(group_id: str, topic: str, partition: int) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition)
