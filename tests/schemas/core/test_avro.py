"""Avro schemas: parsing, validation and compatibility."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.schemas.core.avro import AvroSchema
from kbroker.schemas.core.errors import RegistryError
from kbroker.schemas.core.limits import Budget

from ..client import record


def schema(value: Any) -> AvroSchema:
    return AvroSchema(json.dumps(value))


def kinds(reader: Any, writer: Any) -> list[str]:
    """Return the reasons why a reader cannot read data of a writer."""
    found = schema(reader).differences(schema(writer), Budget())
    return [each.kind for each in found]


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
WIDE_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
LIST = record("L", ("next", ["null", "L"]), ("value", "int"))
READS: list[tuple[str, Any, Any]] = [
    ("the same", "int", "int"),
    ("int as long", "long", "int"),
    ("int as double", "double", "int"),
    ("long as float", "float", "long"),
    ("string as bytes", "bytes", "string"),
    ("bytes as string", "string", "bytes"),
    ("one branch", ["null", "string"], "string"),
    ("one promoted branch", ["null", "long"], "int"),
    ("each branch", "long", ["int", "long"]),
    ("more branches", ["null", "int", "string"], ["int", "null"]),
    ("more symbols", WIDE_ENUM, ENUM),
    ("a default symbol", {**ENUM, "default": "A"}, WIDE_ENUM),
    ("a field with a default", record("R", ("a", "int", 1)), record("R")),
    ("a field less", record("R"), record("R", ("a", "int"))),
    ("another namespace", {**FIXED, "namespace": "x"}, FIXED),
    ("a circle", LIST, LIST),
    ("items", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ("values", {"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
]
REFUSES: list[tuple[str, Any, Any, list[str]]] = [
    ("long as int", "int", "long", ["TYPE_MISMATCH"]),
    ("int as string", "string", "int", ["TYPE_MISMATCH"]),
    ("a branch that is gone", ["int"], ["int", "null"], ["MISSING_UNION_BRANCH"]),
    ("no branch", ["null", "int"], "string", ["MISSING_UNION_BRANCH"]),
    ("one branch of two", "int", ["int", "string"], ["TYPE_MISMATCH"]),
    ("fewer symbols", ENUM, WIDE_ENUM, ["MISSING_ENUM_SYMBOLS"]),
    ("another size", {**FIXED, "size": 5}, FIXED, ["FIXED_SIZE_MISMATCH"]),
    ("another name", {**FIXED, "name": "G"}, FIXED, ["NAME_MISMATCH"]),
    (
        "a field without a default",
        record("R", ("a", "int")),
        record("R"),
        ["READER_FIELD_MISSING_DEFAULT_VALUE"],
    ),
    (
        "a default of the enum is none of the field",
        record("R", ("a", {**ENUM, "default": "A"})),
        record("R"),
        ["READER_FIELD_MISSING_DEFAULT_VALUE"],
    ),
    (
        "in a circle",
        LIST,
        record("L", ("next", ["null", "L"]), ("value", "string")),
        ["TYPE_MISMATCH"],
    ),
]


@pytest.mark.parametrize(
    ("reader", "writer"), [row[1:] for row in READS], ids=[row[0] for row in READS]
)
def test_reader_accepts_compatible_writer_schema(reader: Any, writer: Any) -> None:
    assert kinds(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "why"), [row[1:] for row in REFUSES], ids=[row[0] for row in REFUSES]
)
def test_reader_rejects_incompatible_writer_schema(
    reader: Any, writer: Any, why: list[str]
) -> None:
    assert kinds(reader, writer)[: len(why)] == why


def test_field_is_matched_by_alias() -> None:
    reader = record("R", ("new", "int"))
    reader["fields"][0]["aliases"] = ["old"]
    assert kinds(reader, record("R", ("old", "int"))) == []


INVALID: list[Any] = [
    "nothing",
    {"type": "record", "name": "R"},
    {"type": "record", "fields": []},
    record("R", ("a", "int"), ("a", "int")),
    record("R", ("a", "int", "x")),
    record("R-S"),
    record("R", ("a", "Unknown")),
    [["int"]],
    ["int", "int"],
    {"type": "enum", "name": "E", "symbols": ["A", "A"]},
    {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
    {"type": "fixed", "name": "F"},
    {"type": "array"},
    5,
]


@pytest.mark.parametrize("value", INVALID, ids=json.dumps)
def test_malformed_schema_is_rejected(value: Any) -> None:
    with pytest.raises(RegistryError):
        schema(value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":NaN}'])
def test_malformed_json_is_rejected(text: str) -> None:
    with pytest.raises(RegistryError):
        AvroSchema(text)


def test_canonical_text_is_independent_of_formatting() -> None:
    inner = {"name": "I", "type": "record", "fields": []}
    loose = {
        "fields": [{"type": {"type": "string"}, "name": "a"}, {"name": "b", "type": inner}],
        "doc": "d",
        "name": "x.y.R",
        "type": "record",
        "more": 1,
    }
    assert schema(loose).canonical == (
        '{"type":"record","name":"R","namespace":"x.y","doc":"d","fields":[{"name":"a","type":"string"},'
        '{"name":"b","type":{"type":"record","name":"I","fields":[]}}],"more":1}'
    )
    assert AvroSchema(schema(loose).canonical).canonical == schema(loose).canonical


@pytest.mark.slow
def test_too_large_unions_are_rejected() -> None:
    union = [{"type": "fixed", "name": f"F{index}", "size": 1} for index in range(1000)]
    with pytest.raises(RegistryError, match="too large"):
        kinds(union[::-1], union)


def aliased(kind: str, name: str, space: str, *aliases: str) -> dict[str, Any]:
    """Return a named type of the given kind."""
    fields = {"fields": [{"name": "a", "type": "int"}]}
    choices: dict[str, dict[str, Any]] = {"enum": {"symbols": ["X"]}, "fixed": {"size": 2}}
    more = choices.get(kind, fields)
    made = {"type": kind, "name": name, "namespace": space, **more}
    return made | ({"aliases": [*aliases]} if aliases else {})


def wrapped(kind: Any) -> list[Any]:
    """Return a type itself, and in a field, an array, a map and unions."""
    field = {"type": "record", "name": "Outer", "namespace": "o", "fields": [{"name": "f"}]}
    in_field = {**field, "fields": [{"name": "f", "type": kind}]}
    array, mapped = {"type": "array", "items": kind}, {"type": "map", "values": kind}
    return [kind, in_field, array, mapped, ["null", kind], [array, "null"]]


@pytest.mark.parametrize("kind", ["record", "error", "enum", "fixed"])
@pytest.mark.parametrize(
    ("space", "alias", "written", "fits"),
    [
        ("", "Old", "Old", True),
        ("", "x.Old", "Old", False),
        ("a.b", "Old", "a.b.Old", True),
        ("a.b", "a.b.Old", "a.b.Old", True),
        ("a.b", "c.Old", "c.Old", True),
        ("a.b", "Old", "Old", False),
        ("a.b", "Old", "c.Old", False),
        ("a.b", "Other", "a.b.Old", False),
    ],
)
def test_aliases_of_named_types_match_by_full_name(
    kind: str, space: str, alias: str, written: str, fits: bool
) -> None:
    reader = aliased(kind, "New", space, alias)
    outer, _, simple = written.rpartition(".")
    writer = aliased(kind, simple, outer)
    for ours, theirs in zip(wrapped(reader), wrapped(writer), strict=True):
        assert (kinds(ours, theirs) == []) is fits, (ours, theirs)


def test_alias_of_recursive_record_is_matched_everywhere() -> None:
    def tree(name: str, **more: Any) -> dict[str, Any]:
        children = {"type": "array", "items": name}
        fields = [{"name": "children", "type": children}, {"name": "up", "type": ["null", name]}]
        return {"type": "record", "name": name, "fields": fields, **more}

    assert kinds(tree("New", aliases=["Old"]), tree("Old")) == []
    assert kinds(tree("New"), tree("Old")) != []


def test_ambiguous_alias_of_reader_field_is_rejected() -> None:
    reader = record("R", ("a", "int"))
    reader["fields"][0]["aliases"] = ["b"]
    writer = record("R", ("a", "int"), ("b", "int"))
    assert kinds(reader, writer) == ["READER_FIELD_AMBIGUOUS"]


def test_duplicate_alias_is_stored_once() -> None:
    text = '{"type":"fixed","name":"F","namespace":"n","size":1,"aliases":["A","n.A","m.A"]}'
    assert AvroSchema(text).canonical.endswith('"aliases":["A","m.A"]}')


def test_default_of_nested_unions_is_checked_in_few_steps() -> None:
    depth = 40
    fields: list[Any] = [("f0", record("R0", ("a", "int")))]
    value: Any = {"a": "x"}
    for level in range(1, depth):
        inner = f"R{level - 1}"
        made = record(f"R{level}", ("a", [{"type": "map", "values": inner}, inner]))
        fields.append((f"f{level}", made))
        value = {"a": value}
    with pytest.raises(RegistryError, match=r"field R\.g: invalid default"):
        schema(record("R", *fields, ("g", ["null", f"R{depth - 1}"], value)))
