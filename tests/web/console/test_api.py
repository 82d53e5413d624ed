"""The JSON of the console: what it tells of topics, records, groups and clients, and who may write."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import trio

from kbroker.broker import Broker
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.compression import Codec
from kbroker.protocol.primitives import Buffer
from kbroker.protocol.record_stream import OversizedRecord, stream_records
from kbroker.protocol.records import BatchHeader, Record
from kbroker.web.console import scan, topics
from kbroker.web.console.api import LIVE_MAX
from kbroker.web.console.cluster import PARTITIONS_CHECKED_MAX
from kbroker.web.service import HttpService

from ...turns import TURN_SECONDS_MAX, longest_step
from ...wire import ANSWER_SECONDS, until
from ..client import Answer, HttpClient, asking, served

API = "/api/v1"


def record(
    value: bytes | None, key: bytes | None = None, at_ms: int = 1000, **headers: bytes
) -> Record:
    return Record(key, value, at_ms, list(headers.items()), -1)


class Console:
    """A broker's console, as a page has it."""

    def __init__(
        self, broker: Broker, service: HttpService, http: HttpClient, cluster: ClusterClient
    ) -> None:
        self.broker = broker
        self.service = service
        self.http = http
        self.cluster = cluster

    async def get(self, path: str, **query: object) -> Any:
        """What is told; it must be."""
        answer = await self.ask(path, **query)
        assert answer.status == 200, answer.text
        return answer.json()

    async def ask(self, path: str, **query: object) -> Answer:
        named = {name.rstrip("_"): value for name, value in query.items()}
        return await self.http.ask(f"{API}{path}?{urlencode(named)}")

    async def post(self, path: str, body: object = None, **headers: str) -> Answer:
        token = (await self.get("/session"))["token"]
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.ask(API + path, "POST", {"X-Kbroker-Token": token, **headers}, data)

    async def sample(self) -> None:
        """Have it look at groups and rates now."""
        assert self.service.console is not None
        await self.service.console.trends.sample()

    async def topic(self, name: str, *records: Record, partitions: int = 1) -> None:
        """A topic with records in its first partition."""
        await create_topics(self.cluster, [NewTopic(name, partitions)])
        if records:
            await Producer(self.cluster).write({(name, 0): records})


@asynccontextmanager
async def console(**properties: object) -> AsyncIterator[Console]:
    async with (
        served(**properties) as (broker, http),  # type: ignore[arg-type]
        asking(http.endpoint_of(1)) as client,
        open_cluster([broker.nodes[0].endpoint]) as cluster,
    ):
        yield Console(broker, http, client, cluster)


def values(found: Any) -> list[str]:
    return [each["value"] for each in found["records"]]


async def test_topics_are_told_with_size_rate_groups_and_lag() -> None:
    async with console() as it:
        await it.topic("orders", *(record(b"v%d" % n) for n in range(5)))
        await commit_offsets(it.cluster, "shop", {("orders", 0): 3})
        await it.sample()
        (rows,) = (await it.get("/topics"))["topics"]
        assert rows["name"] == "orders"
        assert rows["records"] == 5
        assert rows["bytes"] > 0
        assert rows["groups"] == [{"group": "shop", "lag": 2, "members": 0}]
        assert rows["lag"] == 2
        (group,) = (await it.get("/groups"))["groups"]
        assert (group["group"], group["lag"], group["trend"][-1]) == ("shop", 2, 2)
        details = await it.get("/groups/shop/details")
        assert details["total_lag"] == 2
        assert details["partitions"][0]["trend"][-1] == 2


async def test_records_are_looked_at_from_either_end_an_offset_or_a_time() -> None:
    async with console() as it:
        await it.topic("t", *(record(b"v%d" % n, at_ms=1000 + n) for n in range(50)))
        path = "/topics/t/messages"
        newest = await it.get(path, limit=3)
        assert values(newest) == ["v49", "v48", "v47"]
        assert not newest["done"]
        assert values(await it.get(path, limit=2, cursor=newest["cursor"])) == ["v46", "v45"]
        assert values(await it.get(path, from_="oldest", limit=2)) == ["v0", "v1"]
        assert values(await it.get(path, from_="offset", offset=48)) == ["v48", "v49"]
        assert values(await it.get(path, from_="timestamp", timestamp=1047)) == [
            "v47",
            "v48",
            "v49",
        ]
        everything = await it.get(path, limit=500)
        assert everything["done"]
        assert everything["cursor"] is None
        assert len(everything["records"]) == 50


