"""The console's JSON API for topics, records, groups, clients and the cluster."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import Record
from kbroker.schemas.access import ALL_SCHEMAS
from kbroker.web.console.api import Api
from kbroker.web.console.health import PARTITIONS_CHECKED_MAX
from kbroker.web.console.schemas import NodeSchemas

from ...wire import ANSWER_SECONDS
from ..client import HttpClient
from .consoles import API, console, record, values


async def test_topics_are_listed_with_size_rate_groups_and_lag() -> None:
    async with console() as client:
        await client.create_topic("orders", *(record(b"v%d" % n) for n in range(5)))
        await commit_offsets(client.cluster, "shop", {("orders", 0): 3})
        await client.sample()
        (rows,) = (await client.get("/topics"))["topics"]
        assert rows["name"] == "orders"
        assert rows["records"] == 5
        assert rows["bytes"] > 0
        assert rows["groups"] == [{"group": "shop", "lag": 2, "members": 0}]
        assert rows["lag"] == 2
        (group,) = (await client.get("/groups"))["groups"]
        assert (group["group"], group["lag"], group["trend"][-1]) == ("shop", 2, 2)
        details = await client.get("/groups/shop/details")
        assert details["total_lag"] == 2
        assert details["partitions"][0]["trend"][-1] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"contains": "needle"}, [7]),
        ({"key": "k1"}, [1, *range(10, 20)]),
        ({"header": "h=x3"}, [3]),
        ({"header": "h"}, list(range(20))),
        ({"where": "value.n == 4 or value.n > 17"}, [4, 18, 19]),
        ({"where": 'key == "k2" and headers.h ~ "x"'}, [2]),
        ({"where": "not (offset < 18) and size > 1"}, [18, 19]),
        ({"where": "value.list.1.deep"}, [5]),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_are_found_by_text_key_header_and_expression(
    query: dict[str, str], wanted: list[int], codec: Codec
) -> None:
    async with console() as client:
        await client.create_topic("t")
        records = []
        for n in range(20):
            document: dict[str, Any] = {"n": n} | ({"word": "a needle"} if n == 7 else {})
            document |= {"list": [0, {"deep": True}]} if n == 5 else {}
            records.append(record(json.dumps(document).encode(), b"k%d" % n, h=b"x%d" % n))
        await Producer(client.cluster, codec=codec).write({("t", 0): records})
        found = await client.get("/topics/t/messages", from_="oldest", **query)
        assert [each["offset"] for each in found["records"]] == wanted
        assert found["scanned"] == 20


async def test_hostile_names_and_headers_are_returned_as_data() -> None:
    async with console() as client:
        evil = "<script>alert(1)</script>\x1b[31m\u2028"
        await client.create_topic(
            "t", Record(evil.encode(), evil.encode(), 1, [("\udcff" + evil, b"\xff")], -1)
        )
        response = await client.ask("/topics/t/messages")
        assert response.body.isascii()
        assert response.headers["content-type"] == "application/json"
        (row,) = response.json()["records"]
        assert row["value"] == evil
        await commit_offsets(client.cluster, evil, {("t", 0): 1})
        details = await client.get(f"/groups/{quote(evil, safe='')}/details")
        assert details["group"] == evil


@pytest.mark.parametrize(
    "path",
    [
        "/topics/t/messages?from=nowhere",
        "/topics/t/messages?limit=0",
        "/topics/t/messages?limit=9999999999999999999999",
        "/topics/t/messages?partition=x",
        "/topics/t/messages?where=" + "(" * 500,
        "/topics/t/messages?where=value+%3D%3D",
        "/topics/t/messages?where=import+os",
        "/topics/t/messages?contains=" + "x" * 2_000,
        "/topics/t/messages?cursor=nothing",
        "/topics/t/messages?from=offset&offset=99999999999999999999",
        "/topics/absent/messages",
        "/topics/t/records/9/0/value",
        "/topics/t/records/0/5/value",
        "/topics/t/records/0/99999999999999999999/value",
        "/topics/%00/messages",
        "/groups/absent/details",
        "/explain/partition/t/99999999999999",
    ],
)
async def test_malformed_request_is_rejected_with_reason(path: str) -> None:
    async with console() as client:
        await client.create_topic("t", record(b"v"))
        response = await client.http.ask(API + path)
        assert 400 <= response.status < 500, response.text
        assert response.json()["error"]


async def test_activity_lists_requests_errors_and_disconnects_of_clients() -> None:
    async with console() as viewer:
        async with open_cluster([viewer.broker.nodes[0].endpoint], "shop-1") as cluster:
            await create_topics(cluster, [NewTopic("t"), NewTopic("bad name!")])
        client: dict[str, Any] = {}
        while not client.get("disconnects"):
            clients = (await viewer.get("/activity"))["clients"]
            client = next(each for each in clients if each["client_id"] == "shop-1")
        apis = {each["api"]: each for each in client["apis"]}
        assert apis["CreateTopics"]["errors"] == {"INVALID_TOPIC_EXCEPTION": 1}
        assert apis["CreateTopics"]["problems"] == ["INVALID_TOPIC_EXCEPTION"]
        assert client["problems"] == 1
        assert client["software"].startswith("kbroker/")
        assert set(client["disconnects"]) == {"closed by client"}
        texts = [each["text"] for each in (await viewer.get("/activity"))["events"]]
        assert "CreateTopics returned INVALID_TOPIC_EXCEPTION" in texts
        explained = await viewer.get("/explain/client/shop-1")
        (row,) = explained["clients"]
        (errors,) = [each["errors"] for each in row["apis"] if each["api"] == "CreateTopics"]
        assert errors == {"INVALID_TOPIC_EXCEPTION": 1}
        assert "is online" in (await viewer.get("/explain/partition/t/0"))["now"]


async def test_overview_counts_outage_in_cluster_too_large_to_check_each_partition() -> None:
    async with console(nodes=3) as client:
        topics = [NewTopic("single", PARTITIONS_CHECKED_MAX, 1), NewTopic("copied", 3, 3)]
        await create_topics(client.cluster, topics)
        before = await client.get("/overview")
        assert before["problems"] == []
        assert before["is_checked"] is False
        assert before["outage"] == {"brokers_down": 0, "offline": 0, "under_replicated": 0}
        led = sum(
            each.leader == 3 for each in client.broker.node.cluster.topics["single"].partitions
        )
        await client.broker.nodes[2].crash()
        expected = {"brokers_down": 1, "offline": led, "under_replicated": 3}
        with trio.fail_after(ANSWER_SECONDS):
            while (await client.get("/overview"))["outage"] != expected:  # noqa: ASYNC110
                await trio.sleep(0.05)
        found = await client.get("/cluster")
        assert (found["offline"], found["under_replicated_count"]) == (led, 3)
        assert len(found["under_replicated"]) == led + 3


async def test_cluster_view_lists_every_node() -> None:
    async with console(nodes=3) as client:
        await create_topics(client.cluster, [NewTopic("t", 6, 3)])
        overview = await client.get("/overview")
        assert overview["state"] == "running"
        assert overview["problems"] == []
        cluster = await client.get("/cluster")
        assert [each["broker"] for each in cluster["brokers"]] == [1, 2, 3]
        assert sum(each["leads"] for each in cluster["brokers"]) == 6
        (details,) = [await client.get("/topics/t")]
        assert [len(each["isr"]) for each in details["partitions"]] == [3] * 6
        await Producer(client.cluster).write({("t", index): [record(b"v")] for index in range(6)})
        assert len(values(await client.get("/topics/t/messages"))) == 6
        stored = (await client.get("/storage"))["partitions"]
        assert {each["node"] for each in stored} == {1, 2, 3}
        disks = (await client.get("/storage"))["disks"]
        assert [(each["node"], each["read_only_reason"]) for each in disks] == [
            (node, None) for node in (1, 2, 3)
        ]
        config = (await client.get("/topics/t/config"))["configs"]
        retention = next(each for each in config if each["name"] == "retention.ms")
        assert retention["source"] == "default"
        assert retention["doc"]


async def test_clients_of_old_sessions_are_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many requests that end at the same time find the same sessions to be too old."""
    statuses: list[int] = []
    async with console() as client:
        await client.create_topic("t")
        host, port = client.service.endpoint_of(1)

        async def ask(viewer: str) -> None:
            async with await trio.open_tcp_stream(host, port, local_address=viewer) as stream:
                response = await HttpClient(stream, "localhost").ask(f"{API}/topics/t/messages")
                statuses.append(response.status)

        for session_seconds in (600, 0):
            monkeypatch.setattr("kbroker.web.console.sessions.SESSION_SECONDS", session_seconds)
            async with trio.open_nursery() as nursery:
                for number in range(2, 22):
                    nursery.start_soon(ask, f"127.0.0.{number}")
    assert statuses == [200] * 40


async def test_schemas_are_not_used_after_their_permission_was_removed() -> None:
    """The request waits for the newest schemas between the check and the use."""
    permitted = [True]

    async def remove_permission() -> None:
        permitted.clear()

    decoder: Any = SimpleNamespace(resource=ALL_SCHEMAS, catch_up=remove_permission)
    viewer: Any = SimpleNamespace(may=lambda *_: bool(permitted))
    local: Any = SimpleNamespace(id=1)
    nobody: Any = None
    api = Api(
        local,
        [],
        nobody,
        nobody,
        lambda _: NodeSchemas(decoder, nobody),
        nobody,
        may_write=True,
        seconds=1,
    )
    assert await api.schemas(viewer) is None
