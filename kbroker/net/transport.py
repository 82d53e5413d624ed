"""Transports of client connections: the interface, and plain TCP with sendfile."""

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

from .readiness_poller import OnDone, ReadinessPoller, Step, send_nothing
from .stored import FILE_TOO_SHORT, StoredBytes

# Maximum size in bytes of adjacent parts that are joined into one buffer. One system call and one
# packet, which wakes the client once, are worth the copy.
JOIN_BYTES = 64 * 1024

# Unsent bytes in the socket buffer above which the socket is not writable (TCP_NOTSENT_LOWAT).
UNSENT_BYTES = 16 * 1024

_HAS_SENDFILE = hasattr(os, "sendfile")
# SO_LINGER with zero seconds: the socket sends RST when it is closed.
_NO_LINGER = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
_OPTIONS = {socket.TCP_NODELAY: 1}
if hasattr(socket, "TCP_NOTSENT_LOWAT"):
    _OPTIONS[socket.TCP_NOTSENT_LOWAT] = UNSENT_BYTES


class Transport(Protocol):
    """Byte stream to and from one client.

    All methods except `close` raise OSError if the client has disconnected.
    """

    async def until(self, take: Step, respond: Step = send_nothing) -> None:
        """Call `take` each time that bytes may be available, and then `respond`.

        Returns when `take` or `respond` returns True. Yields to other tasks before each `take`.

        Args:
            take: Receives and handles requests.
            respond: Sends responses.

        Raises:
            ClosedResourceError: This process closed the connection.
        """
        ...

    def watch(self, take: Step, respond: Step, on_done: OnDone) -> bool:
        """Do the same as `until` without a task.

        Args:
            take: Receives and handles requests.
            respond: Sends responses.
            on_done: Gets the result or the exception that `until` would have.

        Returns:
            False if the transport needs a task that calls `until`.
        """
        ...

    def wake(self) -> bool:
        """Resume the waiter as if a step had returned True. Return False if there was none."""
        ...

    def receive_now(self, size: int) -> bytes | None:
        """Receive without waiting.

        Args:
            size: Maximum number of bytes.

        Returns:
            The bytes; empty if the peer has closed; None if no bytes are available.
        """
        ...

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """Receive into a buffer without waiting.

        Returns:
            The number of bytes; 0 if the peer has closed; None if no bytes are available.
        """
        ...

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection, without receiving data."""
        ...

    @property
    def has_more(self) -> bool:
        """True if received bytes are buffered in the transport, where the poller cannot see them."""
        ...

    async def writable(self) -> None:
        """Wait until `send_now` can continue."""
        ...

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        """Send buffers and file ranges in order, as far as possible without waiting.

        Returns:
            The parts that are not sent.
        """
        ...

    def close(self) -> None:
        """Close the connection if it is open. Waiters get trio.ClosedResourceError."""
        ...

    def reset(self) -> None:
        """Make `close` drop unsent bytes and reset the connection."""
        ...


class PlainTransport:
    """A TCP connection without TLS. Stored bytes are sent from the page cache with sendfile.

    The transport uses a plain socket: each call of a trio socket yields, which costs more
    than the call. Here only waiting yields. `until` always yields, so that a busy client does not
    starve other clients.

    Args:
        connected: The socket.
        poller: Shared epoll of all sockets; None to wait for the socket itself.
        disk: Loads stored bytes that are not in the page cache.
    """

    __slots__ = ("_poller", "_socket", "_stored")

    has_more = False  # the socket buffers all bytes

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
            pass  # a Unix socket, or a closed connection: the next call will fail

    async def until(self, take: Step, respond: Step = send_nothing) -> None:
        """Call `take` and `respond` until one of them returns True; see `Transport`."""
        if self._poller is not None:
            await self._poller.until(self._socket, take, respond)
            return
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            if take() or respond():
                return

    def watch(self, take: Step, respond: Step, on_done: OnDone) -> bool:
        """Do the same as `until` without a task. Return False if the system has no epoll."""
        if self._poller is None:
            return False
        self._poller.watch(self._socket, take, respond, on_done)
        return True

    def wake(self) -> bool:
        """Resume the waiter if the system has epoll. Return False if there was none."""
        return self._poller is not None and self._poller.wake(self._socket)

    def receive_now(self, size: int) -> bytes | None:
        """Receive up to `size` bytes without waiting; see `Transport`."""
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            return None

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """Receive into a buffer without waiting; see `Transport`."""
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection, without receiving data.

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
        """Send a TCP ACK now. Return False if the system cannot do that.

        A client with Nagle's algorithm sends the next small segment only after the ACK of the
        previous one. A delayed ACK takes about 40 ms.
        """
        if not hasattr(socket, "TCP_QUICKACK"):
            return False
        with suppress(OSError):  # the connection is closed: the next call will fail
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return True

    async def writable(self) -> None:
        """Wait until stored bytes are loaded or the socket is writable."""
        if not await self._stored.load_missing():
            await trio.lowlevel.wait_writable(self._socket)

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        """Send buffers and cached file ranges in order, as far as the socket accepts them.

        Returns:
            The parts that are not sent.

        Raises:
            OSError: The peer has disconnected, or a file is shorter than its range. The latter must
                close the connection, because the length of the response is already sent.
        """
        left = gather(parts, self._stored)
        try:
            while left:
                part = left[0]
                if isinstance(part, FileRange):
                    size = self._stored.sendable(part)
                    if isinstance(size, NotCached):
                        self._stored.set_missing(size)
                        break
                    sent = self._send_file(part, size)
                else:
                    # No MSG_MORE: when sendfile then fills the socket, Linux holds all of it back
                    # for 200 ms.
                    sent = self._socket.send(part)
                if sent < len(part):
                    left[0] = remainder(part, sent)
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
                self._poller.unwatch(self._socket)
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def reset(self) -> None:
        with suppress(OSError):  # the client is gone, and a failed send closed the socket
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


def gather(parts: Sequence[Any], stored: StoredBytes) -> list[Any]:
    """Join small adjacent parts. Keep file ranges that are large or not in the page cache."""
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
            gathered.append(_join(small))
            small = []
        gathered += found
    if small:
        gathered.append(_join(small))
    return gathered


def _join(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def remainder(part: Any, sent: int) -> Any:
    """Return the rest of a buffer or range after its first `sent` bytes."""
    if isinstance(part, FileRange):
        return FileRange(part.source, part.position + sent, len(part) - sent)
    return memoryview(part)[sent:]
