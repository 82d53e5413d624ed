"""Tests of metadata in clusters of several nodes: addresses, leaders and stopped nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import DescribeClusterRequest
from kbroker.protocol.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
)

from ..brokers import started
from ..wire import Topic, Wire, batch, connected, fetch_request, metadata, produce_request, until

NAME = "orders"


@asynccontextmanager
async def three_nodes(**properties: Any) -> AsyncIterator[tuple[Broker, Topic]]:
    """Start three nodes with a topic of three partitions on each; node i leads partition i - 1."""
    async with started(nodes=3, **properties) as broker:
        node = broker.node
        new = NewTopic(NAME, assignments={0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
        topic = await create_topic(node.cluster, node.config, new, cause="test")
        yield broker, Topic(NAME, topic.id)


def _endpoints(broker: Broker) -> dict[int, Endpoint]:
    return {each.id: each.endpoint for each in broker.nodes}


async def test_every_node_returns_all_nodes() -> None:
    async with three_nodes(broker_rack="a") as (broker, _):
        for node in broker.nodes:
            async with connected(node.endpoint) as wire:
                response = await metadata(wire, [NAME])
                described = await wire.ask(
                    ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(endpoint_type=1)
                )
            found = {row.node_id: Endpoint(row.host, row.port) for row in response.brokers}
            assert found == _endpoints(broker)
            assert {row.rack for row in response.brokers} == {"a"}
            assert (
                response.controller_id == described.controller_id == node.node.cluster.controller_id
            )
            assert response.controller_id in found
            found = {row.broker_id: Endpoint(row.host, row.port) for row in described.brokers}
            assert found == _endpoints(broker)
            assert [row.leader_id for row in response.topics[0].partitions] == [1, 2, 3]


@pytest.mark.parametrize("topics", [[], None], ids=["no topics", "all topics"])
async def test_node_lists_itself_if_no_node_is_registered(topics: list[str] | None) -> None:
    """Without brokers in the response, librdkafka would never connect again (its issue 5301)."""
    async with three_nodes(broker_rack="a") as (broker, _):
        node = broker.nodes[1]
        async with connected(node.endpoint) as wire:
            await metadata(wire, topics)
            node.node.cluster.registrations.live.clear()
            answer = await metadata(wire, topics)
        (row,) = answer.brokers
        assert (row.node_id, Endpoint(row.host, row.port), row.rack) == (2, node.endpoint, "a")


async def test_nodes_are_assigned_to_racks_round_robin() -> None:
    listeners = [Listener("PLAINTEXT", "127.0.0.1", 0)]
    opened = open_broker(
        BrokerConfig(), data_dir=None, listeners=listeners, nodes=4, racks=["a", "b"]
    )
    async with opened as broker, connected(broker.nodes[3].endpoint) as wire:
        response = await metadata(wire, [])
        assert [row.rack for row in response.brokers] == ["a", "b", "a", "b"]
        node = broker.node
        await create_topic(node.cluster, node.config, NewTopic(NAME, 4, 2), cause="test")
        for partition in node.cluster.topics[NAME].partitions:
            assert {response.brokers[each - 1].rack for each in partition.replicas} == {"a", "b"}


async def test_metadata_has_endpoints_of_the_clients_listener() -> None:
    listeners = [Listener("INSIDE", "127.0.0.1", 0), Listener("OUTSIDE", "0.0.0.0", 0)]
    config = BrokerConfig()
    async with open_broker(config, data_dir=None, listeners=listeners, nodes=2) as broker:
        for name in ("INSIDE", "OUTSIDE"):
            endpoints = {each.id: each.endpoints()[name] for each in broker.nodes}
            async with connected(("127.0.0.1", endpoints[1].port)) as wire:
                response = await metadata(wire, [])
            found = {row.node_id: (row.host, row.port) for row in response.brokers}
            assert found == {key: ("127.0.0.1", each.port) for key, each in endpoints.items()}


async def test_advertised_endpoints_are_returned_unchanged() -> None:
    advertised = Listener("PLAINTEXT", "127.0.0.1", 0, Endpoint("kafka.example", 9092))
    async with open_broker(
        BrokerConfig(), data_dir=None, listeners=[advertised], nodes=3
    ) as broker:
        port = broker.nodes[1].listeners[0].port
        async with connected(("127.0.0.1", port)) as wire:
            response = await metadata(wire, [])
    assert {row.node_id: (row.host, row.port) for row in response.brokers} == {
        1: ("kafka.example", 9092),
        2: ("kafka.example", 9093),
        3: ("kafka.example", 9094),
    }


async def test_stopped_node_is_removed_from_metadata() -> None:
    async with three_nodes() as (broker, _), connected(broker.endpoint) as wire:
        await broker.nodes[2].stop()
        partitions = broker.node.cluster.topics[NAME].partitions
        await until(lambda: partitions[2].leader == 1)
        response = await metadata(wire, [NAME])
        assert [row.node_id for row in response.brokers] == [1, 2]
        assert [row.leader_id for row in response.topics[0].partitions] == [1, 2, 1]
        assert [row.offline_replicas for row in response.topics[0].partitions] == [[3]] * 3
        await broker.nodes[2].start()
        response = await metadata(wire, [NAME])
        assert [row.node_id for row in response.brokers] == [1, 2, 3]
        assert [row.offline_replicas for row in response.topics[0].partitions] == [[]] * 3


async def test_leaderless_partition_has_error() -> None:
    async with started(nodes=2) as broker, connected(broker.endpoint) as wire:
        node = broker.node
        new = NewTopic(NAME, assignments={0: [2]})
        await create_topic(node.cluster, node.config, new, cause="test")
        await broker.nodes[1].stop()
        (row,) = (await metadata(wire, [NAME])).topics[0].partitions
        assert (row.error_code, row.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert row.offline_replicas == [2]
        ask = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.Topic(name=NAME)], response_partition_limit=9
        )
        response = await wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, ask)
        (row,) = response.topics[0].partitions
        assert (row.error_code, row.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert row.offline_replicas == [2]


@pytest.mark.parametrize(
    ("version", "code"), [(5, "LEADER_NOT_AVAILABLE"), (9, "LISTENER_NOT_FOUND")]
)
async def test_leader_without_clients_listener_is_omitted(version: int, code: str) -> None:
    async with three_nodes() as (broker, _), connected(broker.endpoint) as wire:
        assert await wire.works()
        for connection in broker.server.connections:
            connection.peer.listener = "ELSEWHERE"
        rows = [MetadataRequest.Topic(name=NAME)]
        response = await wire.ask(ApiKey.METADATA, version, MetadataRequest(topics=rows))
        assert [row.node_id for row in response.brokers] == [1]
        first, second, _ = response.topics[0].partitions
        assert (first.error_code, first.leader_id) == (ErrorCode.NONE, 1)
        assert (second.error_code, second.leader_id) == (ErrorCode[code], -1)


# -- KIP-951


async def _produce(wire: Wire, topic: Topic, version: int, partition: int) -> tuple[Any, Any]:
    ask = produce_request(topic, batch(), partition=partition, acks=1)
    response = await wire.ask(ApiKey.PRODUCE, version, ask)
    return response, response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", [10, 13])
async def test_produce_to_wrong_node_returns_leader(version: int) -> None:
    async with three_nodes() as (broker, topic), connected(broker.endpoint) as wire:
        response, row = await _produce(wire, topic, version, 1)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, 0)
        (node,) = response.node_endpoints
        assert (node.node_id, node.host, node.port) == (2, *broker.nodes[1].endpoint)
        response, row = await _produce(wire, topic, version, 0)
        assert (row.error_code, row.current_leader) == (ErrorCode.NONE, None)
        assert response.node_endpoints == []


async def test_old_produce_version_returns_no_leader() -> None:
    async with three_nodes() as (broker, topic), connected(broker.endpoint) as wire:
        response, row = await _produce(wire, topic, 9, 1)
        assert (row.error_code, row.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
        assert response.node_endpoints == []


@pytest.mark.parametrize("version", [12, 15, 16, 18])
async def test_fetch_from_wrong_node_returns_leader(version: int) -> None:
    """The node has no replica of the partition; a follower would serve the fetch (KIP-392)."""
    async with three_nodes() as (broker, _), connected(broker.endpoint) as wire:
        node = broker.node
        new = NewTopic("alone", assignments={0: [1], 1: [2], 2: [3]})
        created = await create_topic(node.cluster, node.config, new, cause="test")
        topic = Topic("alone", created.id)
        ask = fetch_request(topic, partitions=[0, 1, 2])
        response = await wire.ask(ApiKey.FETCH, version, ask)
        rows = {row.partition_index: row for each in response.responses for row in each.partitions}
        wrong = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [rows[index].error_code for index in (0, 1, 2)] == [0, wrong, wrong]
        if version < 16:
            assert {row.current_leader for row in rows.values()} == {None}
            assert response.node_endpoints == []
        else:
            assert [rows[index].current_leader.leader_id for index in (1, 2)] == [2, 3]
            found = {each.node_id: (each.host, each.port) for each in response.node_endpoints}
            assert found == {each.id: each.endpoint for each in broker.nodes[1:]}


async def test_describe_cluster_lists_stopped_broker_only_with_fenced_brokers() -> None:
    async with three_nodes(broker_rack="a") as (broker, _):
        addresses = _endpoints(broker)
        await broker.local_node(2).stop()
        found = {}
        async with connected(broker.local_node(1).endpoint) as wire:
            for fenced in (False, True):
                ask = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=fenced)
                response = await wire.ask(ApiKey.DESCRIBE_CLUSTER, 2, ask)
                found[fenced] = [(row.broker_id, row.is_fenced) for row in response.brokers]
        assert found == {False: [(1, False), (3, False)], True: [(1, False), (2, True), (3, False)]}
        row = response.brokers[1]
        assert (Endpoint(row.host, row.port), row.rack) == (addresses[2], "a")
