"""ShareGroupDescribe (KIP-932)."""

from __future__ import annotations

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.share_groups import ShareGroupDescribeResponse

from ..common.modern_group import Target
from ..common.topics import KnownTopics
from ..state import ShardState
from .group import ShareGroupMember
from .groups import find_share_group

Response = ShareGroupDescribeResponse
ASSIGNOR = "simple"


def describe_share_group(state: ShardState, topics: KnownTopics, group_id: str) -> Response.Group:
    """Return the state, epochs and members of one group, without authorized operations."""
    try:
        group = find_share_group(state, group_id)
    except KafkaError as error:
        return Response.Group(group_id=group_id, error_code=error.code, error_message=error.message)
    return Response.Group(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=[_row(member, topics) for member in group.members.values()],
    )


def _row(member: ShareGroupMember, topics: KnownTopics) -> Response.Member:
    return Response.Member(
        member_id=member.id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=_assignment(member.assigned, topics),
    )


def _assignment(partitions: Target, topics: KnownTopics) -> Response.Assignment:
    rows = []
    for topic_id, indexes in partitions.items():
        name = topics.name_of(topic_id)
        if name is not None:
            rows.append(
                Response.Topic(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            )
    return Response.Assignment(topic_partitions=rows)
