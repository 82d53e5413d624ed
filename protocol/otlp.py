"""What clients send as metrics (KIP-714): ``MetricsData`` of OpenTelemetry, in protobuf.

Only what a metric is called and what it says is read; other fields are skipped. A library for it would
bring protobuf itself along, for five messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

POINTS_MAX = 20_000
"""Of one push."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protobuf."""
VARINT_BYTES_MAX = 10
# Field numbers of opentelemetry/proto/metrics/v1/metrics.proto and common/v1/common.proto.
RESOURCE_METRICS, SCOPE_METRICS, METRICS, NAME, DATA_POINTS = 1, 2, 2, 1, 1
GAUGE, SUM, HISTOGRAM = 5, 7, 9
NUMBER_ATTRIBUTES, AS_DOUBLE, AS_INTEGER = 7, 4, 6
HISTOGRAM_ATTRIBUTES, HISTOGRAM_COUNT, HISTOGRAM_SUM = 9, 4, 5
KEY, VALUE = 1, 2

Field: TypeAlias = tuple[int, int, "int | memoryview"]
"""Number, wire type, and content."""


class BadMetrics(ValueError):
    """These are no metrics."""


class Metric(NamedTuple):
    """One value of a metric; of a histogram the sum, with the number of what was measured."""

    name: str
    attributes: dict[str, str]
    value: float
    measured: int | None = None


def read_metrics(data: bytes) -> list[Metric]:
    """All data points of a push, `POINTS_MAX` at most. Raises BadMetrics."""
    found: list[Metric] = []
    for each in _metrics(memoryview(data)):
        for point in _points(each):
            if len(found) >= POINTS_MAX:
                raise BadMetrics(f"more than {POINTS_MAX} data points")
            found.append(point)
    return found


def _metrics(data: memoryview) -> Iterator[memoryview]:
    for of_resource in _messages(data, RESOURCE_METRICS):
        for of_scope in _messages(of_resource, SCOPE_METRICS):
            yield from _messages(of_scope, METRICS)


def _points(metric: memoryview) -> Iterator[Metric]:
    name = next((_text(each) for each in _messages(metric, NAME)), "")
    for kind in (GAUGE, SUM):
        for data in _messages(metric, kind):
            for point in _messages(data, DATA_POINTS):
                yield _number(name, point)
    for data in _messages(metric, HISTOGRAM):
        for point in _messages(data, DATA_POINTS):
            yield _histogram(name, point)


def _number(name: str, point: memoryview) -> Metric:
    attributes: dict[str, str] = {}
    value = 0.0
    for number, kind, content in _fields(point):
        if isinstance(content, memoryview):
            if number == NUMBER_ATTRIBUTES:
                attributes.update([_attribute(content)])
        elif kind == FIXED64 and number == AS_DOUBLE:
            value = _double(content)
        elif kind == FIXED64 and number == AS_INTEGER:
            value = _signed(content)
    return Metric(name, attributes, value)


def _histogram(name: str, point: memoryview) -> Metric:
    attributes: dict[str, str] = {}
    count, total = 0, 0.0
    for number, kind, content in _fields(point):
        if isinstance(content, memoryview):
            if number == HISTOGRAM_ATTRIBUTES:
                attributes.update([_attribute(content)])
        elif kind == FIXED64 and number == HISTOGRAM_COUNT:
            count = content
        elif kind == FIXED64 and number == HISTOGRAM_SUM:
            total = _double(content)
    return Metric(name, attributes, total, count)


def _attribute(data: memoryview) -> tuple[str, str]:
    key = next((_text(each) for each in _messages(data, KEY)), "")
    value = next(_messages(data, VALUE), memoryview(b""))
    return key, next((_value(*each) for each in _fields(value)), "")


def _value(number: int, kind: int, content: int | memoryview) -> str:
    """That of an attribute: a string, a bool, an integer or a number with a fraction."""
    if isinstance(content, memoryview):
        return _text(content)
    if kind == FIXED64:
        return str(_double(content))
    return str(bool(content)).lower() if number == 2 else str(_signed(content))


def _messages(data: memoryview, number: int) -> Iterator[memoryview]:
    """The fields of one number that have a length."""
    for each, _, content in _fields(data):
        if each == number and isinstance(content, memoryview):
            yield content


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
            raise BadMetrics(f"wire type {kind}")
        if position > len(data):
            raise BadMetrics("a field goes beyond the end")
        yield key >> 3, kind, content


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        if position >= len(data):
            raise BadMetrics("a number goes beyond the end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadMetrics("a number of more than ten bytes")


def _double(bits: int) -> float:
    (value,) = struct.unpack("<d", bits.to_bytes(8, "little"))
    return float(value)


def _signed(bits: int) -> int:
    return bits - (bits >> 63 << 64)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")
