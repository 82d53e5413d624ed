"""Encoding of JSON values with a schema of a registry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio

from kbroker.client.errors import ClientError
from kbroker.protocol.records import Record

from .sources import Chunk, Source

# Returns records with the values to write.
Encode = Callable[[Chunk], Awaitable[Chunk]]


class ValueEncoder(Protocol):
    """Encoder of JSON values; it is used in threads."""

    @property
    def description(self) -> str:
        """Name of the schema, for messages."""
        ...

    def encode(self, text: bytes) -> bytes:
        """Encode a JSON document. Raises ValueError if it does not match the schema."""
        ...


# Looks up the schema and returns the encoder; blocks. Raises ClientError.
LoadEncoder: TypeAlias = Callable[[], ValueEncoder]


async def encoding(load: LoadEncoder | None, source: Source) -> Encode:
    """Return the encoder for the values of a source; without `load`, values are unchanged.

    The schema is looked up only once, here. The encoder raises ClientError for values that do not
    match.

    Raises:
        ClientError: The schema cannot be used, or the registry does not respond.
    """
    if load is None:
        return unchanged
    encoder = await trio.to_thread.run_sync(load, abandon_on_cancel=True)

    async def encode(chunk: Chunk) -> Chunk:
        # Encode in a thread, because a large chunk would block the event loop.
        return await trio.to_thread.run_sync(_encoded, chunk, encoder, source)

    return encode


async def unchanged(chunk: Chunk) -> Chunk:
    """Return the records unchanged."""
    return chunk


def _encoded(chunk: Chunk, encoder: ValueEncoder, source: Source) -> Chunk:
    """Return the records with encoded values; nulls are unchanged. Raises ClientError."""
    records = []
    for index, record in zip(chunk.partitions, chunk.records, strict=True):
        key, value, timestamp, headers, offset = record
        try:
            new = None if value is None else encoder.encode(value)
        except ValueError as error:
            raise ClientError(
                f"{source.position_of(index, record)} cannot be written as {encoder.description}: "
                f"{error}; correct it, exclude it with a filter, or name another --to-schema"
            ) from None
        records.append(Record(key, new, timestamp, headers, offset))
    return Chunk(chunk.partitions, records)
