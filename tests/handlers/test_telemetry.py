"""Tests of client metrics (KIP-714)."""

from __future__ import annotations

import sys

import pytest

from kbroker.handlers.api_versions import TELEMETRY_APIS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.schema import ZERO_UUID

from ..brokers import started
from ..wire import Wire, connected
from .telemetry_requests import get_subscription, latest, push, subscribe

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


async def advertised(wire: Wire) -> set[int]:
    """Return the telemetry APIs that ApiVersions advertises."""
    hello = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    response = await wire.ask(ApiKey.API_VERSIONS, 3, hello)
    return {row.api_key for row in response.api_keys} & TELEMETRY_APIS


async def test_telemetry_apis_are_advertised_only_with_subscription() -> None:
    """Measuring costs clients: librdkafka reads a third less if the APIs are advertised."""
    async with started() as broker, connected(broker.endpoint) as wire:
        assert await advertised(wire) == set()
        assert (
            await get_subscription(wire)
        ).error_code == ErrorCode.NONE  # the API works without being advertised
        await subscribe(wire, "a", metrics="*")
        assert await advertised(wire) == TELEMETRY_APIS
        assert await subscribe(wire, "a", metrics=None) == ErrorCode.NONE
        assert await advertised(wire) == set()


async def test_client_gets_metrics_and_interval_of_matching_subscriptions() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        nothing = await get_subscription(wire)
        assert (nothing.error_code, nothing.requested_metrics) == (0, [])
        assert nothing.push_interval_ms == 300_000
        assert nothing.telemetry_max_bytes == 1_048_576
        assert nothing.delta_temporality
        assert nothing.accepted_compression_types == [4, 3, 1, 2]
        assert nothing.client_instance_id != ZERO_UUID
        await subscribe(wire, "a", metrics="producer.,consumer.", interval_ms="60000")
        await subscribe(wire, "b", metrics="producer.,admin.", interval_ms="90000")
        some = await get_subscription(wire)
        assert some.requested_metrics == ["admin.", "consumer.", "producer."]
        assert some.push_interval_ms == 60_000
        assert some.client_instance_id != nothing.client_instance_id
        await subscribe(wire, "c", metrics="*")
        subscription = await get_subscription(wire)
        assert subscription.requested_metrics == [""]
        ids = {each.subscription_id for each in (nothing, some, subscription)}
        assert len(ids) == 3


async def test_early_or_unrequested_pushes_are_rejected() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*", interval_ms="3600000")
        subscription = await get_subscription(wire)
        assert (
            await get_subscription(wire, subscription.client_instance_id)
        ).error_code == THROTTLED
        assert await push(wire, subscription) == 0
        assert await push(wire, subscription) == THROTTLED
        assert await push(wire, subscription, client_instance_id=ZERO_UUID) == 42
        other = await get_subscription(wire)
        await subscribe(wire, "s", metrics="m")
        unknown = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        assert await push(wire, other) == unknown
        renewed = await get_subscription(
            wire, other.client_instance_id
        )  # new subscriptions are not throttled
        assert (renewed.error_code, renewed.requested_metrics) == (0, ["m"])
        codec = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert await push(wire, renewed, compression_type=9) == codec
        large = await get_subscription(wire)
        too_large = bytes(1_048_577)
        assert await push(wire, large, too_large) == ErrorCode.TELEMETRY_TOO_LARGE
        assert len(latest(broker)) == 1


async def test_push_with_missing_codec_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    async with started() as broker, connected(broker.endpoint) as wire:
        await subscribe(wire, "s", metrics="*")
        subscription = await get_subscription(wire)
        error = await push(wire, subscription, compression_type=3)
        assert error == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
