"""Answers that are sent in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import trio


class Pieces:
    """Pieces of an answer in turn. Unlike a generator it leaves nothing open when the client leaves."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._left = iter(pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece, after others had their turn. Raises StopAsyncIteration."""
        await trio.lowlevel.checkpoint()
        for piece in self._left:
            return piece
        raise StopAsyncIteration
