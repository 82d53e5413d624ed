"""Metrics that clients send of themselves (KIP-714)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.handlers.api_versions import OF_CLIENT_METRICS
from kbroker.node import client_metrics
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.protocol.otlp import Metric
from kbroker.protocol.schema import ZERO_UUID
from kbroker.runtime.cpu_shares import HeavyClient
from kbroker.runtime.heavy_work import HeavyWork, Result

from ..brokers import started
from ..protocol.test_otlp import field, gauge, pushed
from ..wire import Wire, connected, request

CLIENT_METRICS = 16
DATA = pushed(gauge("producer.rate", field(4, 2.5)))
THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def subscribe(wire: Wire, name: str, **values: str | None) -> int:
    """Set what a subscription asks for; None takes a setting away."""
    cls = IncrementalAlterConfigsRequest
    configs = [
        cls.Config(name=key.replace("_", "."), config_operation=int(value is None), value=value)
        for key, value in values.items()
    ]
    row = cls.Resource(resource_type=CLIENT_METRICS, resource_name=name, configs=configs)
    answer = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, cls(resources=[row]))
    return int(answer.responses[0].error_code)


async def ask(wire: Wire, instance_id: uuid.UUID = ZERO_UUID) -> Any:
    message = request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, client_instance_id=instance_id)
    return await wire.ask(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, message)


async def push(wire: Wire, asked: Any, data: bytes = DATA, **fields: Any) -> int:
    values = {
        "client_instance_id": asked.client_instance_id,
        "subscription_id": asked.subscription_id,
        "metrics": data,
        **fields,
    }
    answer = await wire.ask(ApiKey.PUSH_TELEMETRY, 0, request(ApiKey.PUSH_TELEMETRY, **values))
    return int(answer.error_code)


def latest(broker: Broker) -> list[tuple[Mapping[str, str], list[Metric]]]:
    kept = broker.node.client_metrics.latest()
    return [(labels, each.metrics(100)) for labels, each in kept]


async def announced(wire: Wire) -> set[int]:
    """Those of the two APIs that clients hear of."""
    hello = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    answer = await wire.ask(ApiKey.API_VERSIONS, 3, hello)
    return {row.api_key for row in answer.api_keys} & OF_CLIENT_METRICS


async def test_clients_hear_of_metrics_only_while_somebody_wants_them() -> None:
    """A client that does measures all that it does: librdkafka reads a third less."""
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await announced(wire) == set()
        assert (await ask(wire)).error_code == ErrorCode.NONE  # it has heard of them before
        await subscribe(wire, "a", metrics="*")
        assert await announced(wire) == OF_CLIENT_METRICS
        assert await subscribe(wire, "a", metrics=None) == ErrorCode.NONE
        assert await announced(wire) == set()


async def test_a_client_is_told_what_to_send() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        nothing = await ask(wire)
        assert (nothing.error_code, nothing.requested_metrics) == (0, [])
        assert nothing.push_interval_ms == 300_000
        assert nothing.telemetry_max_bytes == 1_048_576
        assert nothing.delta_temporality
        assert nothing.accepted_compression_types == [4, 3, 1, 2]
        assert nothing.client_instance_id != ZERO_UUID
        await subscribe(wire, "a", metrics="producer.,consumer.", interval_ms="60000")
        await subscribe(wire, "b", metrics="producer.,admin.", interval_ms="90000")
        some = await ask(wire)
        assert some.requested_metrics == ["admin.", "consumer.", "producer."]
        assert some.push_interval_ms == 60_000
        assert some.client_instance_id != nothing.client_instance_id
        await subscribe(wire, "c", metrics="*")
        everything = await ask(wire)
        assert everything.requested_metrics == [""]
        ids = {each.subscription_id for each in (nothing, some, everything)}
        assert len(ids) == 3


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
async def test_only_those_are_asked_that_fit(match: str, fits: bool) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        software = {"client_software_name": "kafka-x", "client_software_version": "1.2.3"}
        await wire.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest(**software))
        assert await subscribe(wire, "s", metrics="m", match=match) == 0
        assert (await ask(wire)).requested_metrics == (["m"] if fits else [])


async def test_patterns_are_those_of_re2() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        bad = await subscribe(wire, "s", match="client_id=(a)\\1")
        assert bad == ErrorCode.INVALID_CONFIG


async def test_the_newest_metrics_of_each_client_are_kept() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*", interval_ms="100")
        first, second = await ask(wire), await ask(wire)
        assert await push(wire, first, compress(Codec.ZSTD, b""), compression_type=4) == 0
        assert await push(wire, second) == 0
        data = compress(Codec.LZ4, DATA)
        assert await push(wire, first, data, compression_type=3, terminating=True) == 0
        (_, same), (labels, kept) = latest(broker)
        assert kept == same == [Metric("producer.rate", {}, 2.5)]
        assert labels["client_instance_id"] == str(first.client_instance_id)
        assert labels["client_id"] == "test"
        assert await push(wire, first) == ErrorCode.INVALID_REQUEST  # it was over


async def test_who_sends_too_early_or_what_is_not_asked_for() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*", interval_ms="3600000")
        asked = await ask(wire)
        assert (await ask(wire, asked.client_instance_id)).error_code == THROTTLED
        assert await push(wire, asked) == 0
        assert await push(wire, asked) == THROTTLED
        assert await push(wire, asked, client_instance_id=ZERO_UUID) == 42
        other = await ask(wire)
        await subscribe(wire, "s", metrics="m")
        unknown = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert await push(wire, other) == unknown
        again = await ask(wire, other.client_instance_id)  # at once
        assert (again.error_code, again.requested_metrics) == (0, ["m"])
        codec = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert await push(wire, again, compression_type=9) == codec
        large = await ask(wire)
        too_large = bytes(1_048_577)
        assert await push(wire, large, too_large) == ErrorCode.TELEMETRY_TOO_LARGE
        assert len(latest(broker)) == 1


@pytest.mark.parametrize("codec", client_metrics.ACCEPTED)
async def test_bombs_are_refused(codec: Codec) -> None:
    """CVE-2026-111073."""
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*")
        bomb = compress(codec, bytes(client_metrics.INFLATED_BYTES_MAX + 1))
        assert len(bomb) < 1_048_576
        asked = await ask(wire)
        assert await push(wire, asked, bomb, compression_type=codec) == ErrorCode.INVALID_RECORD
        asked = await ask(wire)
        broken = b"broken"
        assert await push(wire, asked, broken, compression_type=codec) == ErrorCode.INVALID_RECORD
        assert latest(broker) == []


class RecordingWork(HeavyWork):
    """Heavy work that keeps the clients to which it is charged."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[HeavyClient] = []

    async def run(self, work: Callable[[], Result], client: HeavyClient) -> Result:
        self.clients.append(client)
        return await super().run(work, client)


async def test_decompression_is_charged_to_the_client() -> None:
    bomb = compress(Codec.GZIP, bytes(client_metrics.INFLATED_BYTES_MAX + 1))
    async with started() as broker:
        work = broker.node.heavy_work = RecordingWork()
        for _ in range(2):
            async with connected(broker.endpoint) as wire:
                for _ in range(2):
                    code = await push(wire, await ask(wire), bomb, compression_type=Codec.GZIP)
                    assert code == ErrorCode.INVALID_RECORD
    assert len(work.clients) == 4
    assert len(set(work.clients)) == 2, "one account for each connection"
    assert len({each.identity for each in work.clients}) == 1, "of one client"
    assert all(each.seconds > 0 for each in work.clients)


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "INSTANCES_MAX", 5)
    monkeypatch.setattr(client_metrics, "KEPT_BYTES_MAX", 3 * len(DATA))
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*")
        clients = [await ask(wire) for _ in range(5)]
        for each in clients:
            assert await push(wire, each) == 0
        kept = [labels["client_instance_id"] for labels, _ in latest(broker)]
        assert kept == [str(each.client_instance_id) for each in clients[2:]]
        await ask(wire)
        assert len(broker.node.client_metrics._instances) == 5
