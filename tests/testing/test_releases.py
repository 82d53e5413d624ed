"""Simulation of older API versions."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kbroker.handlers.registry import load_apis
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.testing import LocalBroker, RunningBroker, open_test_broker
from kbroker.testing.releases import RELEASES, apply_limits, limits_of

from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    produce_request,
    request,
)

TELEMETRY = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


@pytest.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with open_test_broker(topics={"orders": 1}) as broker:
        yield broker


async def announced_versions(wire: Wire) -> dict[int, tuple[int, int]]:
    """Return the API versions that the broker announces."""
    answer = await wire.ask(ApiKey.API_VERSIONS, 2, request(ApiKey.API_VERSIONS))
    assert not answer.error_code, answer
    return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "newest"),
    [
        ("0.10", {"Produce": 2, "Fetch": 3, "ApiVersions": 0, "InitProducerId": None}),
        ("1.1", {"Produce": 5, "Fetch": 7, "DeleteGroups": 0}),
        ("2.1", {"Produce": 7, "Fetch": 10, "JoinGroup": 3, "IncrementalAlterConfigs": None}),
        ("2.8", {"Produce": 9, "Fetch": 12, "ApiVersions": 3, "DescribeQuorum": None}),
        ("3.0", {"Fetch": 12, "ListOffsets": 7, "FindCoordinator": 4}),
        ("3.4", {"Fetch": 13, "DescribeQuorum": 1, "DescribeUserScramCredentials": None}),
        ("3.9.1", {"Produce": 11, "Fetch": 17, "Metadata": 12, "DescribeTopicPartitions": 0}),
        ("4.0", {"Produce": 12, "Fetch": 17, "Metadata": 13}),
        ("4.3", {"Produce": 13, "DescribeLogDirs": 5, "ApiVersions": 4, "TxnOffsetCommit": 5}),
        ("4.3", {"DeleteGroups": 2, "UnregisterController": None}),
        ("4.3", {"StreamsGroupHeartbeat": 0, "StreamsGroupDescribe": 0}),
        ("4.3", {"StreamsGroupTopologyDescriptionUpdate": None}),
        ("4.4", {"ApiVersions": 5, "TxnOffsetCommit": 6, "DeleteGroups": 3}),
        ("4.4", {"UnregisterController": 0}),
    ],
)
def test_release_limits_match_known_versions(release: str, newest: dict[str, int | None]) -> None:
    limits = {key.api_name: versions for key, versions in limits_of(release).items()}
    found = {name: (limits[name].stop - 1 if limits[name] else None) for name in newest}
    assert found == newest


def test_release_4_0_drops_old_versions() -> None:
    """KIP-896 removed old versions in 4.0."""
    first = {release: limits_of(release)[ApiKey.FETCH].start for release in ("3.9", "4.0", "4.3")}
    assert first == {"3.9": 0, "4.0": 4, "4.3": 4}


def test_newest_versions_never_decrease() -> None:
    """The exceptions are APIs that the first KRaft brokers did not have."""
    tables = [limits_of(release) for release in RELEASES]
    assert all(set(table) == set(ApiKey) for table in tables)
    for earlier, later in itertools.pairwise(tables):
        for key in ApiKey:
            assert later[key].stop >= earlier[key].stop or not later[key]
    assert {key for key, versions in tables[-1].items() if not versions} == TELEMETRY


def test_newest_release_allows_all_served_versions() -> None:
    """The table's last release has all versions of this broker, except client telemetry."""
    apis = {key: api for key, api in load_apis().items() if key not in TELEMETRY}
    kept = apply_limits(load_apis(), limits_of(RELEASES[-1]))
    assert {key: api.versions.stop for key, api in kept.items()} == {
        key: api.versions.stop for key, api in apis.items()
    }


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ("5.0", r"unknown Kafka release 5.0 \(valid: 0.10 to 4.4"),
        ({"Fech": 3}, "did you mean Fetch"),
    ],
)
async def test_unknown_release_or_api_is_rejected(
    broker: RunningBroker, versions: str | dict[str, int | None], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await broker.cap_versions(versions)


async def test_capped_versions_are_announced_and_enforced(broker: RunningBroker) -> None:
    async with connected(broker.broker.endpoint) as wire:
        everything = await announced_versions(wire)
        await broker.cap_versions("2.8")
        with pytest.raises(ConnectionClosed):
            await announced_versions(wire)
    async with connected(broker.broker.endpoint) as wire:
        assert set(await announced_versions(wire)) < set(everything)
        assert (await announced_versions(wire))[ApiKey.FETCH] == (0, 12)
        assert ApiKey.LIST_CONFIG_RESOURCES not in await announced_versions(wire)
        orders = produce_request(Topic("orders"), batch())
        await wire.ask(ApiKey.PRODUCE, 9, orders)
        with pytest.raises(ConnectionClosed):
            await wire.ask(ApiKey.PRODUCE, 10, orders)
    assert len(await broker.records("orders")) == 1
    await broker.cap_versions(None)
    async with connected(broker.broker.endpoint) as wire:
        assert await announced_versions(wire) == everything


@pytest.mark.parametrize("version", [4, 99])
async def test_newer_api_versions_request_gets_version_0_response(
    broker: RunningBroker, version: int
) -> None:
    """KIP-511: the response has version 0 and names the supported ApiVersions versions."""
    await broker.cap_versions("2.8")
    async with connected(broker.broker.endpoint) as wire:
        frame = wire.frame(ApiKey.API_VERSIONS, 4, request(ApiKey.API_VERSIONS))
        wire.pending[-1] = wire.pending[-1][0], ApiKey.API_VERSIONS, 0
        await wire.send_bytes(frame[:6] + version.to_bytes(2, "big") + frame[8:])
        answer = await wire.receive()
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        (row,) = answer.api_keys
        assert (row.api_key, row.min_version, row.max_version) == (ApiKey.API_VERSIONS, 0, 3)
        assert (await announced_versions(wire))[ApiKey.FETCH] == (0, 12)


async def test_single_apis_can_be_capped(broker: RunningBroker) -> None:
    await broker.cap_versions({"Fetch": 11, "DescribeTopicPartitions": None})
    async with connected(broker.broker.endpoint) as wire:
        found = await announced_versions(wire)
    assert found[ApiKey.FETCH] == (0, 11)
    assert found[ApiKey.PRODUCE] == (0, 13)
    assert ApiKey.DESCRIBE_TOPIC_PARTITIONS not in found


def test_client_follows_downgrade_while_running() -> None:
    """The client reconnects and uses the older versions."""
    with LocalBroker(topics={"orders": 1}) as broker:
        settings = {
            "bootstrap_servers": broker.bootstrap_servers,
            "retry_backoff_ms": 10,
            "reconnect_backoff_ms": 10,
        }
        producer = KafkaProducer(client_id="app", **settings)
        for release in (None, "2.1", "3.9", "0.11", "4.0"):
            broker.cap_versions(release)
            fault = broker.fault("Produce", client_id="app")
            producer.send("orders", str(release).encode()).get(10)
            assert fault.hits == 1
        producer.close()
        assert len(broker.records("orders")) == 5
        consumer = KafkaConsumer("orders", auto_offset_reset="earliest", **settings)
        assert next(consumer).value == b"None"
        consumer.close()
