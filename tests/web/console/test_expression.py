"""The small language that says which records are wanted."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from kbroker.protocol.records import Record
from kbroker.web.console.expression import BadExpression, parse, text_of
from kbroker.web.console.schemas import NEITHER
from kbroker.web.console.wanted import Wanted

RECORD: dict[str, Any] = {
    "key": "k1",
    "value": {"n": 4, "s": "text", "yes": True, "none": None, "list": [{"a": 1}]},
    "headers": {"trace": "12", "a.b": "c"},
    "offset": 7,
}


def found_at(path: list[str]) -> Any:
    if path[0] == "headers":
        return RECORD["headers"].get(".".join(path[1:]))
    found: Any = RECORD
    for step in path:
        if isinstance(found, list):
            found = found[int(step)]
        elif isinstance(found, dict):
            found = found.get(step)
        else:
            return None
    return found if not isinstance(found, dict) else json.dumps(found)


class Looked:
    """A record without limits of work."""

    def __call__(self, path: list[str], /) -> Any:
        return found_at(path)

    def text(self, path: list[str], /) -> str:
        return text_of(found_at(path))


look = Looked()


@pytest.mark.parametrize(
    "text",
    [
        "value.n == 4",
        "value.n == 4.0",
        "value.n > 3 and value.n <= 4",
        'value.s == "text" or offset == 8',
        'value.s ~ "ex"',
        "value.yes",
        "value.yes == true",
        "value.none == null",
        "value.absent == null",
        "not value.absent",
        "value.list.0.a == 1",
        "headers.trace == 12",
        "headers.trace > 11",
        'headers.a.b == "c"',
        'key != "k2"',
        "not (offset < 7) and not offset > 7",
        "value.n != 5",
        "value.yes != 1",
    ],
)
def test_what_is_true_of_a_record(text: str) -> None:
    assert parse(text)(look)
    assert not parse(f"not ({text})")(look)


@pytest.mark.parametrize(
    "text",
    ["value.s > 3", 'value.n < "x"', "value.none > 0", "value.yes == 1", 'value.s.deeper == "t"'],
)
def test_what_cannot_be_compared_is_not_so(text: str) -> None:
    assert not parse(text)(look)


@pytest.mark.parametrize(
    "text",
    ["", "value.n ==", "value.n == n", "import os", "a == 1", "(offset == 7", "offset == 7)",
     "offset = 7", 'key == "open', "(" * 100 + "offset" + ")" * 100, "not " * 100 + "offset",
     "offset == 7 offset == 8", "x" * 2_000, "value.n == 1e9"],
)  # fmt: skip
def test_what_is_no_expression_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(BadExpression):
        parse(text)


WORDS = [
    "value",
    "value.n",
    "key",
    "and",
    "or",
    "not",
    "(",
    ")",
    "==",
    "<",
    "~",
    '"x"',
    "1",
    "null",
]


@given(st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join) | st.text(max_size=80))
def test_no_text_does_anything_but_be_refused_or_answer(text: str) -> None:
    try:
        test = parse(text)
    except BadExpression:
        return
    assert test(look) in (True, False)


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
def test_terms_of_one_record_take_bounded_time(name: str) -> None:
    where, value = WORST[name]
    request = Request({"type": "http", "query_string": urlencode({"where": where}).encode()})
    wanted = Wanted("t", request)
    began = time.process_time()
    assert not wanted.wants(0, Record(None, value, 1, (), 0), NEITHER)
    assert time.process_time() - began < 0.1
    assert wanted.too_large == 1


def test_terms_of_usual_records_are_all_searched() -> None:
    where = " or ".join(['value~"nope"'] * 55 + ['value~"yes"'])
    request = Request({"type": "http", "query_string": urlencode({"where": where}).encode()})
    wanted = Wanted("t", request)
    assert wanted.wants(0, Record(None, b"x" * 100_000 + b"yes", 1, (), 0), NEITHER)
    assert wanted.too_large == 0
