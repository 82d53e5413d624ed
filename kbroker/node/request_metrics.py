"""Request metrics of a node: numbers of requests, errors and response times.

They are plain numbers in lists that exist before the first request. Counting costs a fraction of a
percent of the time of a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.messages import response_class
from kbroker.protocol.schema import fields
from kbroker.runtime.timings import Timings

ROWS_LOOKED_AT_MAX = 1000
"""Of one answer: those behind are as those before."""
TOPICS_MAX = 10_000
"""With refused requests; those of more are counted without their names."""
NO_TOPIC = ""
ERROR_CODE = "error_code"
COUNTED_AS_REFUSED = (int(ApiKey.PRODUCE), int(ApiKey.FETCH))
"""Whose handlers say which rows they refuse, so that nobody looks through those that are good."""


class _Shape(NamedTuple):
    """Where an answer, or a row of one, has errors: in itself, and in rows of these names."""

    has_code: bool
    rows: tuple[tuple[str, _Shape], ...]


class RequestMetrics:
    """The request metrics of all connections of a node."""

    def __init__(self) -> None:
        self.requests = [0] * (max(ApiKey) + 1)
        """By API key, as they come."""
        self.times = [Timings() for _ in self.requests]
        """By API key, from its bytes to its answer on its way out."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """By API key and error code, each row of an answer."""
        self.refused: Counter[tuple[int, str]] = Counter()
        """Rows of Produce and Fetch, by API key and topic."""
        self._shapes: list[_Shape | None] = [None for _ in self.requests]
        """Of the answers of each API."""

    def _shape(self, key: int) -> _Shape:
        declared: Any = response_class(key)
        shape: _Shape = _shape_of(declared)
        if key in COUNTED_AS_REFUSED:
            shape = shape._replace(rows=())
        self._shapes[key] = shape
        return shape

    def refuses(self, key: int, topic: str, code: int) -> None:
        """A row of Produce or Fetch is refused; `topic` is one that exists, or empty."""
        self.fails(key, code)
        place = key, topic
        if len(self.refused) >= TOPICS_MAX and place not in self.refused:
            place = key, NO_TOPIC
        self.refused[place] += 1

    def fails(self, key: int, code: int) -> None:
        """A row of an answer has an error."""
        self.errors[key, code] += 1

    def answers(self, key: int, response: Any) -> None:
        """Count the errors of an answer, in its first rows."""
        if type(response) is Encoded:
            return
        has_code, rows = self._shapes[key] or self._shape(key)
        if has_code and response.error_code:
            self.fails(key, response.error_code)
        if rows:
            for code in islice(_codes(response, rows), ROWS_LOOKED_AT_MAX):
                if code:
                    self.fails(key, code)


def codes_of(key: int, response: Any) -> Iterator[int]:
    """The codes of an answer and of its first rows, 0 where all is well."""
    declared: Any = response_class(key)
    has_code, rows = _shape_of(declared)
    if has_code:
        yield response.error_code
    yield from islice(_codes(response, rows), ROWS_LOOKED_AT_MAX)


@cache
def _shape_of(cls: Any) -> _Shape:
    known = fields(cls)
    kinds: list[tuple[str, Any]] = [(each.name, each.kind) for each in known if each.array]
    rows = ((name, _shape_of(kind)) for name, kind in kinds if not isinstance(kind, str))
    has_code = any(each.name == ERROR_CODE for each in known)
    return _Shape(has_code, tuple((name, shape) for name, shape in rows if any(shape)))


def _codes(response: Any, rows: tuple[tuple[str, _Shape], ...]) -> Iterator[int]:
    """The code of each row, 0 where there is none: all of them are counted."""
    for name, shape in rows:
        for row in getattr(response, name) or ():
            yield row.error_code if shape.has_code else 0
            if shape.rows:
                yield from _codes(row, shape.rows)
