"""A test client of several nodes that sends each request to the responsible node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from operator import attrgetter
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.broker.local_node import LocalNode
from kbroker.cluster import NO_LEADER
from kbroker.coordinator_runtime.shards import Shards
from kbroker.node.node import Node
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..wire import Wire, connected, until

OF_GROUPS = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    }
)
OF_TRANSACTIONS = frozenset(
    {
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_TRANSACTIONS,
    }
)
# Maximum seconds that a partition may have no leader.
PATIENCE_SECONDS = 20


@asynccontextmanager
async def started_with_coordinators(**settings: Any) -> AsyncIterator[Broker]:
    """Start three nodes in memory with both internal topics, of six partitions each."""
    async with started(
        nodes=3,
        default_replication_factor=3,
        auto_leader_rebalance_enable=False,
        offsets_topic_num_partitions=6,
        transaction_state_log_num_partitions=6,
        **settings,
    ) as broker:
        node = broker.running()
        await node.groups.create_topic()
        await node.transactions.create_topic()
        await all_in_sync(broker)
        yield broker


class Routed(Wire):
    """Connections to all nodes. The target of a request is looked up in the cluster's metadata.

    If a connection ends, its request is not retried.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._wires: dict[Node, Wire] = {}
        self._stack = AsyncExitStack()

    async def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        """Send a request to its leader or coordinator, or to any node."""
        wire = await self.to(await self._node_for(key, message))
        return await wire.ask(key, version, message)

    async def to(self, node_id: int) -> Wire:
        """Return the connection to a node's current run, opened on first use."""
        local = self.broker.local_node(node_id)
        if local.node not in self._wires:
            wire = await self._stack.enter_async_context(connected(local.endpoint))
            self._wires[local.node] = wire
        return self._wires[local.node]

    async def _node_for(self, key: ApiKey, message: Any) -> int:
        if key in OF_GROUPS:
            return await coordinator(self.broker, "groups", message.group_id)
        if key in (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ApiKey.SHARE_GROUP_DESCRIBE,
            ApiKey.STREAMS_GROUP_DESCRIBE,
        ):
            return await coordinator(self.broker, "groups", message.group_ids[0])
        if key == ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
            return await coordinator(self.broker, "groups", message.groups[0].group_id)
        if key in OF_TRANSACTIONS:
            return await coordinator(self.broker, "transactions", _transactional_id(message))
        if key in (ApiKey.PRODUCE, ApiKey.FETCH):
            return await leader(self.broker, *_first_partition(key, message))
        return self.broker.running().id

    async def aclose(self) -> None:
        await self._stack.aclose()


def _transactional_id(message: Any) -> str:
    for name in ("transactional_id", "v3_and_below_transactional_id"):
        if getattr(message, name, None):
            return str(getattr(message, name))
    return str(message.transactional_ids[0])


def _first_partition(key: ApiKey, message: Any) -> tuple[str, int]:
    if key == ApiKey.PRODUCE:
        topic = message.topic_data[0]
        return topic.name, topic.partition_data[0].index
    topic = message.topics[0]
    return topic.topic, topic.partitions[0].partition


async def coordinator(broker: Broker, kind: str, key: str) -> int:
    """Wait until a coordinator is on a running node, and return the node's id.

    `kind` is "groups", "transactions" or "share.states".
    """
    found = NO_LEADER

    def is_there() -> bool:
        nonlocal found
        node = broker.running()
        shards: Shards[Any] = attrgetter(kind)(node)
        found = shards.coordinator_id(key)
        return found != NO_LEADER and broker.local_node(found).is_running

    await until(is_there, PATIENCE_SECONDS)
    return found


async def leader(broker: Broker, topic: str, index: int) -> int:
    """Wait until a partition's leader is running, and return its id."""
    found = NO_LEADER

    def is_there() -> bool:
        nonlocal found
        partition = broker.running().cluster.partition(topic, index)
        found = partition.leader if partition is not None else NO_LEADER
        return found != NO_LEADER and broker.local_node(found).is_running

    await until(is_there, PATIENCE_SECONDS)
    return found


@asynccontextmanager
async def routed(broker: Broker) -> AsyncIterator[Routed]:
    """Connect a client to all nodes."""
    wire = Routed(broker)
    try:
        yield wire
    finally:
        with trio.CancelScope(shield=True):
            await wire.aclose()


async def all_in_sync(broker: Broker) -> None:
    """Wait until every partition has all its replicas in sync again."""

    def is_whole() -> bool:
        topics = broker.running().cluster.topics.values()
        return all(
            len(partition.isr) == len(partition.replicas)
            for topic in topics
            for partition in topic.partitions
        )

    await until(is_whole, PATIENCE_SECONDS)


def others(broker: Broker, node_id: int) -> list[LocalNode]:
    """Return the running nodes without one."""
    return [each for each in broker.nodes if each.is_running and each.id != node_id]
