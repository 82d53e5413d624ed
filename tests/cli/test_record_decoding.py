"""Keys and values that `kbroker topic consume` decodes by a schema registry or a fixed type."""

from __future__ import annotations

import json
import struct
import uuid
from typing import Any

import pytest

from ..commands import Cli
from ..schemas.client import record as avro_record
from .records import lines_of
from .registries import Registered, base64_of, framed

ORDER = avro_record("Order", ("id", "int"), ("code", "bytes"))
PROTO = 'syntax = "proto3"; message Order { string country = 1; int64 n = 2; }'


async def test_keys_and_values_of_every_schema_type_are_decoded(registered: Registered) -> None:
    key = await registered.registry.register("t-key", '"string"')
    avro = await registered.registry.register("t-value", ORDER)
    proto = await registered.registry.register("p-value", PROTO, schemaType="PROTOBUF")
    schema = await registered.registry.register("j-value", "{}", schemaType="JSON")
    bodies = [
        framed(avro, b"\2\4a\xff"),
        framed(proto, b"\0\n\2DE\20\7"),
        framed(schema, b'{"a": [1]}'),
    ]
    line = {"key_base64": base64_of(framed(key, b"\4k1"))}
    await registered.write(*({**line, "value_base64": base64_of(each)} for each in bodies))
    rows = await registered.rows()
    assert [row["value"] for row in rows] == [
        {"id": 1, "code": "a\xff"},
        {"country": "DE", "n": 7},
        {"a": [1]},
    ]
    assert [row["value_schema_id"] for row in rows] == [avro, proto, schema]
    assert {(row["key"], row["key_schema_id"]) for row in rows} == {("k1", key)}
    read = await registered.consume("-f", "%k %v %V\n", "-n", "1")
    assert read.stdout == 'k1 {"id": 1, "code": "a\xff"} 9\n'
    read = await registered.consume("-f", "%v\n", "--filter-field", "country=DE")
    assert read.stdout == '{"country": "DE", "n": 7}\n'


async def test_schema_identifiers_in_headers_are_used(registered: Registered) -> None:
    await registered.registry.register("t-value", ORDER)
    guid = (await registered.registry.get("/subjects/t-value/versions/1"))["guid"]
    header = b"\1" + uuid.UUID(guid).bytes
    headers = [{"key": "__value_schema_id", "value_base64": base64_of(header)}]
    await registered.write({"value": "\4\0", "headers": headers})
    (row,) = await registered.rows()
    assert row["value"] == {"id": 2, "code": ""}
    assert row["value_schema_guid"] == guid


async def test_undecodable_data_is_printed_with_its_problem(registered: Registered) -> None:
    avro = await registered.registry.register("t-value", ORDER)
    broken, unknown = framed(avro, b"\2\xff"), framed(99, b"zzzz\xff")
    await registered.write(
        {"value_base64": base64_of(broken)},
        {"value_base64": base64_of(unknown)},
        {"value": "text"},
        {"value_base64": base64_of(struct.pack(">q", 7))},
        {"value": None},
    )
    read = await registered.consume()
    rows = lines_of(read.stdout)
    assert [row.get("value_base64") for row in rows[:2]] == [base64_of(broken), base64_of(unknown)]
    assert "does not match its schema" in rows[0]["value_problem"]
    assert rows[1]["value_problem"] == "Schema 99 is not in the registry."
    assert [row["value"] for row in rows[2:]] == ["text", "\0" * 7 + "\7", None]
    assert not any("value_problem" in row for row in rows[2:])
    assert read.stderr.count("is printed as it is") == 1
    assert "the value at offset 0 of partition 0 of t" in read.stderr


async def test_type_registry_reports_data_without_schema_id(registered: Registered) -> None:
    await registered.write({"key": "k", "value": "text"})
    (row,) = await registered.rows("-s", "value=registry")
    assert row["value_problem"] == "The data has no schema ID."
    assert "key_problem" not in row


async def test_type_none_prints_bytes_that_produce_restores(registered: Registered) -> None:
    avro = await registered.registry.register("t-value", ORDER)
    data = base64_of(framed(avro, b"\2\2\xff"))
    await registered.write({"value_base64": data})
    (row,) = await registered.rows("-s", "none")
    assert row["value_base64"] == data
    assert "value_schema_id" not in row


async def test_group_member_decodes_by_registry_of_settings(registered: Registered) -> None:
    avro = await registered.registry.register("t-value", ORDER)
    await registered.write({"value_base64": base64_of(framed(avro, b"\2\0"))})
    read = await registered.cli(
        "-X", f"schema.registry.url={registered.url}", "topic", "consume", "t", "-g", "g",
        "-o", "start:end",
    )  # fmt: skip
    assert [row["value"] for row in lines_of(read.stdout)] == [{"id": 1, "code": ""}]


async def test_unreachable_registry_does_not_stop_consume(cli: Cli) -> None:
    await cli("topic", "create", "t")
    line = json.dumps({"value_base64": base64_of(framed(1, b"\xff"))})
    await cli("topic", "produce", "t", "--json", stdin=f"{line}\n{line}\n")
    read = await cli("topic", "consume", "t", "-o", ":end", "--registry", "http://127.0.0.1:1")
    problems = [row["value_problem"] for row in lines_of(read.stdout)]
    assert len(problems) == 2
    assert all("no valid response from the schema registry" in each for each in problems)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("string", b"a", "a"),
        ("json", b'{"a": 1}', {"a": 1}),
        ("short", b"\xff\xfe", -2),
        ("int", b"\0\0\0\7", 7),
        ("long", b"\0\0\0\0\0\0\0\7", 7),
        ("float", struct.pack(">f", 0.5), 0.5),
        ("double", struct.pack(">d", float("inf")), "Infinity"),
        ("hex", b"\x0a\xff", "0aff"),
    ],
)
async def test_fixed_type_is_decoded(kind: str, data: bytes, expected: Any, cli: Cli) -> None:
    await cli("topic", "create", "t")
    lines = [json.dumps({"value_base64": base64_of(each)}) for each in (data, b"\xff" * 3)]
    await cli("topic", "produce", "t", "--json", stdin="\n".join(lines))
    read = await cli("topic", "consume", "t", "-o", ":end", "-s", f"value={kind}")
    first, second = lines_of(read.stdout)
    assert first["value"] == expected
    if kind != "hex":
        assert second["value_base64"] == base64_of(b"\xff" * 3)
        assert f"not of type {kind}" in second["value_problem"]


async def test_type_base64_encodes_text(cli: Cli) -> None:
    await cli("topic", "create", "t")
    await cli("topic", "produce", "t", "text")
    read = await cli("topic", "consume", "t", "-o", ":end", "-s", "base64")
    assert lines_of(read.stdout)[0]["value_base64"] == base64_of(b"text")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-s", "avro"], "use registry, which finds the format by the schema ID"),
        (["-s", "valu=json"], "key=TYPE or value=TYPE"),
        (["-s", "key=registry"], "-s registry needs --registry URL"),
        (["--registry", "localhost:8081"], "expected http://HOST:PORT"),
    ],
)
async def test_invalid_decoding_option_is_rejected(
    flags: list[str], expected: str, cli: Cli
) -> None:
    read = await cli("topic", "consume", "t", *flags, status=2)
    assert expected in " ".join(read.stderr.split())
