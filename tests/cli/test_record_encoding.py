"""Keys and values that `kbroker topic produce` encodes with schemas of a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..commands import Cli
from ..schemas.client import record as avro_record
from .records import lines_of
from .registries import Registered, base64_of, framed

ORDER = avro_record("Order", ("id", "int"), ("note", ["null", "string"], None))
PROTO = """
syntax = "proto3";
package shop;
message Line { int64 id = 1; }
message Order { string country = 1; repeated Line lines = 2; message Part { int32 a = 1; } }
"""
JSON_SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


async def produce(registered: Registered, *args: str, stdin: str = "", status: int = 0) -> str:
    """Write to topic `t` with the registry, and return the error output."""
    result = await registered.cli(
        "topic", "produce", "t", "--registry", registered.url, *args, stdin=stdin, status=status
    )
    return result.stderr


async def stored(registered: Registered) -> list[dict[str, Any]]:
    """Return the records of topic `t` as stored."""
    return await registered.rows("-s", "base64")


async def test_keys_and_values_are_encoded_with_newest_schema(registered: Registered) -> None:
    key = await registered.registry.register("t-key", '"string"')
    await registered.registry.register("t-value", avro_record("Order", ("id", "int")))
    value = await registered.registry.register("t-value", ORDER)
    options = ("--key-schema", "t-key", "--value-schema", "t-value")
    await produce(registered, *options, "-k", "k1", stdin='{"id": 1}\n{"id": 2, "note": "n"}\n')
    await produce(registered, *options, "-k", '"k2"', "--tombstone")
    rows = await stored(registered)
    assert [row.get("value_base64") for row in rows] == [
        base64_of(framed(value, b"\2\0")), base64_of(framed(value, b"\4\2\2n")), None,
    ]  # fmt: skip
    assert rows[0]["key_base64"] == base64_of(framed(key, b"\4k1"))
    assert rows[2]["key_base64"] == base64_of(framed(key, b"\4k2"))
    assert [row["value"] for row in await registered.rows()] == [
        {"id": 1, "note": None}, {"id": 2, "note": "n"}, None,
    ]  # fmt: skip


@pytest.mark.parametrize("choice", ["t-value:1", "1"])
async def test_version_or_id_selects_schema(choice: str, registered: Registered) -> None:
    await registered.registry.register("t-value", avro_record("Order", ("id", "int")))
    await registered.registry.register("t-value", ORDER)
    await produce(registered, "--value-schema", choice, '{"id": 1}')
    (row,) = await stored(registered)
    assert row["value_base64"] == base64_of(framed(1, b"\2"))


async def test_file_is_registered_for_topic(registered: Registered, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    await produce(registered, "--value-schema", f"@{file}", '{"id": 1}')
    assert await registered.registry.get("/subjects/t-value/versions") == [1]
    assert (await registered.rows())[0]["value"] == {"id": 1, "note": None}


async def test_protobuf_messages_have_indexes(registered: Registered) -> None:
    await registered.registry.register("p", PROTO, schemaType="PROTOBUF")
    await produce(registered, "--value-schema", "p", '{"id": 7}')
    await produce(registered, "--value-schema", "p#Order", '{"country": "DE"}')
    await produce(registered, "--value-schema", "p#shop.Order.Part", '{"a": 1}')
    assert [row["value_base64"] for row in await stored(registered)] == [
        base64_of(framed(1, b"\0\10\7")),
        base64_of(framed(1, b"\2\2\n\2DE")),
        base64_of(framed(1, b"\4\2\0\10\1")),
    ]
    error = await produce(registered, "--value-schema", "p#X", "{}", status=1)
    assert "no message 'X' (valid: Line, Order, or nested ones)" in error


async def test_decoded_records_are_restored_with_their_schemas(registered: Registered) -> None:
    avro = await registered.registry.register("t-value", ORDER)
    await registered.registry.register("p", PROTO, schemaType="PROTOBUF")
    await registered.registry.register("j", JSON_SCHEMA, schemaType="JSON")
    await produce(registered, "--value-schema", str(avro), "-k", "plain", '{"id": 1}')
    await produce(
        registered, "--value-schema", "p#Order", '{"country": "DE", "lines": [{"id": 7}]}'
    )
    await produce(registered, "--value-schema", "j", '{"a":1}')
    before = await stored(registered)
    printed = (await registered.consume()).stdout
    await produce(registered, "--json", stdin=printed)
    after = (await stored(registered))[len(before) :]
    names = ("key_base64", "value_base64")
    assert [[row.get(name) for name in names] for row in after] == [
        [row.get(name) for name in names] for row in before
    ]
    without = await registered.cli("topic", "produce", "t", "--json", stdin=printed, status=1)
    assert "line 1: a schema ID needs a schema registry; add --registry URL" in without.stderr


@pytest.mark.parametrize(
    ("subject", "text", "why"),
    [
        ("t-value", '{"id": "x"}', "t-value:1, ID 1 (AVRO): id: 'x' is not an integer of 32 bits"),
        ("t-value", '{"id": 1, "x": 1}', "x: 1 is not a field of Order"),
        ("t-value", "{", "is not a JSON document"),
        ("p", '{"nope": 1}', 'Message type "shop.Line" has no field named "nope"'),
        ("j", '{"a": "1"}', "a: '1' is not of type 'integer'"),
        ("j", "{}", "'a' is a required property"),
    ],
)
async def test_value_that_does_not_match_schema_is_named(
    subject: str, text: str, why: str, registered: Registered
) -> None:
    await registered.registry.register("t-value", ORDER)
    await registered.registry.register("p", PROTO, schemaType="PROTOBUF")
    await registered.registry.register("j", JSON_SCHEMA, schemaType="JSON")
    error = await produce(registered, "--value-schema", subject, stdin=f"{text}\n", status=1)
    assert "line 1: the value does not match schema " in error
    assert why in error
    assert "name another schema with --value-schema" in error
    assert await registered.rows() == []


async def test_schema_with_references_is_used(registered: Registered) -> None:
    await registered.registry.register("line", avro_record("Line", ("id", "int")))
    references = [{"name": "Line", "subject": "line", "version": 1}]
    cart = avro_record("Cart", ("lines", {"type": "array", "items": "Line"}))
    await registered.registry.register("t-value", cart, references=references)
    await produce(registered, "--value-schema", "t-value", '{"lines": [{"id": 3}]}')
    assert (await registered.rows())[0]["value"] == {"lines": [{"id": 3}]}


async def test_unknown_schema_is_reported(registered: Registered) -> None:
    for choice in ("nope", "99"):
        error = await produce(registered, "--value-schema", choice, "{}", status=1)
        assert "`kbroker registry list` shows all subjects" in error


async def test_schema_option_without_registry_is_rejected(cli: Cli) -> None:
    output = (await cli("topic", "produce", "t", "--value-schema", "s", "v", status=2)).stderr
    assert "--value-schema needs --registry URL" in " ".join(output.split())
    bad = await cli(
        "topic", "produce", "t", "--registry", "http://h", "--value-schema", "#m", "v", status=2
    )
    assert "expected SUBJECT[:VERSION]" in " ".join(bad.stderr.split())


async def test_lines_without_schema_are_written_unchanged(registered: Registered) -> None:
    await produce(registered, "text")
    assert lines_of((await registered.consume()).stdout)[0]["value"] == "text"
