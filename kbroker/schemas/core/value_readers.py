"""Decoders of record data, for schemas of every type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kbroker.text.documents import read_json

from .avro import AvroSchema
from .avro_values import avro_value
from .byte_reader import BytesText, InvalidValue, Source, base64_text
from .formats import Texts, parse
from .framing import Frame
from .protobuf import ProtobufSchema
from .protobuf_values import ProtobufValues, read_indexes
from .values import AVRO, JSON, PROTOBUF, Content

# Maximum bytes of a value that is serialized in one call, which takes about 1 ms.
SMALL_VALUE_BYTES = 4096


class Found(NamedTuple):
    """A decoded value.

    Attributes:
        document: The value as a JSON document.
        text: JSON text of the value.
        message: Name of the Protobuf message type; None for other schema types.
    """

    document: object
    text: str
    message: str | None = None


class Values(Protocol):
    """Decoder for the data of one schema."""

    def read(self, frame: Frame, steps: int) -> Found:
        """Decode a frame within a number of steps. Raises InvalidValue or LimitExceeded."""


class _Avro:
    def __init__(self, content: Content, texts: Texts, bytes_text: BytesText) -> None:
        schema = parse(content, texts)
        assert isinstance(schema, AvroSchema)
        self._root = schema.root
        self._bytes_text = bytes_text

    def read(self, frame: Frame, steps: int) -> Found:
        document = avro_value(self._root, Source(frame.body, steps, self._bytes_text))
        return Found(document, _text(document, frame))


class _Protobuf:
    def __init__(self, content: Content, texts: Texts, _bytes_text: BytesText) -> None:
        schema = parse(content, texts)
        assert isinstance(schema, ProtobufSchema)
        self._values = ProtobufValues(schema)

    def read(self, frame: Frame, steps: int) -> Found:
        source = Source(frame.body, steps)
        index_source = source if frame.indexes is None else Source(frame.indexes, steps)
        message = self._values.message_at(read_indexes(index_source))
        document = self._values.read(message, source)
        return Found(document, _text(document, frame), message)


class _Json:
    """Decoder for JSON data, which needs no schema to be read."""

    def __init__(self, _content: Content, _texts: Texts, _bytes_text: BytesText) -> None:
        pass

    def read(self, frame: Frame, _steps: int) -> Found:
        try:
            text = frame.body.decode()
            return Found(read_json(text), text)
        except ValueError as error:
            raise InvalidValue(f"invalid JSON: {error}") from None


_TYPES: Mapping[str, Callable[[Content, Texts, BytesText], Values]] = {
    AVRO: _Avro,
    JSON: _Json,
    PROTOBUF: _Protobuf,
}


def values_of(content: Content, texts: Texts, avro_bytes: BytesText = base64_text) -> Values:
    """Return the decoder for a schema.

    Args:
        content: The schema.
        texts: Texts of its references.
        avro_bytes: Converts Avro's bytes and fixed to text.

    Returns:
        The decoder.

    Raises:
        RegistryError: The schema is invalid.
    """
    decoder_class = _TYPES.get(content.type, _Avro)  # parsing rejects unknown types
    return decoder_class(content, texts, avro_bytes)


def _text(document: object, frame: Frame) -> str:
    if len(frame.body) <= SMALL_VALUE_BYTES:
        return json.dumps(document, ensure_ascii=False)
    # Incrementally, because a single C call would not release the GIL.
    return "".join(json.JSONEncoder(ensure_ascii=False).iterencode(document))
