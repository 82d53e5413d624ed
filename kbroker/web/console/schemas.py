"""Keys and values decoded by a schema registry in the same process, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from kbroker.protocol.records import Record
from kbroker.security.acls import Resource

HEADERS_LOOKED_AT = 1_000


class Decoded(NamedTuple):
    """A key or a value that says which schema it was written with."""

    schema: Mapping[str, object] | None = None
    """Its subject, version, id and type; None where it is not known."""
    document: object = None
    text: str | None = None
    """All of the document as JSON; None where there is none."""
    trouble: str = ""
    """Why there is none, as a sentence."""
    is_too_large: bool = False
    """Whether that is why."""
    is_guess: bool = False
    """Whether the bytes need not mean a schema at all."""


class Both(NamedTuple):
    """Of one record; None where it says nothing of a schema."""

    key: Decoded | None = None
    value: Decoded | None = None


NEITHER = Both()


class Schemas(Protocol):
    """The schemas that one node knows."""

    @property
    def resource(self) -> Resource:
        """Topic that stores them: a client that may READ it may see all schemas."""
        ...

    async def catch_up(self) -> None:
        """Know what is registered by now, if that can be had soon."""

    async def decoded(self, data: bytes, header: bytes | None, subject: str) -> Decoded | None:
        """What bytes mean; None where they say nothing of a schema. Long work is done in a thread.

        Parameters: `header` is what the record's header for it has; `subject` is the one whose version
        is told where several have the same schema.
        """


async def decoded_parts(schemas: Schemas | None, topic: str, record: Record) -> Both:
    """What the key and the value of a record mean."""
    if schemas is None:
        return NEITHER
    key, value = record.key, record.value
    return Both(
        None if key is None else await _part(schemas, topic, record, "key", key),
        None if value is None else await _part(schemas, topic, record, "value", value),
    )


async def _part(
    schemas: Schemas, topic: str, record: Record, name: str, data: bytes
) -> Decoded | None:
    wanted = f"__{name}_schema_id"
    headers = islice(record.headers, HEADERS_LOOKED_AT)
    header = next((text for each, text in headers if each == wanted), None)
    return await schemas.decoded(data, header, f"{topic}-{name}")
