"""Interface to a schema registry in the same process, which decodes keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kbroker.client.decoded import Decoded, schema_header_of
from kbroker.protocol.records import Record
from kbroker.security.acls import AclOperation, Client, Resource


class DecodedParts(NamedTuple):
    """Decoded key and value of a record; None for a part without a schema."""

    key: Decoded | None = None
    value: Decoded | None = None


NOT_DECODED = DecodedParts()


class Mismatch(NamedTuple):
    """A document that cannot be encoded by a schema.

    Attributes:
        position: Index of the document; None if the schema itself cannot be used.
        reason: Why it cannot be encoded.
    """

    position: int | None
    reason: str


class Schemas(Protocol):
    """Schemas that one node knows."""

    @property
    def resource(self) -> Resource:
        """Topic that stores the schemas: a client with READ on it may read all schemas."""
        ...

    async def catch_up(self) -> None:
        """Wait a short time until the newest registrations have been read."""

    async def decoded(self, data: bytes, header: bytes | None, subject: str) -> Decoded | None:
        """Decode a key or value; None if it has no schema. Slow work runs in a thread.

        Args:
            data: The bytes.
            header: Value of the record's schema ID header, if any.
            subject: Preferred subject, if several subjects have the schema.
        """

    async def encoded(
        self, documents: Sequence[bytes], subject: str, version: int
    ) -> list[bytes] | Mismatch:
        """Encode JSON documents, each with its schema ID, in a process that can be ended.

        Args:
            documents: JSON in UTF-8.
            subject: Subject of the schema.
            version: Version of the subject.
        """
        ...


class RegistryResponse(NamedTuple):
    """Response of the registry's REST API: HTTP status and JSON document."""

    status: int
    body: Any


class Registry(Protocol):
    """Schema registry of one node."""

    def may(self, client: Client, operation: AclOperation, subject: str | None) -> bool:
        """Return True if a client has a permission for a subject, or for all subjects (None)."""
        ...

    async def call(
        self,
        client: Client,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
    ) -> RegistryResponse:
        """Call the REST API on behalf of a client; the API checks the client's permissions.

        Args:
            client: Principal and address of the client.
            method: HTTP method.
            path: Path with percent-encoded names.
            query: Parameters of the query.
            body: Body, which is sent as JSON; None for no body.
        """
        ...


class NodeSchemas(NamedTuple):
    """Schema registry of one node, and the decoder that uses its schemas."""

    decoder: Schemas
    registry: Registry


async def decoded_parts(schemas: Schemas | None, topic: str, record: Record) -> DecodedParts:
    """Decode the key and value of a record."""
    if schemas is None:
        return NOT_DECODED
    key, value = record.key, record.value
    return DecodedParts(
        None if key is None else await _part(schemas, topic, record, "key", key),
        None if value is None else await _part(schemas, topic, record, "value", value),
    )


async def _part(
    schemas: Schemas, topic: str, record: Record, name: str, data: bytes
) -> Decoded | None:
    return await schemas.decoded(data, schema_header_of(record, name), f"{topic}-{name}")
