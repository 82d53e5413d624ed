"""Values are written unchanged, or encoded outside the event loop."""

from __future__ import annotations

import threading

import pytest

from kbroker.client.errors import ClientError
from kbroker.pipelines.replay.sources import Chunk
from kbroker.pipelines.replay.values import encoding
from kbroker.protocol.records import Record

from .given import ListSource

CHUNK = Chunk([0, 1], [Record(b"k", b"a", 7, [("h", b"v")], 3), Record(b"k", None, 8, [], 4)])


class UppercaseEncoder:
    """An encoder to capitals; `threads` are the threads that called it."""

    description = "capitals"

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def encode(self, text: bytes) -> bytes:
        self.threads.add(threading.get_ident())
        if not text.isalpha():
            raise ValueError("no letters")
        return text.upper()


async def test_values_without_encoder_are_unchanged() -> None:
    encode = await encoding(None, ListSource())
    assert await encode(CHUNK) is CHUNK


async def test_values_are_encoded_in_thread_except_nulls() -> None:
    encoder = UppercaseEncoder()
    encode = await encoding(lambda: encoder, ListSource())
    first, second = CHUNK.records
    assert await encode(CHUNK) == Chunk([0, 1], [first._replace(value=b"A"), second])
    assert threading.get_ident() not in encoder.threads


async def test_value_that_cannot_be_encoded_is_named() -> None:
    encode = await encoding(UppercaseEncoder, ListSource())
    with pytest.raises(
        ClientError, match="record 5 of 1 cannot be written as capitals: no letters; "
    ):
        await encode(Chunk([1], [Record(b"k", b"1", 0, [], 5)]))
