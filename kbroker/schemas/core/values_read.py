"""What the bytes behind a schema's id say, for schemas of every type."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from kbroker.text.documents import read_json

from .avro import AvroSchema
from .avro_values import avro_value
from .bytes_read import Source, Unfit
from .formats import Texts, parse
from .framing import Frame
from .protobuf import ProtobufSchema
from .protobuf_values import ProtobufValues, read_indexes
from .values import AVRO, JSON, PROTOBUF, Content

WRITTEN_AT_ONCE = 4096
"""Bytes of which the JSON is written in a millisecond or so."""


class Found(NamedTuple):
    """A value as JSON has it."""

    document: object
    text: str
    message: str | None = None
    """Which one of a file of Protobuf."""


class Values(Protocol):
    """Reads what was written with one schema."""

    def read(self, frame: Frame, steps: int) -> Found:
        """Raises Unfit, TooMuch."""


class _Avro:
    def __init__(self, content: Content, texts: Texts) -> None:
        schema = parse(content, texts)
        assert isinstance(schema, AvroSchema)
        self._root = schema.root

    def read(self, frame: Frame, steps: int) -> Found:
        document = avro_value(self._root, Source(frame.body, steps))
        return Found(document, _text(document, frame))


class _Protobuf:
    def __init__(self, content: Content, texts: Texts) -> None:
        schema = parse(content, texts)
        assert isinstance(schema, ProtobufSchema)
        self._values = ProtobufValues(schema)

    def read(self, frame: Frame, steps: int) -> Found:
        source = Source(frame.body, steps)
        in_front = source if frame.indexes is None else Source(frame.indexes, steps)
        message = self._values.message_at(read_indexes(in_front))
        document = self._values.read(message, source)
        return Found(document, _text(document, frame), message)


class _Json:
    """The schema says what may be there; what is there is JSON without it."""

    def __init__(self, _content: Content, _texts: Texts) -> None:
        pass

    def read(self, frame: Frame, _steps: int) -> Found:
        try:
            text = frame.body.decode()
            return Found(read_json(text), text)
        except ValueError as error:
            raise Unfit(f"it is no JSON: {error}") from None


_TYPES: Mapping[str, Callable[[Content, Texts], Values]] = {
    AVRO: _Avro,
    JSON: _Json,
    PROTOBUF: _Protobuf,
}


def values_of(content: Content, texts: Texts) -> Values:
    """What reads values of a schema. Raises RegistryError."""
    made = _TYPES.get(content.type, _Avro)  # of a type that there is not, parsing says so
    return made(content, texts)


def _text(document: object, frame: Frame) -> str:
    if len(frame.body) <= WRITTEN_AT_ONCE:
        return json.dumps(document, ensure_ascii=False)
    # In pieces: at once it is done without a look whether other threads want the interpreter.
    return "".join(json.JSONEncoder(ensure_ascii=False).iterencode(document))
