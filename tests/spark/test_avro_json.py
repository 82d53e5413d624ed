"""JSON objects become Avro values; mismatches are reported with field and reason."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from kbroker.client.schema_registry import UnencodableError
from kbroker.pipelines.lake.reading import _as_json
from kbroker.spark.avro import Decoder, Encoder
from kbroker.spark.avro_json import JsonEncoder


def record(*fields: tuple[Any, ...], name: str = "shop.Order") -> dict[str, Any]:
    """Return a record schema; each field is a name, a type and optionally a default."""
    listed = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": listed}


def of(base: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": logical, **more}


CARD = record(("number", "string"), name="shop.Card")
CASH = record(("number", "string"), ("change", "int", 0), name="shop.Cash")
MONEY = of("bytes", "decimal", precision=5, scale=2)
EVERYTHING = record(
    ("flag", "boolean"),
    ("small", "int"),
    ("large", "long"),
    ("near", "float"),
    ("real", "double"),
    ("text", "string"),
    ("raw", "bytes"),
    ("two", {"type": "fixed", "name": "Two", "size": 2}),
    ("suit", {"type": "enum", "name": "Suit", "symbols": ["HEART", "SPADE"]}),
    ("sum", MONEY),
    ("fixed_sum", of("fixed", "decimal", name="Sum", size=4, precision=5, scale=2)),
    ("day", of("int", "date")),
    ("millis", of("long", "timestamp-millis")),
    ("micros", of("long", "timestamp-micros")),
    ("local", of("long", "local-timestamp-micros")),
    ("clock", of("int", "time-millis")),
    ("id", of("string", "uuid")),
    ("tags", {"type": "array", "items": ["null", "string"]}),
    ("counts", {"type": "map", "values": "long"}),
    ("card", ["null", CARD]),
    ("again", ["null", "shop.Card"]),
)
VALUES: dict[str, Any] = {
    "flag": True, "small": -(2**31), "large": 2**63 - 1, "near": 0.5, "real": 0.1, "text": "\u20ac",
    "raw": b"\x00\xff", "two": b"ab", "suit": "SPADE", "sum": Decimal("-123.45"),
    "fixed_sum": Decimal("0.00"), "day": date(2026, 3, 1),
    "millis": datetime(2026, 3, 1, 12, 30, 0, 250_000, UTC),
    "micros": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    "local": datetime(2026, 3, 1, 12, 30, 0, 1), "clock": 7, "id": "6ba7b810-9dad",
    "tags": ["a", None], "counts": {"a": 1}, "card": None, "again": {"number": "7"},
}  # fmt: skip


def encoded(schema: Any, value: Any) -> dict[str, Any]:
    """Encode a value, given as JSON or its text, and return it decoded."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Decoder({7: schema}).decode(JsonEncoder(Encoder(7, schema)).encode(text))


def test_values_from_lake_are_encoded_unchanged() -> None:
    assert encoded(EVERYTHING, _as_json(VALUES)) == VALUES


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("double", "3", 3.0),
        ("double", "Infinity", float("inf")),
        (MONEY, "1.25", Decimal("1.25")),
        (MONEY, "0", Decimal(0)),
        (of("int", "date"), "1", date(1970, 1, 2)),
        (of("long", "timestamp-millis"), "1500", datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (of("long", "timestamp-micros"), '"1970-01-01T01:00:00+01:00"', datetime(1970, 1, 1, tzinfo=UTC)),
        (of("long", "timestamp-millis"), '"1970-01-01T00:00:00Z"', datetime(1970, 1, 1, tzinfo=UTC)),
        (["int", "string", "double"], "1.5", 1.5),
        (["int", "string"], '"1"', "1"),
        (["null", "string"], '{"string": "a"}', "a"),
        ([CARD, CASH], '{"number": "1", "change": 2}', {"number": "1", "change": 2}),
        ([CARD, CASH], '{"number": "1"}', {"number": "1"}),
        ([CARD, CASH], '{"shop.Cash": {"number": "1"}}', {"number": "1", "change": 0}),
        ({"type": "map", "values": "int"}, "{}", {}),
    ],
)  # fmt: skip
def test_accepted_json_forms_are_encoded(kind: Any, text: str, value: Any) -> None:
    assert encoded(record(("field", kind)), f'{{"field": {text}}}'.encode()) == {"field": value}


