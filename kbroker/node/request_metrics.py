"""Request metrics of a node: numbers of requests, errors and response times.

The metrics are numbers in lists that exist before the first request. Counting costs a fraction of a
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

# Maximum number of rows of a response whose error codes are counted.
ROWS_COUNTED_MAX = 1000
# Maximum number of topics with rejected requests; further topics are counted without a name.
TOPICS_MAX = 10_000
NO_TOPIC = ""
ERROR_CODE = "error_code"
# APIs whose handlers count the rows that they reject, so that responses need not be scanned.
COUNTED_BY_HANDLER = (int(ApiKey.PRODUCE), int(ApiKey.FETCH))


class _Shape(NamedTuple):
    """Positions of the error codes in a response or in a row of a response.

    Attributes:
        has_code: True if the response or row itself has an error code.
        rows: Names of the array fields with error codes, and the shape of their rows.
    """

    has_code: bool
    rows: tuple[tuple[str, _Shape], ...]


class RequestMetrics:
    """The request metrics of all connections of a node."""

    def __init__(self) -> None:
        # Number of received requests by API key.
        self.requests = [0] * (max(ApiKey) + 1)
        # Time from receiving a request to sending its response, by API key.
        self.times = [Timings() for _ in self.requests]
        # Number of response rows with an error, by API key and error code.
        self.errors: Counter[tuple[int, int]] = Counter()
        # Number of rejected rows of Produce and Fetch, by API key and topic.
        self.rejected: Counter[tuple[int, str]] = Counter()
        # Positions of the error codes in responses, by API key.
        self._shapes: list[_Shape | None] = [None for _ in self.requests]

    def _shape(self, key: int) -> _Shape:
        declared: Any = response_class(key)
        shape: _Shape = _shape_of(declared)
        if key in COUNTED_BY_HANDLER:
            shape = shape._replace(rows=())
        self._shapes[key] = shape
        return shape

    def count_rejected(self, key: int, topic: str, code: int) -> None:
        """Count a rejected row of Produce or Fetch.

        Args:
            key: API key.
            topic: Name of an existing topic, or `NO_TOPIC`.
            code: Error code.
        """
        self.count_error(key, code)
        place = key, topic
        if len(self.rejected) >= TOPICS_MAX and place not in self.rejected:
            place = key, NO_TOPIC
        self.rejected[place] += 1

    def count_error(self, key: int, code: int) -> None:
        """Count a response row with an error."""
        self.errors[key, code] += 1

    def count_errors(self, key: int, response: Any) -> None:
        """Count the errors of a response, in its first rows."""
        if type(response) is Encoded:
            return
        has_code, rows = self._shapes[key] or self._shape(key)
        if has_code and response.error_code:
            self.count_error(key, response.error_code)
        if rows:
            for code in islice(_codes(response, rows), ROWS_COUNTED_MAX):
                if code:
                    self.count_error(key, code)


def codes_of(key: int, response: Any) -> Iterator[int]:
    """Yield the error codes of a response and of its first rows, including 0."""
    declared: Any = response_class(key)
    has_code, rows = _shape_of(declared)
    if has_code:
        yield response.error_code
    yield from islice(_codes(response, rows), ROWS_COUNTED_MAX)


@cache
def _shape_of(cls: Any) -> _Shape:
    known = fields(cls)
    kinds: list[tuple[str, Any]] = [(each.name, each.kind) for each in known if each.array]
    rows = ((name, _shape_of(kind)) for name, kind in kinds if not isinstance(kind, str))
    has_code = any(each.name == ERROR_CODE for each in known)
    return _Shape(has_code, tuple((name, shape) for name, shape in rows if any(shape)))


def _codes(response: Any, rows: tuple[tuple[str, _Shape], ...]) -> Iterator[int]:
    """Yield the error code of each row; 0 if a row has no such field, so that rows are counted."""
    for name, shape in rows:
        for row in getattr(response, name) or ():
            yield row.error_code if shape.has_code else 0
            if shape.rows:
                yield from _codes(row, shape.rows)
