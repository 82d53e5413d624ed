"""Groups of all types: list, describe and delete them, and manage their committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.group_metadata import read_assignment
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)

from .cluster import COORDINATOR_SECONDS, RETRY_BACKOFF_SECONDS, ClusterClient, did_you_mean
from .connection import Answer, Connection
from .errors import NoSuchGroup, check, error_code
from .topics import Partition

if TYPE_CHECKING:
    from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeResponse
    from kbroker.protocol.messages.share_groups import ShareGroupDescribeResponse

DEAD = "Dead"
# Types of share groups (KIP-932) and streams groups (KIP-1071).
SHARE, STREAMS = "Share", "Streams"
# Last version of OffsetCommit and OffsetFetch that identifies topics by name.
OFFSETS_BY_NAME = 9


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group in a ListGroups response; `state` and `type` are empty from brokers before 3.8."""

    name: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


@dataclass(slots=True)
class Member:
    """A member of a group and its assigned partitions."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[Partition]


@dataclass(slots=True)
class Group:
    """A group as its coordinator describes it; `assignor` is the assignor or protocol in use."""

    name: str
    coordinator: int
    state: str
    type: str
    assignor: str
    members: list[Member] = field(default_factory=list)


# Errors after which the request is sent again: the coordinator moves or loads its state.
_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


async def ask_coordinator(
    cluster: ClusterClient,
    group: str,
    request: object,
    code_of: Callable[[Answer], int],
    *,
    oldest: int = 0,
    newest: int | None = None,
) -> Answer:
    """Send a request to a group's coordinator; retry while the coordinator is not available.

    Args:
        cluster: The cluster of the group.
        group: Group ID.
        request: The request.
        code_of: Returns the error code of the response that concerns the coordinator.
        oldest: Lowest acceptable API version.
        newest: Highest acceptable API version, or None for no limit.
    """
    deadline = trio.current_time() + COORDINATOR_SECONDS
    while True:
        connection = await cluster.coordinator(group)
        answer = await connection.ask(request, oldest=oldest, newest=newest)
        if error_code(code_of(answer)) not in _COORDINATOR_ERRORS or trio.current_time() > deadline:
            return answer
        await trio.sleep(RETRY_BACKOFF_SECONDS)


async def list_groups(cluster: ClusterClient) -> list[ListedGroup]:
    """Return the groups of all brokers, sorted by name. Raises KafkaError."""
    found = [
        ListedGroup(row.group_id, row.protocol_type, row.group_state, row.group_type, node_id)
        async for node_id, answer in cluster.ask_coordinators(ListGroupsRequest())
        for row in answer.groups
    ]
    return sorted(found, key=lambda group: group.name)


async def describe_group(cluster: ClusterClient, name: str) -> Group:
    """Return the state and the members of a group.

    Raises:
        NoSuchGroup: The group does not exist.
        KafkaError: The coordinator rejects the request.
    """
    request = DescribeGroupsRequest(groups=[name])
    answer = await ask_coordinator(
        cluster, name, request, lambda answer: answer.groups[0].error_code
    )
    node_id = await cluster.coordinator_id(name)
    (row,) = answer.groups
    code = error_code(row.error_code)
    if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        check(code, row.error_message)
    if code or row.group_state == DEAD:
        coordinator = await cluster.node(node_id)
        group = await _describe_consumer_group(coordinator, node_id, name)
        group = group or await _describe_streams_group(cluster, coordinator, node_id, name)
        group = group or await _describe_share_group(coordinator, node_id, name)
        if group is None:
            raise await _no_such_group(cluster, name)
        return group
    members = [_classic_member(member) for member in row.members]
    return Group(name, node_id, row.group_state, "Classic", row.protocol_data, members)


async def is_share_group(cluster: ClusterClient, name: str) -> bool:
    """Return True if a share group of this name exists. Raises KafkaError."""
    try:
        return (await describe_group(cluster, name)).type == SHARE
    except NoSuchGroup:
        return False


def _classic_member(row: DescribeGroupsResponse.Member) -> Member:
    assignment = read_assignment(row.member_assignment)
    topics = assignment.assigned_partitions if assignment else []
    owned = [(topic.topic, index) for topic in topics for index in topic.partitions]
    return Member(row.member_id, row.group_instance_id, row.client_id, row.client_host, owned)


async def _describe_consumer_group(
    coordinator: Connection, node_id: int, name: str
) -> Group | None:
    """Return a consumer-protocol group (KIP-848), or None if the group is of another type."""
    from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest

    if ApiKey.CONSUMER_GROUP_DESCRIBE not in coordinator.versions:
        return None
    answer = await coordinator.ask(ConsumerGroupDescribeRequest(group_ids=[name]))
    (row,) = answer.groups
    # Clusters with `group.version` 0 return UNSUPPORTED_VERSION.
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(row.error_code, row.error_message)
    members = [_modern_member(each, each.instance_id) for each in row.members]
    return Group(name, node_id, row.group_state, "Consumer", row.assignor_name, members)


async def _describe_streams_group(
    cluster: ClusterClient, coordinator: Connection, node_id: int, name: str
) -> Group | None:
    """Return a Kafka Streams group (KIP-1071), or None if the group is of another type."""
    from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeRequest

    if ApiKey.STREAMS_GROUP_DESCRIBE not in coordinator.versions:
        return None
    answer = await coordinator.ask(StreamsGroupDescribeRequest(group_ids=[name]))
    (row,) = answer.groups
    # Clusters with `streams.version` 0 return UNSUPPORTED_VERSION.
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(row.error_code, row.error_message)
    subtopologies = (row.topology.subtopologies if row.topology else None) or []
    sources = {
        each.subtopology_id: [
            *each.source_topics,
            *(topic.name for topic in each.repartition_source_topics),
        ]
        for each in subtopologies
    }
    topics = {topic for each in sources.values() for topic in each}
    counts = {t.name: len(t.partitions) for t in (await cluster.metadata(sorted(topics))).topics}
    members = [
        Member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            [
                (topic, index)
                for tasks in each.assignment.active_tasks
                for topic in sources.get(tasks.subtopology_id, ())
                for index in tasks.partitions
                if index < counts.get(topic, 0)
            ],
        )
        for each in row.members
    ]
    assignor = row.assignor_name or "sticky"  # unknown before Kafka 4.4
    return Group(name, node_id, row.group_state, STREAMS, assignor, members)


def _modern_member(
    row: ConsumerGroupDescribeResponse.Member | ShareGroupDescribeResponse.Member,
    instance_id: str | None,
) -> Member:
    """Return a member of a group with server-side assignment."""
    topics = row.assignment.topic_partitions
    owned = [(topic.topic_name, index) for topic in topics for index in topic.partitions]
    return Member(row.member_id, instance_id, row.client_id, row.client_host, owned)


async def _describe_share_group(coordinator: Connection, node_id: int, name: str) -> Group | None:
    """Return a share group (KIP-932), or None if the group is of another type."""
    from kbroker.protocol.messages.share_groups import ShareGroupDescribeRequest

    if ApiKey.SHARE_GROUP_DESCRIBE not in coordinator.versions:
        return None
    answer = await coordinator.ask(ShareGroupDescribeRequest(group_ids=[name]))
    (row,) = answer.groups
    # Clusters with `share.version` 0 return UNSUPPORTED_VERSION.
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(row.error_code, row.error_message)
    members = [_modern_member(each, None) for each in row.members]
    return Group(name, node_id, row.group_state, SHARE, row.assignor_name, members)


async def _no_such_group(cluster: ClusterClient, name: str) -> NoSuchGroup:
    known = [group.name for group in await list_groups(cluster)]
    return NoSuchGroup(
        f"group {name!r} does not exist at {cluster.address}{did_you_mean(name, known)}",
        hint="list groups with `kbroker group list`",
    )


async def delete_groups(
    cluster: ClusterClient, names: Iterable[str]
) -> dict[str, KafkaError | None]:
    """Delete groups without members; return the error of each, or None if it was deleted."""
    outcome: dict[str, KafkaError | None] = {}
    for name in names:
        request = DeleteGroupsRequest(groups_names=[name])
        answer = await ask_coordinator(
            cluster, name, request, lambda answer: answer.results[0].error_code
        )
        (row,) = answer.results
        code = error_code(row.error_code)
        outcome[name] = KafkaError(code, row.error_message) if code else None
    return outcome


async def remove_members(
    cluster: ClusterClient, name: str, member_ids: Iterable[str]
) -> dict[str, ErrorCode]:
    """Remove members that use the classic protocol from a group (KIP-345).

    A removed member that is still running joins again.

    Args:
        cluster: The cluster of the group.
        name: Group ID.
        member_ids: IDs of the members.

    Returns:
        The error code by member ID.

    Raises:
        KafkaError: The coordinator rejects the whole request.
    """
    cls = LeaveGroupRequest
    rows = [cls.Member(member_id=each, reason="removed by an operator") for each in member_ids]
    request = cls(group_id=name, members=rows)
    answer = await ask_coordinator(
        cluster, name, request, lambda answer: answer.error_code, oldest=3
    )
    check(answer.error_code)
    return {row.member_id: error_code(row.error_code) for row in answer.members}


async def committed_offsets(cluster: ClusterClient, name: str) -> dict[Partition, int]:
    """Return the committed offsets of a group; empty if it does not exist. Raises KafkaError."""
    group_request = OffsetFetchRequest.Group(group_id=name, topics=None)
    request = OffsetFetchRequest(groups=[group_request], require_stable=False)
    answer = await ask_coordinator(
        cluster,
        name,
        request,
        lambda answer: answer.groups[0].error_code,
        oldest=8,
        newest=OFFSETS_BY_NAME,
    )
    (group,) = answer.groups
    check(group.error_code)
    offsets = {}
    for topic in group.topics:
        for row in topic.partitions:
            check(row.error_code)
            if row.committed_offset >= 0:
                offsets[topic.name, row.partition_index] = row.committed_offset
    return dict(sorted(offsets.items()))


async def commit_offsets(
    cluster: ClusterClient, name: str, offsets: Mapping[Partition, int]
) -> dict[Partition, ErrorCode]:
    """Set the offsets of a group without members; return the error code of each partition."""
    rows: dict[str, list[OffsetCommitRequest.Partition]] = {}
    for (topic, index), offset in offsets.items():
        row = OffsetCommitRequest.Partition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        rows.setdefault(topic, []).append(row)
    topics = [OffsetCommitRequest.Topic(name=k, partitions=v) for k, v in rows.items()]
    request = OffsetCommitRequest(group_id=name, topics=topics)
    answer = await ask_coordinator(
        cluster,
        name,
        request,
        lambda answer: answer.topics[0].partitions[0].error_code,
        oldest=2,
        newest=OFFSETS_BY_NAME,
    )
    return {
        (topic.name, row.partition_index): error_code(row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    }


async def delete_offsets(
    cluster: ClusterClient, name: str, partitions: Iterable[Partition]
) -> dict[Partition, ErrorCode]:
    """Delete committed offsets (KIP-496); return the error code of each partition.

    Raises:
        KafkaError: The coordinator rejects the whole request.
    """
    rows: dict[str, list[OffsetDeleteRequest.Partition]] = {}
    for topic, index in partitions:
        row = OffsetDeleteRequest.Partition(partition_index=index)
        rows.setdefault(topic, []).append(row)
    topics = [OffsetDeleteRequest.Topic(name=k, partitions=v) for k, v in rows.items()]
    request = OffsetDeleteRequest(group_id=name, topics=topics)
    answer = await ask_coordinator(cluster, name, request, lambda answer: answer.error_code)
    check(answer.error_code)
    return {
        (topic.name, row.partition_index): error_code(row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    }
