"""Conditions of record filters."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.client.record_filter import BadFilter, record_filter
from kbroker.protocol.records import Record

RECORD = Record(
    b"user-17", b'{"user": {"country": "DE", "age": 7}, "ok": true}', 0, [("a", b"xy"), ("n", None)]
)


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        ({"keys": ["user"]}, True),
        ({"keys": ["^17"]}, False),
        ({"keys": ["^user", "17$"]}, True),
        ({"keys": ["user"], "values": ["FR"]}, False),
        ({"values": ['"DE"']}, True),
        ({"headers": ["a"]}, True),
        ({"headers": ["a=^xy$"]}, True),
        ({"headers": ["a=z"]}, False),
        ({"headers": ["n"]}, True),
        ({"headers": ["b"]}, False),
        ({"fields": ["user.country=^DE$"]}, True),
        ({"fields": ["user.age=^7$"]}, True),
        ({"fields": ["ok=^true$"]}, True),
        ({"fields": ["user.name=."]}, False),
        ({"fields": ["value.user.country=^DE$"]}, True),
        ({"fields": ["value.country=."]}, False),
        ({"fields": ["user.country.code=."]}, False),
    ],
)
def test_record_filter_accepts_matching_records(given: dict[str, Any], passes: bool) -> None:
    wanted = record_filter(**given)
    assert wanted is not None
    assert wanted(RECORD) == passes


def test_record_filter_rejects_null_and_fields_of_non_json() -> None:
    for given in ({"keys": [""]}, {"values": [""]}, {"fields": ["a=."]}):
        wanted = record_filter(**given)
        assert wanted is not None
        assert not wanted(Record(None, None))
    wanted = record_filter(fields=["a=."])
    assert wanted is not None
    assert not wanted(Record(None, b"\xff{"))
    assert not wanted(Record(None, b"[1]"))


def test_record_filter_without_conditions_is_none() -> None:
    assert record_filter() is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"keys": ["("]}, "regular"), ({"fields": ["a"]}, "NAME"), ({"headers": ["=x"]}, "NAME")],
)
def test_malformed_record_filter_is_rejected(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadFilter, match=expected):
        record_filter(**given)
