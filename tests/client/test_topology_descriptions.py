"""Topology descriptions of streams groups, as the client reads them."""

from __future__ import annotations

from kbroker.client.cluster import open_cluster
from kbroker.client.topology_descriptions import DescribedTopology, topology_description
from kbroker.handlers.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
)

from ..brokers import replace_handler, started

Row = StreamsGroupDescribeResponse.Group


async def read(row: Row) -> DescribedTopology:
    """Return what the client reads if a broker responds with a row."""

    def describe(
        ctx: Context, request: StreamsGroupDescribeRequest
    ) -> StreamsGroupDescribeResponse:
        assert (request.group_ids, request.include_topology_description) == (["g"], True)
        return StreamsGroupDescribeResponse(groups=[row])

    async with started() as broker:
        replace_handler(broker, ApiKey.STREAMS_GROUP_DESCRIBE, describe)
        async with open_cluster([broker.endpoint]) as cluster:
            return await topology_description(cluster, "g")


async def test_global_stores_have_no_subtopology() -> None:
    store = TopologyDescriptionGlobalStore(
        source=TopologyDescriptionNode(
            name="in", node_type=1, source_topics=["rates"], successors=["fill"]
        ),
        processor=TopologyDescriptionNode(name="fill", node_type=2, stores=["rates"]),
    )
    found = await read(
        Row(
            topology_description=TopologyDescription(global_stores=[store]),
            topology_description_status=3,
        )
    )
    assert found == (
        "AVAILABLE",
        [
            (None, "in", "source", ["rates"], [], ["fill"]),
            (None, "fill", "processor", [], ["rates"], []),
        ],
    )


async def test_description_that_broker_cannot_read_has_status_error() -> None:
    assert await read(Row(topology_description_status=2)) == ("ERROR", [])
