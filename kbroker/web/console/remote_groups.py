"""Groups that other nodes coordinate, and share groups of all nodes.

The module requests the groups over the Kafka protocol, with limits on the time and the number of rows.
No client waits for the results. Each response is decoded in one time slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import trio

from kbroker.cluster.peers import Peers
from kbroker.node.node import Node
from kbroker.protocol.messages.groups import ListGroupsRequest
from kbroker.protocol.messages.offsets import OffsetFetchRequest
from kbroker.protocol.messages.share_groups import DescribeShareGroupOffsetsRequest

TopicPartition: TypeAlias = tuple[str, int]

# Time limit for all requests of a poll.
POLL_SECONDS = 3
# A node with more groups is skipped for `SKIP_SECONDS`, because its list takes long to decode.
GROUPS_MAX = 1_000
# Maximum number of partitions of the groups in one request, by the sizes of the previous poll.
ROWS_AT_ONCE = 500
# Maximum number of partitions per poll.
ROWS_MAX = 10_000
# A group with more partitions is skipped for `SKIP_SECONDS`.
LARGE_GROUP_ROWS = 2_000
SKIP_SECONDS = 600
SHARE = "share"


class RemoteGroup(NamedTuple):
    """A group with its committed offsets, or with its lags if it is a share group."""

    group: str
    committed: Mapping[TopicPartition, int]
    lags: Mapping[TopicPartition, int | None]


class RemoteGroups:
    """Polls the groups of other nodes, and calls `take` with each group."""

    def __init__(self, take: Callable[[RemoteGroup], None]) -> None:
        self._add_remote_group = take
        self._node: Node | None = None
        self._peers: Peers | None = None
        # Number of partitions by group, from the previous poll.
        self._rows: dict[str, int] = {}
        # Time (trio clock, s) until which a node or group is skipped.
        self._skipped_until: dict[int | str, float] = {}
        self._rows_left = 0

    async def poll(
        self, nodes: Sequence[Node], share_groups: Mapping[int, Sequence[str]]
    ) -> set[int]:
        """Poll once.

        Args:
            nodes: Running nodes of this process, at least one.
            share_groups: Share groups by ID of the node of this process that coordinates them.

        Returns:
            IDs of the other nodes that have reported all their groups.
        """
        live = nodes[0].cluster.registrations.live
        others = [each for each in live if each not in {node.id for node in nodes}]
        complete_nodes: set[int] = set()
        if not others and not any(share_groups.values()):
            return complete_nodes
        peers = await self._peers_of(nodes[0])
        self._remove_expired_skips()
        self._rows_left = ROWS_MAX
        with trio.move_on_after(POLL_SECONDS):
            async with trio.open_nursery() as nursery:
                for node_id in others:
                    nursery.start_soon(self._poll_node, peers, node_id, complete_nodes)
                for node_id, names in share_groups.items():
                    nursery.start_soon(self._poll_own_share_groups, peers, node_id, names)
        return complete_nodes

    async def aclose(self) -> None:
        """Close the connections."""
        peers, self._peers = self._peers, None
        if peers is not None:
            await peers.aclose()

    async def _peers_of(self, node: Node) -> Peers:
        """Return connections of the current run of a node."""
        if self._node is not node or self._peers is None:
            await self.aclose()
            self._node, self._peers = node, node.peers.with_own_connections()
        return self._peers

    def _remove_expired_skips(self) -> None:
        now = trio.current_time()
        self._skipped_until = {
            each: until for each, until in self._skipped_until.items() if until > now
        }
        if len(self._rows) > ROWS_MAX:  # most of them are deleted groups
            self._rows.clear()

    def _skip(self, which: int | str) -> None:
        self._skipped_until[which] = trio.current_time() + SKIP_SECONDS

    async def _poll_node(self, peers: Peers, node_id: int, complete_nodes: set[int]) -> None:
        if node_id in self._skipped_until:
            return
        try:
            listed = await peers.ask(node_id, ListGroupsRequest())
            if listed.error_code:
                return
            if len(listed.groups) > GROUPS_MAX:
                self._skip(node_id)
                return
            names: dict[bool, list[str]] = {True: [], False: []}
            for each in listed.groups:
                names[each.group_type.lower() == SHARE].append(each.group_id)
            await self._fetch_committed(peers, node_id, names[False])
            await self._fetch_share_lags(peers, node_id, names[True])
        except OSError:
            return
        complete_nodes.add(node_id)

    async def _poll_own_share_groups(
        self, peers: Peers, node_id: int, names: Sequence[str]
    ) -> None:
        try:
            await self._fetch_share_lags(peers, node_id, names)
        except OSError:
            return

    async def _fetch_committed(self, peers: Peers, node_id: int, names: Sequence[str]) -> None:
        cls = OffsetFetchRequest
        assert self._node is not None
        by_id = self._node.cluster.topics_by_id
        for some in self._batches(names):
            request = cls(groups=[cls.Group(group_id=name, topics=None) for name in some])
            for group in (await peers.ask(node_id, request)).groups:
                committed = {}
                for topic in group.topics:
                    known = by_id.get(topic.topic_id)  # version 10 and later have no name
                    name = topic.name or (known.name if known else "")
                    for row in topic.partitions:
                        if name and row.committed_offset >= 0 and not row.error_code:
                            committed[name, row.partition_index] = row.committed_offset
                if not group.error_code:
                    self._deliver(RemoteGroup(group.group_id, committed, {}))
                await trio.lowlevel.checkpoint()

    async def _fetch_share_lags(self, peers: Peers, node_id: int, names: Sequence[str]) -> None:
        cls = DescribeShareGroupOffsetsRequest
        for some in self._batches(names):
            request = cls(groups=[cls.Group(group_id=name, topics=None) for name in some])
            for group in (await peers.ask(node_id, request)).groups:
                lags = {
                    (topic.topic_name, row.partition_index): row.lag if row.lag >= 0 else None
                    for topic in group.topics
                    for row in topic.partitions
                    if not row.error_code
                }
                if not group.error_code:
                    self._deliver(RemoteGroup(group.group_id, {}, lags))
                await trio.lowlevel.checkpoint()

    def _batches(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the groups of each request; a group of unknown size gets its own request."""
        batch: list[str] = []
        size = 0
        for name in names:
            if name in self._skipped_until:
                continue
            rows = self._rows.get(name, ROWS_AT_ONCE)
            if batch and size + rows > ROWS_AT_ONCE:
                yield batch
                batch, size = [], 0
            if self._rows_left <= 0:
                return
            batch.append(name)
            size += rows
        if batch:
            yield batch

    def _deliver(self, group: RemoteGroup) -> None:
        size = len(group.committed) + len(group.lags)
        self._rows[group.group] = size
        self._rows_left -= size
        if size > LARGE_GROUP_ROWS:
            self._skip(group.group)
        else:
            self._add_remote_group(group)
