"""Decoding of keys and values for `kbroker topic consume`: by a schema registry, or by a fixed type."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import trio

from kbroker.client.consumer import ReadBatch
from kbroker.client.decoded import schema_header_of
from kbroker.client.ndjson import bytes_field
from kbroker.protocol.records import Record
from kbroker.schemas.core.byte_reader import latin_text, number
from kbroker.text.documents import read_json

from .output import say, to_json
from .part_types import AUTO, NONE, REGISTERED, PartTypes
from .record_format import DecodedBatch

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry
    from kbroker.client.topics import Partition
    from kbroker.schemas.frame_decoder import FrameDecoder

# Limits of a key or value, of its schema, and of all cached schemas: bytes, steps, characters.
BYTES_MAX, STEPS_MAX = 16 * 1024 * 1024, 2_000_000
SCHEMA_MAX, SCHEMAS_MAX = 2 * 1024 * 1024, 16 * 1024 * 1024
# Records that are decoded between two checkpoints; small records take about 30 microseconds each.
RECORDS_PER_CHECKPOINT = 32


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


class RecordDecoder:
    """Decoder of the keys and values of consumed records."""

    def __init__(self, types: PartTypes, schemas: FrameDecoder | None) -> None:
        self._types = types
        self._schemas = schemas
        self._reported: set[tuple[str, str]] = set()  # topics and parts with a reported problem

    async def decode(self, found: Sequence[ReadBatch]) -> Sequence[ReadBatch]:
        """Return the records with decoded keys and values.

        Data that cannot be decoded stays as it is; the first problem of a topic is printed on the
        error stream.
        """
        return [await self._decode_batch(batch) for batch in found]

    async def _decode_batch(self, batch: ReadBatch) -> DecodedBatch:
        records, keys, values = [], [], []
        for index, record in enumerate(batch.records):
            if index % RECORDS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
            key = await self._part(batch, record, "key", record.key, self._types.key)
            value = await self._part(batch, record, "value", record.value, self._types.value)
            records.append(record._replace(key=key.text, value=value.text))
            keys.append(key.fields)
            values.append(value.fields)
        return DecodedBatch(
            batch.partition,
            batch.batch,
            batch.log_start,
            batch.high_watermark,
            records,
            batch.records,
            keys,
            values,
        )

    async def _part(
        self, batch: ReadBatch, record: Record, name: str, data: bytes | None, kind: str
    ) -> Part:
        if data is None or kind == NONE or batch.batch.is_control:
            return Part(data, bytes_field(name, data))
        if kind in READERS:
            part = _read_part(name, data, kind)
        else:
            header = schema_header_of(record, name)
            part = await self._schema_part(batch.partition[0], name, data, header, kind)
        if part.problem:
            self._report(batch.partition, record.offset, name, part.problem)
        return part

    async def _schema_part(
        self, topic: str, name: str, data: bytes, header: bytes | None, kind: str
    ) -> Part:
        assert self._schemas is not None
        found = await self._schemas.decoded(data, header, f"{topic}-{name}")
        if found is None:
            problem = "The data has no schema ID." if kind == REGISTERED else ""
            return _undecoded(name, data, problem)
        if found.text is None:
            is_plain = kind == AUTO and found.is_plain_long(data)
            return _undecoded(name, data, "" if is_plain else found.problem)
        fields = {name: found.document}
        for each in ("id", "guid", "message"):
            if found.schema is not None and each in found.schema:
                fields[f"{name}_schema_{each}"] = found.schema[each]
        return Part(_text(found.document, found.text), fields)

    def _report(self, partition: Partition, offset: int, name: str, problem: str) -> None:
        topic, index = partition
        if (topic, name) not in self._reported:
            self._reported.add((topic, name))
            say(
                f"kbroker: the {name} at offset {offset} of partition {index} of {topic} "
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
    text = to_json(document) if text is None else text
    return text.encode(errors="surrogatepass")


@asynccontextmanager
async def open_decoder(
    types: PartTypes, registry: SchemaRegistry | None
) -> AsyncIterator[RecordDecoder]:
    """Yield the decoder for some types. Without a registry, no type may need one."""
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
