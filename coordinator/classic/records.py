"""Records of classic groups. `replay` is the counterpart."""

from __future__ import annotations

from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
)

from ..common.record import CoordinatorRecord
from .group import ClassicGroup, ClassicGroupMember


def group_record(group_id: str, value: GroupMetadataValue) -> CoordinatorRecord:
    """Return the record of a group after a rebalance."""
    return CoordinatorRecord(GroupMetadataKey(group=group_id), value)


def group_value(
    group: ClassicGroup, assignments: dict[str, bytes], at_ms: int
) -> GroupMetadataValue:
    """Return the value of the group record for the current generation.

    Args:
        group: The group.
        assignments: Assignments by member ID. A member without an entry gets an empty assignment.
        at_ms: Current time in ms since 1970.
    """
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=at_ms,
        members=[
            _member_row(member, group.protocol_name, assignments.get(member.id, b""))
            for member in group.members.values()
        ],
    )


def emptied_value(group: ClassicGroup, at_ms: int) -> GroupMetadataValue:
    """Return the group record after the last member left; this increments the generation."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation + 1,
        protocol=None,
        leader=None,
        current_state_timestamp=at_ms,
        members=[],
    )


def _member_row(
    member: ClassicGroupMember, protocol: str | None, assignment: bytes
) -> GroupMetadataValue.Member:
    return GroupMetadataValue.Member(
        member_id=member.id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )
