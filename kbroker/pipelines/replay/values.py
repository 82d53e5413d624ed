"""Values that are JSON, written as Avro by a schema of a registry; needs fastavro."""

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

Encode = Callable[[Chunk], Awaitable[Chunk]]
"""Gives records with the values that are to be written."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A subject of a schema registry, whose newest schema values are written by.

    A name and a password may stand in the registry's address.
    """

    name: str
    registry: str = field(repr=False)


async def encoding(subject: Subject | None, source: Source) -> Encode:
    """How values of a source are written: as they are, without a subject.

    The schema is looked up here, and no more. Raises ClientError when there is none to write by;
    what it gives raises that for a value that does not fit.
    """
    if subject is None:
        return as_they_are
    encoder = await trio.to_thread.run_sync(_encoder, subject, abandon_on_cancel=True)

    async def encode(chunk: Chunk) -> Chunk:
        # In a thread: a large chunk would keep what else runs here waiting.
        return await trio.to_thread.run_sync(_encoded, chunk, encoder, source)

    return encode


async def as_they_are(chunk: Chunk) -> Chunk:
    """Records with the values that they have."""
    return chunk


def _encoder(subject: Subject) -> JsonEncoder:
    """Of the newest schema of a subject. Raises ClientError."""
    from kbroker.spark.avro import Encoder
    from kbroker.spark.avro_json import JsonEncoder
    from kbroker.spark.schema_registry import SchemaError

    try:
        return JsonEncoder(Encoder.latest(subject.registry, subject.name))
    except ModuleNotFoundError as error:
        raise ClientError(f"--to-schema needs {error.name}: pip install 'kbroker[spark]'") from None
    except SchemaError as error:
        raise ClientError(
            f"{error}; --to-schema takes a subject whose newest schema is a record of Avro, "
            "--to-registry the address of its registry"
        ) from None


def _encoded(chunk: Chunk, encoder: JsonEncoder, source: Source) -> Chunk:
    """The records with their values encoded; nulls stay. Raises ClientError."""
    from kbroker.spark.schema_registry import UnencodableError

    records = []
    for index, record in zip(chunk.partitions, chunk.records, strict=True):
        key, value, timestamp, headers, offset = record
        try:
            new = None if value is None else encoder.encode(value)
        except UnencodableError as error:
            raise ClientError(
                f"{source.where(index, record)} cannot be written as {encoder.description}: {error}; correct "
                "it, leave it out with a filter, or name another --to-schema"
            ) from None
        records.append(Record(key, new, timestamp, headers, offset))
    return Chunk(chunk.partitions, records)
