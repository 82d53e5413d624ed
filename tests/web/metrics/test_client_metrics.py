"""Metrics that clients push, in /metrics."""

from __future__ import annotations

import math

import pytest

from kbroker.broker import Broker
from kbroker.client.endpoint import Endpoint
from kbroker.node import explain
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.otlp import FIELDS_MAX
from kbroker.web.metrics import client_metrics
from kbroker.web.metrics.client_metrics import CLIENT, ROWS_OF_ONE_MAX, TEXT_MAX, PushedMetrics

from ...handlers.telemetry_requests import get_subscription, push, subscribe
from ...loop_latency import STEP_SECONDS_MAX, longest_step
from ...protocol.test_otlp import attribute, field, gauge, pushed
from ...wire import connected
from ..client import get, served
from .nodes import scrape


async def rows(endpoint: Endpoint) -> dict[tuple[str, str], float]:
    """Return the values by the metric's name and its attributes."""
    scraped = await scrape(endpoint)
    found = {}
    for (name, labels), value in scraped.samples.items():
        if name == CLIENT:
            named = dict(labels)
            found[named["metric"], named["attributes"]] = value
    return found


async def test_newest_push_of_client_is_exposed() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        await subscribe(wire, "all", metrics="*")
        topic = attribute("topic", field(1, b'or"ders'))
        data = pushed(
            gauge("a.rate", field(4, 0.25) + topic, field(4, 2.0)),
            gauge("a.nan", field(4, math.nan)),
            gauge("a.nan", field(4, math.inf)),
        )
        assert await push(wire, await get_subscription(wire), data) == 0
        found = await rows(http.endpoint_of(1))
    assert found.pop(("a.nan", "")) == math.inf
    assert found == {("a.rate", 'topic=or"ders'): 0.25, ("a.rate", ""): 2.0}


async def test_names_and_series_of_one_client_are_limited() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        await subscribe(wire, "all", metrics="*")
        many = [gauge(f"{'x' * TEXT_MAX}{number}", field(4, 1.0)) for number in range(5)]
        many += [gauge(f"y{number}", field(4, 1.0)) for number in range(2 * ROWS_OF_ONE_MAX)]
        assert await push(wire, await get_subscription(wire), pushed(*many)) == 0
        found = await rows(http.endpoint_of(1))
    assert len(found) == ROWS_OF_ONE_MAX
    assert ("x" * TEXT_MAX, "") in found


async def test_series_of_all_clients_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "ROWS_MAX", 2)
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        await subscribe(wire, "all", metrics="*")
        data = pushed(gauge("a", field(4, 1.0)), gauge("b", field(4, 1.0)))
        for _ in range(3):
            assert await push(wire, await get_subscription(wire), data) == 0
        scraped = await scrape(http.endpoint_of(1))
    assert sum(name == CLIENT for name, _ in scraped.samples) == 2
    assert scraped("kbroker_metrics_dropped_series", what="client_metrics") == 2


async def test_malformed_push_is_not_exposed() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        await subscribe(wire, "all", metrics="*")
        assert await push(wire, await get_subscription(wire), b"nonsense") == 0
        assert await rows(http.endpoint_of(1)) == {}


BOMB_FIELDS = 1_000_000


async def push_bombs(broker: Broker, count: int) -> None:
    """Push small requests that decompress to many fields, from clients named `test`."""
    bomb = compress(Codec.GZIP, pushed(b"\x78\x00" * BOMB_FIELDS))
    assert len(bomb) < 10_000
    async with connected(broker.endpoint) as wire:
        await subscribe(wire, "all", metrics="*")
        for _ in range(count):
            data = await get_subscription(wire)
            assert await push(wire, data, bomb, compression_type=Codec.GZIP) == 0


async def test_pushes_of_many_fields_do_not_block_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explain, "CLIENTS_SHOWN", 2)
    async with served() as (broker, http):
        await push_bombs(broker, 3)
        endpoint = http.endpoint_of(1)
        with longest_step() as measured:
            explained = await get(endpoint, "/api/v1/explain/client/test")
            scraped = await scrape(endpoint)
    assert explained.status == 200
    assert "metrics of 3, the newest 2 of them are shown" in explained.json()["facts"][-1]
    assert [each["text"] for each in explained.json()["past"]] == [
        f"cannot parse the metrics: more than {FIELDS_MAX} fields"
    ] * 2
    assert not [name for name, _ in scraped.samples if name == CLIENT]
    assert measured.seconds < STEP_SECONDS_MAX, measured


async def test_one_scrape_parses_new_pushes_for_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_metrics, "READ_SECONDS", 1e-9)
    async with served() as (broker, _), connected(broker.endpoint) as wire:
        await subscribe(wire, "all", metrics="*")
        for _ in range(3):
            await push(wire, await get_subscription(wire), pushed(gauge("a", field(4, 1.0))))
        found = []
        metrics = PushedMetrics(broker.node)
        for _ in range(4):
            family, dropped_series = await metrics.family()
            found.append((len(family.lines), dropped_series))
    assert found == [(1, 2), (2, 1), (3, 0), (3, 0)]
