"""List, describe and delete operations on groups of all types."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)

from .classic.group import ClassicGroup
from .classic.group_state import DEAD, EMPTY, STABLE
from .classic.rebalance import add_deletion_event
from .common.records import offset_tombstone
from .common.result import Now, Result, append_error
from .consumer.group import ConsumerGroup
from .share.group import PROTOCOL_TYPE as SHARE
from .state import OFFSETS_AT_ONCE, AnyGroup, ShardState
from .streams.group import StreamsGroup
from .tombstones import tombstones_of

# Group types as ListGroups names them.
CLASSIC, CONSUMER, STREAMS = "classic", "consumer", "streams"


def list_groups(
    state: ShardState, states: Collection[str], types: Collection[str]
) -> Iterator[ListGroupsResponse.Group]:
    """Return the groups of the given states and types.

    Groups may change between two rows. Each row shows its group at the time when it is read.

    Args:
        state: State of the shard.
        states: States to include, case-insensitive. Empty for all.
        types: Group types to include, case-insensitive. Empty for all.
    """
    states = {name.strip().lower() for name in states}
    types = {name.lower() for name in types} or {CLASSIC, CONSUMER, STREAMS, SHARE}
    for group in tuple(state.groups.values()):
        kind = _type_of(group)
        if kind not in types or (states and _filter_name(group) not in states):
            continue
        yield ListGroupsResponse.Group(
            group_id=group.id,
            protocol_type=(group.protocol_type or "") if isinstance(group, ClassicGroup) else kind,
            group_state=group.state.value,
            group_type=kind,
        )


def _type_of(group: AnyGroup) -> str:
    if isinstance(group, ClassicGroup):
        return CLASSIC
    if isinstance(group, ConsumerGroup):
        return CONSUMER
    return STREAMS if isinstance(group, StreamsGroup) else SHARE


def _filter_name(group: AnyGroup) -> str:
    """Return the state of a group as filters name it."""
    if isinstance(group, StreamsGroup):
        return group.state.filter_name
    return group.state.value.lower()


def describe_group(state: ShardState, group_id: str, version: int) -> DescribeGroupsResponse.Group:
    """Return the state and the members of a classic group.

    If the group does not exist, its state is Dead, and from version 6 on the row has an error.
    """
    group = state.find_group(group_id, ClassicGroup)
    if group is None:
        answer = DescribeGroupsResponse.Group(group_id=group_id, group_state=DEAD.value)
        if version >= 6:  # KIP-1043
            problem = (
                "not found" if state.groups.get(group_id) is None else "is not a classic group"
            )
            answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            answer.error_message = f"Group {group_id[:255]} {problem}."
        return answer
    return DescribeGroupsResponse.Group(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if group.state is STABLE else "",
        members=_member_rows(group),
    )


def _member_rows(group: ClassicGroup) -> list[DescribeGroupsResponse.Member]:
    # During a rebalance there is no selected protocol, so there is no metadata to return.
    protocol = group.protocol_name if group.state is STABLE else None
    return [
        DescribeGroupsResponse.Member(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(protocol),
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


def delete_group(
    state: ShardState, group_id: str, now: Now
) -> Iterator[Result[DeleteGroupsResponse.Group]]:
    """Delete a group without members: first its offsets in pieces, then the group."""
    row = DeleteGroupsResponse.Group(group_id=group_id)
    result = Result(row)
    group = state.groups.get(group_id)
    if group is None:
        row.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        yield result
        return
    if group.state.value != EMPTY.value:
        row.error_code = ErrorCode.NON_EMPTY_GROUP
        yield result
        return
    topic_partitions = tuple(state.topic_partitions(group_id))
    for first in range(0, len(topic_partitions), OFFSETS_AT_ONCE):
        if first:
            yield result
            result = Result(row)
        batch = topic_partitions[first : first + OFFSETS_AT_ONCE]
        result.records += [
            offset_tombstone(group_id, *topic_partition) for topic_partition in batch
        ]
        result.on_failure = partial(_deletion_error, group_id)
    result.records += tombstones_of(group)
    result.on_failure = partial(_deletion_error, group_id)
    add_deletion_event(group, "deleted on request", now, result)
    yield result


def _deletion_error(group_id: str, code: ErrorCode, now: Now) -> Result[DeleteGroupsResponse.Group]:
    return Result(DeleteGroupsResponse.Group(group_id=group_id, error_code=append_error(code)))
