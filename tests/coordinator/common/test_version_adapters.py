"""Adapters between request versions."""

from __future__ import annotations

import pytest

from kbroker.coordinator.common.version_adapters import (
    commit_error_response,
    fetch_error_row,
    fetch_response,
    groups_to_fetch,
    leave_response,
    leaving_members,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import LeaveGroupRequest, LeaveGroupResponse
from kbroker.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchResponse

from ..harness import FETCH_VERSIONS, LEAVE_VERSIONS, Harness, travel


@pytest.mark.parametrize("version", LEAVE_VERSIONS)
def test_single_leave_is_adapted_to_every_version(version: int) -> None:
    member = LeaveGroupRequest.Member(member_id="m")
    request = LeaveGroupRequest(group_id="g", member_id="m", members=[member])
    assert leaving_members(travel(request, version), version) == [member]
    row = LeaveGroupResponse.Member(member_id="m", error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    response = travel(leave_response([row], version), version)
    if version >= 3:
        assert (response.error_code, response.members) == (0, [row])
    else:
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_error_is_adapted_to_every_version(version: int) -> None:
    topic = OffsetFetchRequest.Topic(name="t", partition_indexes=[0, 1])
    request = OffsetFetchRequest(group_id="g", topics=[topic])
    if version >= 8:
        request.groups = [OffsetFetchRequest.Group(group_id="g", topics=[topic])]
    (group,) = groups_to_fetch(travel(request, version), version)
    assert group.group_id == "g"
    code = ErrorCode.NOT_COORDINATOR
    refused = fetch_error_row(group, code, version)
    response = travel(fetch_response([refused], version), version)
    if version >= 8:
        assert [(g.group_id, g.error_code, g.topics) for g in response.groups] == [("g", code, [])]
    elif version >= 2:
        assert (response.error_code, response.topics) == (code, [])
    else:
        (row,) = response.topics
        assert [(p.committed_offset, p.error_code) for p in row.partitions] == [(-1, code)] * 2


def test_several_groups_are_fetched_from_version_8() -> None:
    groups = [OffsetFetchRequest.Group(group_id=name) for name in "ab"]
    assert groups_to_fetch(OffsetFetchRequest(groups=groups), 8) == groups
    rows = [OffsetFetchResponse.Group(group_id=name) for name in "ab"]
    assert fetch_response(rows, 8).groups == rows


def test_rejected_commit_contains_every_partition() -> None:
    h = Harness()
    request = h.commit_request({("orders", 1): 1, ("audit", 0): 1, ("orders", 0): 1})
    response = commit_error_response(request, ErrorCode.NOT_COORDINATOR)
    assert [(t.name, t.topic_id) for t in response.topics] == [
        (t.name, t.topic_id) for t in request.topics
    ]
    rows = [(row.partition_index, row.error_code) for t in response.topics for row in t.partitions]
    assert rows == [(1, 16), (0, 16), (0, 16)]
