"""Encoders of JSON documents, for schemas of every type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from kbroker.text.documents import read_json

from .avro import AvroSchema
from .avro_writing import avro_data
from .errors import invalid_schema
from .formats import Texts, parse
from .framing import prefix_of
from .value_writing import Mismatch, shown
from .values import AVRO, JSON, PROTOBUF, Content


class BodyWriter(Protocol):
    """Encoder of documents without their schema ID."""

    @property
    def is_string(self) -> bool:
        """True if a document is a string, which may be given without JSON's quotes."""
        ...

    def write(self, text: bytes) -> bytes:
        """Encode a JSON document in UTF-8. Raises Mismatch."""
        ...


class ValueWriter:
    """Encoder of values of one registered schema, in Confluent's wire format.

    Args:
        body: Encoder of the documents.
        schema_id: ID of the schema.
        description: Name and ID of the schema, for messages.
    """

    def __init__(self, body: BodyWriter, schema_id: int, description: str) -> None:
        self._body = body
        self._prefix = prefix_of(schema_id)
        self.description = description

    def encode(self, text: bytes) -> bytes:
        """Encode a JSON document.

        Args:
            text: The document in UTF-8. For a schema of a string, also the string itself.

        Returns:
            The value with its schema ID.

        Raises:
            Mismatch: The text is not JSON, or does not match the schema.
        """
        if self._body.is_string and not (text[:1] == text[-1:] == b'"' and len(text) > 1):
            text = _quoted(text)
        return self._prefix + self._body.write(text)


def writer_of(content: Content, texts: Texts, message: str | None = None) -> BodyWriter:
    """Return the encoder for a schema.

    Args:
        content: The schema.
        texts: Texts of its references.
        message: Name of a Protobuf message; None for the first one of the file.

    Raises:
        RegistryError: The schema is invalid or has no such message.
        ModuleNotFoundError: A package for this type of schema is missing.
    """
    if message is not None and content.type != PROTOBUF:
        raise invalid_schema(f"a schema of type {content.type} has no message {message!r}")
    create = _TYPES.get(content.type, _Avro)  # parsing rejects unknown types
    return create(content, texts, message)


class _Avro:
    def __init__(self, content: Content, texts: Texts, _message: str | None) -> None:
        schema = parse(content, texts)
        assert isinstance(schema, AvroSchema)
        self._root = schema.root

    @property
    def is_string(self) -> bool:
        return self._root.kind == "string"

    def write(self, text: bytes) -> bytes:
        try:
            document = read_json(text, exact=True)
        except ValueError as error:
            raise _not_json(error, text) from None
        return avro_data(self._root, document)


class _Json:
    """Encoder that validates documents; data is the JSON text itself."""

    def __init__(self, content: Content, texts: Texts, _message: str | None) -> None:
        from .json_validation import validator_of  # imports jsonschema

        parse(content, texts)
        self._problem_of = validator_of(content.text, texts)

    @property
    def is_string(self) -> bool:
        return False

    def write(self, text: bytes) -> bytes:
        try:
            document = read_json(text)
        except ValueError as error:
            raise _not_json(error, text) from None
        if (problem := self._problem_of(document)) is not None:
            path, reason = problem
            mismatch = Mismatch(document, "", reason=reason)
            raise mismatch.at(path) if path else mismatch
        return text


def _protobuf(content: Content, texts: Texts, message: str | None) -> BodyWriter:
    from .protobuf_writing import ProtobufWriter  # imports Google's package

    return ProtobufWriter(content.text, texts, message)


_Create: TypeAlias = Callable[[Content, Texts, str | None], BodyWriter]
_TYPES: Mapping[str, _Create] = {AVRO: _Avro, JSON: _Json, PROTOBUF: _protobuf}


def _not_json(error: ValueError, text: bytes) -> Mismatch:
    start = text[:40].decode(errors="replace")
    return Mismatch(None, "", reason=f"{shown(start)} is not a JSON document: {error}")


def _quoted(text: bytes) -> bytes:
    import json

    try:
        return json.dumps(text.decode(), ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise Mismatch(text, "a string in UTF-8") from None
