"""Type inference from values, and schemas that only grow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbroker.pipelines.lake import fields


def ddl(kind: Any) -> str:
    """Return a short notation of a type."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"[{ddl(kind['elementType'])}]"
    return "{" + " ".join(f"{each['name']}:{ddl(each['type'])}" for each in kind["fields"]) + "}"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [{"a": 1, "b": "x", "c": True, "d": 1.5, "e": None}],
            "{a:long b:string c:boolean d:double e:void}",
        ),
        ([{"a": 1}, {"a": 2.5}], "{a:double}"),
        ([{"a": 1}, {"a": "x"}], "{a:string}"),
        ([{"a": None}, {"a": [1, None]}, {"a": [2.5]}], "{a:[double]}"),
        ([{"a": []}, {"a": {}}], "{a:string}"),
        ([{"a": {"x": 1}}, {"a": {"y": [{"z": 1}]}}], "{a:{x:long y:[{z:long}]}}"),
        ([{"a": 2**63}, {"a": 1}], "{a:string}"),
        ([{"a": {"x": 1, "X": 2}}], "{a:string}"),
        ([{"a": {"x": 1}}, {"a": {"X": 2}}], "{a:string}"),
    ],
)
def test_types_are_inferred_from_values(values: list[dict[str, Any]], expected: str) -> None:
    assert ddl(fields.grow_schema(fields.struct(), values)) == expected


@pytest.mark.parametrize(
    ("before", "values", "after"),
    [
        ({"a": 1}, [{"b": "x"}], "{a:long b:string}"),
        ({"a": 1}, [{"a": 1.5}, {"a": "x"}], "{a:long}"),
        ({"a": None}, [{"a": {"x": 1}}], "{a:{x:long}}"),
        ({"a": {"x": 1}}, [{"a": {"y": 2, "X": 3}}], "{a:{x:long y:long}}"),
        ({"a": [{"x": 1}]}, [{"a": [{"y": None}]}], "{a:[{x:long y:void}]}"),
        ({"a": []}, [{"a": ["t"]}], "{a:[string]}"),
    ],
)
def test_schema_growth_keeps_existing_types(
    before: dict[str, Any], values: list[dict[str, Any]], after: str
) -> None:
    schema = fields.grow_schema(fields.struct(), [before])
    assert ddl(fields.grow_schema(schema, values)) == after


def test_column_names_are_unique_regardless_of_case() -> None:
    schema = fields.grow_schema(
        fields.struct(), [{"Record": 1, "record_hour": 2, "a": 3, "A": 4, "": 5}]
    )
    assert [field["name"] for field in schema["fields"]] == [
        "Record_",
        "record_hour_",
        "a",
        "A_",
        "_",
    ]
    again = fields.grow_schema(schema, [{"record_": 1, "A": 5}])
    assert [(field["name"], fields.field_name(field)) for field in again["fields"]] == [
        ("Record_", "Record"),
        ("record_hour_", "record_hour"),
        ("a", "a"),
        ("A_", "A"),
        ("_", ""),
        ("record__", "record_"),
    ]


def test_schema_growth_is_limited() -> None:
    schema = fields.grow_schema(fields.struct(), [{"a": 1}])
    flood = [{f"f{number}": 1 for number in range(fields.FIELDS_MAX)}]
    assert fields.grow_schema(schema, flood) is schema


def test_void_fields_are_not_written() -> None:
    value = {"a": None, "b": {"c": None}, "d": [{"e": None, "f": 1}], "g": []}
    schema = fields.grow_schema(fields.struct(), [value])
    assert fields.has_void(schema)
    assert ddl(fields.without_void(schema)) == "{d:[{f:long}]}"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff{}", "not UTF-8: byte 0"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
        (b" ", "not JSON: the value is empty"),
        (b'{"a": Infinity}', "not JSON: Infinity is not a JSON value"),
        (b"null", "null, not an object"),
        (b'{"a": "1"}', 'a: "1", expected long'),
        (b'{"a": 1.0}', "a: 1.0, expected long"),
        (b'{"in": {"x": [1, true]}}', "in.x[]: true, expected double"),
        (b'{"in": 3}', "in: 3, expected an object"),
        (b'{"in": {"new": 3}}', "in.new: a new field that cannot be added"),
        (b'{"a": 9223372036854775808}', "a: 9223372036854775808, expected long"),
    ],
)
def test_rejection_reason_names_first_mismatch(value: bytes, reason: str) -> None:
    schema = fields.grow_schema(fields.struct(), [{"a": 1, "in": {"x": [1.5]}}])
    assert fields.rejection_reason(value, schema, may_grow=False).startswith(reason)


def test_schema_is_json_serializable() -> None:
    schema = fields.grow_schema(fields.struct(), [{"a": {"b": [1]}, "Record": None}])
    assert json.loads(json.dumps(schema)) == schema


def test_schema_id_header_is_skipped() -> None:
    value = b'\0\0\0\0\7{"a": "x"}'
    assert fields.without_schema_id(value) == b'{"a": "x"}'
    assert fields.without_schema_id(b'{"a": 1}') == b'{"a": 1}'
    schema = fields.grow_schema(fields.struct(), [{"a": 1}])
    assert fields.rejection_reason(value, schema, may_grow=True) == 'a: "x", expected long'
    assert (
        fields.rejection_reason(b"\0\0\0", schema, may_grow=True) == "not JSON: the value is empty"
    )
