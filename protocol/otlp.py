"""A parser of client metrics (KIP-714): OpenTelemetry ``MetricsData`` in protobuf.

Only names and values of metrics are read; other fields are skipped. A library would add protobuf as
a dependency, for five messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias

# Maximum number of fields to read of one push (about 30 ms), including skipped ones.
FIELDS_MAX = 30_000
# Wire types of protobuf.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# Maximum bytes of a 64-bit varint.
VARINT_BYTES_MAX = 10
# Field numbers of opentelemetry/proto/metrics/v1/metrics.proto and common/v1/common.proto.
RESOURCE_METRICS, SCOPE_METRICS, METRICS, NAME, DATA_POINTS = 1, 2, 2, 1, 1
GAUGE, SUM, HISTOGRAM = 5, 7, 9
NUMBER_ATTRIBUTES, AS_DOUBLE, AS_INTEGER = 7, 4, 6
HISTOGRAM_ATTRIBUTES, HISTOGRAM_COUNT, HISTOGRAM_SUM = 9, 4, 5
KEY, VALUE = 1, 2

# Number, wire type, and content.
Field: TypeAlias = tuple[int, int, "int | memoryview"]


class InvalidMetricsError(ValueError):
    """Bytes that are not valid metrics."""


class Metric(NamedTuple):
    """One data point of a metric; for a histogram the sum, and the number of measurements."""

    name: str
    attributes: dict[str, str]
    value: float
    measured: int | None = None


def read_metrics(data: bytes, limit: int) -> list[Metric]:
    """Read the first data points of a push.

    Args:
        data: Bytes of the push, decompressed.
        limit: Maximum number of data points; the rest of the push is not read.

    Raises:
        InvalidMetricsError: The bytes are not metrics, or more than `FIELDS_MAX` fields must be read.
    """
    return [*islice(_Reader().metrics(memoryview(data)), limit)]


class _Reader:
    """Reads one push, up to `FIELDS_MAX` fields."""

    def __init__(self) -> None:
        self._fields_left = FIELDS_MAX

    def metrics(self, data: memoryview) -> Iterator[Metric]:
        for of_resource in self._messages(data, RESOURCE_METRICS):
            for of_scope in self._messages(of_resource, SCOPE_METRICS):
                for metric in self._messages(of_scope, METRICS):
                    yield from self._read_points(metric)

    def _read_points(self, metric: memoryview) -> Iterator[Metric]:
        name = next((_text(each) for each in self._messages(metric, NAME)), "")
        for number, _, data in self._fields(metric):
            if isinstance(data, memoryview) and number in (GAUGE, SUM, HISTOGRAM):
                read = self._read_histogram if number == HISTOGRAM else self._read_number
                for point in self._messages(data, DATA_POINTS):
                    yield read(name, point)

    def _read_number(self, name: str, point: memoryview) -> Metric:
        attributes: dict[str, str] = {}
        value = 0.0
        for number, kind, content in self._fields(point):
            if isinstance(content, memoryview):
                if number == NUMBER_ATTRIBUTES:
                    attributes.update([self._read_attribute(content)])
            elif kind == FIXED64 and number == AS_DOUBLE:
                value = _double(content)
            elif kind == FIXED64 and number == AS_INTEGER:
                value = _signed(content)
        return Metric(name, attributes, value)

    def _read_histogram(self, name: str, point: memoryview) -> Metric:
        attributes: dict[str, str] = {}
        count, total = 0, 0.0
        for number, kind, content in self._fields(point):
            if isinstance(content, memoryview):
                if number == HISTOGRAM_ATTRIBUTES:
                    attributes.update([self._read_attribute(content)])
            elif kind == FIXED64 and number == HISTOGRAM_COUNT:
                count = content
            elif kind == FIXED64 and number == HISTOGRAM_SUM:
                total = _double(content)
        return Metric(name, attributes, total, count)

    def _read_attribute(self, data: memoryview) -> tuple[str, str]:
        key = next((_text(each) for each in self._messages(data, KEY)), "")
        value = next(self._messages(data, VALUE), memoryview(b""))
        return key, next((_value(*each) for each in self._fields(value)), "")

    def _messages(self, data: memoryview, number: int) -> Iterator[memoryview]:
        """Yield the length-delimited fields with one number."""
        for each, _, content in self._fields(data):
            if each == number and isinstance(content, memoryview):
                yield content

    def _fields(self, data: memoryview) -> Iterator[Field]:
        for field in _fields(data):
            if not self._fields_left:
                raise InvalidMetricsError(f"more than {FIELDS_MAX} fields")
            self._fields_left -= 1
            yield field


def _value(number: int, kind: int, content: int | memoryview) -> str:
    """Return an attribute value as a string; it may be a string, bool, integer or double."""
    if isinstance(content, memoryview):
        return _text(content)
    if kind == FIXED64:
        return str(_double(content))
    return str(bool(content)).lower() if number == 2 else str(_signed(content))


def _fields(data: memoryview) -> Iterator[Field]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        content: int | memoryview
        if kind == VARINT:
            content, position = _varint(data, position)
        elif kind in (FIXED64, FIXED32):
            begin, position = position, position + (8 if kind == FIXED64 else 4)
            content = int.from_bytes(data[begin:position], "little")
        elif kind == BYTES:
            size, position = _varint(data, position)
            begin, position = position, position + size
            content = data[begin:position]
        else:
            raise InvalidMetricsError(f"wire type {kind}")
        if position > len(data):
            raise InvalidMetricsError("a field extends beyond the end of the data")
        yield key >> 3, kind, content


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        if position >= len(data):
            raise InvalidMetricsError("a number extends beyond the end of the data")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise InvalidMetricsError("a number of more than ten bytes")


def _double(bits: int) -> float:
    (value,) = struct.unpack("<d", bits.to_bytes(8, "little"))
    return float(value)


def _signed(bits: int) -> int:
    return bits - (bits >> 63 << 64)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")
