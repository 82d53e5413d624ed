"""Response bodies that are sent in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import trio


class Chunks:
    """Iterator over chunks. Unlike a generator it needs no cleanup when the client disconnects."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._left = iter(pieces)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk after a checkpoint. Raises StopAsyncIteration."""
        await trio.lowlevel.checkpoint()
        for piece in self._left:
            return piece
        raise StopAsyncIteration
