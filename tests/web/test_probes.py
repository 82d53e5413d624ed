"""Liveness and readiness of a node over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kbroker.broker import open_broker
from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.web.service import HttpService

from ..brokers import LOOPBACK
from .client import get, served


async def test_serving_node_is_ready() -> None:
    async with served() as (_, http):
        endpoint = http.endpoint_of(1)
        alive = await get(endpoint, "/livez")
        assert (alive.status, alive.json()) == (200, {"status": "alive"})
        for path in ("/readyz", "/healthz"):
            ready = await get(endpoint, path)
            assert ready.status == 200
            assert ready.json() == {
                "status": "ready",
                "node_id": 1,
                "checks": dict.fromkeys(
                    ("node", "cluster", "listeners", "data", "round_trip"), "ok"
                ),
            }


async def test_each_node_reports_its_own_readiness() -> None:
    async with served(nodes=3) as (broker, http):
        endpoints = [http.endpoint_of(each.id) for each in broker.nodes]
        assert len({each.port for each in endpoints}) == 3
        await broker.nodes[1].crash()
        await broker.nodes[2].stop()
        responses = [await get(each, "/readyz") for each in endpoints]
        assert [each.status for each in responses] == [200, 503, 503]
        reasons = [each.json().get("reason") for each in responses]
        assert reasons == [None, "node: crashed", "node: stopping"]
        alive = [(await get(each, "/livez")).status for each in endpoints]
        assert alive == [200] * 3, "the process is to be left alone"
        for each in broker.nodes[1:]:
            await each.start()
        assert [(await get(each, "/readyz")).status for each in endpoints] == [200] * 3


async def test_restarted_node_does_not_get_the_readiness_of_its_previous_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.web.probes.FRESH_SECONDS", 3600)
    async with served() as (broker, http):
        assert (await get(http.endpoint_of(1), "/readyz")).status == 200
        (local,) = broker.nodes
        await local.crash()
        await local.start()
        broker.server.stop_accepting()
        response = await get(http.endpoint_of(1), "/readyz")
        assert response.status == 503
        assert response.json()["checks"]["listeners"] == "not accepting connections"


async def test_node_that_restarts_during_the_checks_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as (broker, http):
        (local,) = broker.nodes

        async def restart(_: object) -> None:
            await local.crash()
            await local.start()

        monkeypatch.setattr("kbroker.web.probes._round_trip", restart)
        response = await get(http.endpoint_of(1), "/readyz")
        assert (response.status, response.json()["reason"]) == (503, "node: restarting")
        monkeypatch.undo()
        assert (await get(http.endpoint_of(1), "/readyz")).status == 200


async def test_read_only_log_directory_makes_node_not_ready(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, http):
        (manager,) = broker.node.partitions.logs.managers
        manager.make_read_only("there is no room")
        response = await get(http.endpoint_of(1), "/readyz")
        assert (response.status, response.json()["reason"]) == (503, "data: there is no room")


async def test_node_with_closed_listeners_is_not_ready() -> None:
    async with served() as (broker, http):
        broker.server.stop_accepting()
        response = await get(http.endpoint_of(1), "/readyz")
        checks = response.json()["checks"]
        assert response.status == 503
        assert checks["listeners"] == "not accepting connections"
        assert checks["round_trip"].startswith("the broker accepts no connections at")


async def test_readiness_is_reported_until_stop_completes() -> None:
    """Orchestrators must see that a node stops while it still serves its clients."""
    config = BrokerConfig.load(options={"http.port": "0"})
    http = HttpService(config)
    ready, stop, stopping, go_on = (trio.Event() for _ in range(4))

    async def run() -> None:
        async with open_broker(config, data_dir=None, listeners=[LOOPBACK], service=http) as broker:
            close = broker.node.close

            async def close_when_allowed() -> None:
                stopping.set()
                await go_on.wait()
                await close()

            broker.node.close = close_when_allowed  # type: ignore[method-assign]
            ready.set()
            await stop.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await ready.wait()
        endpoint = http.endpoint_of(1)
        assert (await get(endpoint, "/readyz")).status == 200
        stop.set()
        await stopping.wait()
        response = await get(endpoint, "/readyz")
        assert (response.status, response.json()["reason"]) == (503, "node: stopping")
        go_on.set()
    with pytest.raises(OSError, match="connect"):
        await get(Endpoint(*endpoint), "/livez")
