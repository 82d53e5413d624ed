"""Data of the nodes of other processes."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from starlette.requests import Request

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.web.console import other_nodes
from kbroker.web.console.api import Api
from kbroker.web.console.other_nodes import Gathered, OtherNodes

from ...cli.test_serve import SECONDS
from ...cli.test_transactions import begin
from ...ports import free_ports
from ...processes.test_supervisor import running_supervisor
from ...wire import connected, create_topic
from ..metrics.test_server_metrics import responding
from .consoles import console, record
from .test_trends import ask as ask_node


def request_of(query: bytes = b"") -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/activity",
            "query_string": query,
            "headers": [(b"authorization", b"Basic abc")],
            "server": ("127.0.0.1", 1),
        }
    )


async def gathered(
    endpoints: dict[int, Endpoint], remote: list[int], query: bytes = b""
) -> Gathered:
    async with console() as client:
        viewer: Any = type("Viewer", (), {"client": None})()
        node = client.broker.node
        return await OtherNodes(endpoints).ask(request_of(query), viewer, node, remote)


async def test_nodes_without_response_and_without_address_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_nodes, "SECONDS_MAX", 0.2)
    async with responding(b'{"clients": [1]}') as other, responding(None) as hanging:
        endpoints = {2: other, 3: hanging, 4: Endpoint("127.0.0.1", 1), 6: other}
        found = await gathered(endpoints, [2, 3, 4, 5])
    assert found.found == {2: {"clients": [1]}}
    assert found.row() == {"silent_nodes": [3, 4], "other_nodes": [5]}


async def test_request_of_another_node_is_not_forwarded() -> None:
    async with responding(b"{}") as other:
        assert await gathered({2: other}, [2, 3], b"own=1") == Gathered({}, [], [])


async def test_large_response_is_parsed_and_invalid_one_counts_as_missing() -> None:
    large = json.dumps({"clients": ["x" * 100] * 1000}).encode()
    async with responding(large) as other, responding(b"[1") as invalid:
        found = await gathered({2: other, 3: invalid}, [2, 3])
    assert len(found.found[2]["clients"]) == 1000  # type: ignore[arg-type]
    assert found.silent == [3]


@pytest.mark.slow
def test_shared_address_shows_all_nodes_and_names_those_that_do_not_respond(
    tmp_path: Path,
) -> None:
    port = free_ports(1)
    with running_supervisor(tmp_path, "--http-port", str(port)) as server:
        server.start_and_wait()
        ask = partial(ask_node, f"http://127.0.0.1:{port}")
        overview = ask("overview")
        assert (overview["silent_nodes"], overview["other_nodes"]) == ([], [])
        assert {each["node"] for each in overview["disks"]} == {1, 2, 3}
        stored = ask("storage")
        assert {each["node"] for each in stored["partitions"]} == {1, 2, 3}
        assert {each["node"] for each in stored["disks"]} == {1, 2, 3}
        serving = ask("session")["node_id"]
        stopped = next(each for each in (1, 2, 3) if each != serving)
        os.kill(server.pid_of(stopped), signal.SIGSTOP)
        try:
            give_up = time.monotonic() + SECONDS
            while ask("activity")["silent_nodes"] != [stopped]:
                assert time.monotonic() < give_up
            problems = ask("overview")["problems"]
            assert str(stopped) in {each["where"] for each in problems}
        finally:
            os.kill(server.pid_of(stopped), signal.SIGCONT)
        server.stop()


async def seed_groups(address: str, groups: list[str]) -> None:
    async with open_cluster([Endpoint.parse(address)], "seed") as cluster:
        await create_topics(cluster, [NewTopic("t", 6)])
        await Producer(cluster).write({("t", n): [record(b"v")] for n in range(6)})
        for group in groups:
            await commit_offsets(cluster, group, {("t", 0): 0})


@pytest.mark.slow
def test_explanations_come_from_the_node_that_has_the_state(tmp_path: Path) -> None:
    port = free_ports(1)
    groups = [f"g{number} ?#/%25é" for number in range(8)]
    with running_supervisor(tmp_path, "--http-port", str(port)) as server:
        server.start_and_wait()
        trio.run(seed_groups, server.bootstrap, groups)
        ask = partial(ask_node, f"http://127.0.0.1:{port}")
        coordinators = {each["coordinator"] for each in ask("groups")["groups"]}
        assert len(coordinators) > 1
        for group in groups:
            found = ask(f"explain/group/{quote(group, safe='')}")
            assert "last commit at " in found["now"]
            assert found["facts"][1:3] == [
                "1 record is unread",
                "t-0 is 1 record behind (at 0 of 1)",
            ]
        for number in range(6):
            assert "is online" in ask(f"explain/partition/t/{number}")["now"]
        seed = ask("explain/client/seed")
        assert {each["node"] for each in seed["clients"]} == {1, 2, 3}
        text = "\n".join([seed["now"], *seed["facts"]])
        assert all(f"at node {number} it sent" in text for number in (1, 2, 3))
        assert text.count("has sent no metrics") == 1
        server.stop()


@pytest.mark.parametrize("path", ["group/g", "transaction/x"])
async def test_explanation_names_node_of_other_server_that_has_the_state(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async with console() as client, connected(client.broker.endpoint) as wire:
        await client.create_topic("t", record(b"v"))
        await commit_offsets(client.cluster, "g", {("t", 0): 0})
        await begin(wire, "x", await create_topic(wire, "u"))
        monkeypatch.setattr(Api, "other_nodes", property(lambda _: [1]))
        found = await client.get(f"/explain/{path}")
        assert found["now"].startswith("node 1 coordinates ")
        assert found["past"] == []
        assert ("1 record is unread" in found["facts"]) is path.startswith("group")
