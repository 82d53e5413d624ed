"""ConsumerGroupDescribe (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeResponse

from ..common.topics import KnownTopics
from ..state import ShardState
from .group import ConsumerGroup, ConsumerGroupMember

Response = ConsumerGroupDescribeResponse
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_consumer_group(
    state: ShardState, topics: KnownTopics, group_id: str, default_assignor: str
) -> Response.Group:
    """Return the state, epochs and members of one group, without authorized operations.

    Args:
        state: State of the shard.
        topics: Topics of the cluster.
        group_id: ID of the group.
        default_assignor: Assignor of groups whose members select none.
    """
    group = state.find_group(group_id, ConsumerGroup)
    if group is None:
        problem = "not found" if state.groups.get(group_id) is None else "is not a consumer group"
        return Response.Group(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id[:255]} {problem}.",
        )
    return Response.Group(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_after(None, None) or default_assignor,
        members=[_row(group, member, topics) for member in group.members.values()],
    )


def _row(group: ConsumerGroup, member: ConsumerGroupMember, topics: KnownTopics) -> Response.Member:
    held: dict[UUID, set[int]] = {}
    for part in (member.assigned, member.revoking):
        for topic_id, partitions in part.items():
            held.setdefault(topic_id, set()).update(partitions)
    return Response.Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_assignment(held, topics),
        target_assignment=_assignment(group.targets.get(member.id, {}), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(
    partitions: Mapping[UUID, Iterable[int]], topics: KnownTopics
) -> Response.Assignment:
    rows = []
    for topic_id, indexes in partitions.items():
        name = topics.name_of(topic_id)
        if name is not None:
            rows.append(
                Response.Topic(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            )
    return Response.Assignment(topic_partitions=rows)
