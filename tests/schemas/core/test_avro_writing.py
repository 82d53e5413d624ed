"""JSON documents become Avro data; mismatches are reported with field and reason."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kbroker.schemas.core import value_writing
from kbroker.schemas.core.avro import AvroSchema
from kbroker.schemas.core.avro_values import avro_value
from kbroker.schemas.core.avro_writing import avro_data
from kbroker.schemas.core.byte_reader import Source, latin_text
from kbroker.schemas.core.value_writing import Mismatch
from kbroker.text.documents import read_json


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
    "raw": "\x00\xff", "two": "ab", "suit": "SPADE", "sum": "-123.45",
    "fixed_sum": "0.00", "day": 20513, "millis": 1772368200250, "micros": -1, "local": 1,
    "clock": 7, "id": "6ba7b810-9dad", "tags": ["a", None], "counts": {"a": 1}, "card": None,
    "again": {"number": "7"},
}  # fmt: skip


def encoded(schema: Any, text: str) -> Any:
    """Encode a JSON text, and return it decoded."""
    root = AvroSchema(json.dumps(schema)).root
    return avro_value(root, Source(avro_data(root, read_json(text, exact=True)), 1000, latin_text))


def test_decoded_values_are_encoded_unchanged() -> None:
    assert encoded(EVERYTHING, json.dumps(VALUES)) == VALUES


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("double", "3", 3.0),
        ("double", "Infinity", "Infinity"),
        ("float", '"-Infinity"', "-Infinity"),
        (MONEY, "1.25", "1.25"),
        (MONEY, '"-0.5"', "-0.50"),
        (MONEY, "3", "3.00"),
        (MONEY, "1.28", "1.28"),
        (of("fixed", "uuid", name="U", size=16), '"6ba7b810-9dad-11d1-80b4-00c04fd430c8"',
         "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        (of("int", "date"), '"1970-01-11"', 10),
        (of("long", "timestamp-millis"), '"1970-01-01T01:00:00.5+01:00"', 500),
        (of("long", "timestamp-micros"), '"1969-12-31T23:59:59.999999Z"', -1),
        (of("long", "local-timestamp-micros"), '"1970-01-01T00:00:00.000001"', 1),
        (["int", "string", "double"], "1.5", 1.5),
        (["int", "string"], '"1"', "1"),
        (["null", "string"], '{"string": "a"}', "a"),
        ([CARD, CASH], '{"number": "1", "change": 2}', {"number": "1", "change": 2}),
        ([CARD, CASH], '{"number": "1"}', {"number": "1"}),
        ([CARD, CASH], '{"shop.Cash": {"number": "1"}}', {"number": "1", "change": 0}),
        ({"type": "map", "values": "int"}, "{}", {}),
        ({"type": "array", "items": "long"}, "[300, -1]", [300, -1]),
    ],
)  # fmt: skip
def test_accepted_json_forms_are_encoded(kind: Any, text: str, value: Any) -> None:
    assert encoded(record(("field", kind)), f'{{"field": {text}}}') == {"field": value}


def test_missing_fields_get_default_values() -> None:
    schema = record(
        ("note", ["null", "string"]),
        ("kind", ["string", "null"], "x"),
        ("raw", "bytes", "\u00ff"),
        ("count", "int", 3),
    )
    assert encoded(schema, "{}") == {"note": None, "kind": None, "raw": "\xff", "count": 3}


def test_nan_is_encoded() -> None:
    root = AvroSchema('"double"').root
    assert math.isnan(float(str(avro_value(root, Source(avro_data(root, "NaN"), 9)))))


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        ("int", "2147483648", "field: 2147483648 is not an integer of 32 bits"),
        ("int", "1.0", "field: 1.0 is not an integer"),
        ("long", "true", "field: True is not an integer"),
        ("boolean", "1", "field: 1 is not true or false"),
        ("null", "1", "field: 1 is not null"),
        ("string", "null", "field: None is not a string"),
        ("string", '"\\ud800"', "is not a string of Unicode characters"),
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
    with pytest.raises(Mismatch, match=why):
        encoded(record(("field", kind)), f'{{"field": {text}}}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", r"^\[1\] is not a record shop.Order"),
        ("null", "^None is not a record shop.Order"),
        ('{"field": 1, "other": 2}', "other: 2 is not a field of shop.Order"),
        ('{"field": "' + "x" * 1000 + '"}', r"x\.\.\. is not an integer"),
    ],
)
def test_values_that_are_not_records_of_the_schema_are_rejected(text: str, why: str) -> None:
    with pytest.raises(Mismatch, match=why):
        encoded(record(("field", "int")), text)


def test_unions_of_recursive_types_have_limited_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level of nesting doubles the attempts."""
    monkeypatch.setattr(value_writing, "STEPS_MAX", 10_000)
    inner = record(("next", ["null", "A", "B"]), ("b", "int"), name="B")
    outer = record(("next", ["null", "A", inner]), ("a", "int"), name="A")
    with pytest.raises(Mismatch, match="more than 10000 steps"):
        encoded(outer, '{"next": ' * 40 + "null" + "}" * 40)