async def test_oversized_record_is_listed_with_its_size_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "RECORD_BYTES_MAX", 1000)
    async with console() as it:
        await it.topic("t", record(b"small"), record(bytes(5000), b"k"))
        large, small = (await it.get("/topics/t/messages"))["records"]
        assert large["oversized_bytes"] > 5000
        assert (large["key"], large["value"], large["headers"]) == (None, None, [])
        assert small["value"] == "small"
        assert "oversized_bytes" not in small


async def test_partitions_are_merged_by_time() -> None:
    async with console() as it:
        await it.topic(
            "t", *(record(b"a%d" % n, at_ms=1000 + 2 * n) for n in range(40)), partitions=2
        )
        more = [record(b"b%d" % n, at_ms=1001 + 2 * n) for n in range(40)]
        await Producer(it.cluster).write({("t", 1): more})
        found = await it.get("/topics/t/messages", limit=4)
        assert values(found) == ["b39", "a39", "b38", "a38"]
        seen = values(found)
        while found["cursor"]:
            found = await it.get("/topics/t/messages", limit=7, cursor=found["cursor"])
            seen += values(found)
        assert len(seen) == len(set(seen)) == 80
        assert values(await it.get("/topics/t/messages", partition=1, limit=1)) == ["b39"]


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
    async with console() as it:
        await it.topic("t")
        records = []
        for n in range(20):
            document: dict[str, Any] = {"n": n} | ({"word": "a needle"} if n == 7 else {})
            document |= {"list": [0, {"deep": True}]} if n == 5 else {}
            records.append(record(json.dumps(document).encode(), b"k%d" % n, h=b"x%d" % n))
        await Producer(it.cluster, codec=codec).write({("t", 0): records})
        found = await it.get("/topics/t/messages", from_="oldest", **query)
        assert [each["offset"] for each in found["records"]] == wanted
        assert found["scanned"] == 20


async def test_a_look_ends_with_its_budget_and_goes_on_from_there() -> None:
    async with console() as it:
        await it.topic("t")
        producer = Producer(it.cluster)
        for n in range(40):
            batch = [record(b"x" * 10_000), record(b"needle %d" % n)]
            await producer.write({("t", 0): batch})
        for origin in ("oldest", "newest"):
            query: dict[str, Any] = {"contains": "needle", "from_": origin, "bytes": 50_000}
            found = await it.get("/topics/t/messages", **query)
            assert 0 < len(found["records"]) < 40
            assert 0 < found["scanned"] < 80
            assert found["left"] == 80 - found["scanned"]
            seen, looks = values(found), 1
            while found["cursor"]:
                before = found["left"]
                found = await it.get("/topics/t/messages", **query, cursor=found["cursor"])
                seen, looks = seen + values(found), looks + 1
                assert found["left"] < before
            assert found["left"] == 0
            assert sorted(seen) == sorted(f"needle {n}" for n in range(40))
            assert looks > 3


@pytest.mark.parametrize("query", [{"contains": "nowhere"}, {"where": "size > 100"}])
async def test_a_look_backwards_opens_each_batch_once(query: dict[str, str]) -> None:
    async with console() as it:
        await it.topic("t")
        producer, size = Producer(it.cluster), 0
        for _ in range(10):
            (written,) = await producer.write({("t", 0): [record(b"x" * 40)] * 1_000})
            size += written.header.size
        found, looks = await it.get("/topics/t/messages", **query, bytes=size // 3), 1
        scanned, scanned_bytes = found["scanned"], found["scanned_bytes"]
        while found["cursor"]:
            found = await it.get(
                "/topics/t/messages", **query, bytes=size // 3, cursor=found["cursor"]
            )
            looks += 1
            scanned += found["scanned"]
            scanned_bytes += found["scanned_bytes"]
        assert looks <= 6
        assert scanned == 10_000
        assert scanned_bytes < 1.5 * size


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    "query",
    [
        {"where": "value.n < 0"},
        {"contains": "nowhere"},
        {"where": "value.n < 0", "from_": "oldest"},
    ],
)
async def test_a_look_through_much_lets_others_have_their_turn(
    query: dict[str, str], codec: Codec
) -> None:
    async with console() as it:
        await it.topic("t")
        records = [record(b'{"n": %d, "text": "%s"}' % (n, b"x" * 60)) for n in range(5_000)]
        producer = Producer(it.cluster, codec=codec)
        for _ in range(4):
            await producer.write({("t", 0): records})
        with longest_step() as step:
            found = await it.get("/topics/t/messages", **query, ms=10_000)
            scanned = found["scanned"]
            while found["cursor"]:  # its time was over before
                found = await it.get("/topics/t/messages", **query, cursor=found["cursor"])
                scanned += found["scanned"]
        assert scanned == 20_000
        assert step.steps > 20
        assert step.seconds < TURN_SECONDS_MAX, step.task


