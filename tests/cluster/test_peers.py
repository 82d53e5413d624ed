"""Connections between the nodes of a cluster."""

from __future__ import annotations

import pytest
import trio

from kbroker.client.endpoint import Endpoint
from kbroker.cluster.peers import Peer, Unreachable
from kbroker.protocol.api_keys import ApiKey

from ..brokers import started
from ..wire import request


async def test_closed_pooled_connection_is_replaced() -> None:
    async with started(nodes=2) as broker:
        peers = broker.local_node(1).node.peers
        ask = request(ApiKey.DESCRIBE_CLUSTER)
        first = await peers.ask(2, ask)
        assert {each.broker_id for each in first.brokers} == {1, 2}
        kept = peers._pool[2]
        assert await peers.ask(2, ask) == first
        assert peers._pool[2] is kept
        broker.local_node(2).server.close_connections()
        assert await peers.ask(2, ask) == first
        assert peers._pool[2] is not kept


async def test_restarted_node_gets_new_connection() -> None:
    async with started(nodes=2) as broker:
        peers = broker.local_node(1).node.peers
        ask = request(ApiKey.DESCRIBE_CLUSTER)
        await peers.ask(2, ask)
        before = peers._pool[2].registration.epoch
        await broker.local_node(2).stop()
        with pytest.raises(Unreachable, match="node 2: it is not running"):
            await peers.ask(2, ask)
        await broker.local_node(2).start()
        await peers.ask(2, ask)
        assert peers._pool[2].registration.epoch > before


async def test_concurrent_tasks_share_pooled_connection() -> None:
    async with started(nodes=2) as broker:
        peers = broker.local_node(1).node.peers
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(peers.ask, 2, request(ApiKey.DESCRIBE_CLUSTER))
        assert list(peers._pool) == [2]
        assert not peers._pool[2].broken


async def test_request_during_close_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(nodes=3) as broker:
        peers = broker.local_node(1).node.peers.with_own_connections()
        ask = request(ApiKey.DESCRIBE_CLUSTER)
        await peers.ask(2, ask)
        await peers.ask(3, ask)
        close, closed = Peer.aclose, list[Peer]()

        async def close_and_ask(peer: Peer) -> None:
            await close(peer)
            closed.append(peer)
            if len(closed) == 1:
                with pytest.raises(Unreachable, match="this node is stopping"):
                    await peers.ask(peer.registration.node_id, ask)

        monkeypatch.setattr(Peer, "aclose", close_and_ask)
        await peers.aclose()
        assert peers._pool == {}
        assert len(closed) == 3
        assert all(each.broken for each in closed)


async def test_missing_response_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(nodes=2, replica_socket_timeout_ms=50) as broker:
        peers = broker.local_node(1).node.peers
        peer = await peers.connect(2)
        monkeypatch.setattr(peer._connection, "_receive_frame", trio.sleep_forever)
        with pytest.raises(Unreachable, match=r"node 2: no response within 0\.05 s"):
            await peer.ask(request(ApiKey.DESCRIBE_CLUSTER))
        assert peer.broken
        await peer.aclose()


@pytest.mark.parametrize(("name", "port"), [("INSIDE", 2), ("NONE", 1), (None, 1)])
async def test_nodes_use_inter_broker_listener(name: str | None, port: int) -> None:
    settings = {"inter.broker.listener.name": name} if name else {}
    async with started(nodes=2, **settings) as broker:
        node = broker.local_node(1).node
        registration = node.cluster.nodes[2]._replace(
            listeners={"OUTSIDE": Endpoint("h", 1), "INSIDE": Endpoint("h", 2)}
        )
        assert node.peers.endpoint_of(registration) == Endpoint("h", port)


async def test_refused_connection_raises_unreachable() -> None:
    async def refuse(endpoint: Endpoint) -> trio.abc.Stream:
        raise OSError("connection refused")

    async with started(nodes=2) as broker:
        peers = broker.local_node(1).node.peers
        peers._transport = peers._transport._replace(dial=refuse)
        with pytest.raises(Unreachable, match="connection refused"):
            await peers.ask(2, request(ApiKey.DESCRIBE_CLUSTER))
