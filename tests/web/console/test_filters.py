"""Record filters with bounded time per record."""

from __future__ import annotations

import time
from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from kbroker.protocol.records import Record
from kbroker.web.console.filters import RecordFilter
from kbroker.web.console.schemas import NOT_DECODED

WORST = {
    "many searches of one value": (" or ".join(['value~"nope"'] * 60), b"x" * 1_000_000),
    "many parts of one document": (
        " or ".join(f'value.{".".join("a" * depth)}~"nope"' for depth in range(1, 20)),
        b'{"a":' * 19 + b'"' + b"x" * 250_000 + b'"' + b"}" * 19,
    ),
    "a value that is no UTF-8": (" or ".join(['value~"nope"'] * 60), b"\xff" * 1_000_000),
    "a text that nearly matches": (
        " or ".join(['value~"' + "a" * 50 + 'b"'] * 15),
        b"a" * 1_000_000,
    ),
}


@pytest.mark.parametrize("name", WORST)
def test_expression_takes_bounded_time_per_record(name: str) -> None:
    expression, value = WORST[name]
    request = Request({"type": "http", "query_string": urlencode({"where": expression}).encode()})
    record_filter = RecordFilter("t", request)
    began = time.process_time()
    assert not record_filter.matches(0, Record(None, value, 1, (), 0), NOT_DECODED)
    assert time.process_time() - began < 0.1
    assert record_filter.too_large == 1


def test_expression_searches_all_terms_of_usual_records() -> None:
    expression = " or ".join(['value~"nope"'] * 55 + ['value~"yes"'])
    request = Request({"type": "http", "query_string": urlencode({"where": expression}).encode()})
    record_filter = RecordFilter("t", request)
    assert record_filter.matches(0, Record(None, b"x" * 100_000 + b"yes", 1, (), 0), NOT_DECODED)
    assert record_filter.too_large == 0
