"""Tests of the metrics that clients push, and of the limits of stored metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from kbroker.node import client_metrics
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.otlp import Metric
from kbroker.runtime.cpu_shares import CpuAccount
from kbroker.runtime.heavy_work import HeavyWork, Result

from ..brokers import started
from ..handlers.telemetry_requests import DATA, get_subscription, latest, push, subscribe
from ..wire import connected


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("client_id=te.t", True),
        ("client_id=te", False),
        ("client_source_address=127.*,client_id=test", True),
        ("client_source_address=127.*,client_id=other", False),
        ("client_source_port=[1-9][0-9]+", True),
        ("client_source_port=0", False),
        ("client_software_name=kafka-x,client_software_version=1.2.*", True),
        ("client_software_version=2.*", False),
    ],
)
async def test_subscription_applies_only_to_matching_clients(match: str, fits: bool) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        hello = ApiVersionsRequest(client_software_name="kafka-x", client_software_version="1.2.3")
        await wire.ask(ApiKey.API_VERSIONS, 3, hello)
        assert await subscribe(wire, "s", metrics="m", match=match) == 0
        assert (await get_subscription(wire)).requested_metrics == (["m"] if fits else [])


async def test_subscription_patterns_use_re2_syntax() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        bad = await subscribe(wire, "s", match="client_id=(a)\\1")
        assert bad == ErrorCode.INVALID_CONFIG


async def test_pattern_without_engine_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await subscribe(wire, "s", match="client_id=a") == ErrorCode.INVALID_CONFIG
        assert await subscribe(wire, "s", metrics="m") == 0


async def test_newest_metrics_of_each_client_are_kept() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*", interval_ms="100")
        first, second = await get_subscription(wire), await get_subscription(wire)
        assert await push(wire, first, compress(Codec.ZSTD, b""), compression_type=4) == 0
        assert await push(wire, second) == 0
        data = compress(Codec.LZ4, DATA)
        assert await push(wire, first, data, compression_type=3, terminating=True) == 0
        (_, latest_labels), (labels, kept) = latest(broker)
        assert kept == latest_labels == [Metric("producer.rate", {}, 2.5)]
        assert labels["client_instance_id"] == str(first.client_instance_id)
        assert labels["client_id"] == "test"
        assert await push(wire, first) == ErrorCode.INVALID_REQUEST  # the instance has terminated


@pytest.mark.parametrize("codec", client_metrics.ACCEPTED)
async def test_decompression_bombs_are_rejected(codec: Codec) -> None:
    """See CVE-2026-111073."""
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*")
        bomb = compress(codec, bytes(client_metrics.INFLATED_BYTES_MAX + 1))
        assert len(bomb) < 1_048_576
        subscription = await get_subscription(wire)
        assert (
            await push(wire, subscription, bomb, compression_type=codec) == ErrorCode.INVALID_RECORD
        )
        subscription = await get_subscription(wire)
        broken = b"broken"
        assert (
            await push(wire, subscription, broken, compression_type=codec)
            == ErrorCode.INVALID_RECORD
        )
        assert latest(broker) == []


class RecordingWork(HeavyWork):
    """A HeavyWork that records the clients to which work is charged."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[CpuAccount] = []

    async def run(self, work: Callable[[], Result], client: CpuAccount) -> Result:
        self.clients.append(client)
        return await super().run(work, client)


async def test_decompression_is_charged_to_the_client() -> None:
    bomb = compress(Codec.GZIP, bytes(client_metrics.INFLATED_BYTES_MAX + 1))
    async with started() as broker:
        work = broker.node.heavy_work = RecordingWork()
        for _ in range(2):
            async with connected(broker.endpoint) as wire:
                for _ in range(2):
                    code = await push(
                        wire, await get_subscription(wire), bomb, compression_type=Codec.GZIP
                    )
                    assert code == ErrorCode.INVALID_RECORD
    assert len(work.clients) == 4
    assert len(set(work.clients)) == 2, "one account for each connection"
    assert len({each.identity for each in work.clients}) == 1, "accounts of one client"
    assert all(each.seconds > 0 for each in work.clients)


async def test_stored_metrics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "INSTANCES_MAX", 5)
    monkeypatch.setattr(client_metrics, "KEPT_BYTES_MAX", 3 * len(DATA))
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*")
        clients = [await get_subscription(wire) for _ in range(5)]
        for each in clients:
            assert await push(wire, each) == 0
        kept = [labels["client_instance_id"] for labels, _ in latest(broker)]
        assert kept == [str(each.client_instance_id) for each in clients[2:]]
        await get_subscription(wire)
        assert len(broker.node.client_metrics._instances) == 5