async def test_bytes_are_told_by_what_they_mean_and_cut_where_they_are_long() -> None:
    async with console() as it:
        await it.topic(
            "t",
            record(b'{"a": 1}', b"\x00\x00\x00\x07"),
            record("gr\u00fc\u00df".encode(), b"\xff\xfe\x00"),
            record(b"\x00\x00\x00\x00\x09\x02\x04\x06\x08"),
            record("\u00e9".encode() * 5_000),
            record(None),
        )
        rows = (await it.get("/topics/t/messages", from_="oldest"))["records"]
        assert [each.get("value_format") for each in rows] == [
            "json",
            "text",
            "schema",
            "text",
            None,
        ]
        assert (rows[0]["key_format"], rows[0]["key_text"]) == ("int32", "7")
        assert (rows[1]["key_format"], rows[1]["key_text"]) == ("hex", "fffe00")
        assert rows[2]["value_text"] == "schema 9: 02040608"
        assert (rows[3]["value_size"], rows[3]["value_cut"]) == (10_000, True)
        assert rows[3]["value"] == "\u00e9" * 2_048
        assert rows[4]["value"] is None
        whole = await it.ask("/topics/t/records/0/3/value")
        assert whole.body.decode() == "\u00e9" * 5_000
        assert whole.headers["content-type"] == "application/octet-stream"


async def test_records_of_coordinators_are_told_in_words() -> None:
    async with console() as it:
        await it.topic("t", record(b"v"))
        await commit_offsets(it.cluster, "shop", {("t", 0): 1})
        rows = (await it.get("/topics/__consumer_offsets/messages", where='value ~ ""'))["records"]
        meanings = [json.loads(each["value_text"]) for each in rows if "value_text" in each]
        assert {"group": "shop", "topic": "t", "partition": 0}.items() <= meanings[0].items()


async def test_key_of_internal_topic_is_not_read_as_schema_registry_frame() -> None:
    async with console() as it:
        await it.topic("t", record(b"v", b"\x00\x01\x00\x05shops"))
        await commit_offsets(it.cluster, "shop", {("t", 0): 1})
        framed = (await it.get("/topics/t/messages"))["records"]
        assert {row["key_format"] for row in framed} == {"schema"}
        path = "/topics/__consumer_offsets/messages"
        offsets = (await it.get(path, where='value ~ ""'))["records"]
        assert offsets
        assert "schema" not in {row["key_format"] for row in offsets}


async def test_names_and_headers_that_are_hostile_are_data() -> None:
    async with console() as it:
        evil = "<script>alert(1)</script>\x1b[31m\u2028"
        await it.topic(
            "t", Record(evil.encode(), evil.encode(), 1, [("\udcff" + evil, b"\xff")], -1)
        )
        answer = await it.ask("/topics/t/messages")
        assert answer.body.isascii()
        assert answer.headers["content-type"] == "application/json"
        (row,) = answer.json()["records"]
        assert row["value"] == evil
        await commit_offsets(it.cluster, evil, {("t", 0): 1})
        details = await it.get(f"/groups/{quote(evil, safe='')}/details")
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
async def test_what_makes_no_sense_is_refused_with_a_sentence(path: str) -> None:
    async with console() as it:
        await it.topic("t", record(b"v"))
        answer = await it.http.ask(API + path)
        assert 400 <= answer.status < 500, answer.text
        assert answer.json()["error"]


async def test_records_are_written_and_sent_again_by_who_knows_the_token() -> None:
    async with console() as it:
        await it.topic("t", partitions=2)
        lines = b'{"key": "k", "value": "a", "partition": 1}\n{"value_base64": "/w==", "partition": 0}\n'
        written = (await it.post("/topics/t/records", lines)).json()["written"]
        assert {(each["partition"], each["offset"]) for each in written} == {(1, 0), (0, 0)}
        assert (await it.post("/topics/t/records/1/0/resend")).status == 200
        found = await it.get("/topics/t/messages", partition=1)
        assert [each["key"] for each in found["records"]] == ["k", "k"]
        assert (await it.post("/topics/t/records", b"no json\n")).status == 400
        assert (await it.post("/topics/absent/records", b'{"value": "x"}\n')).status == 404


