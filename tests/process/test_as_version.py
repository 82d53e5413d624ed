"""The API versions of an older release: `kbroker serve --as-version`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kbroker.broker import Broker, open_broker
from kbroker.cluster.peers import client_id_of
from kbroker.config import BrokerConfig
from kbroker.handlers.registry import load_apis
from kbroker.process.as_version import version_limits
from kbroker.process.errors import StartFailed
from kbroker.protocol.api_keys import ApiKey

from ..brokers import LOOPBACK
from ..wire import (
    ConnectionClosed,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    metadata,
    produce,
    request,
)

NEWEST_PRODUCE = load_apis()[ApiKey.PRODUCE].versions.stop - 1


@asynccontextmanager
async def open_limited(release: str | None, *, nodes: int = 1) -> AsyncIterator[Broker]:
    opened = open_broker(
        BrokerConfig.load(options={"default.replication.factor": str(nodes)}),
        data_dir=None,
        listeners=[LOOPBACK],
        nodes=nodes,
        intercept=version_limits(release),
    )
    async with opened as broker:
        yield broker


async def announced_versions(wire: Wire, client_id: str | None = "test") -> dict[int, int]:
    """Return the newest announced version by API key."""
    await wire.send(ApiKey.API_VERSIONS, 2, request(ApiKey.API_VERSIONS), client_id=client_id)
    return {row.api_key: row.max_version for row in (await wire.receive()).api_keys}


async def test_versions_of_release_are_announced_and_enforced() -> None:
    async with open_limited("2.8") as broker, connected(broker.endpoint) as wire:
        versions = await announced_versions(wire)
        assert versions[ApiKey.FETCH] == 12
        assert ApiKey.DESCRIBE_TOPIC_PARTITIONS not in versions
        await create_topic(wire, "orders")
        await produce(wire, Topic("orders"), batch(), version=9)
        with pytest.raises(ConnectionClosed):
            await produce(wire, Topic("orders"), batch(), version=10)


async def test_without_release_all_versions_are_announced() -> None:
    async with open_limited(None) as broker, connected(broker.endpoint) as wire:
        assert (await announced_versions(wire))[ApiKey.PRODUCE] == NEWEST_PRODUCE


@pytest.mark.parametrize(
    "client_id", ["kbroker-console", "kbroker-registry", client_id_of(1), client_id_of(2)]
)
async def test_services_and_nodes_keep_all_versions(client_id: str) -> None:
    async with open_limited("0.10", nodes=2) as broker, connected(broker.endpoint) as wire:
        assert (await announced_versions(wire, client_id))[ApiKey.PRODUCE] == NEWEST_PRODUCE
        # Only the first request of a connection decides.
        assert (await announced_versions(wire))[ApiKey.PRODUCE] == NEWEST_PRODUCE


async def test_nodes_replicate_while_clients_are_limited() -> None:
    async with open_limited("2.8", nodes=2) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "orders")
        (row,) = (await metadata(wire, ["orders"])).topics
        assert len(row.partitions[0].replica_nodes) == 2
        row = await produce(wire, Topic("orders"), batch(), version=9)
        assert (row.error_code, row.base_offset) == (0, 0)


def test_unknown_release_is_rejected() -> None:
    with pytest.raises(StartFailed, match=r"--as-version: unknown Kafka release 5.0 \(valid: 0.10"):
        version_limits("5.0")
