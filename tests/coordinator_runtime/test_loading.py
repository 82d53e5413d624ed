"""Loading of coordinators from large logs while clients are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordinator import GroupCoordinator, hash_partition
from kbroker.coordinator_runtime.loading import CoordinatorLoader, Load
from kbroker.coordinator_runtime.shard import Shard
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import KafkaError
from kbroker.protocol.messages.offsets import OffsetFetchRequest

from ..brokers import started
from ..handlers.test_groups_coordinators import find
from ..loop_latency import STEP_SECONDS_MAX, longest_step
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    delete_topic,
    metadata,
    produce,
    request,
    until,
    values_of,
)
from ..wire import fetch as fetch_records
from .memory import PartitionsInMemory
from .test_shards import LOADING, commit, fetch


async def test_large_log_is_loaded_while_other_requests_are_served() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 200)
        await find(wire, 4, "g")
        for offset in range(20):
            assert await commit(wire, offset, partitions=200, metadata="x" * 50) == 0
        broker.node.groups.stop()
        assert (await fetch(wire)).error_code == LOADING
        await until(lambda: not broker.node.groups.is_loading)
        assert (await fetch(wire)).topics[0].partitions[0].committed_offset == 19


@pytest.fixture
def slow_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make loads progress mainly through requests, and hardly in the background."""
    monkeypatch.setattr("kbroker.coordinator_runtime.loading.REPLAYS_AT_START", 1)
    monkeypatch.setattr("kbroker.coordinator_runtime.loading.RECORDS_AT_ONCE", 10)
    monkeypatch.setattr("kbroker.coordinator_runtime.loading.IDLE_FACTOR", 1e9)


async def fill(directory: Path, commits: int = 20) -> None:
    """Write some thousand records for one coordinator, 200 per commit."""
    async with (
        started(directory, offsets_topic_num_partitions=1) as broker,
        connected(broker.endpoint) as wire,
    ):
        for name in ("t", "u"):
            await create_topic(wire, name, 200)
        await find(wire, 4, "g")
        for offset in range(commits):
            assert await commit(wire, offset, partitions=200) == 0


async def fetch_when_loaded(wire: Wire) -> Any:
    """Retry a fetch, as clients do, until the coordinator is loaded."""
    while (response := await fetch(wire)).error_code:
        assert response.error_code == LOADING
    return response


@pytest.mark.usefixtures("slow_loads")
async def test_node_serves_before_its_coordinators_are_loaded(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.is_loading
        topic = Topic("u")
        assert {each.name for each in (await metadata(wire)).topics} >= {"t", "u"}
        assert (await produce(wire, topic, batch([b"v"]))).error_code == 0
        assert values_of(await fetch_records(wire, topic)) == [b"v"]
        assert await commit(wire, 20) == LOADING
        listed = await wire.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert (listed.error_code, listed.groups) == (LOADING, [])
        response = await fetch_when_loaded(wire)
        assert not broker.node.is_loading
        assert response.topics[0].partitions[0].committed_offset == 19
        assert await commit(wire, 20) == 0


@pytest.mark.slow
async def test_loading_does_not_block_loop(tmp_path: Path) -> None:
    await fill(tmp_path, commits=100)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        assert broker.node.is_loading
        with longest_step() as longest:
            await fetch_when_loaded(wire)
        assert longest.steps > 10
        assert longest.seconds < STEP_SECONDS_MAX, str(longest)


@pytest.mark.usefixtures("slow_loads")
async def test_offsets_of_topics_deleted_during_load_are_deleted(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await delete_topic(wire, "t")
        assert broker.node.is_loading
        await fetch_when_loaded(wire)
        all_offsets = OffsetFetchRequest(group_id="g", topics=None)
        assert (await wire.ask(ApiKey.OFFSET_FETCH, 5, all_offsets)).topics == []


async def test_small_coordinators_are_loaded_before_node_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [f"group-{number}" for number in range(30)]
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 200)
        await find(wire, 4, "g")
        for group in groups:
            assert await commit(wire, 1, group=group) == 0
        for offset in range(20):
            assert await commit(wire, offset, partitions=200) == 0
    monkeypatch.setattr("kbroker.coordinator_runtime.loading.REPLAYS_AT_START", 50)
    monkeypatch.setattr("kbroker.coordinator_runtime.loading.RECORDS_AT_ONCE", 20)
    monkeypatch.setattr("kbroker.coordinator_runtime.loading.IDLE_FACTOR", 1e9)
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        service = broker.node.groups
        large = hash_partition("g", 50)
        assert [load.shard.replica.index for load in service._loader] == [large]
        assert (await fetch(wire)).error_code == LOADING
        for group in groups:
            if hash_partition(group, 50) != large:
                assert await commit(wire, 2, group=group) == 0


async def test_coordinator_that_is_lost_when_its_load_ends_does_not_serve() -> None:
    """A failed sync of its first records drops a coordinator."""
    served: list[Load[GroupCoordinator]] = []

    def begin(shard: Shard[GroupCoordinator]) -> Iterator[int]:
        loader.drop(shard)
        yield 1

    async with started() as broker:
        await broker.create_topic("t")
        partitions = PartitionsInMemory(broker.node.cluster)
        loader = CoordinatorLoader[GroupCoordinator](
            broker.node.context,
            partitions,
            replay=lambda coordinator, header, records: iter(()),
            begin=begin,
            serve=served.append,
            report=lambda index, error: None,
        )
        shard = Shard(partitions.named_replica("t", 0), broker.node.groups._new_coordinator(0))
        load = loader.add(shard, is_replicated=False)
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):
            loader.finish_now(load)
    assert not served
