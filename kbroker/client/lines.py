"""Asynchronous reading of lines from a file or pipe."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import BinaryIO

import trio

from .errors import ClientError

READ_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20


async def lines_of(stream: BinaryIO) -> AsyncGenerator[Sequence[bytes], None]:
    """Yield lists of complete lines as soon as they are available.

    Args:
        stream: Binary input.

    Raises:
        ClientError: A line is longer than `LINE_BYTES_MAX`.
    """
    # read1 returns what is available instead of waiting for a full buffer.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    incomplete: list[bytes] = []  # parts of a line without its newline yet
    while data := await trio.to_thread.run_sync(read, READ_BYTES, abandon_on_cancel=True):
        first, *rest = data.split(b"\n")
        incomplete.append(first)
        if rest:
            yield [b"".join(incomplete), *rest[:-1]]
            incomplete = [rest[-1]]
        elif sum(map(len, incomplete)) > LINE_BYTES_MAX:
            raise ClientError(f"input line is longer than {LINE_BYTES_MAX >> 20} MiB")
    if any(incomplete):
        yield [b"".join(incomplete)]
