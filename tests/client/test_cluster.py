"""Connections of a client to the brokers of a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.connection import Connection, dial_tcp, open_connection
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import CannotConnect, NotReachable
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.metadata import MetadataRequest

from ..brokers import replace_handler, started

WAITING = FetchRequest(max_wait_ms=60_000, min_bytes=1)


def answer_late(ctx: Any, request: Any) -> Any:
    async def answer() -> None:
        await trio.sleep(0.5)

    return answer()


async def cancel_before_queued_requests(connection: Connection, requests: int) -> list[Any]:
    """Cancel a request without a response. Return the outcomes of the requests queued behind it."""
    outcomes: list[Any] = []

    async def ask() -> None:
        try:
            outcomes.append(await connection.ask(MetadataRequest(topics=[]), oldest=10))
        except OSError as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.1):
            async with trio.open_nursery() as first:
                first.start_soon(connection.ask, WAITING)
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(requests):
                    nursery.start_soon(ask)
    return outcomes


@pytest.mark.parametrize("name", ["any", "node"])
async def test_request_after_cancelled_request_gets_its_own_response(name: str) -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        replace_handler(broker, ApiKey.FETCH, answer_late)
        connection = await (cluster.any() if name == "any" else cluster.node(1))
        with trio.fail_after(20):
            responses = await cancel_before_queued_requests(connection, 3)
        assert [len(each.brokers) for each in responses] == [1, 1, 1]
        assert len(cluster._open) <= 2, "the broken connection is closed"


async def test_queued_request_on_broken_dialled_connection_fails() -> None:
    async with started() as broker:
        replace_handler(broker, ApiKey.FETCH, answer_late)
        connection = await open_connection(*broker.endpoint)
        await connection.negotiate()
        with trio.fail_after(20):
            errors = await cancel_before_queued_requests(connection, 2)
        assert [str(each) for each in errors] == [
            "the connection broke before this request was sent"
        ] * 2
        await connection.aclose()


async def test_connection_without_response_is_closed(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()

    async def dial(_: Endpoint) -> trio.abc.Stream:
        return ours

    async with open_cluster([Endpoint("silent", 9092)], dial=dial) as cluster:
        with pytest.raises(CannotConnect, match="does not respond"):
            await cluster.any()
        with trio.fail_after(5):
            while await theirs.receive_some():
                pass  # the request; then the stream ends
        assert not cluster._open


@pytest.mark.parametrize("name", ["any", "node", "dial"])
async def test_connection_with_failed_login_is_closed(name: str) -> None:
    is_rejecting = False

    async def log_in(_: Connection, endpoint: Endpoint) -> None:
        if is_rejecting:
            raise OSError(f"{endpoint} rejects the login")

    async with started() as broker:
        cluster = ClusterClient([broker.endpoint], "c", direct=False, log_in=log_in)
        if name != "any":
            await cluster.metadata()
        before = set(cluster._open)
        is_rejecting = True
        with pytest.raises((CannotConnect, NotReachable), match="rejects the login"):
            await (cluster.any() if name == "any" else getattr(cluster, name)(1))
        assert cluster._open == before
        await cluster.aclose()


async def test_closed_connection_of_dial_is_forgotten() -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        connection = await cluster.dial(1)
        await connection.aclose()
        assert connection not in cluster._open


@pytest.mark.parametrize("name", ["any", "node", "dial"])
async def test_addresses_replaced_during_dial_are_used(name: str) -> None:
    """The client must not return, or keep open, a connection to the earlier address."""
    dialled: list[Endpoint] = []
    is_dialling, may_dial = trio.Event(), trio.Event()

    async def dial(endpoint: Endpoint) -> trio.abc.Stream:
        dialled.append(endpoint)
        if len(dialled) == pause_at:
            is_dialling.set()
            await may_dial.wait()
        return await dial_tcp(endpoint)

    pause_at = 1 if name == "any" else 2
    connections: list[Connection] = []

    async def connect() -> None:
        connections.append(await (cluster.any() if name == "any" else getattr(cluster, name)(2)))

    async with started(nodes=2) as broker:
        first, second = (each.endpoint for each in broker.nodes)
        async with open_cluster([first], dial=dial) as cluster:
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    if name == "dial":
                        cluster.endpoints.clear()
                        pause_at = 1  # the request of metadata
                    nursery.start_soon(connect)
                    await is_dialling.wait()
                    cluster.reset_bootstrap([second])
                    may_dial.set()
            (connection,) = connections
            assert not connection.broken
            assert dialled[-1] == second
            assert cluster.bootstrap == [second]
            cached = {cluster._any, *cluster._nodes.values(), connection} - {None}
            assert cluster._open == cached


async def test_idle_connections_to_replaced_addresses_are_closed() -> None:
    async with started(nodes=2) as broker:
        first, second = (each.endpoint for each in broker.nodes)
        replace_handler(broker, ApiKey.FETCH, answer_late)
        async with open_cluster([first]) as cluster:
            busy, idle = await cluster.node(1), await cluster.any()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(busy.ask, WAITING)
                await trio.testing.wait_all_tasks_blocked()
                cluster.reset_bootstrap([second])
                current = await cluster.any()
                assert cluster._open == {busy, current}
                assert len((await idle.ask(MetadataRequest(topics=[]), oldest=10)).brokers) == 2
                nursery.cancel_scope.cancel()
