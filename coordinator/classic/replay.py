"""Replay of the records of classic groups."""

from __future__ import annotations

from kbroker.protocol.group_metadata import (
    GroupMetadataValue,
)

from ..state import ShardState
from .group import ClassicGroup, ClassicGroupMember
from .group_state import EMPTY, STABLE


def replay_group(state: ShardState, group_id: str, value: GroupMetadataValue | None) -> None:
    """Replay the record of a group after a rebalance (value) or its deletion (None)."""
    if value is None:
        if state.find_group(group_id, ClassicGroup) is not None:
            del state.groups[group_id]
            state.memory.drop_group(group_id)
        return
    group = _get_or_create_group(state, group_id)
    group.stored = True
    group.state = STABLE if value.members else EMPTY
    group.state_since_ms = value.current_state_timestamp
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    group.protocol_name = value.protocol
    group.is_initial = False
    _replay_members(group, value)
    group.leader_id = value.leader


def _replay_members(group: ClassicGroup, value: GroupMetadataValue) -> None:
    before = dict(group.members)
    # A static member whose member ID has changed is still the same member.
    members = [_get_or_create_member(group, row, before) for row in value.members]
    for removed in before.values():
        group.remove_pending_join(removed)
        group.remove(removed)
    for member, row in zip(members, value.members, strict=True):
        offered = ((value.protocol or "", bytes(row.subscription)),)
        if member.id not in group.members:
            group.add(member, value.protocol_type, offered)
        elif member.id != row.member_id:
            group.rename(member, row.member_id)
        member.client_id = row.client_id
        member.client_host = row.client_host
        member.session_timeout_ms = row.session_timeout
        member.rebalance_timeout_ms = (
            row.session_timeout if row.rebalance_timeout < 0 else row.rebalance_timeout
        )
        member.assignment = bytes(row.assignment)
        if offered[0] not in member.protocols:
            group.set_protocols(member, offered)
    group.members = {member.id: member for member in members}  # in the order of the record
    group.keep_subscriptions()


def _get_or_create_member(
    group: ClassicGroup, row: GroupMetadataValue.Member, before: dict[str, ClassicGroupMember]
) -> ClassicGroupMember:
    """Return the existing member of a row, removed from `before`, or a new member."""
    member_id: str | None = row.member_id
    if member_id not in before and row.group_instance_id is not None:
        member_id = group.static_ids.get(row.group_instance_id)
    if member_id in before:
        return before.pop(member_id)
    return ClassicGroupMember(row.member_id, row.group_instance_id, row.client_id, row.client_host)


def _get_or_create_group(state: ShardState, group_id: str) -> ClassicGroup:
    group = state.find_group(group_id, ClassicGroup)
    if group is None:
        group = state.add_group(ClassicGroup(group_id, state.memory))
    return group