async def test_nothing_is_written_without_the_token_or_from_another_page() -> None:
    async with console() as it:
        await it.topic("t", record(b"v"))
        path, line = f"{API}/topics/t/records", b'{"value": "x"}\n'
        assert (await it.http.ask(path, "POST", {}, line)).status == 403
        assert (await it.http.ask(path, "POST", {"X-Kbroker-Token": "x"}, line)).status == 403
        answer = await it.post("/topics/t/records", line, **{"Sec-Fetch-Site": "cross-site"})
        assert answer.status == 403
        answer = await it.http.ask(f"{API}/topics", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status == 403
        answer = await it.post("/topics/t/records", line, Origin="http://evil.example.org")
        assert answer.status == 403
        assert len((await it.get("/topics/t/messages"))["records"]) == 1


@pytest.mark.parametrize("allowed", [False, True])
async def test_beyond_this_machine_it_writes_only_where_that_is_allowed(allowed: bool) -> None:
    async with console(http_host="0.0.0.0", http_console_write=str(allowed).lower()) as it:
        await it.topic("t")
        assert (await it.get("/session"))["may_write"] is allowed
        answer = await it.post("/topics/t/records", b'{"value": "x"}\n')
        assert answer.status == (200 if allowed else 403)


async def test_a_group_is_moved_after_a_rehearsal_and_deleted() -> None:
    async with console() as it:
        await it.topic("t", *(record(b"v") for _ in range(9)))
        await commit_offsets(it.cluster, "g/with%odd", {("t", 0): 1})
        path = f"/groups/{quote('g/with%odd', safe='')}"
        asked = {"to": "end", "value": -2}
        plan = (await it.post(f"{path}/seek", asked)).json()
        assert plan["dry_run"] is True
        assert plan["partitions"][0]["new_offset"] == 7
        assert (await it.get(f"{path}/details"))["partitions"][0]["current_offset"] == 1
        assert (await it.post(f"{path}/seek", asked | {"dry_run": False})).status == 200
        assert (await it.get(f"{path}/details"))["partitions"][0]["current_offset"] == 7
        assert (await it.post(f"{path}/delete")).status == 200
        assert (await it.ask(f"{path}/details")).status == 404
        wrongs: list[object] = [{"to": "nowhere"}, {"to": 1}, {"to": "end", "value": "x"}, []]
        for wrong in wrongs:
            assert (await it.post(f"{path}/seek", wrong)).status == 400


async def test_clients_are_told_with_their_requests_errors_and_ends() -> None:
    async with console() as it:
        async with open_cluster([it.broker.nodes[0].endpoint], "shop-1") as cluster:
            await create_topics(cluster, [NewTopic("t"), NewTopic("bad name!")])
        told: dict[str, Any] = {}
        while not told.get("disconnects"):
            clients = (await it.get("/activity"))["clients"]
            told = next(each for each in clients if each["client_id"] == "shop-1")
        apis = {each["api"]: each for each in told["apis"]}
        assert apis["CreateTopics"]["errors"] == {"INVALID_TOPIC_EXCEPTION": 1}
        assert told["software"].startswith("kbroker/")
        assert set(told["disconnects"]) == {"left"}
        texts = [each["text"] for each in (await it.get("/activity"))["happenings"]]
        assert "CreateTopics was answered INVALID_TOPIC_EXCEPTION" in texts
        explained = await it.get("/explain/client/shop-1")
        assert "CreateTopics was answered INVALID_TOPIC_EXCEPTION 1 times" in explained["now"]
        assert "is online" in (await it.get("/explain/partition/t/0"))["now"]


async def test_overview_counts_outage_in_cluster_too_large_to_check_each_partition() -> None:
    async with console(nodes=3) as it:
        topics = [NewTopic("single", PARTITIONS_CHECKED_MAX, 1), NewTopic("copied", 3, 3)]
        await create_topics(it.cluster, topics)
        before = await it.get("/overview")
        assert before["problems"] is None
        assert before["outage"] == {"brokers_down": 0, "offline": 0, "under_replicated": 0}
        led = sum(each.leader == 3 for each in it.broker.node.cluster.topics["single"].partitions)
        await it.broker.nodes[2].crash()
        expected = {"brokers_down": 1, "offline": led, "under_replicated": 3}
        with trio.fail_after(ANSWER_SECONDS):
            while (await it.get("/overview"))["outage"] != expected:  # noqa: ASYNC110
                await trio.sleep(0.05)


async def test_the_whole_is_told_of_every_node() -> None:
    async with console(nodes=3) as it:
        await create_topics(it.cluster, [NewTopic("t", 6, 3)])
        overview = await it.get("/overview")
        assert overview["state"] == "running"
        assert overview["problems"] == []
        cluster = await it.get("/cluster")
        assert [each["broker"] for each in cluster["brokers"]] == [1, 2, 3]
        assert sum(each["leads"] for each in cluster["brokers"]) == 6
        (details,) = [await it.get("/topics/t")]
        assert [len(each["isr"]) for each in details["partitions"]] == [3] * 6
        await Producer(it.cluster).write({("t", index): [record(b"v")] for index in range(6)})
        assert len(values(await it.get("/topics/t/messages"))) == 6
        stored = (await it.get("/storage"))["partitions"]
        assert {each["node"] for each in stored} == {1, 2, 3}
        config = (await it.get("/topics/t/config"))["configs"]
        retention = next(each for each in config if each["name"] == "retention.ms")
        assert retention["source"] == "default"
        assert retention["doc"]


async def test_a_live_view_has_what_comes_and_goes_on_where_it_was() -> None:
    async with console() as it:
        await it.topic("t", record(b"before"))
        stream = it.http.stream
        path = f"{API}/topics/t/live?contains=wanted"
        host = b"Host: localhost\r\n\r\n"
        await stream.send_all(f"GET {path} HTTP/1.1\r\n".encode() + host)
        text = b""
        while b'"records":[]' not in text:
            text += bytes(await stream.receive_some(65_536))
        await Producer(it.cluster).write({("t", 0): [record(b"other"), record(b"wanted 1")]})
        while b"wanted 1" not in text:
            text += bytes(await stream.receive_some(65_536))
        assert b"before" not in text
        assert b"other" not in text
        assert b'id: {"0":3}' in text


class LiveView:
    """A stream of events, as a page gets it."""

    def __init__(self, it: Console, **query: str) -> None:
        self._stream = it.http.stream
        self._path = f"{API}/topics/t/live?{urlencode(query)}"
        self._text = b""

    async def begin(self) -> None:
        """Ask, and wait until the stream has begun."""
        await self._stream.send_all(
            f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        await self.event()

    async def event(self) -> Any:
        """The next one."""
        while not (found := re.search(rb"^data: (.*)\n\n", self._text, re.MULTILINE)):
            self._text += bytes(await self._stream.receive_some(65_536))
        self._text = self._text[found.end() :]
        return json.loads(found[1])


@pytest.mark.parametrize("query", [{}, {"contains": "v"}])
async def test_a_live_view_has_the_newest_of_what_comes_too_fast(query: dict[str, str]) -> None:
    async with console() as it:
        await it.topic("t")
        view = LiveView(it, **query)
        await view.begin()
        records = [record(b"v%d" % n) for n in range(5_000)]
        await Producer(it.cluster).write({("t", 0): records})
        events: list[Any] = []
        while sum(each["seen"] for each in events) < 5_000:
            events.append(await view.event())
        rows = [each for event in events for each in event["records"]]
        dropped = sum(each["dropped"] for each in events)
        assert rows[-1]["value"] == "v4999"
        assert len(rows) + dropped == sum(each["seen"] for each in events) == 5_000
        assert max(len(each["records"]) for each in events) <= 200


async def test_a_live_view_opens_only_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def counted(
        batch: Buffer, header: BatchHeader, *, start_offset: int, record_bytes_max: int
    ) -> Iterator[Record | OversizedRecord | None]:
        opened.append(header.record_count)
        return stream_records(
            batch, header, start_offset=start_offset, record_bytes_max=record_bytes_max
        )

    monkeypatch.setattr(scan, "stream_records", counted)
    async with console() as it:
        await it.topic("t")
        view = LiveView(it)
        await view.begin()
        producer = Producer(it.cluster)
        for n in range(50):
            await producer.write({("t", 0): [record(b"v%d" % n)] * 100})
        seen = 0
        while seen < 5_000:
            seen += (await view.event())["seen"]
        assert sum(opened) < 5_000


async def test_live_views_that_open_at_once_are_bounded() -> None:
    async with console() as it:
        await it.topic("t")
        there, statuses = it.service.endpoint_of(1), []
        done = trio.Event()

        async def open_one() -> None:
            async with asking(there) as client:
                statuses.append((await client.head_of(f"{API}/topics/t/live")).status)
                await done.wait()

        async with trio.open_nursery() as nursery:
            for _ in range(LIVE_MAX + 15):
                nursery.start_soon(open_one)
            await until(lambda: len(statuses) == LIVE_MAX + 15)
            done.set()
        assert Counter(statuses) == {200: LIVE_MAX, 429: 15}
        async with asking(there) as client:  # places of streams that have ended are free again
            await until_open(client)


async def until_open(client: HttpClient) -> None:
    while (await client.head_of(f"{API}/topics/t/live")).status != 200:  # noqa: ASYNC110
        await trio.sleep(0.01)
