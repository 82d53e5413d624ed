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
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.client.ndjson import record_fields, timestamp_type
from kbroker.protocol.compression import Codec
from kbroker.text.times import date_of

from .output import to_json
from .record_decoding import DecodedRead

if TYPE_CHECKING:
    from kbroker.client.consumer import Read
    from kbroker.protocol.records import Record

# Returns the output for a record, given the number of records printed before it.
Printer = Callable[["Read", int], bytes]


class BadFormat(ValueError):
    """A template is invalid; the message says where."""


def json_printer(*, meta_only: bool) -> Printer:
    """Return a printer of NDJSON; `kbroker.client.ndjson` parses its output."""

    def line(read: Read, _count: int) -> bytes:
        return to_json(_fields(read, meta_only=meta_only)).encode() + b"\n"

    return line


def _fields(read: Read, *, meta_only: bool) -> dict[str, object]:
    topic, index = read.partition
    fields = record_fields(topic, index, _stored(read), read.batch, meta_only=meta_only)
    if isinstance(read, DecodedRead):
        return _with_decoded(fields, read)
    return fields


def _with_decoded(fields: dict[str, object], read: DecodedRead) -> dict[str, object]:
    """Return the fields with the decoded key and value at their places."""
    found: dict[str, object] = {}
    for name, value in fields.items():
        if name in ("key", "key_base64"):
            found |= read.key_fields
        elif name in ("value", "value_base64"):
            found |= read.value_fields
        else:
            found[name] = value
    return found


def _stored(read: Read) -> Record:
    """Return the record as stored."""
    return read.original if isinstance(read, DecodedRead) else read.record


def _timestamp_type(read: Read) -> str:
    return timestamp_type(read.batch)


# -- templates

_LITERALS = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\", "0": b"\0"}

_ATTRIBUTES: dict[str, Callable[[Read], str]] = {
    "compression": lambda read: Codec(read.batch.codec).name.lower(),
    "timestamp-type": _timestamp_type,
    "transactional-bit": lambda read: str(int(read.batch.is_transactional)),
    "control-bit": lambda read: str(int(read.batch.is_control)),
}

_BYTES: dict[str, Callable[[Read], bytes | None]] = {
    "t": lambda read: read.partition[0].encode(),
    "k": lambda read: read.record.key,
    "v": lambda read: read.record.value,
}

_NUMBERS: dict[str, Callable[[Read], int]] = {
    "T": lambda read: len(read.partition[0].encode()),
    "K": lambda read: len(_stored(read).key or b""),
    "V": lambda read: len(_stored(read).value or b""),
    "H": lambda read: len(read.record.headers),
    "p": lambda read: read.partition[1],
    "o": lambda read: read.record.offset,
    "e": lambda read: read.batch.leader_epoch,
    "d": lambda read: read.record.timestamp,
    "x": lambda read: read.batch.producer_id,
    "y": lambda read: read.batch.producer_epoch,
    "[": lambda read: read.log_start,
    "]": lambda read: read.high_watermark,
}

_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hex": lambda data: data.hex().encode(),
    "base64": base64.b64encode,
    "base64raw": lambda data: base64.b64encode(data).rstrip(b"="),
}

HeaderPrinter = Callable[[str, bytes | None], bytes]


def template_printer(template: str) -> Printer:
    """Compile a template.

    Raises:
        BadFormat: The template is invalid.
    """
    parts = list(_parts(template))

    def line(read: Read, count: int) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(read, count) for part in parts])

    return line


def _parts(template: str) -> Iterator[bytes | Printer]:
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


def _field(letter: str, modifier: str | None) -> Printer:
    if letter in _BYTES:
        encode, take = _encoding(modifier), _BYTES[letter]
        return lambda read, _: encode(take(read) or b"")
    if letter == "d" and modifier is not None:
        return _time_field(modifier)
    if letter in _NUMBERS:
        number, pattern = _NUMBERS[letter], _number_pattern(modifier)
        return lambda read, _: format(number(read), pattern).encode()
    if letter == "i":
        return lambda _, count: str(count).encode()
    if letter == "a":
        if modifier not in _ATTRIBUTES:
            raise BadFormat(f"%a needs an attribute in braces (valid: {', '.join(_ATTRIBUTES)})")
        attribute = _ATTRIBUTES[modifier]
        return lambda read, _: attribute(read).encode()
    if letter == "h" and modifier is not None:
        header = _header_printer(modifier)
        return lambda read, _: b"".join([header(*each) for each in read.record.headers])
    raise BadFormat(f"unknown field %{letter}; `kbroker topic consume --help` lists them")


def _encoding(modifier: str | None) -> Callable[[bytes], bytes]:
    if modifier is None:
        return bytes
    if modifier not in _ENCODINGS:
        raise BadFormat(f"unknown encoding {{{modifier}}} (valid: {', '.join(_ENCODINGS)})")
    return _ENCODINGS[modifier]


def _number_pattern(modifier: str | None) -> str:
    if modifier not in (None, "ascii", "hex"):
        raise BadFormat(f"unknown number format {{{modifier}}} (valid: ascii, hex)")
    return "x" if modifier == "hex" else "d"


def _time_field(modifier: str) -> Printer:
    match = re.fullmatch(r"strftime\[(.*)\]", modifier)
    if match is None:
        raise BadFormat(f"unknown time format {{{modifier}}} (valid: strftime[%F %T])")
    pattern = match[1]

    def time(read: Read, _count: int) -> bytes:
        when = date_of(read.record.timestamp)
        text = str(read.record.timestamp) if when is None else when.strftime(pattern)
        return text.encode(errors="surrogateescape")

    return time


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


def _header_field(letter: str, encode: Callable[[bytes], bytes]) -> HeaderPrinter:
    if letter == "k":
        return lambda key, _: encode(key.encode(errors="surrogateescape"))
    return lambda _, value: encode(value or b"")
