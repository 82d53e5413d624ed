"""Groups that read topics, of all protocols: who is in them, how far they have read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import read_assignment
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
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
SHARE = "Share"
"""The type of a group whose members share partitions (KIP-932)."""
OFFSETS_BY_NAME = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as ListGroups shows it; `state` and `type` are empty from brokers before 3.8."""

    name: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


@dataclass(slots=True)
class Member:
    """A member of a group, with the partitions that it has."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[Partition]


@dataclass(slots=True)
class Group:
    """A group as its coordinator describes it. `assignor` is the assignor or protocol in use."""

    name: str
    coordinator: int
    state: str
    type: str
    assignor: str
    members: list[Member] = field(default_factory=list)


_LATER = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""A coordinator that comes or goes: ask again."""


async def ask_coordinator(
    cluster: ClusterClient,
    group: str,
    request: object,
    code_of: Callable[[Answer], int],
    *,
    oldest: int = 0,
    newest: int | None = None,
) -> Answer:
    """Ask the coordinator of a group, again and again while it is not ready.

    Parameters: `code_of` finds the error code of an answer that speaks of the coordinator.
    """
    deadline = trio.current_time() + COORDINATOR_SECONDS
    while True:
        connection = await cluster.coordinator(group)
        answer = await connection.ask(request, oldest=oldest, newest=newest)
        if error_code(code_of(answer)) not in _LATER or trio.current_time() > deadline:
            return answer
        await trio.sleep(RETRY_BACKOFF_SECONDS)


async def list_groups(cluster: ClusterClient) -> list[ListedGroup]:
    """All groups of all brokers, by name. Raises KafkaError."""
    found = [
        ListedGroup(row.group_id, row.protocol_type, row.group_state, row.group_type, node_id)
        async for node_id, answer in cluster.ask_coordinators(ListGroupsRequest())
        for row in answer.groups
    ]
    return sorted(found, key=lambda group: group.name)


async def describe_group(cluster: ClusterClient, name: str) -> Group:
    """State and members of a group. Raises NoSuchGroup, or KafkaError."""
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
            raise NoSuchGroup(await _no_such_group(cluster, name))
        return group
    members = [_classic_member(member) for member in row.members]
    return Group(name, node_id, row.group_state, "Classic", row.protocol_data, members)


async def is_share_group(cluster: ClusterClient, name: str) -> bool:
    """Whether there is such a group, and its members share partitions. Raises KafkaError."""
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
    """A group of the newer protocol (KIP-848); None when it is none."""
    from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest

    if ApiKey.CONSUMER_GROUP_DESCRIBE not in coordinator.versions:
        return None
    answer = await coordinator.ask(ConsumerGroupDescribeRequest(group_ids=[name]))
    (row,) = answer.groups
    # The second one is of clusters that run `group.version` 0.
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(row.error_code, row.error_message)
    members = [_modern_member(each, each.instance_id) for each in row.members]
    return Group(name, node_id, row.group_state, "Consumer", row.assignor_name, members)


async def _describe_streams_group(
    cluster: ClusterClient, coordinator: Connection, node_id: int, name: str
) -> Group | None:
    """A group of an application of Kafka Streams (KIP-1071); None when it is none."""
    from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeRequest

    if ApiKey.STREAMS_GROUP_DESCRIBE not in coordinator.versions:
        return None
    answer = await coordinator.ask(StreamsGroupDescribeRequest(group_ids=[name]))
    (row,) = answer.groups
    # The second one is of clusters that run `streams.version` 0.
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
    return Group(name, node_id, row.group_state, "Streams", "sticky", members)


def _modern_member(
    row: ConsumerGroupDescribeResponse.Member | ShareGroupDescribeResponse.Member,
    instance_id: str | None,
) -> Member:
    """A member of a group of which the broker decides who has what."""
    topics = row.assignment.topic_partitions
    owned = [(topic.topic_name, index) for topic in topics for index in topic.partitions]
    return Member(row.member_id, instance_id, row.client_id, row.client_host, owned)


async def _describe_share_group(coordinator: Connection, node_id: int, name: str) -> Group | None:
    """A share group (KIP-932); None when it is none."""
    from kbroker.protocol.messages.share_groups import ShareGroupDescribeRequest

    if ApiKey.SHARE_GROUP_DESCRIBE not in coordinator.versions:
        return None
    answer = await coordinator.ask(ShareGroupDescribeRequest(group_ids=[name]))
    (row,) = answer.groups
    # The second one is of clusters that run `share.version` 0.
    if row.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(row.error_code, row.error_message)
    members = [_modern_member(each, None) for each in row.members]
    return Group(name, node_id, row.group_state, SHARE, row.assignor_name, members)


async def _no_such_group(cluster: ClusterClient, name: str) -> str:
    known = [group.name for group in await list_groups(cluster)]
    return (
        f"group {name!r} does not exist at {cluster.address}{did_you_mean(name, known)} "
        "`kbroker group list` shows what there is"
    )


async def delete_groups(cluster: ClusterClient, names: Iterable[str]) -> dict[str, ErrorCode]:
    """Delete groups that have no members; returns the outcome of each."""
    outcome = {}
    for name in names:
        request = DeleteGroupsRequest(groups_names=[name])
        answer = await ask_coordinator(
            cluster, name, request, lambda answer: answer.results[0].error_code
        )
        outcome[name] = error_code(answer.results[0].error_code)
    return outcome


async def committed_offsets(cluster: ClusterClient, name: str) -> dict[Partition, int]:
    """The committed offsets of a group; empty for one that does not exist. Raises KafkaError."""
    asked = OffsetFetchRequest.Group(group_id=name, topics=None)
    request = OffsetFetchRequest(groups=[asked], require_stable=False)
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
    """Set offsets of a group that has no members; returns the outcome of each."""
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
    """Forget committed offsets (KIP-496); returns the outcome of each. Raises KafkaError."""
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
