"""The state of one shard: what its partition of `__consumer_offsets` says, and what is volatile."""

from __future__ import annotations

from typing import TypeAlias

from kbroker.protocol.group_metadata import OffsetCommitValue

from .group import Group

GroupOffsets: TypeAlias = dict[tuple[str, int], OffsetCommitValue]
"""Committed offsets of one group by (topic, partition)."""


class ShardState:
    """Groups and committed offsets. Both are written by `replay`.

    The volatile part of a group (see `Group`) is changed in place by the operations. A group that
    has offsets is always in `groups`; one without members that was only ever used for offsets is
    called simple and has no protocol type.
    """

    __slots__ = ("groups", "offsets")

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, GroupOffsets] = {}
