"""Tombstones of groups of all types."""

from __future__ import annotations

from .common.record import CoordinatorRecord
from .common.records import group_tombstone
from .consumer.group import ConsumerGroup
from .consumer.records import group_tombstones
from .share.group import ShareGroup
from .share.records import group_tombstones as share_group_tombstones
from .state import AnyGroup
from .streams.group import StreamsGroup
from .streams.records import streams_group_tombstones


def tombstones_of(group: AnyGroup) -> list[CoordinatorRecord]:
    """Return the records that delete a group and its members, without its offsets."""
    if isinstance(group, ConsumerGroup):
        return group_tombstones(group)
    if isinstance(group, StreamsGroup):
        return streams_group_tombstones(group)
    if isinstance(group, ShareGroup):
        return share_group_tombstones(group)
    return [group_tombstone(group.id)]
