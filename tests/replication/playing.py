"""A simulated follower: it is registered, and fetches over the network on request of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint
from kbroker.cluster.membership import Membership
from kbroker.config import BrokerConfig
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.schema import BrokerEpoch
from tests.wire import NEVER, Topic, Wire, connected

NEWEST = 18
SESSIONLESS = -1
# An address without a listener.
NOBODY = Endpoint("127.0.0.1", 1)


class PlayedFollower:
    """A simulated node that only sends requests."""

    def __init__(self, wire: Wire, membership: Membership) -> None:
        self.wire = wire
        self.membership = membership
        self.id = membership.node_id
        self.session_id = 0

    def request(
        self,
        topic: Topic,
        offset: int,
        *,
        partitions: Iterable[int] = (0,),
        max_wait_ms: int = 0,
        session_epoch: int = SESSIONLESS,
        broker_epoch: BrokerEpoch | None = None,
        max_bytes: int = 1 << 20,
        log_start_offset: int = 0,
        **fields: Any,
    ) -> FetchRequest:
        """Return a Fetch request of this node. `fields` are set in each partition."""
        epoch = self.membership.epoch if broker_epoch is None else broker_epoch
        rows = [
            FetchRequest.Partition(
                partition=index,
                fetch_offset=offset,
                partition_max_bytes=max_bytes,
                log_start_offset=log_start_offset,
                **fields,
            )
            for index in partitions
        ]
        topics = [FetchRequest.Topic(topic_id=topic.id, partitions=rows)] if rows else []
        return FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=self.id, replica_epoch=epoch),
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session_id if session_epoch > 0 else 0,
            session_epoch=session_epoch,
            topics=topics,
        )

    async def fetch(self, topic: Topic, offset: int, **settings: Any) -> Any:
        """Fetch one partition and return its row of the response."""
        response = await self.wire.ask(
            ApiKey.FETCH, NEWEST, self.request(topic, offset, **settings)
        )
        assert response.error_code == 0, response
        self.session_id = response.session_id
        rows = [row for each in response.responses for row in each.partitions]
        assert len(rows) == 1, rows
        return rows[0]

    async def begin(self, topic: Topic, offset: int, **settings: Any) -> None:
        """Send a Fetch whose response is received later."""
        await self.wire.send(ApiKey.FETCH, NEWEST, self.request(topic, offset, **settings))

    async def rows(self) -> list[Any]:
        """Receive the pending response and return its rows."""
        response = await self.wire.receive()
        assert response.error_code == 0, response
        self.session_id = response.session_id
        return [row for each in response.responses for row in each.partitions]


@asynccontextmanager
async def fake_node(
    broker: Broker, node_id: int, *, rack: str | None = None, ready: bool = True
) -> AsyncIterator[PlayedFollower]:
    """Register a node that does not exist in the cluster of `broker`."""
    options = {
        "broker.session.timeout.ms": str(NEVER)
    }  # the simulated node does not renew its lease
    config = BrokerConfig.load(options=options).for_node(node_id, nodes=2, rack=rack)
    membership = Membership(
        broker.node.cluster, config, directories={}, is_clean=True, keeps_records=True
    )
    broker.node.cluster.subscribe_nodes(membership.nodes_changed)
    await membership.register({"PLAINTEXT": NOBODY})
    if ready:
        await membership.become_ready()
    async with connected(broker.endpoint) as wire:
        yield PlayedFollower(wire, membership)


async def replicated(broker: Broker, *replicas: int, **configs: object) -> Topic:
    """Create a topic of one partition, led by the first node. Ready nodes are in sync."""
    texts = {name.replace("_", "."): str(value) for name, value in configs.items()}
    topic = await broker.node.cluster.create_topic("t", [list(replicas)], texts, cause="test")
    return Topic(topic.name, topic.id)
