"""List, describe and delete operations on groups."""

from __future__ import annotations

import pytest

from kbroker.coordinator.state import OFFSETS_AT_ONCE
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import DeleteGroupsResponse, ListGroupsResponse

from .harness import RANGE, FakeTopics, Harness, travel


def names(h: Harness, *filters: list[str]) -> set[str]:
    return {group.group_id for group in h.coordinator.list_groups(*filters)}


@pytest.mark.parametrize("version", range(7))
def test_describe_unknown_group_returns_dead_and_error_from_version_6(version: int) -> None:
    h = Harness()
    row = h.describe("unknown", version)
    assert (row.group_id, row.group_state) == ("unknown", "Dead")
    assert (row.protocol_type, row.protocol_data, row.members) == ("", "", [])
    if version >= 6:
        assert row.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert row.error_message == "Group unknown not found."
    else:
        assert row.error_code == 0


@pytest.mark.parametrize("version", range(7))
def test_describe_stable_group_returns_all_fields(version: int) -> None:
    h = Harness()
    static = h.join(instance="i", client="me").response.member_id
    h.sync(static, 1, {static: b"all"}, instance="i")
    row = h.describe(version=version)
    assert (row.error_code, row.group_state) == (0, "Stable")
    assert (row.protocol_type, row.protocol_data) == ("consumer", "range")
    (member,) = row.members
    assert member.member_id == static
    assert member.group_instance_id == ("i" if version >= 4 else None)
    assert (member.client_id, member.client_host) == ("me", "/10.0.0.1")
    assert member.member_metadata == RANGE[0][1]
    assert member.member_assignment == b"all"
    h.join(static, protocols=(("range", b"new"),))
    row = h.describe(version=version)
    assert (row.group_state, row.protocol_data) == ("CompletingRebalance", "")
    assert row.members[0].member_metadata == b""


@pytest.mark.parametrize("version", range(6))
def test_list_groups_returns_fields_of_version(version: int) -> None:
    h = Harness()
    h.make_stable(1)
    h.commit({("orders", 0): 1}, group="simple")
    response = travel(ListGroupsResponse(groups=list(h.coordinator.list_groups())), version)
    rows = [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]
    state, empty = ("Stable", "Empty") if version >= 4 else ("", "")
    kind = "classic" if version >= 5 else ""
    assert rows == [("g", "consumer", state, kind), ("simple", "", empty, kind)]


def test_list_groups_filters_ignore_case() -> None:
    h = Harness()
    h.make_stable(1)
    h.commit({("orders", 0): 1}, group="simple")
    h.enter(group="new")
    assert names(h) == {"g", "simple", "new"}
    assert names(h, ["STABLE"]) == {"g"}
    assert names(h, ["empty", "stable"]) == {"g", "simple"}
    assert names(h, ["completingrebalance"]) == {"new"}
    assert names(h, ["nonsense"]) == set()
    assert names(h, [], ["Classic"]) == {"g", "simple", "new"}
    assert names(h, [], ["consumer"]) == set()
    assert names(h, ["Empty"], ["consumer", "CLASSIC"]) == {"simple"}


def test_only_groups_without_members_are_deleted() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.commit({("orders", 0): 1, ("audit", 0): 1}, member, 1)
    h.commit({("orders", 0): 1}, group="simple")
    codes = h.delete_groups("g", "unknown", "simple", "simple")
    assert codes == {
        "g": ErrorCode.NON_EMPTY_GROUP,
        "unknown": ErrorCode.GROUP_ID_NOT_FOUND,
        "simple": 0,
    }
    assert names(h) == {"g"}
    h.leave((member, None))
    assert h.delete_groups("g") == {"g": 0}
    for shard in (h, h.restarted()):
        assert names(shard) == set()
        assert shard.fetch(None) == {}
        assert shard.describe(version=5).group_state == "Dead"
    assert sum(record.value is None for record in h.log) == 5


def test_deleted_group_may_be_created_again() -> None:
    h = Harness()
    (member,) = h.make_stable(1)
    h.leave((member, None))
    h.delete_groups("g")
    assert h.enter().response.generation_id == 1


def test_group_deletion_that_cannot_be_stored_deletes_nothing() -> None:
    h = Harness()
    h.commit({("orders", 0): 1}, group="simple")
    h.append_fails = ErrorCode.REQUEST_TIMED_OUT
    (result,) = h.coordinator.delete_group("simple", h.now)
    assert result.on_failure is not None
    failed = result.on_failure(ErrorCode.REQUEST_TIMED_OUT, h.now).response
    assert isinstance(failed, DeleteGroupsResponse.Group)
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    h.settle(result)
    assert names(h) == {"simple"}


def test_group_with_many_offsets_is_deleted_in_pieces() -> None:
    topics = FakeTopics()
    topics.create("wide", 3 * OFFSETS_AT_ONCE)
    h = Harness(topics=topics)
    h.commit({("wide", index): index for index in range(2 * OFFSETS_AT_ONCE + 1)})
    sizes = []
    for piece in h.coordinator.delete_group("g", h.now):
        assert names(h) == {"g"}, "the group exists until the last piece"
        h.settle(piece)
        sizes.append(len(piece.records))
    assert sizes == [OFFSETS_AT_ONCE, OFFSETS_AT_ONCE, 2]
    for shard in (h, h.restarted()):
        assert names(shard) == set()
        assert shard.fetch(None) == {}
