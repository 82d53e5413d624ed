"""Adapters between request and response versions whose structure differs.

Operations and handlers use only the newest structure. This module converts older requests to the
newest structure, and responses back to the structure of the request's version. TxnOffsetCommit is
converted to OffsetCommit in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse


def leaving_members(request: LeaveGroupRequest, version: int) -> list[LeaveGroupRequest.Member]:
    """Return the members that leave: one up to version 2, any number from 3 on (KIP-345)."""
    if version >= 3:
        return request.members
    return [LeaveGroupRequest.Member(member_id=request.member_id)]


def leave_response(rows: list[LeaveGroupResponse.Member], version: int) -> LeaveGroupResponse:
    """Return a LeaveGroup response. Up to version 2, the member's error is the response's error."""
    if version >= 3:
        return LeaveGroupResponse(members=rows)
    return LeaveGroupResponse(error_code=rows[0].error_code)


def groups_to_fetch(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequest.Group]:
    """Return the groups of an OffsetFetch: one up to version 7, several from 8 on (KIP-709)."""
    if version >= 8:
        return request.groups
    return [OffsetFetchRequest.Group(group_id=request.group_id, topics=request.topics)]


def fetch_response(
    groups: Sequence[OffsetFetchResponse.Group], version: int
) -> OffsetFetchResponse:
    """Return an OffsetFetch response with one row per group of `groups_to_fetch`."""
    if version >= 8:
        return OffsetFetchResponse(groups=list(groups))
    return OffsetFetchResponse(topics=groups[0].topics, error_code=groups[0].error_code)


def fetch_error_row(
    group: OffsetFetchRequest.Group, code: ErrorCode, version: int
) -> OffsetFetchResponse.Group:
    """Return an error row for a group. Below version 2, only partitions have an error code."""
    if version >= 2:
        return OffsetFetchResponse.Group(group_id=group.group_id, error_code=code)
    return OffsetFetchResponse.Group(
        group_id=group.group_id,
        topics=[
            OffsetFetchResponse.Topic(
                name=topic.name,
                partitions=[no_offset(index, code) for index in topic.partition_indexes],
            )
            for topic in group.topics or []
        ],
    )


def no_offset(partition: int, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponse.Partition:
    """Return the row of a partition without a committed offset."""
    return OffsetFetchResponse.Partition(
        partition_index=partition, committed_offset=-1, metadata="", error_code=code
    )


def commit_error_response(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """Return a response that rejects every partition; OffsetCommit has no top-level error code."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponse.Partition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def to_offset_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """Convert a TxnOffsetCommit request to an OffsetCommit request."""
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequest.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitRequest.Partition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        committed_metadata=partition.committed_metadata,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def to_txn_offset_commit_response(
    response: OffsetCommitResponse, code: ErrorCode = ErrorCode.NONE
) -> TxnOffsetCommitResponse:
    """Convert the response to a TxnOffsetCommit response; `code` is for rows without an error."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponse.Partition(
                        partition_index=row.partition_index, error_code=row.error_code or code
                    )
                    for row in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def transaction_error(code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Map an error of the transaction coordinator to the error for the producer (KIP-890).

    Args:
        code: Error from the transaction coordinator.
        knows_abortable: True if the request version supports TRANSACTION_ABORTABLE.
    """
    if code == ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code


def txn_commit_error_response(
    request: TxnOffsetCommitRequest, code: ErrorCode
) -> TxnOffsetCommitResponse:
    """Return a response that rejects every partition."""
    return to_txn_offset_commit_response(commit_error_response(to_offset_commit(request), code))


def error_response(response: Any, code: ErrorCode) -> Any:
    """Return an error response of the same type, because the change behind `response` was lost.

    Returns:
        The error response, or None if responses of this type have no error code.
    """
    if isinstance(response, OffsetCommitResponse | TxnOffsetCommitResponse):
        for topic in response.topics:
            for row in topic.partitions:
                row.error_code = code
        return response
    return type(response)(error_code=code) if hasattr(response, "error_code") else None
