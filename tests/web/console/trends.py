"""Trends of a cluster that a console samples."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kbroker.broker import Broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.records import Record
from kbroker.web.console.trends import Trends

from ...brokers import started

PARTITIONS = 6


# Groups of which each of two nodes coordinates some.
GROUPS = [f"g{number}" for number in range(8)]


async def write(cluster: ClusterClient, records: int) -> None:
    """Write `records` records to each partition."""
    some = [Record(None, b"v", 1000, [], -1)] * records
    await Producer(cluster).write({("t", index): some for index in range(PARTITIONS)})


class Followed:
    """A broker with trends of its first node only, as if each node had its own process."""

    def __init__(self, broker: Broker, cluster: ClusterClient) -> None:
        self.broker = broker
        self.cluster = cluster
        self.trends = Trends(broker.nodes[:1])

    async def write(self, records: int) -> None:
        """Write `records` records to each partition."""
        await write(self.cluster, records)

    @property
    def local_groups(self) -> set[str]:
        """The groups that the first node coordinates."""
        node = self.broker.nodes[0].node
        return {each for each in GROUPS if node.groups.coordinator_id(each) == node.id}


@asynccontextmanager
async def followed(nodes: int = 2) -> AsyncIterator[Followed]:
    async with (
        started(nodes=nodes, offsets_topic_num_partitions=8) as broker,
        open_cluster([broker.nodes[0].endpoint]) as cluster,
    ):
        await create_topics(cluster, [NewTopic("t", PARTITIONS, 1)])
        setup = Followed(broker, cluster)
        try:
            yield setup
        finally:
            await setup.trends.aclose()
