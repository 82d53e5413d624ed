"""Bytes to and from one socket, with the fastest call that the platform has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import trio

from kbroker.storage.files import FileRange

JOIN_BYTES = 64 * 1024
"""Parts up to this size are joined into one buffer: one system call is worth the copy."""

SENDFILE_BYTES = 512 * 1024
"""At most this much a call: pages that are not cached make sendfile block the event loop."""

_HAS_SENDFILE = hasattr(os, "sendfile")


class PlainTransport:
    """A TCP connection without TLS; stored bytes go from the page cache to the socket."""

    __slots__ = ("_socket",)

    def __init__(self, socket: trio.socket.SocketType) -> None:
        self._socket = socket

    async def receive(self, size: int) -> bytes:
        """Return up to `size` bytes, none when the peer has closed."""
        return await self._socket.recv(size)

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill a part of `buffer`, return how much; 0 when the peer has closed."""
        return await self._socket.recv_into(buffer)

    async def send(self, parts: Sequence[Any]) -> None:
        """Send buffers and file ranges in order. Raises OSError when the peer has gone.

        A file that is shorter than its range says can only end the connection, because the length
        is already out.
        """
        small: list[Any] = []
        size = 0
        for part in parts:
            is_file = isinstance(part, FileRange)
            if not is_file and len(part) <= JOIN_BYTES:
                small.append(part)
                size += len(part)
                if size < JOIN_BYTES:
                    continue
                part = None
            if small:
                await self._send_buffer(small[0] if len(small) == 1 else b"".join(small))
                small, size = [], 0
            if is_file:
                await self._send_file(part)
            elif part is not None:
                await self._send_buffer(part)
        if small:
            await self._send_buffer(small[0] if len(small) == 1 else b"".join(small))

    async def _send_buffer(self, buffer: Any) -> None:
        sent = await self._socket.send(buffer)
        if sent < len(buffer):
            view = memoryview(buffer)
            while sent < len(view):
                sent += await self._socket.send(view[sent:])

    async def _send_file(self, part: FileRange) -> None:
        if part.fd is None or not _HAS_SENDFILE:
            for buffer in part.parts():
                await self._send_buffer(buffer)
            return
        target = self._socket.fileno()
        position, end = part.position, part.position + len(part)
        while position < end:
            try:
                sent = os.sendfile(target, part.fd, position, min(end - position, SENDFILE_BYTES))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
                continue
            if sent == 0:
                raise OSError("a segment file is shorter than what was promised to a client")
            position += sent
        await trio.lowlevel.checkpoint()

    def local_address(self) -> tuple[str, int]:
        name = self._socket.getsockname()
        return name[0], name[1]

    def close(self) -> None:
        self._socket.close()
