"""Malformed records, built field by field."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.primitives import write_varint
from kbroker.protocol.records import Record, encode_batch, read_header, with_payload

NOW = 1_700_000_000_000


def batch_of(content: bytes, codec: Codec, count: int) -> bytes:
    """Return a batch with a valid header and these bytes as compressed records."""
    header = read_header(encode_batch([Record(timestamp=NOW)]))
    claimed = header._replace(attributes=codec, record_count=count, last_offset_delta=count - 1)
    return with_payload(claimed, compress(codec, content))[0]


def varint(value: int, padding: int = 0) -> bytes:
    """Return a varint with padding bytes."""
    plain = bytearray(write_varint(value))
    if padding:
        plain[-1] |= 0x80
        plain += b"\x80" * (padding - 1) + b"\x00"
    return bytes(plain)


def record(
    index: int,
    *,
    key: bytes = varint(1) + b"k",
    value: bytes = varint(1) + b"v",
    headers: bytes = varint(0),
    time: bytes = varint(0),
    delta: bytes | None = None,
    longer: int = 0,
    behind: bytes = b"",
) -> bytes:
    """Return a record with invalid parts."""
    body = b"\x00" + time + (varint(index) if delta is None else delta) + key + value + headers
    return varint(len(body) + longer) + body + behind


HEADER = varint(1) + b"h" + varint(1) + b"x"
MALFORMED_RECORDS: dict[str, Callable[[int], bytes]] = {
    "null header key": lambda i: record(i, headers=varint(1) + varint(-1) + varint(1) + b"x"),
    "negative header key": lambda i: record(i, headers=varint(1) + varint(-7) + varint(0)),
    "header key too long": lambda i: record(i, headers=varint(1) + varint(90) + b"h"),
    "header value too long": lambda i: record(i, headers=varint(1) + varint(0) + varint(90)),
    "negative header value": lambda i: record(i, headers=varint(1) + varint(0) + varint(-2)),
    "negative header count": lambda i: record(i, headers=varint(-1)),
    "more headers than there are": lambda i: record(i, headers=varint(2) + HEADER),
    "fewer headers than there are": lambda i: record(i, headers=varint(1) + HEADER + HEADER),
    "headers without end": lambda i: record(i, headers=varint(2**31 - 1)),
    "key too long": lambda i: record(i, key=varint(2**31 - 1)),
    "key as long as the record": lambda i: record(i, key=varint(8) + b"k"),
    "negative key": lambda i: record(i, key=varint(-2)),
    "value too long": lambda i: record(i, value=varint(2**31 - 1)),
    "value ends behind the record": lambda i: record(i, value=varint(3) + b"v"),
    "negative value": lambda i: record(i, value=varint(-2)),
    "record longer than it is": lambda i: record(i, longer=1),
    "record shorter than it is": lambda i: record(i, longer=-1),
    "record of a negative length": lambda _: varint(-9),
    "empty record": lambda _: varint(0),
    "bytes behind the record": lambda i: record(i, behind=b"\x00"),
    "same offset delta": lambda i: record(i, delta=varint(max(i - 1, 1))),
    "negative offset delta": lambda i: record(i, delta=varint(-1)),
    "offset delta that skips": lambda i: record(i, delta=varint(i + 1)),
    "length in six bytes": lambda i: varint(len(record(i)) - 1, 5) + record(i)[1:],
    "key length in six bytes": lambda i: record(i, key=varint(1, 5) + b"k"),
    "value length in six bytes": lambda i: record(i, value=varint(1, 5) + b"v"),
    "header count in six bytes": lambda i: record(i, headers=varint(0, 5)),
    "header key length in six bytes": lambda i: record(
        i, headers=varint(1) + varint(1, 5) + HEADER[1:]
    ),
    "offset delta in six bytes": lambda i: record(i, delta=varint(i, 6 - len(varint(i)))),
    "time in eleven bytes": lambda i: record(i, time=varint(0, 10)),
    "key length of 36 bits": lambda i: record(i, key=b"\x82\x80\x80\x80\x10k"),
    "time of 70 bits": lambda i: record(i, time=b"\xff" * 9 + b"\x7f"),
    "records end within a varint": lambda _: b"\x80",
}
PADDED_RECORDS: dict[str, Callable[[int], bytes]] = {
    "length": lambda i: varint(len(record(i)) - 1, 4) + record(i)[1:],
    "key length": lambda i: record(i, key=varint(1, 4) + b"k"),
    "null key": lambda i: record(i, key=varint(-1, 4)),
    "value length": lambda i: record(i, value=varint(1, 4) + b"v"),
    "header count": lambda i: record(i, headers=varint(0, 4)),
    "header": lambda i: record(i, headers=varint(1) + varint(1, 4) + b"h" + varint(-1, 4)),
    "offset delta": lambda i: record(i, delta=varint(i, 5 - len(varint(i)))),
    "time": lambda i: record(i, time=varint(0, 9)),
}
