"""Client for a Confluent schema registry, and the header that its serializers write.

The first five bytes of such a value are a zero byte and the ID (big endian) of the writer schema.
"""

from __future__ import annotations

import base64
import http.client
import json
import struct
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import IO, Any, TypeAlias

# JSON object in a response of the registry.
Answer: TypeAlias = dict[str, Any]
_HEADER = struct.Struct(">BI")
_MAGIC = 0
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_RESPONSE_BYTES_MAX = 4 * 1024 * 1024
_REFERENCES_MAX = 100
_TIMEOUT_S = 10.0


class SchemaError(Exception):
    """Schemas cannot be loaded or used; no record can be decoded or encoded until this is fixed."""


class RegistryRejection(SchemaError):
    """The registry rejected a request.

    Attributes:
        code: Confluent's error code, or the HTTP status.
        reason: The registry's message.
    """

    def __init__(self, message: str, code: int, reason: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason

    @property
    def status(self) -> int:
        """HTTP status."""
        return int(str(self.code)[:3])


class UndecodableError(ValueError):
    """The bytes are not a value of a known schema; the message says why."""


class UnencodableError(ValueError):
    """The fields do not match the schema; the message says why."""


class UnknownSchemaError(UndecodableError):
    """The header contains the ID of a schema that the source does not have."""


def header_of(schema_id: int) -> bytes:
    """Return the five header bytes for a schema ID."""
    return _HEADER.pack(_MAGIC, schema_id)


def split_header(value: bytes) -> tuple[int, memoryview]:
    """Return the schema ID of a value and the bytes after the header.

    Raises:
        UndecodableError: The value has no such header.
    """
    if len(value) < _HEADER.size:
        raise UndecodableError(f"value of {len(value)} bytes is too short for a schema ID header")
    magic, schema_id = _HEADER.unpack_from(value)
    if magic != _MAGIC:
        raise UndecodableError(f"the first byte is {magic:#04x}, expected 0x00 before a schema ID")
    return schema_id, memoryview(value)[_HEADER.size :]


def split_address(address: str) -> urllib.parse.SplitResult:
    """Split the URL of a registry.

    Args:
        address: URL; may contain a user name and password.

    Raises:
        SchemaError: The address is not a URL. The message does not contain it, because any part of
            it may be a password.
    """
    try:
        parts = urllib.parse.urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_valid = is_valid and parts.port != 0
        # A / or ? or # of a password ends the host, so that a part of the password follows it.
        is_valid = is_valid and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:  # the port, or the brackets of an IPv6 address
        is_valid = False
    if is_valid:
        return parts
    problem = "invalid URL of a schema registry; expected http://HOST:PORT"
    if "@" in address:
        problem += "; in a user or password, write / as %2F, ? as %3F, # as %23 and @ as %40"
    raise SchemaError(problem)


class SchemaRegistry:
    """HTTP client for a schema registry.

    Args:
        address: URL of the registry; may contain a user name and password.
        form: Format in which schemas are requested, such as "serialized" for Protobuf descriptors.
            The default is the schema's text.

    Attributes:
        address: URL of the registry without user and password.

    Raises:
        SchemaError: The address is not a URL.
    """

    def __init__(self, address: str, form: str = "") -> None:
        parts = split_address(address)
        host = parts.netloc.rpartition("@")[2]
        self.address = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
        self._query = f"?format={form}" if form else ""
        self._headers = dict.fromkeys(("Accept", "Content-Type"), _CONTENT_TYPE)
        if parts.username is not None:
            user = f"{urllib.parse.unquote(parts.username)}:"
            user += urllib.parse.unquote(parts.password or "")
            self._headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()

    def schema(self, schema_id: int, kind: str) -> Answer:
        """Return the registry's response for a schema ID: `schema`, `references` and more.

        Raises:
            UnknownSchemaError: No schema has this ID.
            UndecodableError: The schema has another type than `kind` (`AVRO`, `PROTOBUF`).
            SchemaError: The registry does not respond.
        """
        answer = self.any_schema(schema_id)
        if (found := kind_of(answer)) != kind:
            raise UndecodableError(f"schema {schema_id} is {found}, not {kind}")
        return answer

    def any_schema(self, identifier: int | str) -> Answer:
        """Return the response for a schema ID or GUID, with a schema of any type.

        Raises:
            UnknownSchemaError: No schema has this ID or GUID.
            SchemaError: The registry does not respond.
        """
        form = "guids" if isinstance(identifier, str) else "ids"
        answer = self._request(f"schemas/{form}/{identifier}{self._query}")
        if answer is None:
            raise UnknownSchemaError(f"{self.address} has no schema {identifier}")
        return answer

    def version(self, subject: str, version: int | str) -> Answer:
        """Return the response for a version (or `latest`) of a subject. Raises SchemaError."""
        path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}{self._query}"
        answer = self._request(path)
        if answer is None:
            what = f"version {version} of" if version != "latest" else "subject"
            raise SchemaError(f"{self.address} has no {what} {subject}")
        return answer

    def latest(self, subject: str, kind: str) -> Answer:
        """Return the response for the newest version of a subject, including `id` and `schema`.

        Raises:
            SchemaError: The registry does not respond, has no such subject, or its newest schema
                has another type than `kind` (`AVRO`, `PROTOBUF`).
        """
        answer = self.version(subject, "latest")
        if (found := kind_of(answer)) != kind:
            raise SchemaError(f"the newest schema of {subject} is {found}, not {kind}")
        if not isinstance(answer.get("id"), int) or not isinstance(answer.get("schema"), str):
            raise SchemaError(f"{self.address} is not a schema registry")
        return answer

    def register(self, subject: str, document: Mapping[str, object]) -> int:
        """Return the ID of a schema, registering it if necessary. Raises SchemaError."""
        path = f"subjects/{urllib.parse.quote(subject, safe='')}/versions"
        answer = self._request(path, document)
        schema_id = (answer or {}).get("id")
        if not isinstance(schema_id, int):
            raise SchemaError(f"{self.address} returned no ID for the schema of {subject}")
        return schema_id

    def referred(self, answer: Mapping[str, object]) -> Iterator[tuple[str, Answer]]:
        """Yield the names and responses of all referenced schemas, dependencies first.

        Raises:
            SchemaError: The registry does not respond, or there are too many references.
        """
        yield from self._referred(answer, set())

    def _referred(
        self, answer: Mapping[str, object], seen: set[tuple[str, int]]
    ) -> Iterator[tuple[str, Answer]]:
        for name, subject, version in _references_of(answer):
            if (subject, version) in seen:
                continue
            seen.add((subject, version))
            if len(seen) > _REFERENCES_MAX:
                raise SchemaError(f"a schema references more than {_REFERENCES_MAX} other schemas")
            found = self.version(subject, version)
            yield from self._referred(found, seen)
            yield name, found

    def ask(
        self, path: str, *, method: str = "GET", body: Mapping[str, object] | None = None
    ) -> object:
        """Send a request to a path of Confluent's API and return the JSON document.

        Args:
            path: Path without a leading slash; may contain a query.
            method: HTTP method.
            body: Object to send as JSON.

        Raises:
            RegistryRejection: The registry rejected the request.
            SchemaError: The registry does not respond.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}/{path}", data, self._headers, method=method
        )
        try:
            with _opener().open(request, timeout=_TIMEOUT_S) as response:
                answer: object = json.loads(response.read(_RESPONSE_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                code, message = _rejection_of(error)
            raise RegistryRejection(
                f"{self.address}/{path} returned {error.code} {message or error.reason}",
                code,
                message or str(error.reason),
            ) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise SchemaError(
                f"no valid response from the schema registry {self.address}: {reason}"
            ) from error
        return answer

    def _request(self, path: str, body: Mapping[str, object] | None = None) -> Answer | None:
        """Send a request and return the JSON object, or None for status 404."""
        try:
            answer = self.ask(path, method="GET" if body is None else "POST", body=body)
        except RegistryRejection as error:
            if error.status == 404:
                return None
            raise
        if not isinstance(answer, dict):
            raise SchemaError(f"{self.address} is not a schema registry")
        return answer


def _references_of(answer: Mapping[str, object]) -> Iterator[tuple[str, str, int]]:
    """Yield name, subject and version of each direct reference. Raises SchemaError."""
    references = answer.get("references")
    for reference in references if isinstance(references, list) else ():
        try:
            yield str(reference["name"]), str(reference["subject"]), int(reference["version"])
        except (LookupError, TypeError, ValueError):
            raise SchemaError("a schema has a reference without name, subject or version") from None


def kind_of(answer: Mapping[str, object]) -> str:
    """Return the type of a schema: AVRO, JSON or PROTOBUF."""
    return str(answer.get("schemaType", "AVRO"))


class _SameHostRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only on the same host, because requests contain the password."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc):
            fp.close()
            raise urllib.error.URLError(
                f"it redirects to {new.scheme}://{new.netloc}; use that URL if it is yours"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_SameHostRedirects)


def _rejection_of(error: urllib.error.HTTPError) -> tuple[int, str]:
    """Return code and message of the registry's error response, or the HTTP status and ""."""
    try:
        body = json.loads(error.read(_RESPONSE_BYTES_MAX))
        return int(body.get("error_code", error.code)), str(body["message"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return error.code, ""
