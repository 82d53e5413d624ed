"""Record filters of the console."""

from __future__ import annotations

from functools import cached_property
from itertools import islice

from starlette.requests import Request

from kbroker.client.decoded import Decoded
from kbroker.client.record_fields import HEADERS_MAX, FieldsOfRecord, value_at
from kbroker.protocol.records import Record
from kbroker.text.expression import BadExpression, Test, parse, path_of, text_of

from .answers import ApiError, number
from .internal_records import InternalRecord, decode_internal
from .schemas import DecodedParts

# Maximum number of characters of a query parameter.
TEXT_MAX = 1_000
# Maximum number of columns, and of characters of a column.
COLUMNS_MAX, COLUMN_TEXT_MAX = 20, 300
# Largest integer that browsers read exactly.
EXACT_MAX = (1 << 53) - 1
# Bounds of a time range, in ms since the epoch.
TIME_MAX = (1 << 63) - 2


class RecordFilter:
    """All conditions of a query.

    Attributes:
        needles: Byte strings that every matching record contains.
        too_large: Number of values that were too large to evaluate.
    """

    def __init__(self, topic: str, request: Request) -> None:
        def given(name: str) -> str:
            text = request.query_params.get(name, "")
            if len(text) > TEXT_MAX:
                raise ApiError(400, f"{name}: more than {TEXT_MAX} characters")
            return text

        self._topic = topic
        self._contains = given("contains").encode(errors="replace")
        self._key = given("key").encode(errors="replace")
        name, _, value = given("header").partition("=")
        self._header, self._header_value = name, value.encode(errors="replace")
        self._since = number(request, "since", -TIME_MAX, -TIME_MAX, TIME_MAX)
        self._until = number(request, "until", TIME_MAX, -TIME_MAX, TIME_MAX)
        parts = (self._contains, self._key, name.encode(errors="replace"), self._header_value)
        self.needles = [each for each in parts if each]
        self.too_large = 0
        self._test: Test | None = None
        if text := given("where").strip():
            try:
                self._test = parse(text)
            except BadExpression as error:
                details = {"parameter": "where", "position": error.position}
                raise ApiError(400, f"where: {error}", details=details) from None

    @property
    def matches_all(self) -> bool:
        """True if every record of the time range matches."""
        return not self.needles and self._test is None

    def is_in_time_range(self, timestamp: int) -> bool:
        """Return True if a timestamp in ms is in the range of the query.

        The offsets of the range can contain records outside of it, because producers set timestamps.
        """
        return self._since <= timestamp <= self._until

    def may_match(self, record: Record) -> bool:
        """Return True if the undecoded bytes of a record match."""
        key, value = record.key or b"", record.value or b""
        if self._key and self._key not in key:
            return False
        headers = islice(record.headers, HEADERS_MAX)
        if self._header and not any(
            name == self._header and self._header_value in (text or b"") for name, text in headers
        ):
            return False
        return (
            self._contains in value
            or self._contains in key
            or any(
                self._contains in (text or b"") for _, text in islice(record.headers, HEADERS_MAX)
            )
        )

    def matches(self, partition: int, record: Record, decoded: DecodedParts) -> bool:
        """Return True if a record for which `may_match` is true matches the expression."""
        if self._test is None:
            return True
        fields = _DecodedFields(self._topic, partition, record, decoded)
        found = self._test(fields)
        self.too_large += fields.is_too_large
        return found


class Columns:
    """Fields of records that a page shows as columns: paths of expressions."""

    def __init__(self, topic: str, request: Request) -> None:
        self._topic = topic
        names = request.query_params.getlist("field")
        if len(names) > COLUMNS_MAX:
            raise ApiError(400, f"field: more than {COLUMNS_MAX} fields")
        try:
            self._paths = {name: path_of(name) for name in names}
        except BadExpression as error:
            raise ApiError(400, f"field: {error}", details={"parameter": "field"}) from None

    def __bool__(self) -> bool:
        return bool(self._paths)

    def values(self, partition: int, record: Record, decoded: DecodedParts) -> dict[str, object]:
        """Return the fields of a record by name; None for a field that the record does not have."""
        fields = _DecodedFields(self._topic, partition, record, decoded)
        return {name: _column_value(fields(path)) for name, path in self._paths.items()}


def _column_value(found: object) -> object:
    """Return a value for a column: browsers read large integers inexactly."""
    is_exact = found is None or isinstance(found, bool | float)
    if is_exact or (isinstance(found, int) and abs(found) <= EXACT_MAX):
        return found
    return text_of(found)[:COLUMN_TEXT_MAX]


class _DecodedFields(FieldsOfRecord):
    """Fields of a record for expressions, with key and value decoded by their schemas."""

    def __init__(self, topic: str, partition: int, record: Record, decoded: DecodedParts) -> None:
        super().__init__(topic, partition, record)
        self._decoded = decoded

    @cached_property
    def _internal(self) -> InternalRecord | None:
        """The decoded record, if a coordinator wrote it."""
        return decode_internal(self._topic or "", self._record)

    def part(self, name: str, data: bytes | None, path: list[str]) -> object:
        if path and self._internal is not None:
            fields = self._internal.key if name == "key" else self._internal.fields
            return value_at(fields, path)
        decoded = self._decoded.key if name == "key" else self._decoded.value
        if decoded is not None and decoded.text is not None:
            return _decoded_value(decoded, path)
        self.is_too_large |= decoded is not None and decoded.is_too_large
        return super().part(name, data, path)


def _decoded_value(decoded: Decoded, path: list[str]) -> object:
    """Return the value at a path, or the JSON text if the path is the whole object or list."""
    if not path and isinstance(decoded.document, dict | list):
        return decoded.text
    return value_at(decoded.document, path)
