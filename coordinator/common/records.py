"""State to record: the records that operations ask to append (`replay` is the way back)."""

from __future__ import annotations

from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    encode_key,
    encode_value,
)

from .result import CoordinatorRecord


def offset_record(
    group_id: str, topic: str, partition: int, value: OffsetCommitValue
) -> CoordinatorRecord:
    """A committed offset."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), encode_value(value))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """A committed offset is gone."""
    return CoordinatorRecord(_offset_key(group_id, topic, partition), None)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """A group is gone."""
    return CoordinatorRecord(encode_key(GroupMetadataKey(group=group_id)), None)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return encode_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition))
