"""Bytes to and from one socket, with the fastest call that the platform has."""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import trio

from kbroker.runtime.disk_reads import DiskReads
from kbroker.storage.cached import NotCached
from kbroker.storage.errors import READ_FAILURES, UnreadableError
from kbroker.storage.files import FileRange

from .readiness_poller import GoOn, ReadinessPoller, Step, nothing
from .stored import FILE_TOO_SHORT, StoredBytes

JOIN_BYTES = 64 * 1024
"""Neighbours up to this size are joined into one buffer: one system call, and one packet that wakes
the client once, are worth the copy."""

UNSENT_BYTES = 16 * 1024
"""How much the system keeps for a client beyond what is on its way, before a socket counts as full."""

_HAS_SENDFILE = hasattr(os, "sendfile")
_NO_LINGER = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""A socket that lingers for no time sends RST when it is closed."""
_OPTIONS = {socket.TCP_NODELAY: 1}
if hasattr(socket, "TCP_NOTSENT_LOWAT"):
    _OPTIONS[socket.TCP_NOTSENT_LOWAT] = UNSENT_BYTES


class Transport(Protocol):
    """Bytes to and from one client. All but `close` raise OSError when the peer has gone."""

    async def until(self, take: Step, answer: Step = nothing) -> None:
        """Call `take` each time that there may be something to receive, and then `answer`, until one of
        them returns True.

        Yields before each call of `take`. Raises trio.ClosedResourceError when the connection is closed here.
        """
        ...

    def watch(self, take: Step, answer: Step, go_on: GoOn) -> bool:
        """As `until` without a task that waits: `go_on` is told what that would return or raise.

        Returns False where a task has to wait.
        """
        ...

    def let_go(self) -> bool:
        """Have who waits go on at once, as if a step had returned True; whether somebody did."""
        ...

    def receive_now(self, size: int) -> bytes | None:
        """Return up to `size` bytes, none when the peer has closed; None when nothing is there."""
        ...

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """As `receive_now`, into a part of `buffer`: how much it was, 0 when the peer has closed."""
        ...

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection. Receives nothing."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether something is left that has come already, of which no `until` would hear."""
        ...

    async def writable(self) -> None:
        """Wait until `send_now` can go on."""
        ...

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        """Send buffers and file ranges in order, as far as they go without waiting.

        Returns what is left to be sent.
        """
        ...

    def close(self) -> None:
        """End the connection, if it has not ended. Who waits for it gets trio.ClosedResourceError."""
        ...

    def reset(self) -> None:
        """Let `close` drop what is not sent yet, and tell the peer of an error."""
        ...


