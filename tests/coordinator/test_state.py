"""Groups of one shard, by ID and type."""

from __future__ import annotations

import pytest

from kbroker.coordinator.classic.group import ClassicGroup
from kbroker.coordinator.common.memory import GroupMemory, MemoryLimit, ShardMemory
from kbroker.coordinator.consumer.group import ConsumerGroup
from kbroker.coordinator.share.group import ShareGroup
from kbroker.coordinator.state import ShardState
from kbroker.coordinator.streams.group import StreamsGroup
from kbroker.protocol.group_metadata import OffsetCommitValue


@pytest.fixture
def state() -> ShardState:
    return ShardState(ShardMemory(GroupMemory(MemoryLimit(), MemoryLimit())))


def test_group_is_found_by_its_own_type_only(state: ShardState) -> None:
    group = state.add_group(ConsumerGroup("g"))
    assert state.find_group("g", ConsumerGroup) is group
    assert state.committing_group("g") is group
    other_groups = [
        state.find_group("g", ClassicGroup),
        state.find_group("g", ShareGroup),
        state.find_group("g", StreamsGroup),
    ]
    assert other_groups == [None, None, None]


def test_share_group_does_not_commit_offsets(state: ShardState) -> None:
    share, streams = state.add_group(ShareGroup("s")), state.add_group(StreamsGroup("t"))
    assert state.committing_group("s") is None
    assert list(state.committing_groups()) == [streams]
    assert list(state.groups_of(ShareGroup)) == [share]


def test_new_group_replaces_group_of_other_type(state: ShardState) -> None:
    state.ensure_simple_group("g")
    state.add_group(ShareGroup("other"))
    group = state.add_group(StreamsGroup("g"))
    assert state.groups["g"] is group
    assert list(state.groups) == ["other", "g"]


@pytest.mark.parametrize("has_offsets", [True, False])
def test_offsets_of_removed_group_belong_to_simple_group(
    state: ShardState, has_offsets: bool
) -> None:
    state.add_group(ConsumerGroup("g"))
    if has_offsets:
        state.offsets["g"] = {
            ("t", 0): OffsetCommitValue(offset=1, metadata="", commit_timestamp=0)
        }
    state.remove_group("g")
    assert [type(group) for group in state.groups.values()] == [ClassicGroup] * has_offsets
