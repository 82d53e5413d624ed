"""Decoding of keys and values for `kbroker topic consume`: by a schema registry, or by a fixed type."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import click
import trio

from kbroker.client.consumer import Read
from kbroker.client.ndjson import bytes_field
from kbroker.protocol.records import Record
from kbroker.schemas.core.byte_reader import latin_text, number
from kbroker.text.documents import read_json

from .output import say

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.schemas.frame_decoder import FrameDecoder

# Types that need a registry: `AUTO` decodes only data that starts with a known schema ID.
AUTO, REGISTERED = "auto", "registry"
NONE = "none"
PARTS = ("key", "value")
# Limits of a key or value, of its schema, and of all cached schemas: bytes, steps, characters.
BYTES_MAX, STEPS_MAX = 16 * 1024 * 1024, 2_000_000
SCHEMA_MAX, SCHEMAS_MAX = 2 * 1024 * 1024, 16 * 1024 * 1024
# Records that are decoded between two checkpoints; small records take about 30 microseconds each.
RECORDS_PER_CHECKPOINT = 32
# Size of a big-endian long, which often starts with a zero byte as data with a schema ID does.
LONG_BYTES = 8


class Part(NamedTuple):
    """A decoded key or value.

    Attributes:
        text: Bytes that templates print and filters search.
        fields: Fields of JSON output.
        problem: Why the data was not decoded; empty if it was.
    """

    text: bytes | None
    fields: Mapping[str, object]
    problem: str = ""


class DecodedRead(Read):
    """A consumed record whose `record` has the decoded texts as key and value.

    Attributes:
        original: The record as stored.
        key_fields: JSON fields of the key.
        value_fields: JSON fields of the value.
    """

    original: Record
    key_fields: Mapping[str, object]
    value_fields: Mapping[str, object]


class BadData(ValueError):
    """Data does not have the given type; the message states why."""


def _number_reader(layout: str, name: str) -> Callable[[bytes], object]:
    packed = struct.Struct(layout)

    def read(data: bytes) -> object:
        if len(data) != packed.size:
            raise BadData(f"{len(data)} bytes are not a {name}, which has {packed.size}")
        value = packed.unpack(data)[0]
        return number(value) if isinstance(value, float) else value

    return read


def _string(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadData(f"invalid UTF-8 at byte {error.start}") from None


def _json(data: bytes) -> object:
    try:
        return read_json(data)
    except ValueError as error:
        raise BadData(f"invalid JSON: {error}") from None


# Readers of the fixed types; numbers are big-endian, as those of Kafka's serializers.
READERS: Mapping[str, Callable[[bytes], object]] = {
    "string": _string,
    "json": _json,
    "short": _number_reader(">h", "short"),
    "int": _number_reader(">i", "int"),
    "long": _number_reader(">q", "long"),
    "float": _number_reader(">f", "float"),
    "double": _number_reader(">d", "double"),
    "hex": lambda data: data.hex(),
    "base64": lambda data: base64.b64encode(data).decode(),
}
TYPES = (REGISTERED, NONE, *READERS)


class PartTypes(NamedTuple):
    """Types of keys and values."""

    key: str
    value: str

    @property
    def needs_registry(self) -> bool:
        """True if a key or value must have a schema ID."""
        return REGISTERED in self

    @property
    def is_plain(self) -> bool:
        """True if nothing is decoded."""
        return self.key == self.value == NONE


def parse_types(texts: Sequence[str], default: str) -> PartTypes:
    """Return the types that `-s` options select; later ones take precedence.

    Args:
        texts: TYPE, key=TYPE or value=TYPE.
        default: Type of a part without an option.

    Raises:
        BadParameter: An option is invalid.
    """
    chosen = dict.fromkeys(PARTS, default)
    for text in texts:
        name, separator, kind = text.rpartition("=")
        if kind not in TYPES or name not in ("", *PARTS) or (separator and not name):
            hint = ""
            if kind in ("avro", "protobuf", "json-schema", "jsonschema"):
                hint = f"; use {REGISTERED}, which finds the format by the schema ID"
            raise click.BadParameter(
                f"invalid {text!r}{hint} (valid: {', '.join(TYPES)}, also as key=TYPE or "
                "value=TYPE)",
                param_hint="-s",
            )
        chosen |= {name: kind} if name else dict.fromkeys(PARTS, kind)
    return PartTypes(**chosen)


class RecordDecoder:
    """Decoder of the keys and values of consumed records."""

    def __init__(self, types: PartTypes, schemas: FrameDecoder | None) -> None:
        self._types = types
        self._schemas = schemas
        self._reported: set[tuple[str, str]] = set()  # topics and parts with a reported problem

    async def decode(self, found: Sequence[Read]) -> Sequence[Read]:
        """Return the records with decoded keys and values.

        Data that cannot be decoded stays as it is; the first problem of a topic is printed on the
        error stream.
        """
        decoded = []
        for index, read in enumerate(found):
            if index % RECORDS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
            decoded.append(await self._decode_read(read))
        return decoded

    async def _decode_read(self, read: Read) -> DecodedRead:
        record = read.record
        key = await self._part(read, "key", record.key, self._types.key)
        value = await self._part(read, "value", record.value, self._types.value)
        result = DecodedRead(
            read.partition,
            record._replace(key=key.text, value=value.text),
            read.batch,
            read.log_start,
            read.high_watermark,
        )
        result.original, result.key_fields, result.value_fields = record, key.fields, value.fields
        return result

    async def _part(self, read: Read, name: str, data: bytes | None, kind: str) -> Part:
        if data is None or kind == NONE or read.batch.is_control:
            return Part(data, bytes_field(name, data))
        if kind in READERS:
            part = _read_part(name, data, kind)
        else:
            part = await self._schema_part(read, name, data, kind)
        if part.problem:
            self._report(read, name, part.problem)
        return part

    async def _schema_part(self, read: Read, name: str, data: bytes, kind: str) -> Part:
        from kbroker.web.console.schemas import schema_header_of

        assert self._schemas is not None
        header = schema_header_of(read.record, name)
        found = await self._schemas.decoded(data, header, f"{read.partition[0]}-{name}")
        if found is None:
            problem = "The data has no schema ID." if kind == REGISTERED else ""
            return _undecoded(name, data, problem)
        if found.text is None:
            is_guess = kind == AUTO and found.is_guess and len(data) == LONG_BYTES
            return _undecoded(name, data, "" if is_guess else found.problem)
        fields = {name: found.document}
        for each in ("id", "guid"):
            if found.schema is not None and each in found.schema:
                fields[f"{name}_schema_{each}"] = found.schema[each]
        return Part(_text(found.document, found.text), fields)

    def _report(self, read: Read, name: str, problem: str) -> None:
        topic, index = read.partition
        if (topic, name) not in self._reported:
            self._reported.add((topic, name))
            say(
                f"kbroker: the {name} at offset {read.record.offset} of partition {index} of {topic} "
                f"is printed as it is: {problem} Later problems of this topic are not reported.",
                err=True,
            )


def _read_part(name: str, data: bytes, kind: str) -> Part:
    try:
        document = READERS[kind](data)
    except BadData as error:
        return _undecoded(name, data, f"The data is not of type {kind}: {error}.")
    field = f"{name}_base64" if kind == "base64" else name
    return Part(_text(document), {field: document})


def _undecoded(name: str, data: bytes, problem: str) -> Part:
    fields: dict[str, object] = {**bytes_field(name, data)}
    if problem:
        fields[f"{name}_problem"] = problem
    return Part(data, fields, problem)


def _text(document: object, text: str | None = None) -> bytes:
    """Return the text that templates print: a string itself, other documents as JSON."""
    if isinstance(document, str):
        return document.encode(errors="surrogatepass")
    text = json.dumps(document, ensure_ascii=False) if text is None else text
    return text.encode(errors="surrogatepass")


@asynccontextmanager
async def open_decoder(
    types: PartTypes, registry: SchemaRegistry | None
) -> AsyncIterator[RecordDecoder | None]:
    """Yield the decoder for some types, or None if nothing is decoded."""
    if types.is_plain:
        yield None
        return
    if registry is None:
        yield RecordDecoder(types, None)
        return
    async with open_frame_decoder(registry, "consume") as schemas:
        yield RecordDecoder(types, schemas)


@asynccontextmanager
async def open_frame_decoder(registry: SchemaRegistry, client: str) -> AsyncIterator[FrameDecoder]:
    """Yield a decoder of data with a schema ID.

    Args:
        registry: The registry.
        client: Name of the command, for the fair order of worker tasks.
    """
    from kbroker.schemas.frame_decoder import DecodingOptions, FrameDecoder
    from kbroker.schemas.remote import RemoteSchemas
    from kbroker.schemas.workers import SchemaWorkers

    workers = SchemaWorkers()
    options = DecodingOptions(
        client, BYTES_MAX, STEPS_MAX, SCHEMA_MAX, SCHEMAS_MAX, avro_bytes=latin_text
    )
    try:
        yield FrameDecoder(RemoteSchemas(registry), workers, options)
    finally:
        with trio.CancelScope(shield=True):
            await workers.close()
