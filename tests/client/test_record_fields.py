"""Fields of records for filter expressions."""

from __future__ import annotations

import pytest

from kbroker.client.record_fields import JSON_BYTES_MAX, FieldsOfRecord
from kbroker.protocol.records import Record
from kbroker.text.expression import parse

RECORD = Record(b"k", b'{"user": {"country": "DE"}, "items": [{"id": 7}]}', 5, [("a.b", b"x")], 3)


@pytest.mark.parametrize(
    "expression",
    [
        'value.user.country == "DE"',
        "value.items.0.id == 7",
        'headers.a.b == "x"',
        'topic == "t" and partition == 2',
        'value ~ "country"',
        "not value.absent",
    ],
)
def test_expression_reads_fields_of_record(expression: str) -> None:
    assert parse(expression)(FieldsOfRecord("t", 2, RECORD))


def test_large_json_value_does_not_match_but_is_reported() -> None:
    fields = FieldsOfRecord("t", 0, Record(None, b'{"a": "' + b"x" * JSON_BYTES_MAX + b'"}'))
    assert not parse("value.a")(fields)
    assert fields.is_too_large
