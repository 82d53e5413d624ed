"""Validation of offset commits and fetches of consumer groups (KIP-848, KIP-1251).

A commit with the current member epoch is accepted. A commit with an older epoch is accepted for
partitions that the member has had since that epoch. No other member can have read them in between,
and the member may not know of its new epoch yet.
"""

from __future__ import annotations

from uuid import UUID

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

from ..common.offset_checks import (
    FIRST_TXN_VERSION_OF_IDS,
    FIRST_VERSION_WITH_MEMBER_EPOCHS,
    CommitCheck,
    uniform_check,
)
from .group import ConsumerGroup, ConsumerGroupMember


def committer_check(
    group: ConsumerGroup, request: OffsetCommitRequest, version: int
) -> CommitCheck:
    """Return the check for a commit by the sender."""
    if request.generation_id_or_member_epoch < 0 and not group.members:
        return uniform_check(ErrorCode.NONE)
    member = group.members.get(request.member_id)
    if member is None:
        return uniform_check(ErrorCode.UNKNOWN_MEMBER_ID)
    if member.classic is None and version < FIRST_VERSION_WITH_MEMBER_EPOCHS:
        return uniform_check(ErrorCode.UNSUPPORTED_VERSION)
    return _epoch_check(member, request.generation_id_or_member_epoch, _stale_epoch_error(member))


def transactional_committer_check(
    group: ConsumerGroup, request: OffsetCommitRequest, version: int
) -> CommitCheck:
    """Return the check for a transactional commit by the sender.

    Requests of older clients have no member ID, so the member is not checked: the transaction
    already fences its producers.
    """
    epoch = request.generation_id_or_member_epoch
    names_member = bool(request.member_id) or request.group_instance_id is not None
    if epoch < 0 and (not group.members or (epoch == -1 and not names_member)):
        return uniform_check(ErrorCode.NONE)
    member = group.members.get(request.member_id)
    if member is None:
        return uniform_check(ErrorCode.UNKNOWN_MEMBER_ID)
    if version < FIRST_TXN_VERSION_OF_IDS:
        return _epoch_check(member, epoch, ErrorCode.ILLEGAL_GENERATION)
    return _epoch_check(member, epoch, _stale_epoch_error(member))


def fetcher_error(group: ConsumerGroup, request: OffsetFetchRequest.Group) -> ErrorCode:
    """Return the error for an OffsetFetch. Only requests with a member ID are checked."""
    if request.member_id is None and request.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.member_epoch == member.epoch else _stale_epoch_error(member)


def _stale_epoch_error(member: ConsumerGroupMember) -> ErrorCode:
    if member.classic is None:
        return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.ILLEGAL_GENERATION


def _epoch_check(member: ConsumerGroupMember, epoch: int, stale: ErrorCode) -> CommitCheck:
    if epoch == member.epoch:
        return uniform_check(ErrorCode.NONE)
    if epoch > member.epoch:
        return uniform_check(stale)

    def check(topic: str, topic_id: UUID, partition: int) -> ErrorCode:
        assigned_in_epoch = member.assigned_in_epoch(topic_id, partition)
        return stale if assigned_in_epoch is None or epoch < assigned_in_epoch else ErrorCode.NONE

    return CommitCheck(ErrorCode.NONE, check)
