"""Receiving from a transport, as the reader of a connection does."""

from __future__ import annotations

from kbroker.net.transport import Transport


async def receive(transport: Transport, size: int) -> bytes:
    """Wait for up to `size` bytes; return none at the end."""
    got = b""

    def take() -> bool:
        nonlocal got
        data = transport.receive_now(size)
        got = data or b""
        return data is not None

    await transport.until(take)
    return got


async def receive_into(transport: Transport, buffer: memoryview) -> int:
    """Receive into a part of `buffer`; return the number of bytes."""
    got = 0

    def take() -> bool:
        nonlocal got
        size = transport.receive_into_now(buffer)
        got = size or 0
        return size is not None

    await transport.until(take)
    return got
