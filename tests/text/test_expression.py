"""The filter language of the console and of `topic consume`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.text.expression import BadExpression, parse, text_of

RECORD: dict[str, Any] = {
    "key": "k1",
    "value": {"n": 4, "s": "text", "yes": True, "none": None, "list": [{"a": 1}]},
    "headers": {"trace": "12", "a.b": "c"},
    "offset": 7,
}


def value_at(path: list[str]) -> Any:
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


class UnlimitedRecord:
    """A record without work limits."""

    def __call__(self, path: list[str], /) -> Any:
        return value_at(path)

    def text(self, path: list[str], /) -> str:
        return text_of(value_at(path))


record = UnlimitedRecord()


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
def test_expression_matches_record(text: str) -> None:
    assert parse(text)(record)
    assert not parse(f"not ({text})")(record)


@pytest.mark.parametrize(
    "text",
    ["value.s > 3", 'value.n < "x"', "value.none > 0", "value.yes == 1", 'value.s.deeper == "t"'],
)
def test_expression_with_incomparable_values_is_false(text: str) -> None:
    assert not parse(text)(record)


@pytest.mark.parametrize(
    "text",
    ["", "value.n ==", "value.n == n", "import os", "a == 1", "(offset == 7", "offset == 7)",
     "offset = 7", 'key == "open', "(" * 100 + "offset" + ")" * 100, "not " * 100 + "offset",
     "offset == 7 offset == 8", "x" * 2_000, "value.n == 1e9"],
)  # fmt: skip
def test_malformed_expression_is_rejected_with_reason(text: str) -> None:
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
def test_random_expression_is_rejected_or_evaluated(text: str) -> None:
    try:
        test = parse(text)
    except BadExpression:
        return
    assert test(record) in (True, False)
