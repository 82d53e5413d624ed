"""Validation of offset commits and fetches of streams groups (KIP-1071).

As in a consumer group (`consumer.offsets`), a commit with the current member epoch is accepted. A
commit with an older epoch is accepted for partitions whose task the member has had since then.
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
from .group import StreamsGroup, StreamsGroupMember


def streams_committer_check(
    group: StreamsGroup, request: OffsetCommitRequest, version: int
) -> CommitCheck:
    """Return the check for a commit by the sender."""
    if request.generation_id_or_member_epoch < 0 and not group.members:
        return uniform_check(ErrorCode.NONE)
    member = group.members.get(request.member_id)
    if member is None:
        return uniform_check(ErrorCode.UNKNOWN_MEMBER_ID)
    if version < FIRST_VERSION_WITH_MEMBER_EPOCHS:
        return uniform_check(ErrorCode.UNSUPPORTED_VERSION)
    epoch = request.generation_id_or_member_epoch
    return _epoch_check(group, member, epoch, ErrorCode.STALE_MEMBER_EPOCH)


def streams_transactional_check(
    group: StreamsGroup, request: OffsetCommitRequest, version: int
) -> CommitCheck:
    """Return the check for a transactional commit by the sender.

    Requests without a member ID are accepted: the transaction already fences its producers.
    """
    epoch = request.generation_id_or_member_epoch
    names_member = bool(request.member_id) or request.group_instance_id is not None
    if epoch < 0 and (not group.members or (epoch == -1 and not names_member)):
        return uniform_check(ErrorCode.NONE)
    member = group.members.get(request.member_id)
    if member is None:
        return uniform_check(ErrorCode.UNKNOWN_MEMBER_ID)
    if version < FIRST_TXN_VERSION_OF_IDS:
        return _epoch_check(group, member, epoch, ErrorCode.ILLEGAL_GENERATION)
    return _epoch_check(group, member, epoch, ErrorCode.STALE_MEMBER_EPOCH)


def streams_fetcher_error(group: StreamsGroup, request: OffsetFetchRequest.Group) -> ErrorCode:
    """Return the error for an OffsetFetch. Only requests with a member ID are checked."""
    if request.member_id is None and request.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_present = request.member_epoch == member.epoch
    return ErrorCode.NONE if is_present else ErrorCode.STALE_MEMBER_EPOCH


def _epoch_check(
    group: StreamsGroup, member: StreamsGroupMember, epoch: int, stale: ErrorCode
) -> CommitCheck:
    if epoch == member.epoch:
        return uniform_check(ErrorCode.NONE)
    if epoch > member.epoch or group.topology is None:
        return uniform_check(stale)
    subtopologies = group.topology.sources

    def check(topic: str, topic_id: UUID, partition: int) -> ErrorCode:
        subtopology = subtopologies.get(topic)
        assigned_in_epoch = (
            None if subtopology is None else member.assigned_in_epoch(subtopology, partition)
        )
        return stale if assigned_in_epoch is None or epoch < assigned_in_epoch else ErrorCode.NONE

    return CommitCheck(ErrorCode.NONE, check)
