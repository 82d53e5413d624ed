"""Which records a filter lets pass."""

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
        ({"fields": ["user.country.code=."]}, False),
    ],
)
def test_what_passes(given: dict[str, Any], passes: bool) -> None:
    wanted = record_filter(**given)
    assert wanted is not None
    assert wanted(RECORD) == passes


def test_nothing_is_found_in_null_nor_fields_in_what_is_no_json() -> None:
    for given in ({"keys": [""]}, {"values": [""]}, {"fields": ["a=."]}):
        wanted = record_filter(**given)
        assert wanted is not None
        assert not wanted(Record(None, None))
    wanted = record_filter(fields=["a=."])
    assert wanted is not None
    assert not wanted(Record(None, b"\xff{"))
    assert not wanted(Record(None, b"[1]"))


def test_no_filter() -> None:
    assert record_filter() is None


@pytest.mark.parametrize(
    ("given", "said"),
    [({"keys": ["("]}, "regular"), ({"fields": ["a"]}, "NAME"), ({"headers": ["=x"]}, "NAME")],
)
def test_what_is_no_filter(given: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFilter, match=said):
        record_filter(**given)