class PlainTransport:
    """A TCP connection without TLS; stored bytes go from the page cache to the socket.

    It works on a plain socket: each call of trio's yields to the scheduler, which costs more than the
    call. Here only waiting yields. `until` always does, so that a busy client takes turns with the
    others.

    Parameters: `poller` watches the socket with those of others; without it the socket is waited for
    by itself. `disk` loads what is to be sent and not in memory.
    """

    __slots__ = ("_poller", "_socket", "_stored")

    has_more = False  # the system knows

    def __init__(
        self,
        connected: socket.socket,
        poller: ReadinessPoller | None = None,
        disk: DiskReads | None = None,
    ) -> None:
        self._socket = connected
        self._poller = poller
        self._stored = StoredBytes(disk or DiskReads())
        connected.setblocking(False)
        try:
            for option, value in _OPTIONS.items():
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError:
            pass  # it is no TCP connection, or has ended, which shows soon

    async def until(self, take: Step, answer: Step = nothing) -> None:
        """Call `take` each time that there may be something to receive, and then `answer`, until one of
        them returns True."""
        if self._poller is not None:
            await self._poller.until(self._socket, take, answer)
            return
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            if take() or answer():
                return

    def watch(self, take: Step, answer: Step, go_on: GoOn) -> bool:
        """As `until` without a task that waits; False where the system has no epoll."""
        if self._poller is None:
            return False
        self._poller.watch(self._socket, take, answer, go_on)
        return True

    def let_go(self) -> bool:
        """Have who waits go on at once, where the system has epoll; whether somebody did."""
        return self._poller is not None and self._poller.let_go(self._socket)

    def receive_now(self, size: int) -> bytes | None:
        """Return up to `size` bytes, none when the peer has closed; None when nothing is there."""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """As `receive_now`, into a part of `buffer`: how much it was, 0 when the peer has closed."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection. Receives nothing.

        Without POLLRDHUP (Linux only), the end is not visible behind bytes that are not received.
        """
        if self._socket.fileno() < 0:
            return True
        if hasattr(select, "POLLRDHUP"):
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP)
            return bool(poll.poll(0))  # a reset and an error are always reported
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def acknowledge(self) -> bool:
        """Let the peer know at once that all has come; False where the system leaves no choice.

        A client that sends small pieces together (Nagle's algorithm) keeps the next one back until it has
        heard of the one before, and systems wait for some 40 ms for an answer that could say so.
        """
        if not hasattr(socket, "TCP_QUICKACK"):
            return False
        with suppress(OSError):  # it has ended, which shows soon
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return True

    async def writable(self) -> None:
        """Wait until `send_now` can go on."""
        if not await self._stored.loaded():
            await trio.lowlevel.wait_writable(self._socket)

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        """Send buffers and file ranges in order, as far as the socket takes them, and as they are in
        memory, without waiting.

        Returns what is left to be sent. Raises OSError when the peer has gone; a file that is
        shorter than its range says can only end the connection, because the length is already out.
        """
        left = gather(parts, self._stored)
        try:
            while left:
                part = left[0]
                if isinstance(part, FileRange):
                    size = self._stored.sendable(part)
                    if isinstance(size, NotCached):
                        self._stored.awaits(size)
                        break
                    sent = self._send_file(part, size)
                else:
                    # No MSG_MORE: when sendfile then fills the socket, Linux holds all of it back
                    # for 200 ms.
                    sent = self._socket.send(part)
                if sent < len(part):
                    left[0] = after(part, sent)
                    break
                del left[0]
        except BlockingIOError:
            pass
        return left

    def _send_file(self, part: FileRange, size: int) -> int:
        assert part.fd is not None
        try:
            sent = os.sendfile(self._socket.fileno(), part.fd, part.position, size)
        except OSError as error:
            if error.errno in READ_FAILURES:
                raise UnreadableError(part.source.path, str(error.strerror)) from None
            raise
        if sent == 0:
            raise OSError(FILE_TOO_SHORT)
        return sent

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            if self._poller is not None:
                self._poller.leave(self._socket)
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def gather(parts: Sequence[Any], stored: StoredBytes) -> list[Any]:
    """Join small neighbours; only file ranges that are worth a sendfile, and those that are not in
    memory, stay ranges."""
    if len(parts) == 1 and not isinstance(parts[0], FileRange):
        return [*parts]
    gathered: list[Any] = []
    small: list[Any] = []
    for part in parts:
        found: Sequence[Any] = (part,)
        is_small = len(part) <= JOIN_BYTES
        if isinstance(part, FileRange) and (is_small or part.fd is None or not _HAS_SENDFILE):
            read = stored.read(part)
            if isinstance(read, NotCached):
                is_small = False
            else:
                found = read
        if is_small:
            small += found
            continue
        if small:
            gathered.append(_joined(small))
            small = []
        gathered += found
    if small:
        gathered.append(_joined(small))
    return gathered


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def after(part: Any, sent: int) -> Any:
    """What is left of a buffer or range of which `sent` bytes went out."""
    if isinstance(part, FileRange):
        return FileRange(part.source, part.position + sent, len(part) - sent)
    return memoryview(part)[sent:]
