"""The lines of an input, as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import BinaryIO

import trio

from .errors import ClientError

READ_BYTES = 1 << 20
LINE_BYTES_MAX = 64 << 20


async def lines_of(stream: BinaryIO) -> AsyncGenerator[Sequence[bytes], None]:
    """Lines in chunks of what is there at once: a slow input is given line by line.

    Raises ClientError for a line that is longer than `LINE_BYTES_MAX`.
    """
    # What is there, where a stream can tell.
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []  # pieces of a line whose end has not come
    while data := await trio.to_thread.run_sync(read, READ_BYTES, abandon_on_cancel=True):
        first, *rest = data.split(b"\n")
        begun.append(first)
        if rest:
            yield [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
        elif sum(map(len, begun)) > LINE_BYTES_MAX:
            raise ClientError(f"a line of more than {LINE_BYTES_MAX >> 20} MiB is no record")
    if any(begun):
        yield [b"".join(begun)]
