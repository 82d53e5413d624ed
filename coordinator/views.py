"""Views of groups of all types for tests and operators: the state and the assigned partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.protocol.group_metadata import read_assignment

from .classic.group import ClassicGroup, ClassicGroupMember
from .classic.group_state import DEAD
from .common.pending import TopicPartition
from .common.topics import KnownTopics
from .consumer.group import ConsumerGroupMember
from .share.group import ShareGroupMember
from .state import ShardState
from .streams.group import StreamsGroup, StreamsGroupMember
from .streams.topology import sources_of


class MemberView(NamedTuple):
    """A member and its assigned partitions.

    Attributes:
        names: Instance ID and client ID.
    """

    id: str
    names: frozenset[str]
    partitions: list[TopicPartition]


class GroupView(NamedTuple):
    """State and members of a group.

    Attributes:
        state: State name of the protocol, Dead if the group does not exist.
    """

    state: str
    members: list[MemberView]


def view_of(state: ShardState, topics: KnownTopics, group_id: str) -> GroupView:
    """Return the view of a group."""
    group = state.groups.get(group_id)
    if group is None:
        return GroupView(DEAD.value, [])
    members: list[MemberView]
    if isinstance(group, ClassicGroup):
        members = [_member_view(each, _classic_partitions(each)) for each in group.members.values()]
    elif isinstance(group, StreamsGroup):
        members = [
            _member_view(each, _active_task_partitions(group, each, topics))
            for each in group.members.values()
        ]
    else:
        members = [
            _member_view(each, _assigned_partitions(each, topics))
            for each in group.members.values()
        ]
    return GroupView(group.state.value, members)


def _member_view(
    member: ClassicGroupMember | ConsumerGroupMember | StreamsGroupMember | ShareGroupMember,
    partitions: Iterator[TopicPartition],
) -> MemberView:
    instance_id = None if isinstance(member, ShareGroupMember) else member.instance_id
    names = frozenset(filter(None, (instance_id, member.client_id)))
    return MemberView(member.id, names, list(partitions))


def _classic_partitions(member: ClassicGroupMember) -> Iterator[TopicPartition]:
    assignment = read_assignment(member.assignment) if member.assignment else None
    for topic in assignment.assigned_partitions if assignment else ():
        for partition in topic.partitions:
            yield topic.topic, partition


def _assigned_partitions(
    member: ConsumerGroupMember | ShareGroupMember, topics: KnownTopics
) -> Iterator[TopicPartition]:
    for topic_id, partitions in member.assigned.items():
        name = topics.name_of(topic_id)
        if name is not None:
            for partition in partitions:
                yield name, partition


def _active_task_partitions(
    group: StreamsGroup, member: StreamsGroupMember, topics: KnownTopics
) -> Iterator[TopicPartition]:
    """Yield the source partitions of a member's active tasks.

    A topic may have fewer partitions than there are tasks.
    """
    subtopologies = {} if group.topology is None else group.topology.subtopologies
    for subtopology, tasks in member.assigned.active.items():
        known = subtopologies.get(subtopology)
        for topic in sorted(sources_of(known)) if known is not None else ():
            for partition in tasks:
                if partition < (topics.count_of(topic) or 0):
                    yield topic, partition
