"""Values are written unchanged, or encoded outside the event loop."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from kbroker.client.errors import ClientError
from kbroker.client.schema_registry import SchemaRegistry, UnencodableError
from kbroker.pipelines.replay import values
from kbroker.pipelines.replay.sources import Chunk
from kbroker.pipelines.replay.values import Subject, encoding
from kbroker.protocol.records import Record

from .given import ListSource

SUBJECT = Subject("orders-value", "http://registry")
CHUNK = Chunk([0, 1], [Record(b"k", b"a", 7, [("h", b"v")], 3), Record(b"k", None, 8, [], 4)])


class UppercaseEncoder:
    """An encoder to capitals; `threads` are the threads that called it."""

    description = "capitals"

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode(self, text: bytes) -> bytes:
        self.threads.add(threading.get_ident())
        if not text.isalpha():
            raise UnencodableError("no letters")
        return text.upper()


@pytest.fixture
def uppercase_encoder(monkeypatch: pytest.MonkeyPatch) -> UppercaseEncoder:
    """The encoder that is used for every subject."""
    encoder = UppercaseEncoder()
    monkeypatch.setattr(values, "_encoder", lambda subject: encoder)
    return encoder


async def test_values_without_subject_are_unchanged() -> None:
    encode = await encoding(None, ListSource())
    assert await encode(CHUNK) is CHUNK


async def test_values_are_encoded_in_thread_except_nulls(
    uppercase_encoder: UppercaseEncoder,
) -> None:
    encode = await encoding(SUBJECT, ListSource())
    first, second = CHUNK.records
    assert await encode(CHUNK) == Chunk([0, 1], [first._replace(value=b"A"), second])
    assert threading.get_ident() not in uppercase_encoder.threads


async def test_value_that_cannot_be_encoded_is_named(uppercase_encoder: UppercaseEncoder) -> None:
    encode = await encoding(SUBJECT, ListSource())
    with pytest.raises(
        ClientError, match="record 5 of 1 cannot be written as capitals: no letters; "
    ):
        await encode(Chunk([1], [Record(b"k", b"1", 0, [], 5)]))


async def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def latest(self: Any, subject: str, kind: str) -> dict[str, Any]:
        return {"id": 1, "schema": '"string"'}

    monkeypatch.setattr(SchemaRegistry, "latest", latest)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ClientError, match=r"needs fastavro: pip install 'kbroker\[spark\]'"):
        await encoding(SUBJECT, ListSource())


def test_subject_repr_hides_password() -> None:
    assert "secret" not in repr(Subject("s", "http://bob:secret@registry"))
