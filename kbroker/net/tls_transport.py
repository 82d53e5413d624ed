"""TLS transport of client connections.

OpenSSL works on memory buffers, and a plain transport carries the ciphertext. So sending is a plain
call that sends as much as the socket accepts, as without TLS. Stored bytes are read from their files
and encrypted in pieces. The next piece is encrypted when the socket has accepted the previous one.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import trio

from kbroker.runtime.disk_reads import DiskReads
from kbroker.security.tls import ServerSide
from kbroker.storage.cached import NotCached
from kbroker.storage.files import FileRange

from .readiness_poller import OnDone, Step, send_nothing
from .stored import StoredBytes
from .transport import Transport, gather, remainder

Result = TypeVar("Result")

# Maximum number of bytes of one read of the socket.
CIPHERTEXT_BYTES = 256 * 1024
# Maximum number of plaintext bytes of a TLS record (RFC 8446), and of one read.
RECORD_BYTES = 16 * 1024
# Size in bytes of a record's header: type, version, and a length of two bytes at the end.
HEADER_BYTES = 5
# Maximum number of records that OpenSSL gets at a time. One read processes all records up to the
# next one with plaintext, and a KeyUpdate takes 20 to 30 µs.
RECORDS_AT_ONCE = 64
# With this version, the client does not wait for the last bytes of the handshake, which are session
# tickets. They are sent with the first response: one system call and one wake-up of the client.
TICKETS_ONLY = "TLSv1.3"
# Maximum number of bytes that are encrypted at a time, which takes a fraction of a millisecond.
ENCRYPT_BYTES = 256 * 1024


class Carrier(Transport, Protocol):
    """Transport that carries the ciphertext."""

    def acknowledge(self) -> bool:
        """Send a TCP ACK now. Return False if the system cannot do that."""
        ...


class Throttle(Protocol):
    """Runs steps of handshakes, as `StepThrottle` does."""

    async def run(self, step: Callable[[], Result], /) -> Result:
        """Run one step and return its result."""
        ...


class _Ciphertext(bytes):
    """Ciphertext that the socket did not accept yet."""

    __slots__ = ()


class TlsTransport:
    """Server side of a TLS connection. Call `handshake` first.

    Args:
        plain: Transport of the ciphertext.
        context: Server context with certificates.
        disk: Loads stored bytes that are not in the page cache.
    """

    __slots__ = (
        "_handshake_done",
        "_has_input",
        "_incoming",
        "_is_flushed",
        "_missing",
        "_outgoing",
        "_peer_may_read",
        "_plain",
        "_stored",
        "_tls",
        "_waiting",
    )

    def __init__(
        self, plain: Carrier, context: ssl.SSLContext, disk: DiskReads | None = None
    ) -> None:
        self._plain = plain
        self._stored = StoredBytes(disk or DiskReads())
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        side = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        assert isinstance(side, ServerSide)
        self._tls = side
        # True if OpenSSL has bytes that are not decrypted yet. They may be a part of a TLS record.
        self._has_input = False
        # Received bytes that OpenSSL does not have yet, from the beginning of a record.
        self._waiting = b""
        # Number of bytes that are missing from the last record that OpenSSL has.
        self._missing = 0
        self._handshake_done = False
        # True while the client may still read from the connection.
        self._peer_may_read = True
        # True if the socket has accepted all ciphertext.
        self._is_flushed = True

    async def handshake(self, throttle: Throttle) -> None:
        """Perform the TLS handshake.

        Args:
            throttle: Limits the handshake steps per event-loop iteration. A step takes a fraction
                of a millisecond, or more with a client certificate.

        Raises:
            OSError: The client disconnected, the handshake failed (ssl.SSLError), or the client's
                certificate has expired.
        """
        while not self._handshake_done:
            if len(self._waiting) >= HEADER_BYTES:
                self._pass_records()
            else:
                await self._plain.until(self._receive_ciphertext)
            try:
                self._handshake_done = await throttle.run(self._continue_handshake)
            except ssl.SSLError:
                await self._flush()  # send the TLS alert
                raise
            if not self._handshake_done or self._tls.version() != TICKETS_ONLY:
                await self._flush()
        self._check_resumed()
        self._has_input = self._incoming.pending > 0
        if self._outgoing.pending and not self.has_more and not self._plain.acknowledge():
            await self._flush()

    def _continue_handshake(self) -> bool:
        """Continue the handshake, and return True if it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _check_resumed(self) -> None:
        """Raise ssl.SSLError if the client certificate of a resumed TLS 1.2 session has expired."""
        found = self._tls.getpeercert() if self._tls.session_reused else None
        if found and time.time() > ssl.cert_time_to_seconds(str(found["notAfter"])):
            raise ssl.SSLError("the client's certificate has expired since its first handshake")

    @property
    def certificate(self) -> bytes | None:
        """Verified client certificate (DER), or None."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def requested_host(self) -> str | None:
        """Host name of the client's SNI extension, or None."""
        return self._tls.requested_host

    async def _flush(self) -> None:
        left: list[Any] = [self._outgoing.read()] if self._outgoing.pending else []
        while left := self._plain.send_now(left):
            await self._plain.writable()

    def _receive_ciphertext(self) -> bool:
        """Receive ciphertext for OpenSSL, and return False if none was available."""
        if len(self._waiting) < HEADER_BYTES:
            data = self._plain.receive_now(CIPHERTEXT_BYTES)
            if data is None:
                return False
            if not data:
                self._incoming.write_eof()
                self._has_input = True
                return True
            self._waiting += data
        return self._pass_records()

    def _pass_records(self) -> bool:
        """Pass a limited number of records to OpenSSL. Return False for a part of a header."""
        data, end = self._waiting, self._missing
        for _ in range(RECORDS_AT_ONCE):
            if end + HEADER_BYTES > len(data):
                break
            end += HEADER_BYTES + int.from_bytes(data[end + 3 : end + HEADER_BYTES])
        passed = min(end, len(data))
        if passed:
            self._incoming.write(data[:passed])
            self._has_input = True
        self._waiting, self._missing = data[passed:], end - passed
        return passed > 0

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection, without receiving data."""
        return self._plain.peer_has_closed()

    @property
    def has_more(self) -> bool:
        """True if received bytes are not decrypted yet."""
        return self._has_input or len(self._waiting) >= HEADER_BYTES

    async def until(self, take: Step, respond: Step = send_nothing) -> None:
        """Call `take` and `respond` until one of them returns True; see `Transport`."""
        while self.has_more:
            await trio.lowlevel.checkpoint()
            if take() or respond():
                return
        await self._plain.until(take, respond)

    def watch(self, take: Step, respond: Step, on_done: OnDone) -> bool:
        """Do the same as `until` without a task. Return False if received bytes are buffered."""
        return not self.has_more and self._plain.watch(take, respond, on_done)

    def wake(self) -> bool:
        """Resume the waiter as if a step had returned True. Return False if there was none."""
        return self._plain.wake()

    def receive_now(self, size: int) -> bytes | None:
        """Receive up to `size` bytes of whole TLS records without waiting; see `Transport`."""
        if not self._has_input and not self._receive_ciphertext():
            return None
        parts: list[bytes] = []
        while size > 0 and (data := self._decrypt(size)) is not None:
            parts.append(data)
            if not data:
                break
            size -= len(data)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """Receive into a buffer without waiting; see `Transport`."""
        if not self._has_input and not self._receive_ciphertext():
            return None
        filled = 0
        while filled < len(buffer):
            size = self._decrypt_into(buffer[filled:])
            if size == 0:
                return filled
            if size is None:
                return filled or None
            filled += size
        return filled

    def _decrypt(self, size: int) -> bytes | None:
        """Decrypt up to one TLS record. Return empty bytes at the end, None if bytes are missing."""
        if not self._has_input:
            return None  # saves the exception of OpenSSL, which takes as long as a read
        wanted = min(size, RECORD_BYTES)
        try:
            data = self._tls.read(wanted)
        except ssl.SSLError as error:
            return b"" if self._is_end(error) else None
        self._update_has_input(is_full=len(data) == wanted)
        return data

    def _decrypt_into(self, buffer: memoryview) -> int | None:
        """Decrypt up to one TLS record into a buffer. Return 0 at the end, None if bytes are missing."""
        if not self._has_input:
            return None
        wanted = min(len(buffer), RECORD_BYTES)
        try:
            size: int = self._tls.read(wanted, buffer)  # type: ignore[assignment]
        except ssl.SSLError as error:
            return 0 if self._is_end(error) else None
        self._update_has_input(is_full=size == wanted)
        return size

    def _update_has_input(self, *, is_full: bool) -> None:
        """Update `_has_input` after a read. After a partial read, OpenSSL has no more plaintext."""
        if not self._incoming.pending:
            self._has_input = is_full and self._tls.pending() > 0

    def _is_end(self, error: ssl.SSLError) -> bool:
        """Return True if the client ended the stream, False if bytes are missing.

        Raises:
            SSLError: Any other error.
        """
        if isinstance(error, ssl.SSLWantReadError):
            self._has_input = False
            return False
        if isinstance(error, ssl.SSLZeroReturnError):
            return True
        # Before Python 3.11.3, an unexpected end has no exception class (python/cpython#95494).
        if isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING":
            # Some clients close without close_notify. Requests have a length, so truncation is
            # detected anyway. Such a client does not wait for a close_notify either.
            self._peer_may_read = False
            return True
        raise error

    async def writable(self) -> None:
        """Wait until stored bytes are loaded or the socket is writable."""
        if not await self._stored.load_missing():
            await self._plain.writable()

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        """Send buffers and cached file ranges in order, as far as the socket accepts them.

        Returns:
            The parts that are not sent, ciphertext first.

        Raises:
            OSError: As in `PlainTransport.send_now`.
        """
        ciphertext, plaintext = self._split(parts)
        while True:
            if ciphertext:
                left = self._plain.send_now([ciphertext])
                self._is_flushed = not left
                if left:
                    return [_Ciphertext(left[0]), *plaintext]
            ciphertext = self._encrypt(plaintext)
            if not ciphertext:
                return [*plaintext]

    def _split(self, parts: Sequence[Any]) -> tuple[bytes, deque[Any]]:
        """Return the ciphertext and the plaintext parts, with small adjacent parts joined."""
        if parts and isinstance(parts[0], _Ciphertext):
            return parts[0], deque(gather(parts[1:], self._stored))
        return b"", deque(gather(parts, self._stored))

    def _encrypt(self, plaintext: deque[Any]) -> bytes:
        """Remove and encrypt some plaintext that is in memory or in the page cache."""
        left = ENCRYPT_BYTES
        while plaintext and left > 0:
            part = plaintext[0]
            head = _head(part, left) if len(part) > left else part
            buffers = self._stored.read(head) if isinstance(head, FileRange) else (head,)
            if isinstance(buffers, NotCached):
                self._stored.set_missing(buffers)
                break
            for buffer in buffers:
                self._tls.write(buffer)
            left -= len(head)
            if head is part:
                plaintext.popleft()
            else:
                plaintext[0] = remainder(part, len(head))
        return self._outgoing.read()

    def close(self) -> None:
        if self._handshake_done and self._is_flushed and self._peer_may_read:
            self._send_close_notify()
        self._plain.close()

    def _send_close_notify(self) -> None:
        """Send close_notify, so that the client can detect truncation."""
        with contextlib.suppress(OSError):  # do not wait for the client's close_notify
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._plain.send_now([self._outgoing.read()])

    def reset(self) -> None:
        self._is_flushed = False  # do not send close_notify
        self._plain.reset()


def _head(part: Any, size: int) -> Any:
    """Return the first `size` bytes of a buffer or range."""
    if isinstance(part, FileRange):
        return FileRange(part.source, part.position, size)
    return memoryview(part)[:size]
