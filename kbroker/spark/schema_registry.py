"""What Confluent's serializers put before a value, and the registry that knows what it means.

The first five bytes of such a value are a zero and the number (big endian) of the schema that wrote
the rest.
"""

from __future__ import annotations

import base64
import json
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Answer: TypeAlias = dict[str, Any]
"""An object that a registry has answered with."""
_HEADER = struct.Struct(">BI")
_MAGIC = 0
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_SCHEMA_BYTES_MAX = 4 * 1024 * 1024
_REFERENCES_MAX = 100
_TIMEOUT_S = 10.0


class SchemaError(Exception):
    """Schemas cannot be had or used: no record can be judged until that has changed."""


class UndecodableError(ValueError):
    """These bytes are no value of a known schema; the message says why."""


class UnencodableError(ValueError):
    """These fields are no value of the schema; the message says why."""


class UnknownSchemaError(UndecodableError):
    """The header names a schema that the source does not have."""


def header_of(schema_id: int) -> bytes:
    """What stands before a value that the schema of a number has written."""
    return _HEADER.pack(_MAGIC, schema_id)


def split_header(value: bytes) -> tuple[int, memoryview]:
    """The number of the schema, and the bytes that it wrote.

    Raises:
        UndecodableError: the value has no such header.
    """
    if len(value) < _HEADER.size:
        raise UndecodableError(f"{len(value)} bytes are too few for a schema's number")
    magic, schema_id = _HEADER.unpack_from(value)
    if magic != _MAGIC:
        raise UndecodableError(
            f"the first byte is {magic:#04x}, not the 0x00 before a schema's number"
        )
    return schema_id, memoryview(value)[_HEADER.size :]


class SchemaRegistry:
    """Asks a schema registry over HTTP; user and password may stand in its address.

    Parameters: with `form` schemas are asked for in another form than their text, as `serialized` for
    the descriptors of Protobuf.
    """

    def __init__(self, address: str, form: str = "") -> None:
        parts = urllib.parse.urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        self._query = f"?format={form}" if form else ""
        self._headers = dict.fromkeys(("Accept", "Content-Type"), _CONTENT_TYPE)
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:"
            user += urllib.parse.unquote(parts.password or "")
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def schema(self, schema_id: int, kind: str) -> Answer:
        """What the registry says of a number: `schema`, `references` and more.

        Raises:
            UnknownSchemaError: there is none of this number.
            UndecodableError: it is not of that kind (`AVRO`, `PROTOBUF`).
            SchemaError: the registry does not answer.
        """
        answer = self._ask(f"schemas/ids/{schema_id}{self._query}")
        if answer is None:
            raise UnknownSchemaError(f"{self._base} has no schema {schema_id}")
        if (found := kind_of(answer)) != kind:
            raise UndecodableError(f"schema {schema_id} is {found}, not {kind}")
        return answer

    def version(self, subject: str, version: int | str) -> Answer:
        """What the registry says of a version of a subject, which may be `latest`. Raises SchemaError."""
        path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}{self._query}"
        answer = self._ask(path)
        if answer is None:
            what = f"version {version} of" if version != "latest" else "subject"
            raise SchemaError(f"{self._base} has no {what} {subject}")
        return answer

    def latest(self, subject: str, kind: str) -> Answer:
        """What the registry says of a subject's newest version, its `id` and `schema` among it.

        Raises:
            SchemaError: the registry does not answer or has no such subject, or its newest schema is
                not of that kind (`AVRO`, `PROTOBUF`).
        """
        answer = self.version(subject, "latest")
        if (found := kind_of(answer)) != kind:
            raise SchemaError(f"the newest schema of {subject} is {found}, not {kind}")
        if not isinstance(answer.get("id"), int) or not isinstance(answer.get("schema"), str):
            raise SchemaError(f"{self._base} is no schema registry")
        return answer

    def register(self, subject: str, document: Mapping[str, object]) -> int:
        """The number of a schema, which is registered if it is not yet. Raises SchemaError."""
        path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
        answer = self._ask(path, document)
        schema_id = (answer or {}).get("id")
        if not isinstance(schema_id, int):
            raise SchemaError(f"{self._base} gives the schema of {subject} no number")
        return schema_id

    def referred(self, answer: Mapping[str, object]) -> Iterator[tuple[str, Answer]]:
        """All that a schema refers to, each after what it refers to itself, with its name there.

        Raises:
            SchemaError: the registry does not answer, or they are too many.
        """
        yield from self._referred(answer, set())

    def _referred(
        self, answer: Mapping[str, object], seen: set[tuple[str, int]]
    ) -> Iterator[tuple[str, Answer]]:
        references = answer.get("references")
        for reference in references if isinstance(references, list) else ():
            key = (str(reference["subject"]), int(reference["version"]))
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > _REFERENCES_MAX:
                raise SchemaError(f"a schema refers to more than {_REFERENCES_MAX} others")
            found = self.version(*key)
            yield from self._referred(found, seen)
            yield str(reference["name"]), found

    def _ask(self, path: str, body: Mapping[str, object] | None = None) -> Answer | None:
        """The registry's answer; None when it does not know the thing."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._base}/{path}", data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer = json.loads(response.read(_SCHEMA_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                why = _message_of(error) or error.reason
            raise SchemaError(f"{self._base}/{path} answers {error.code} {why}") from error
        except (OSError, ValueError) as error:
            raise SchemaError(
                f"the schema registry {self._base} does not answer as one: {error}"
            ) from error
        if not isinstance(answer, dict):
            raise SchemaError(f"{self._base} is no schema registry")
        return answer


def kind_of(answer: Mapping[str, object]) -> str:
    """The kind of a schema: AVRO, JSON or PROTOBUF."""
    return str(answer.get("schemaType", "AVRO"))


def _message_of(error: urllib.error.HTTPError) -> str:
    """What a registry says of its refusal, if it is one that does."""
    try:
        return str(json.loads(error.read(_SCHEMA_BYTES_MAX))["message"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""
