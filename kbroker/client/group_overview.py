"""Members, committed offsets and lag of many groups, with a bounded number of requests.

The number of requests grows with the number of brokers, and with one request of each type per
`GROUPS_PER_REQUEST` groups.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.group_metadata import read_assignment
from kbroker.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse
from kbroker.protocol.messages.offsets import OffsetFetchRequest

from .cluster import ClusterClient
from .connection import Connection
from .errors import ClientError
from .groups import OFFSETS_BY_NAME, SHARE, STREAMS, ListedGroup
from .list_offsets import EARLIEST, LATEST, list_offsets
from .topics import Partition

GROUPS_PER_REQUEST = 200
CONSUMER = "Consumer"


@dataclass(slots=True)
class GroupOverview:
    """A listed group with its members and lag.

    Attributes:
        listed: The group as ListGroups describes it.
        members: Number of members, or None if the coordinator does not report it.
        assignor: Assignor or protocol in use, or None.
        lags: Lag by partition with a committed offset; None if the end of the partition is unknown.
            None instead of the dictionary if the coordinator does not report the offsets.
        assigned: Topics of which members have partitions; empty for streams groups.
        without_offset: Number of partitions with records and without a committed offset, of topics
            that the group reads; None if unknown.
    """

    listed: ListedGroup
    members: int | None = None
    assignor: str | None = None
    lags: dict[Partition, int | None] | None = None
    assigned: set[str] = field(default_factory=set)
    without_offset: int | None = None

    @property
    def lag(self) -> int | None:
        """Total lag, or None if no lag is known."""
        known = [each for each in (self.lags or {}).values() if each is not None]
        return sum(known) if known else None

    @property
    def topics(self) -> list[str] | None:
        """Topics with committed offsets or assigned partitions, sorted; None if unknown."""
        if self.lags is None:
            return sorted(self.assigned) or None
        return sorted({name for name, _ in self.lags} | self.assigned)


async def group_overviews(
    cluster: ClusterClient, groups: Sequence[ListedGroup], *, with_members: bool = True
) -> list[GroupOverview]:
    """Return members and lag of groups, in the given order.

    Values that a broker does not report, for example without the permission, are None.

    Args:
        cluster: The cluster of the groups.
        groups: Groups from `list_groups`.
        with_members: Also query the members and assignors.

    Raises:
        NotReachable: A coordinator cannot be reached.
    """
    found = {each.name: GroupOverview(each) for each in groups}
    committed: dict[str, dict[Partition, int]] = {}
    async for coordinator, group_type, names in _batches(cluster, groups):
        if with_members:
            await _add_members(coordinator, group_type, names, found)
        if group_type == SHARE:
            for name, lags in (await _share_lags(coordinator, names)).items():
                found[name].lags = lags
        else:
            committed |= await _committed_offsets(coordinator, names)
    await _add_lags(cluster, found, committed)
    return list(found.values())


async def _add_lags(
    cluster: ClusterClient,
    found: Mapping[str, GroupOverview],
    committed: Mapping[str, Mapping[Partition, int]],
) -> None:
    """Add the lags of groups, and count the partitions without a committed offset."""
    topics = {
        name: {topic for topic, _ in offsets} | found[name].assigned
        for name, offsets in committed.items()
    }
    existing = await _existing(cluster, {each for some in topics.values() for each in some})
    missing = {
        name: [
            one for topic in some for one in existing.get(topic, ()) if one not in committed[name]
        ]
        for name, some in topics.items()
    }
    partitions = {one for some in existing.values() for one in some}
    ends = await _offsets(cluster, partitions, LATEST)
    starts = await _offsets(cluster, {one for some in missing.values() for one in some}, EARLIEST)
    for name, offsets in committed.items():
        found[name].lags = {
            one: None if (end := ends.get(one)) is None else max(end - offset, 0)
            for one, offset in offsets.items()
        }
        found[name].without_offset = sum(
            one in starts and starts[one] < ends.get(one, 0) for one in missing[name]
        )


async def _batches(
    cluster: ClusterClient, groups: Iterable[ListedGroup]
) -> AsyncIterator[tuple[Connection, str, list[str]]]:
    """Yield the names of groups with one coordinator and type, and the coordinator."""

    def key(group: ListedGroup) -> tuple[int, str]:
        return group.coordinator, group.type.capitalize()

    for (node_id, group_type), same in groupby(sorted(groups, key=key), key):
        names = [each.name for each in same]
        coordinator = await cluster.node(node_id)
        for first in range(0, len(names), GROUPS_PER_REQUEST):
            yield coordinator, group_type, names[first : first + GROUPS_PER_REQUEST]


async def _add_members(
    coordinator: Connection,
    group_type: str,
    names: list[str],
    found: Mapping[str, GroupOverview],
) -> None:
    try:
        answer = await coordinator.ask(_describe_request(group_type, names))
    except (KafkaError, ClientError):
        return
    for row in answer.groups:
        if row.error_code or row.group_id not in found:
            continue
        one = found[row.group_id]
        one.members = len(row.members)
        if isinstance(row, DescribeGroupsResponse.Group):
            one.assignor = row.protocol_data or None
            one.assigned = {name for each in row.members for name in _classic_topics(each)}
        else:
            one.assignor = row.assignor_name or None
            if group_type != STREAMS:
                one.assigned = {
                    topic.topic_name
                    for each in row.members
                    for topic in each.assignment.topic_partitions
                }


def _classic_topics(member: DescribeGroupsResponse.Member) -> list[str]:
    assignment = read_assignment(member.member_assignment)
    return [each.topic for each in assignment.assigned_partitions] if assignment else []


def _describe_request(group_type: str, names: list[str]) -> object:
    """Return the request that describes groups of a type; brokers before 3.8 report no type."""
    if group_type == CONSUMER:
        from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest

        return ConsumerGroupDescribeRequest(group_ids=names)
    if group_type == SHARE:
        from kbroker.protocol.messages.share_groups import ShareGroupDescribeRequest

        return ShareGroupDescribeRequest(group_ids=names)
    if group_type == STREAMS:
        from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeRequest

        return StreamsGroupDescribeRequest(group_ids=names)
    return DescribeGroupsRequest(groups=names)


async def _committed_offsets(
    coordinator: Connection, names: list[str]
) -> dict[str, dict[Partition, int]]:
    rows = [OffsetFetchRequest.Group(group_id=name, topics=None) for name in names]
    request = OffsetFetchRequest(groups=rows, require_stable=False)
    answer = await coordinator.ask(request, oldest=8, newest=OFFSETS_BY_NAME)
    return {
        group.group_id: {
            (topic.name, row.partition_index): row.committed_offset
            for topic in group.topics
            for row in topic.partitions
            if not row.error_code and row.committed_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }


async def _share_lags(
    coordinator: Connection, names: list[str]
) -> dict[str, dict[Partition, int | None]]:
    from kbroker.protocol.messages.share_groups import DescribeShareGroupOffsetsRequest

    cls = DescribeShareGroupOffsetsRequest
    rows = [cls.Group(group_id=name, topics=None) for name in names]
    try:
        answer = await coordinator.ask(cls(groups=rows))
    except (KafkaError, ClientError):
        return {}
    return {
        group.group_id: {
            (topic.topic_name, row.partition_index): row.lag if row.lag >= 0 else None
            for topic in group.topics
            for row in topic.partitions
            if not row.error_code
        }
        for group in answer.groups
        if not group.error_code
    }


async def _existing(cluster: ClusterClient, topics: Iterable[str]) -> dict[str, list[Partition]]:
    """Return the partitions of topics."""
    return {
        topic.name or "": [(topic.name or "", part.partition_index) for part in topic.partitions]
        for topic in (await cluster.metadata(sorted(topics))).topics
    }


async def _offsets(
    cluster: ClusterClient, partitions: Iterable[Partition], timestamp: int
) -> dict[Partition, int]:
    """Return the start or end offsets of the partitions that have a leader."""
    try:
        found = await list_offsets(cluster, dict.fromkeys(sorted(partitions), timestamp))
    except (KafkaError, ClientError):
        return {}
    return {one: row.offset for one, row in found.items() if not row.error}