def test_missing_fields_get_default_values() -> None:
    schema = record(
        ("note", ["null", "string"]),
        ("kind", ["string", "null"], "x"),
        ("raw", "bytes", "\u00ff"),
        ("count", "int", 3),
    )
    assert encoded(schema, {}) == {"note": None, "kind": None, "raw": b"\xff", "count": 3}


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("int", "2147483648", "field: 2147483648 is not an integer of 32 bits"),
        ("int", "1.0", "field: 1.0 is not an integer"),
        ("long", "true", "field: True is not an integer"),
        ("boolean", "1", "field: 1 is not true or false"),
        ("null", "1", "field: 1 is not null"),
        ("string", "null", "field: None is not a string"),
        ("string", '"\\ud800"', "do not match shop.Order"),
        ("double", "1e400", "is not within the range of double"),
        ("float", "1e39", "is not within the range of float"),
        ("float", '"1"', "field: '1' is not a number"),
        ("bytes", '"\u20ac"', "is not a string with characters U\\+0000"),
        ({"type": "fixed", "name": "F", "size": 2}, '"a"', "a string of 2 characters"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, '"C"', "field: 'C' is not one of A, B"),
        (MONEY, "1.255", "field: 1.255 is not a decimal with precision 5 and scale 2"),
        (MONEY, "1e999999999", "is not a decimal with precision"),
        (MONEY, '"1000"', "is not a decimal with precision"),
        (MONEY, '"soon"', "is not a decimal with precision"),
        (MONEY, "NaN", "is not a decimal with precision"),
        (of("int", "date"), '"soon"', "field: 'soon' is not a date"),
        (of("long", "timestamp-millis"), '"2026-03-01T10:00:00"', "with a UTC offset"),
        (of("long", "timestamp-millis"), '"2026-03-01T10:00:00.0001Z"', "its precision is finer than"),
        (of("long", "local-timestamp-millis"), '"2026-03-01T10:00:00Z"', "without a UTC offset"),
        ({"type": "array", "items": "int"}, '[1, "a"]', r"field\[1\]: 'a' is not an integer"),
        ({"type": "array", "items": CARD}, '[{"number": 1}]', r"field\[0\]\.number: 1 is not a string"),
        ({"type": "array", "items": "int"}, "{}", "field: {} is not an array"),
        ({"type": "map", "values": "int"}, '{"a": "b"}', r"field\.a: 'b' is not"),
        ({"type": "map", "values": "int"}, "[1]", "is not a map"),
        (["null", CARD], '{"number": 1}', r"field\.number: 1 is not a string"),
        (["null", CARD], "{}", r"field\.number: field is missing and has no default"),
        (["null", "int", CARD], '"a"', "is not any type of the union of null, int, shop.Card"),
        (["null", CARD], '{"shop.Card": 1}', "field: 1 is not a record shop.Card"),
    ],
)  # fmt: skip
def test_mismatching_values_are_rejected(kind: Any, text: str, why: str) -> None:
    with pytest.raises(UnencodableError, match=why):
        encoded(record(("field", kind)), f'{{"field": {text}}}'.encode())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\x00\x00\x00\x00\x01x", "not a JSON object: "),
        (b"\xff", "not a JSON object: "),
        (b"", "not a JSON object: "),
        (b"[1]", r"not a JSON object: \[1\]"),
        (b"null", "not a JSON object: None"),
        (b"[" * 100_000, "not a JSON object: nested more than 100 levels deep"),
        (b'{"field": 1, "other": 2}', "other: 2 is not a field of shop.Order"),
        (b'{"field": "' + b"x" * 1000 + b'"}', r"x\.\.\. is not an integer"),
    ],
)
def test_values_that_are_not_objects_are_rejected(text: bytes, why: str) -> None:
    with pytest.raises(UnencodableError, match=why):
        encoded(record(("field", "int")), text)
