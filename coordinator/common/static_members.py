"""Static members: members of consumer groups and streams groups that have an instance ID.

A static member that leaves with epoch -2 keeps its tasks or partitions until its session expires.
Until then, a member with the same instance ID can take them over.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from kbroker.protocol.errors import ErrorCode, KafkaError

from .modern_group import LEAVE_GROUP_STATIC_MEMBER_EPOCH


class StaticMember(Protocol):
    """A member that may have an instance ID."""

    @property
    def id(self) -> str: ...

    @property
    def instance_id(self) -> str | None: ...

    @property
    def epoch(self) -> int: ...


M = TypeVar("M", bound=StaticMember)


def has_left_temporarily(member: StaticMember) -> bool:
    """Return True if a static member has left temporarily."""
    return member.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH


def check_owner(known: M | None, member_id: str, instance_id: str) -> M:
    """Return the static member, if the sender of a request owns its instance ID.

    Args:
        known: Member with the instance ID, or None if it is unknown.
        member_id: Member ID of the sender.
        instance_id: Instance ID of the sender.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
    """
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known.id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{known.id}.",
        )
    return known


def check_released(known: StaticMember, member_id: str) -> None:
    """Check that the owner of an instance ID has left.

    Args:
        known: Member with the instance ID.
        member_id: Member ID of the member that joins with the same instance ID.

    Raises:
        KafkaError: UNRELEASED_INSTANCE_ID.
    """
    if not has_left_temporarily(known):
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {known.instance_id} cannot join the group "
            f"because the instance id is owned by {known.id} member.",
        )


def put_static(static_ids: dict[str, str], old: StaticMember | None, member: StaticMember) -> None:
    """Update the member IDs by instance ID after a member was added or updated."""
    if old is not None and old.instance_id != member.instance_id:
        drop_static(static_ids, old)
    if member.instance_id is not None:
        static_ids[member.instance_id] = member.id


def drop_static(static_ids: dict[str, str], member: StaticMember) -> None:
    """Update the member IDs by instance ID after a member was removed."""
    # A returning static member already has its instance ID registered under another member ID.
    if member.instance_id is not None and static_ids.get(member.instance_id) == member.id:
        del static_ids[member.instance_id]
