"""Connections of a client to the brokers of a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kbroker.client.cluster import open_cluster
from kbroker.client.connection import Connection, open_connection
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
