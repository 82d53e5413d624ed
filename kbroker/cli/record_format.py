r"""Output formats of records: `json`, or a template such as `%p/%o %k=%v\n`.

    %t %T   topic, its length            %p %o %e   partition, offset, leader epoch
    %k %K   key, its length              %d         timestamp in ms, %d{strftime[%F %T]}
    %v %V   value, its length            %x %y      producer id, epoch
    %h{ %k=%v } %H   headers, count      %a{compression} and {timestamp-type},
    %[ %]   log start, high watermark               {transactional-bit}, {control-bit}
    %i      records printed so far       %% %{ %}   literals; also \t \n \r \\ \xNN

Byte fields accept {hex}, {base64} or {base64raw}, as in `%v{hex}`; numbers accept {hex}.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from json.encoder import encode_basestring
from typing import NamedTuple, TypeAlias, TypeVar

from kbroker.client.consumer import ReadBatch
from kbroker.client.ndjson import record_fields, timestamp_type
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import Record
from kbroker.text.times import date_of

from .output import to_json

# Returns the output for some records, given the number of records printed before them.
Printer: TypeAlias = Callable[[ReadBatch, int], bytes]


class BadFormat(ValueError):
    """A template is invalid; the message says where."""


@dataclass(slots=True)
class DecodedBatch(ReadBatch):
    """Consumed records whose keys and values are the decoded texts.

    Attributes:
        originals: The records as stored.
        key_fields: JSON fields of each key.
        value_fields: JSON fields of each value.
    """

    originals: list[Record]
    key_fields: list[Mapping[str, object]]
    value_fields: list[Mapping[str, object]]

    def take(self, indexes: Sequence[int]) -> DecodedBatch:
        """Implement `ReadBatch.take`."""
        return replace(
            self,
            records=[self.records[index] for index in indexes],
            originals=[self.originals[index] for index in indexes],
            key_fields=[self.key_fields[index] for index in indexes],
            value_fields=[self.value_fields[index] for index in indexes],
        )


def _stored(batch: ReadBatch) -> list[Record]:
    """Return the records as stored."""
    return batch.originals if isinstance(batch, DecodedBatch) else batch.records


# -- JSON


def json_printer(*, meta_only: bool) -> Printer:
    """Return a printer of NDJSON; `kbroker.client.ndjson` parses its output."""

    def lines(batch: ReadBatch, _count: int) -> bytes:
        if not meta_only and not isinstance(batch, DecodedBatch):
            return _plain_lines(batch)
        rows = range(len(batch.records))
        return "".join([_line(batch, index, meta_only=meta_only) for index in rows]).encode()

    return lines


def _line(batch: ReadBatch, index: int, *, meta_only: bool = False) -> str:
    topic, partition = batch.partition
    record = _stored(batch)[index]
    fields = record_fields(topic, partition, record, batch.batch, meta_only=meta_only)
    if isinstance(batch, DecodedBatch):
        fields = _with_decoded(fields, batch, index)
    return f"{to_json(fields)}\n"


def _with_decoded(
    fields: Mapping[str, object], batch: DecodedBatch, index: int
) -> dict[str, object]:
    """Return the fields with the decoded key and value at their places."""
    found: dict[str, object] = {}
    for name, value in fields.items():
        if name in ("key", "key_base64"):
            found |= batch.key_fields[index]
        elif name in ("value", "value_base64"):
            found |= batch.value_fields[index]
        else:
            found[name] = value
    return found


def _plain_lines(batch: ReadBatch) -> bytes:
    """Return the lines of `_line` in a quarter of the time, if the data is text without headers."""
    topic, partition = batch.partition
    quote = encode_basestring
    start = f'{{"topic": {quote(topic)}, "partition": {partition}, "offset": '
    middle = f', "timestamp_type": "{timestamp_type(batch.batch)}", "key": '
    lines = []
    for index, (key, value, timestamp, headers, offset) in enumerate(batch.records):
        try:
            if headers:
                lines.append(_line(batch, index))
                continue
            key_text = "null" if key is None else quote(key.decode())
            value_text = "null" if value is None else quote(value.decode())
        except UnicodeDecodeError:
            lines.append(_line(batch, index))
            continue
        lines.append(
            f'{start}{offset}, "timestamp": {timestamp}{middle}{key_text}, "value": {value_text}'
            ', "headers": []}\n'
        )
    text = "".join(lines)
    if text.isascii() and "\x7f" not in text:
        return text.encode()
    return "".join(
        [
            line if line[:-1].isprintable() else _line(batch, index)
            for index, line in enumerate(lines)
        ]
    ).encode()


# -- templates

_LITERALS = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\", "0": b"\0"}


class _Field(NamedTuple):
    """A field of a template.

    Attributes:
        layout: Format of the values, as for the operator % of bytes.
        values: Returns the value for each record, given the number of records before.
    """

    layout: bytes
    values: Callable[[ReadBatch, int], Iterable[object]]


_ATTRIBUTES: dict[str, Callable[[ReadBatch], str]] = {
    "compression": lambda batch: Codec(batch.batch.codec).name.lower(),
    "timestamp-type": lambda batch: timestamp_type(batch.batch),
    "transactional-bit": lambda batch: str(int(batch.batch.is_transactional)),
    "control-bit": lambda batch: str(int(batch.batch.is_control)),
}

_BYTES: dict[str, Callable[[ReadBatch], Iterable[bytes | None]]] = {
    "t": lambda batch: _same(batch, batch.partition[0].encode()),
    "k": lambda batch: [each.key for each in batch.records],
    "v": lambda batch: [each.value for each in batch.records],
}

_NUMBERS: dict[str, Callable[[ReadBatch], Iterable[int]]] = {
    "T": lambda batch: _same(batch, len(batch.partition[0].encode())),
    "K": lambda batch: [len(each.key or b"") for each in _stored(batch)],
    "V": lambda batch: [len(each.value or b"") for each in _stored(batch)],
    "H": lambda batch: [len(each.headers) for each in batch.records],
    "p": lambda batch: _same(batch, batch.partition[1]),
    "o": lambda batch: [each.offset for each in batch.records],
    "e": lambda batch: _same(batch, batch.batch.leader_epoch),
    "d": lambda batch: [each.timestamp for each in batch.records],
    "x": lambda batch: _same(batch, batch.batch.producer_id),
    "y": lambda batch: _same(batch, batch.batch.producer_epoch),
    "[": lambda batch: _same(batch, batch.log_start),
    "]": lambda batch: _same(batch, batch.high_watermark),
}

_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
    "base64raw": lambda data: base64.b64encode(data).rstrip(b"="),
}

HeaderPrinter = Callable[[str, bytes | None], bytes]
Value = TypeVar("Value")


def _same(batch: ReadBatch, value: Value) -> Iterable[Value]:
    """Return a value of the batch for each of its records."""
    return repeat(value, len(batch.records))


def template_printer(template: str) -> Printer:
    """Compile a template.

    Raises:
        BadFormat: The template is invalid.
    """
    parts = list(_parts(template))
    layout = b"".join(
        [part.replace(b"%", b"%%") if isinstance(part, bytes) else part.layout for part in parts]
    )
    columns = [part.values for part in parts if not isinstance(part, bytes)]

    def lines(batch: ReadBatch, count: int) -> bytes:
        if not columns:
            return layout % () * len(batch.records)
        # All values of a field at once: a call for each record and field takes longer.
        rows = zip(*[values(batch, count) for values in columns], strict=True)
        return b"".join(map(layout.__mod__, rows))

    return lines


def _parts(template: str) -> Iterator[bytes | _Field]:
    at = 0
    while at < len(template):
        character = template[at]
        at += 1
        if character == "\\":
            literal, at = _escape(template, at)
            yield literal
        elif character != "%":
            yield character.encode()
        elif template[at : at + 1] in ("%", "{", "}"):
            yield template[at].encode()
            at += 1
        else:
            modifier, end = _modifier(template, at + 1)
            yield _field(template[at : at + 1], modifier)
            at = end


def unescape(text: str) -> bytes:
    r"""Return the bytes of a text with escapes such as \t and \x1f. Raises BadFormat."""
    found, at = bytearray(), 0
    while at < len(text):
        character, at = text[at], at + 1
        literal = os.fsencode(character)
        if character == "\\":
            literal, at = _escape(text, at)
        found += literal
    return bytes(found)


def _escape(template: str, at: int) -> tuple[bytes, int]:
    if match := re.compile(r"x([0-9a-fA-F]{2})").match(template, at):
        return bytes.fromhex(match[1]), match.end()
    literal = _LITERALS.get(template[at : at + 1])
    if literal is None:
        raise BadFormat(f"unknown escape \\{template[at : at + 1]}")
    return literal, at + 1


def _modifier(template: str, at: int) -> tuple[str | None, int]:
    """Return the text in braces at a position, and the position after it."""
    if template[at : at + 1] != "{":
        return None, at
    depth = 1
    for end in range(at + 1, len(template)):
        depth += {"{": 1, "}": -1}.get(template[end], 0)
        if not depth:
            return template[at + 1 : end], end + 1
    raise BadFormat(f"unclosed brace at character {at + 1}")


def _field(letter: str, modifier: str | None) -> _Field:
    if letter in _BYTES:
        encode, take = _encoding(modifier), _BYTES[letter]
        if encode is None:
            return _Field(b"%b", lambda batch, _: [each or b"" for each in take(batch)])
        return _Field(b"%b", lambda batch, _: [encode(each or b"") for each in take(batch)])
    if letter == "d" and modifier is not None:
        return _time_field(modifier)
    if letter in _NUMBERS:
        numbers = _NUMBERS[letter]
        return _Field(_number_layout(modifier), lambda batch, _: numbers(batch))
    if letter == "i":
        return _Field(b"%d", lambda batch, count: range(count, count + len(batch.records)))
    if letter == "a":
        if modifier not in _ATTRIBUTES:
            raise BadFormat(f"%a needs an attribute in braces (valid: {', '.join(_ATTRIBUTES)})")
        attribute = _ATTRIBUTES[modifier]
        return _Field(b"%b", lambda batch, _: _same(batch, attribute(batch).encode()))
    if letter == "h" and modifier is not None:
        header = _header_printer(modifier)
        return _Field(
            b"%b",
            lambda batch, _: [
                b"".join([header(*each) for each in record.headers]) for record in batch.records
            ],
        )
    raise BadFormat(f"unknown field %{letter}; `kbroker topic consume --help` lists them")


def _encoding(modifier: str | None) -> Callable[[bytes], bytes] | None:
    """Return the encoder of bytes, or None to print them as they are. Raises BadFormat."""
    if modifier is None:
        return None
    if modifier not in _ENCODINGS:
        raise BadFormat(f"unknown encoding {{{modifier}}} (valid: {', '.join(_ENCODINGS)})")
    return _ENCODINGS[modifier]


def _number_layout(modifier: str | None) -> bytes:
    if modifier not in (None, "ascii", "hex"):
        raise BadFormat(f"unknown number format {{{modifier}}} (valid: ascii, hex)")
    return b"%x" if modifier == "hex" else b"%d"


def _time_field(modifier: str) -> _Field:
    match = re.fullmatch(r"strftime\[(.*)\]", modifier)
    if match is None:
        raise BadFormat(f"unknown time format {{{modifier}}} (valid: strftime[%F %T])")
    pattern = match[1]

    def text(timestamp: int) -> bytes:
        when = date_of(timestamp)
        shown = str(timestamp) if when is None else when.strftime(pattern)
        return shown.encode(errors="surrogateescape")

    return _Field(b"%b", lambda batch, _: [text(each.timestamp) for each in batch.records])


def _header_printer(template: str) -> HeaderPrinter:
    """Compile the template of a header, which may contain %k and %v only."""
    pieces: list[bytes | HeaderPrinter] = []
    at = 0
    while at < len(template):
        if template[at] == "\\":
            literal, at = _escape(template, at + 1)
            pieces.append(literal)
        elif template[at : at + 2] in ("%k", "%v"):
            modifier, end = _modifier(template, at + 2)
            pieces.append(_header_field(template[at + 1], _encoding(modifier)))
            at = end
        else:
            pieces.append(template[at].encode())
            at += 1
    return lambda key, value: b"".join(
        [piece if isinstance(piece, bytes) else piece(key, value) for piece in pieces]
    )


def _header_field(letter: str, encode: Callable[[bytes], bytes] | None) -> HeaderPrinter:
    if letter == "k":
        return lambda key, _: (encode or bytes)(key.encode(errors="surrogateescape"))
    return lambda _, value: (encode or bytes)(value or b"")
