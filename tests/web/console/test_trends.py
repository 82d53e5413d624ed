"""Trends of the last ten minutes, including data that only nodes in other processes have."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.groups import commit_offsets, delete_groups
from kbroker.client.share_groups import alter_share_offsets
from kbroker.client.topics import NewTopic, create_topics

from ...cli.test_serve import SECONDS, serving, wait_for
from ...ports import free_ports
from .trends import GROUPS, PARTITIONS, followed, write


async def test_record_rate_includes_partitions_of_other_nodes() -> None:
    async with followed() as setup:
        leaders = {each.leader for each in setup.broker.node.cluster.topics["t"].partitions}
        assert leaders == {1, 2}
        await setup.write(1)
        await setup.trends.sample()
        await setup.write(50)
        await setup.trends.sample()
        trend = setup.trends.topics["t"]
        assert setup.trends.records.values()[-1] == round(trend.records_per_second)
        await setup.trends.sample()
        assert trend.records_per_second > 0
        assert trend.bytes_per_second is None
        assert setup.trends.topics["t"].records_per_second == 0


async def test_byte_rate_is_known_only_for_topics_led_by_this_process() -> None:
    async with followed(nodes=1) as setup:
        await setup.write(1)
        await setup.trends.sample()
        await setup.write(50)
        await setup.trends.sample()
        assert (setup.trends.topics["t"].bytes_per_second or 0) > 0


async def test_group_lag_is_known_for_every_coordinator() -> None:
    async with followed() as setup:
        await setup.write(10)
        for group in GROUPS:
            await commit_offsets(setup.cluster, group, {("t", at): 4 for at in range(PARTITIONS)})
        await setup.trends.sample()
        assert 0 < len(setup.local_groups) < len(GROUPS)
        assert {name: setup.trends.groups[name].lag for name in GROUPS} == dict.fromkeys(GROUPS, 36)
        for name in GROUPS:
            trend = setup.trends.groups[name]
            assert trend.topics == {"t": 36}
            assert trend.members == (0 if name in setup.local_groups else None)
            assert trend.partitions["t", 5].values()[-1] == 6
        await delete_groups(setup.cluster, GROUPS)
        await setup.trends.sample()
        assert not setup.trends.groups


@pytest.mark.parametrize("nodes", [1, 2])
async def test_share_group_lag_is_sampled(nodes: int) -> None:
    async with followed(nodes) as setup:
        await setup.write(10)
        for group in GROUPS:
            begun = await alter_share_offsets(
                setup.cluster, group, {("t", at): 7 for at in range(PARTITIONS)}
            )
            assert not any(begun.values())
        await setup.trends.sample()
        assert {name: setup.trends.groups[name].lag for name in GROUPS} == dict.fromkeys(GROUPS, 18)
        trend = setup.trends.groups[GROUPS[0]]
        assert trend.partitions["t", 0].values()[-1] == 3
        await setup.write(1)
        await setup.trends.sample()
        assert trend.total.values()[-2:] == [18, 24]


async def groups_of_many(address: Endpoint) -> None:
    async with open_cluster([address]) as cluster:
        await create_topics(cluster, [NewTopic("t", PARTITIONS, 1)])
        await write(cluster, 10)
        for group in GROUPS:
            await commit_offsets(cluster, group, {("t", at): 4 for at in range(PARTITIONS)})


@pytest.mark.slow
def test_each_process_lists_all_groups_and_the_other_nodes(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    flags = ("--processes", "2", "--data-dir", str(tmp_path / "data"))
    ports = ("--port", str(free_ports(3)), "--http-port", "0")
    with serving(*flags, *ports, "--port-file", str(ready)):
        nodes = json.loads(wait_for(ready))["nodes"]
        trio.run(groups_of_many, Endpoint.parse(nodes[0]["listeners"]["PLAINTEXT"]))
        assert len(nodes) == 2
        for node, other in zip(nodes, reversed(nodes), strict=True):
            wanted = dict.fromkeys(GROUPS, 36)
            give_up = time.monotonic() + SECONDS
            while told_lags(node["http"]) != wanted:
                assert time.monotonic() < give_up
                time.sleep(0.2)
            for path, rows in (("activity", "clients"), ("storage", "partitions")):
                found = ask(node["http"], path)
                assert (found["other_nodes"], found["silent_nodes"]) == ([], [])
                both = {node["node_id"], other["node_id"]}
                assert {each["node"] for each in found[rows]} == both


def ask(http: str, path: str) -> Any:
    with urllib.request.urlopen(f"{http}/api/v1/{path}") as response:
        return json.load(response)


def told_lags(http: str) -> dict[str, int | None]:
    return {each["group"]: each["lag"] for each in ask(http, "groups")["groups"]}
