"""Encoding of JSON values as Avro with a schema of a registry; needs fastavro."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from kbroker.client.errors import ClientError
from kbroker.protocol.records import Record

from .sources import Chunk, Source

if TYPE_CHECKING:
    from kbroker.spark.avro_json import JsonEncoder

# Returns records with the values to write.
Encode = Callable[[Chunk], Awaitable[Chunk]]


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a schema registry with whose newest schema values are encoded.

    The registry's URL may contain a user name and password.
    """

    name: str
    registry: str = field(repr=False)


async def encoding(subject: Subject | None, source: Source) -> Encode:
    """Return the encoder for the values of a source; without a subject, values are unchanged.

    The schema is looked up only once, here. The encoder raises ClientError for values that do not
    match.

    Raises:
        ClientError: The subject has no Avro record schema, or the registry does not respond.
    """
    if subject is None:
        return unchanged
    encoder = await trio.to_thread.run_sync(_encoder, subject, abandon_on_cancel=True)

    async def encode(chunk: Chunk) -> Chunk:
        # Encode in a thread, because a large chunk would block the event loop.
        return await trio.to_thread.run_sync(_encoded, chunk, encoder, source)

    return encode


async def unchanged(chunk: Chunk) -> Chunk:
    """Return the records unchanged."""
    return chunk


def _encoder(subject: Subject) -> JsonEncoder:
    """Return the encoder for the newest schema of a subject. Raises ClientError."""
    from kbroker.client.schema_registry import SchemaError
    from kbroker.spark.avro import Encoder
    from kbroker.spark.avro_json import JsonEncoder

    try:
        return JsonEncoder(Encoder.latest(subject.registry, subject.name))
    except ModuleNotFoundError as error:
        raise ClientError(f"--to-schema needs {error.name}: pip install 'kbroker[spark]'") from None
    except SchemaError as error:
        raise ClientError(
            f"{error}; --to-schema needs a subject whose newest schema is an Avro record, "
            "--to-registry the URL of its registry"
        ) from None


def _encoded(chunk: Chunk, encoder: JsonEncoder, source: Source) -> Chunk:
    """Return the records with encoded values; nulls are unchanged. Raises ClientError."""
    from kbroker.client.schema_registry import UnencodableError

    records = []
    for index, record in zip(chunk.partitions, chunk.records, strict=True):
        key, value, timestamp, headers, offset = record
        try:
            new = None if value is None else encoder.encode(value)
        except UnencodableError as error:
            raise ClientError(
                f"{source.position_of(index, record)} cannot be written as {encoder.description}: "
                f"{error}; correct it, exclude it with a filter, or name another --to-schema"
            ) from None
        records.append(Record(key, new, timestamp, headers, offset))
    return Chunk(chunk.partitions, records)
