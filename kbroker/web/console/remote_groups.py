"""Groups that other nodes coordinate, and share groups of every node.

They are asked by Kafka's protocol, as nodes ask each other, within a time and a number of rows: nobody
waits for it, and one answer is decoded in a turn.
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

Place: TypeAlias = tuple[str, int]

ANSWER_SECONDS = 3
"""What all of them have together, for each look."""
GROUPS_MAX = 1_000
"""A node with more of them is left alone for a while: its list alone takes long to decode."""
ROWS_AT_ONCE = 500
"""Partitions of the groups of one question, as far as they are known."""
ROWS_MAX = 10_000
"""Of one look."""
LARGE_GROUP_ROWS = 2_000
"""A group with more partitions is left alone for a while, too."""
REST_SECONDS = 600
SHARE = "share"


class RemoteGroup(NamedTuple):
    """A group: its committed offsets, or its lags if it is a share group."""

    group: str
    committed: Mapping[Place, int]
    lags: Mapping[Place, int | None]


class RemoteGroups:
    """Requests the groups of other nodes. `take` is called with each group."""

    def __init__(self, take: Callable[[RemoteGroup], None]) -> None:
        self._take = take
        self._node: Node | None = None
        self._peers: Peers | None = None
        self._rows: dict[str, int] = {}
        """How many partitions each group had the last time."""
        self._rests: dict[int | str, float] = {}
        """Until when nodes and groups are left alone."""
        self._rows_left = 0

    async def look(self, nodes: Sequence[Node], shared: Mapping[int, Sequence[str]]) -> set[int]:
        """Ask once; returns the other nodes that have told of all their groups.

        Parameters: `nodes` are those of this process that run, at least one; `shared` are the share groups
        that they coordinate.
        """
        live = nodes[0].cluster.registrations.live
        others = [each for each in live if each not in {node.id for node in nodes}]
        told: set[int] = set()
        if not others and not any(shared.values()):
            return told
        peers = await self._peers_of(nodes[0])
        self._wake()
        self._rows_left = ROWS_MAX
        with trio.move_on_after(ANSWER_SECONDS):
            async with trio.open_nursery() as nursery:
                for node_id in others:
                    nursery.start_soon(self._ask_other, peers, node_id, told)
                for node_id, names in shared.items():
                    nursery.start_soon(self._ask_own, peers, node_id, names)
        return told

    async def aclose(self) -> None:
        """Close the connections."""
        peers, self._peers = self._peers, None
        if peers is not None:
            await peers.aclose()

    async def _peers_of(self, node: Node) -> Peers:
        """Connections of a node, which is another one after each start."""
        if self._node is not node or self._peers is None:
            await self.aclose()
            self._node, self._peers = node, node.peers.with_own_connections()
        return self._peers

    def _wake(self) -> None:
        now = trio.current_time()
        self._rests = {each: until for each, until in self._rests.items() if until > now}
        if len(self._rows) > ROWS_MAX:  # of groups that have gone, most of them
            self._rows.clear()

    def _rest(self, which: int | str) -> None:
        self._rests[which] = trio.current_time() + REST_SECONDS

    async def _ask_other(self, peers: Peers, node_id: int, told: set[int]) -> None:
        if node_id in self._rests:
            return
        try:
            listed = await peers.ask(node_id, ListGroupsRequest())
            if listed.error_code:
                return
            if len(listed.groups) > GROUPS_MAX:
                self._rest(node_id)
                return
            names: dict[bool, list[str]] = {True: [], False: []}
            for each in listed.groups:
                names[each.group_type.lower() == SHARE].append(each.group_id)
            await self._ask_committed(peers, node_id, names[False])
            await self._ask_shared(peers, node_id, names[True])
        except OSError:
            return
        told.add(node_id)

    async def _ask_own(self, peers: Peers, node_id: int, names: Sequence[str]) -> None:
        try:
            await self._ask_shared(peers, node_id, names)
        except OSError:
            return

    async def _ask_committed(self, peers: Peers, node_id: int, names: Sequence[str]) -> None:
        cls = OffsetFetchRequest
        assert self._node is not None
        by_id = self._node.cluster.topics_by_id
        for some in self._packed(names):
            request = cls(groups=[cls.Group(group_id=name, topics=None) for name in some])
            for group in (await peers.ask(node_id, request)).groups:
                committed = {}
                for topic in group.topics:
                    known = by_id.get(topic.topic_id)  # from version 10 on there is no name
                    name = topic.name or (known.name if known else "")
                    for row in topic.partitions:
                        if name and row.committed_offset >= 0 and not row.error_code:
                            committed[name, row.partition_index] = row.committed_offset
                if not group.error_code:
                    self._tell(RemoteGroup(group.group_id, committed, {}))
                await trio.lowlevel.checkpoint()

    async def _ask_shared(self, peers: Peers, node_id: int, names: Sequence[str]) -> None:
        cls = DescribeShareGroupOffsetsRequest
        for some in self._packed(names):
            request = cls(groups=[cls.Group(group_id=name, topics=None) for name in some])
            for group in (await peers.ask(node_id, request)).groups:
                lags = {
                    (topic.topic_name, row.partition_index): row.lag if row.lag >= 0 else None
                    for topic in group.topics
                    for row in topic.partitions
                    if not row.error_code
                }
                if not group.error_code:
                    self._tell(RemoteGroup(group.group_id, {}, lags))
                await trio.lowlevel.checkpoint()

    def _packed(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Groups of which one question asks; a group that is not known yet has one of its own."""
        packed: list[str] = []
        size = 0
        for name in names:
            if name in self._rests:
                continue
            rows = self._rows.get(name, ROWS_AT_ONCE)
            if packed and size + rows > ROWS_AT_ONCE:
                yield packed
                packed, size = [], 0
            if self._rows_left <= 0:
                return
            packed.append(name)
            size += rows
        if packed:
            yield packed

    def _tell(self, group: RemoteGroup) -> None:
        size = len(group.committed) + len(group.lags)
        self._rows[group.group] = size
        self._rows_left -= size
        if size > LARGE_GROUP_ROWS:
            self._rest(group.group)
        else:
            self._take(group)
