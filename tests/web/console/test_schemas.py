"""Keys and values in the console, decoded with schemas of the registry in the same process."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from kbroker.client.cluster import open_cluster
from kbroker.config import BrokerConfig
from kbroker.process.http import http_service
from kbroker.schemas.core.records import Entry, schema_key
from kbroker.schemas.core.store import SchemaStore
from kbroker.schemas.core.values import AVRO, JSON, PROTOBUF, Content, Reference
from kbroker.schemas.decoding import BYTES_MAX, KEPT_MAX, TEXT_MAX, SchemaDecoder
from kbroker.schemas.workers import SchemaWorkers
from kbroker.web.console.scan import FIRST_WINDOW

from ...brokers import LOOPBACK
from ...loop_latency import STEP_SECONDS_MAX, longest_step
from ...schemas.client import RegistryClient, schema_workers
from ...schemas.client import record as avro_record
from ..client import broker_with, open_http_client
from .consoles import API, Console, record

ORDER = avro_record("Order", ("country", "string"), ("lines", {"type": "array", "items": "long"}))
PROTO = 'syntax = "proto3"; message First {} message Order { string country = 1; int64 n = 2; }'


class Shop(NamedTuple):
    console: Console
    registry: RegistryClient

    async def rows(self, **query: object) -> list[dict[str, Any]]:
        found = await self.console.get("/topics/t/messages", from_="oldest", **query)
        return list(found["records"])

    async def offsets(self, expression: str) -> list[int]:
        return [each["offset"] for each in await self.rows(where=expression)]


@asynccontextmanager
async def shop(*, nodes: int | None = None) -> AsyncIterator[Shop]:
    """Run a broker with a console at its first node and a registry at its last node."""
    options = {"http.port": "0", "registry.port": "0", "connection.setup.timeout.ms": "3600000"}
    config = BrokerConfig.load(options=options)
    service = http_service(config, [LOOPBACK])
    assert service is not None
    assert service.http is not None
    assert service.registry is not None
    async with (
        broker_with(service, config, None, nodes) as broker,
        open_http_client(service.http.endpoint_of(1)) as client,
        open_cluster([broker.nodes[0].endpoint]) as cluster,
    ):
        registry = RegistryClient(service.registry.endpoint_of(broker.nodes[-1].id))
        yield Shop(Console(broker, service.http, client, cluster), registry)


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def order(country: str, *lines: int) -> bytes:
    """Encode an order. Each line must fit into one byte."""
    assert all(0 <= each < 64 for each in lines)
    items = bytes([2 * len(lines), *(2 * each for each in lines)]) if lines else b""
    return bytes([2 * len(country)]) + country.encode() + items + b"\0"


async def test_keys_and_values_are_decoded_and_searched_by_schema() -> None:
    async with shop() as setup:
        text = await setup.registry.register("t-key", '"string"')
        avro = await setup.registry.register("t-value", ORDER)
        proto = await setup.registry.register("other", PROTO, schemaType="PROTOBUF")
        json_id = await setup.registry.register("third", "true", schemaType="JSON")
        await setup.console.create_topic(
            "t",
            record(framed(avro, order("DE", 7, 9)), framed(text, b"\4k1")),
            record(framed(proto, b"\2\2\x0a\x02FR\x10\x05")),
            record(framed(json_id, b'{"country": "IT", "n": 9007199254740993}')),
            record(b'{"country": "ES"}', b"plain"),
        )
        rows = await setup.rows()
        assert [each["value_format"] for each in rows] == ["avro", "protobuf", "json", "json"]
        assert rows[0]["value_schema"] == {
            "subject": "t-value",
            "version": 1,
            "id": avro,
            "type": "AVRO",
        }
        assert json.loads(rows[0]["value_text"]) == {"country": "DE", "lines": [7, 9]}
        assert (rows[0]["key_format"], rows[0]["key_text"]) == ("avro", '"k1"')
        assert rows[0]["key_schema"]["subject"] == "t-key"
        assert rows[1]["value_schema"]["message"] == "Order"
        assert json.loads(rows[1]["value_text"]) == {"country": "FR", "n": 5}
        assert rows[2]["value_text"] == '{"country": "IT", "n": 9007199254740993}'
        assert "value_schema" not in rows[3]
        assert await setup.offsets('value.country == "DE" and value.lines.1 > 8') == [0]
        assert await setup.offsets('value.country == "FR" or value.country == "ES"') == [1, 3]
        assert await setup.offsets('key == "k1"') == [0]
        assert await setup.offsets('value ~ "\\"n\\": 5"') == [1]
        assert await setup.offsets("value.n > 9007199254740992") == [2]


async def test_subject_of_topic_is_preferred_if_several_have_the_schema() -> None:
    async with shop() as setup:
        schema_id = await setup.registry.register("a", ORDER)
        await setup.registry.register("t-value", ORDER)
        await setup.registry.register("z", ORDER)
        await setup.console.create_topic("t", record(framed(schema_id, order("DE"))))
        (row,) = await setup.rows()
        assert row["value_schema"]["subject"] == "t-value"


async def test_schema_guid_in_header_is_resolved() -> None:
    async with shop() as setup:
        await setup.registry.register("s", PROTO, schemaType="PROTOBUF")
        guid = (await setup.registry.get("/schemas/ids/1"))["guid"]
        header = b"\1" + uuid.UUID(guid).bytes + b"\2\2"
        await setup.console.create_topic(
            "t",
            record(b"\x0a\x02DE", b"\x0a\x02DE", __value_schema_id=header),
            record(b"\1" + header[1:] + b"\x0a\x02FR"),
            record(b"\1" * 30, __value_schema_id=b"\1" * 17),
            record(b"\1" * 30),
        )
        rows = await setup.rows()
        assert [each.get("value_text", "")[:18] for each in rows[:2]] == [
            '{"country": "DE", ',
            '{"country": "FR", ',
        ]
        assert "key_schema" not in rows[0]
        assert rows[2]["value_problem"].startswith("Schema 01010101-")
        assert "value_problem" not in rows[3]


async def test_undecodable_value_is_shown_as_bytes_with_reason() -> None:
    async with shop() as setup:
        await setup.registry.register("t-value", ORDER)
        await setup.console.create_topic(
            "t",
            record(framed(9, b"\2\4\6\x08")),
            record(framed(1, b"\xff\xff")),
            record((5).to_bytes(8, "big"), b"\0\0\0\1"),
            record(framed(1, b"\0" * (BYTES_MAX + 1))),
        )
        unknown, unfit, number, large = await setup.rows()
        assert (unknown["value_text"], unknown["value_problem"]) == (
            "schema 9: 02040608",
            "Schema 9 is not in the registry.",
        )
        assert unfit["value_text"] == "schema 1: ffff"
        assert unfit["value_schema"]["id"] == 1
        assert unfit["value_problem"].startswith("The data does not match its schema: byte 0: ")
        assert (number["value_format"], number["key_format"]) == ("int64", "int32")
        assert not {"value_problem", "key_problem"} & number.keys()
        assert large["value_problem"] == "Not decoded: larger than 256 kB."
        found = await setup.console.get("/topics/t/messages", where='value.country == "DE"')
        assert (found["records"], found["too_large"]) == ([], 1)


async def test_schema_registered_at_another_node_is_used() -> None:
    async with shop(nodes=2) as setup:
        schema_id = await setup.registry.register("t-value", '"string"')
        await setup.console.create_topic("t", record(framed(schema_id, b"\4DE")))
        (row,) = await setup.rows()
        assert row["value_text"] == '"DE"'


async def test_long_decoded_value_is_truncated_and_loaded_on_demand() -> None:
    async with shop() as setup:
        await setup.registry.register("t-value", {"type": "array", "items": "int"})
        await setup.console.create_topic(
            "t", record(framed(1, b"\xd0\x8c\x01" + b"\2" * 9_000 + b"\0"))
        )
        (row,) = await setup.rows()
        assert (len(row["value_text"]), row["value_text_truncated"]) == (16_384, True)
        path = "/topics/t/records/0/0"
        assert (await setup.console.get(f"{path}/value", decoded=1)) == [1] * 9_000
        assert (await setup.console.ask(f"{path}/key", decoded=1)).status == 404
        await setup.console.create_topic("u", record(b"plain"))
        response = await setup.console.ask("/topics/u/records/0/0/value", decoded=1)
        assert (response.status, response.json()["error"]) == (404, "it has no schema")


async def test_json_is_encoded_by_schema_when_written() -> None:
    async with shop() as setup:
        await setup.registry.register("t-value", ORDER)
        await setup.registry.register("t-key", '"string"')
        await setup.console.create_topic("t")
        path = "/topics/t/records?value_subject=t-value&value_version=1&key_subject=t-key"
        lines = b'{"key": "k", "value": {"country": "DE", "lines": []}}\n{"value": null}\n'
        response = await setup.console.post(path, lines)
        assert response.status == 200, response.text
        first, second = await setup.rows()
        assert first["value_schema"]["subject"] == "t-value"
        assert json.loads(first["value_text"])["country"] == "DE"
        assert first["key_text"] == '"k"'
        assert (second["key"], second["value"]) == (None, None)
        for query, body, reason in (
            ("value_subject=t-value", lines + b'{"value": {"country": 7}}\n', "line 3: value: "),
            ("value_subject=absent", lines, "subject absent, version -1: "),
            ("value_subject=t-value&value_version=9", lines, "subject t-value, version 9: "),
        ):
            response = await setup.console.post(f"/topics/t/records?{query}", body)
            assert response.status == 400
            assert reason in response.json()["error"]


async def test_live_view_decodes_records_by_schema() -> None:
    async with shop() as setup:
        await setup.registry.register("t-value", ORDER)
        await setup.console.create_topic(
            "t", record(framed(1, order("DE"))), record(framed(1, order("FR")))
        )
        stream = setup.console.http.stream
        path = f"{API}/topics/t/live?where=value.country+%3D%3D+%22FR%22"
        head = f'GET {path} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {{"0":0}}\r\n\r\n'
        await stream.send_all(head.encode())
        text = b""
        while b"FR" not in text:
            text += bytes(await stream.receive_some(65_536))
        assert b'"value_format":"avro"' in text
        assert b"DE" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("origin", "scanned"), [("oldest", 1), ("newest", FIRST_WINDOW)])
async def test_costly_values_do_not_block_event_loop_and_spend_budget(
    origin: str, scanned: int
) -> None:
    async with shop() as setup:
        nulls = {"type": "array", "items": "null"}
        await setup.registry.register("t-value", nulls)
        bomb = framed(1, bytes.fromhex("80808080808080808001"))  # 2 to the power of 62 nulls
        await setup.console.create_topic("t", *(record(bomb) for _ in range(50)))
        query = {"where": "value.0", "ms": 10_000, "bytes": 1}
        with longest_step() as step:
            found = await setup.console.get("/topics/t/messages", from_=origin, **query)
        assert step.seconds < STEP_SECONDS_MAX, step.task
        assert (found["scanned"], found["too_large"]) == (scanned, scanned)
        assert found["cursor"]
        row = (await setup.rows(limit=1, bytes=1))[0]
        assert row["value_problem"] == "Not decoded: it contains more than 50000 values."


# -- without a broker


@pytest.mark.slow
def test_console_does_not_import_registry_dependencies() -> None:
    code = (
        "import sys, kbroker.web.service; "
        "print([each for each in ('jsonschema', 'google.protobuf') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Topic:
    """The records that were read from the schemas topic."""

    def __init__(self, *contents: Content) -> None:
        self.store = SchemaStore()
        self.replay(*contents)

    def replay(self, *contents: Content) -> None:
        """Register contents as the versions of a subject."""
        for number, content in enumerate(contents, 1):
            value = {"id": number, "subject": "s", "version": number, **content.document()}
            self.store.replay(Entry(schema_key("s", number), value))

    async def catch_up(self) -> None:
        raise AssertionError("catch_up must not be called")


async def decode_by_id(decoder: SchemaDecoder, schema_id: int, body: bytes = b"") -> Any:
    found = await decoder.decoded(framed(schema_id, body), None, "t-value")
    assert found is not None
    return found.document if found.text is not None else found.problem


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Content(AVRO, "{"), "The schema cannot be used: Invalid schema: invalid JSON"),
        (Content("XML", "<a/>"), "The schema cannot be used: Invalid schema: unknown schema type"),
        (Content(PROTOBUF, "message"), "The schema cannot be used"),
        (Content(AVRO, json.dumps("x" * TEXT_MAX)), "Not decoded: its schema is larger"),
    ],
)
async def test_unusable_schema_of_another_registry_is_reported(content: Content, why: str) -> None:
    async with schema_workers() as workers:
        decoder = SchemaDecoder(Topic(content), workers)  # type: ignore[arg-type]
        for _ in range(2):
            assert (await decode_by_id(decoder, 1)).startswith(why)


@pytest.mark.slow
async def test_parsed_schemas_are_cached_up_to_size_limit() -> None:
    half = TEXT_MAX // 2
    contents = [
        Content(AVRO, json.dumps({"type": "int", "doc": "x" * half, "n": n})) for n in range(40)
    ]
    async with schema_workers() as workers:
        decoder = SchemaDecoder(Topic(*contents, Content(JSON, "true")), workers)  # type: ignore[arg-type]
        for number in range(1, 41):
            assert await decode_by_id(decoder, number, b"\4") == 2
        assert await decode_by_id(decoder, 41, b"[]") == []
        assert sum(each.size for each in decoder._kept.values()) == decoder._size <= KEPT_MAX
        assert await decode_by_id(decoder, 1, b"\4") == 2


@pytest.mark.parametrize("is_new_topic", [False, True])
async def test_reference_that_was_replaced_is_used_by_the_cached_schema(
    is_new_topic: bool,
) -> None:
    """The versions were deleted for good, or with the whole topic, and registered again."""
    before = json.dumps({"type": "fixed", "name": "Code", "size": 1})
    after = json.dumps({"type": "enum", "name": "Code", "symbols": ["A", "B"]})
    order = Content(
        AVRO,
        json.dumps(avro_record("Order", ("code", "Code"))),
        references=(Reference("Code", "s", 1),),
    )
    topic = Topic(Content(AVRO, before), order)
    async with schema_workers() as workers:
        decoder = SchemaDecoder(topic, workers)  # type: ignore[arg-type]
        assert await decode_by_id(decoder, 2, b"\2") == {"code": "Ag=="}
        if is_new_topic:
            topic.store = SchemaStore()
        else:
            for version in (2, 1):
                topic.store.replay(Entry(schema_key("s", version)))
            missing = await decode_by_id(decoder, 2, b"\2")
            assert missing == "Schema 2 is not in the registry."
        topic.replay(Content(AVRO, after), order)
        assert await decode_by_id(decoder, 2, b"\2") == {"code": "B"}
        assert sum(each.size for each in decoder._kept.values()) == decoder._size


async def test_record_without_schema_is_not_decoded() -> None:
    decoder = SchemaDecoder(Topic(), SchemaWorkers())  # type: ignore[arg-type]
    for data in (b"", b"text", b"\0", b"\1" * 40):
        assert await decoder.decoded(data, None, "t-value") is None
