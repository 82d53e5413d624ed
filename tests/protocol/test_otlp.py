"""Client metrics in OpenTelemetry's protobuf format."""

from __future__ import annotations

import random
import struct

import pytest

from kbroker.protocol.otlp import FIELDS_MAX, InvalidMetricsError, Metric, read_metrics


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes | float) -> bytes:
    """Encode a field: a message or string, a fixed-width integer, or a double."""
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    form = "<d" if isinstance(content, float) else "<q"
    return varint(number << 3 | 1) + struct.pack(form, content)


def attribute(key: str, value: bytes) -> bytes:
    return field(7, field(1, key.encode()) + field(2, value))


def pushed(*metrics: bytes) -> bytes:
    """Return a request of one client, with a resource and a scope that kbroker ignores."""
    scope = field(1, field(1, b"scope")) + b"".join(field(2, each) for each in metrics)
    return field(1, field(1, b"") + field(2, scope) + field(3, b"schema"))


def gauge(name: str, *points: bytes) -> bytes:
    data = b"".join(field(1, each) for each in points)
    return field(1, name.encode()) + field(2, b"description") + field(5, data)


def test_metrics_are_read() -> None:
    text = attribute("topic", field(1, b"orders"))
    more = attribute("is", varint(2 << 3) + b"\x01") + attribute("n", varint(3 << 3) + varint(7))
    total = field(1, field(6, -5) + field(3, 1)) + varint(2 << 3) + b"\x01"
    histogram = field(1, field(4, 3) + field(5, 1.5) + field(9, field(1, b"k") + field(2, b"")))
    data = pushed(
        gauge("a.rate", field(4, 0.25) + text + more, field(4, 2.0)),
        field(1, b"a.total") + field(7, total),
        field(1, b"a.time") + field(9, histogram),
        field(1, b"nothing"),
    )
    assert read_metrics(data, 100) == [
        Metric("a.rate", {"topic": "orders", "is": "true", "n": "7"}, 0.25),
        Metric("a.rate", {}, 2.0),
        Metric("a.total", {}, -5),
        Metric("a.time", {"k": ""}, 1.5, 3),
    ]
    assert read_metrics(b"", 100) == []
    assert [each.value for each in read_metrics(data, 2)] == [0.25, 2.0]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0b",
        b"\xff" * 11,
        b"\x09\x00",
        pushed(*[gauge("x", *[b""] * 200)] * (FIELDS_MAX // 200)),
        pushed(varint(15 << 3) * 2 * FIELDS_MAX),
        pushed(gauge("x", varint(15 << 3) * 2 * FIELDS_MAX)),
        pushed(gauge("x", field(7, varint(15 << 3) * 2 * FIELDS_MAX))),
        pushed(gauge("x", field(7, field(2, field(1, b"")) + b"\x78\x00" * FIELDS_MAX))),
    ],
    ids=[
        "no length",
        "cut",
        "a group",
        "a long number",
        "a cut number",
        "many points",
        "many fields of a metric",
        "many fields of a point",
        "many fields of an attribute",
        "many fields behind a value",
    ],
)
def test_malformed_metrics_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidMetricsError):
        read_metrics(data, FIELDS_MAX)


def test_arbitrary_bytes_are_read_or_rejected() -> None:
    rng = random.Random(1)
    whole = pushed(gauge("a", field(4, 1.0) + attribute("k", field(1, b"v"))))
    refused = 0
    for _ in range(20_000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read_metrics(bytes(data[: rng.randint(0, len(data))]), 100)
        except InvalidMetricsError:
            refused += 1
    assert 0 < refused < 20_000
