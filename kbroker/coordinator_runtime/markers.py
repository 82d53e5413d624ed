"""Transaction markers for partitions that other nodes lead (WriteTxnMarkers)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import trio

from kbroker.cluster import Cluster
from kbroker.cluster.peers import Peer, Peers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kbroker.protocol.records import Marker

# Maximum number of markers per request.
MARKERS_MAX = 1000
# Timeout of a request in seconds. After that time, another node may lead the partitions.
ANSWER_SECONDS = 10
# Values of TransactionVersion in WriteTxnMarkers. With TV_2, a marker has the bumped producer epoch
# (KIP-890).
TV_1, TV_2 = 1, 2

TopicPartition: TypeAlias = tuple[str, int]


class TransactionEnd(NamedTuple):
    """Outcome of a producer's transaction.

    Attributes:
        is_bumped: True if `epoch` is newer than the epoch of the transaction (TV2).
    """

    producer_id: int
    epoch: int
    marker: Marker
    is_bumped: bool


class DueMarker(NamedTuple):
    """A marker to write to one partition.

    Attributes:
        done: Called once with the error code of the write.
    """

    partition: TopicPartition
    end: TransactionEnd
    done: Callable[[ErrorCode], None]


class TransactionMarkerChannelManager:
    """Sender of transaction markers to partition leaders, with one request in flight per node.

    A leader responds once the markers are committed. The sender uses its own connections, so that
    other requests do not wait for these responses. It does not retry, because leadership may move.
    """

    def __init__(self, cluster: Cluster, peers: Peers) -> None:
        self._cluster = cluster
        self._nodes = peers
        self._due: dict[int, list[DueMarker]] = {}
        self._busy: dict[int, None] = {}
        self._peers: dict[int, Peer] = {}
        self._more = trio.Event()

    def send(self, node_id: int, due: DueMarker) -> None:
        """Schedule a marker for the node that leads its partition."""
        self._due.setdefault(node_id, []).append(due)
        self._more.set()

    async def run(self) -> None:
        """Send scheduled markers until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._more = trio.Event()  # reset first, so that no marker is missed
                    for node_id in [each for each in self._due if each not in self._busy]:
                        self._busy[node_id] = None
                        nursery.start_soon(self._send_all, node_id)
                    await self._more.wait()
        finally:
            for peer in self._peers.values():
                await peer.aclose()
            self._peers.clear()

    async def _send_all(self, node_id: int) -> None:
        """Send the scheduled markers of one node, including those scheduled in the meantime."""
        while due := self._due.pop(node_id, None):
            for start in range(0, len(due), MARKERS_MAX):
                await self._send(node_id, due[start : start + MARKERS_MAX])
        del self._busy[node_id]

    async def _send(self, node_id: int, due: list[DueMarker]) -> None:
        codes: dict[tuple[int, TopicPartition], ErrorCode] = {}
        with suppress(OSError), trio.move_on_after(ANSWER_SECONDS):
            peer = await self._connect(node_id)
            codes = _codes(await peer.ask(_request(due)))
        for each in due:
            key = each.end.producer_id, each.partition
            each.done(codes.get(key, ErrorCode.NETWORK_EXCEPTION))

    async def _connect(self, node_id: int) -> Peer:
        """Return a connection to the current incarnation of a node.

        Raises:
            OSError: The node cannot be reached.
        """
        peer = self._peers.get(node_id)
        if peer is not None:
            registration = self._cluster.registration(node_id)
            if not peer.broken and registration and peer.registration.epoch == registration.epoch:
                return peer
            del self._peers[node_id]
            await peer.aclose()
        peer = self._peers[node_id] = await self._nodes.connect(node_id)
        return peer


def _request(due: Iterable[DueMarker]) -> WriteTxnMarkersRequest:
    ends: dict[TransactionEnd, dict[str, list[int]]] = {}
    for each in due:
        topic, index = each.partition
        ends.setdefault(each.end, {}).setdefault(topic, []).append(index)
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.Marker(
                producer_id=end.producer_id,
                producer_epoch=end.epoch,
                transaction_result=end.marker.commit,
                topics=[
                    WriteTxnMarkersRequest.Topic(name=topic, partition_indexes=indexes)
                    for topic, indexes in topics.items()
                ],
                coordinator_epoch=end.marker.coordinator_epoch,
                transaction_version=TV_2 if end.is_bumped else TV_1,
            )
            for end, topics in ends.items()
        ]
    )


def _codes(answer: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    """Return error codes by producer ID and partition; a producer has one transaction at a time."""
    return {
        (marker.producer_id, (topic.name, row.partition_index)): ErrorCode(row.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    }
