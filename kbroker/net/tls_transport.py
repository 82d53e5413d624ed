"""Bytes to and from one socket, encrypted.

OpenSSL works on buffers in memory here, and a plain transport carries what it makes: so sending stays
a plain call that goes as far as the socket takes it, as without TLS. Stored bytes are read from their
files and encrypted in pieces; nothing is encrypted before the socket has taken what was.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from kbroker.runtime.disk_reads import DiskReads
from kbroker.runtime.time_slices import StepThrottle
from kbroker.security.tls import ServerSide
from kbroker.storage.cached import NotCached
from kbroker.storage.files import FileRange

from .readiness_poller import GoOn, Step, nothing
from .stored import StoredBytes
from .transport import Transport, after, gather

CIPHERTEXT_BYTES = 256 * 1024
"""Room for each read of the socket."""
RECORD_BYTES = 16 * 1024
"""The most that a TLS record holds (RFC 8446), and so what one read returns."""
TICKETS_ONLY = "TLSv1.3"
"""With this version the client waits for nothing at the end of a handshake: what is left to be sent are
tickets for the next one, which go out with the first answer, in one system call and one wake of the
client."""
SEAL_BYTES = 256 * 1024
"""At most this much is encrypted at a time, in some tenths of a millisecond."""


class Carrier(Transport, Protocol):
    """What carries the encrypted bytes."""

    def acknowledge(self) -> bool:
        """Let the peer know at once that all has come; False where the system leaves no choice."""
        ...


class _Sealed(bytes):
    """Encrypted bytes that the socket did not take yet."""

    __slots__ = ()


class TlsTransport:
    """A connection with TLS on the side of the server. Call `shake_hands` first."""

    __slots__ = (
        "_has_some",
        "_incoming",
        "_is_heard",
        "_is_shaken",
        "_is_whole",
        "_outgoing",
        "_plain",
        "_stored",
        "_tls",
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
        self._has_some = False
        """Whether something has come that was not looked at; it may be a part of a TLS record."""
        self._is_shaken = False
        self._is_heard = True
        """Whether the client may still listen."""
        self._is_whole = True
        """Whether the socket has all of what was encrypted."""

    async def shake_hands(self, throttle: StepThrottle) -> None:
        """Agree with the client on keys.

        A step takes a fraction of a millisecond, with a certificate of the client more; `throttle` bounds
        how many of them a turn of the event loop has, however many clients come at once. Raises OSError
        when the client has gone, does not speak TLS as it has to, or its certificate has expired;
        ssl.SSLError is one.
        """
        while not self._is_shaken:
            await self._plain.until(self._fill)
            try:
                self._is_shaken = await throttle.run(self._step)
            except ssl.SSLError:
                await self._flush()  # it hears why
                raise
            if not self._is_shaken or self._tls.version() != TICKETS_ONLY:
                await self._flush()
        self._check_resumed()
        self._has_some = self._incoming.pending > 0
        if self._outgoing.pending and not self._has_some and not self._plain.acknowledge():
            await self._flush()

    def _step(self) -> bool:
        """Go on with the handshake; True at its end."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _check_resumed(self) -> None:
        """Raise ssl.SSLError if a resumed session (TLS 1.2) is of a client whose certificate expired."""
        found = self._tls.getpeercert() if self._tls.session_reused else None
        if found and time.time() > ssl.cert_time_to_seconds(str(found["notAfter"])):
            raise ssl.SSLError("the client's certificate has expired since its first handshake")

    @property
    def certificate(self) -> bytes | None:
        """What the client has shown and OpenSSL has verified (DER); None when it has none."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def requested_host(self) -> str | None:
        """The host that the client has named, if it has."""
        return self._tls.requested_host

    async def _flush(self) -> None:
        left: list[Any] = [self._outgoing.read()] if self._outgoing.pending else []
        while left := self._plain.send_now(left):
            await self._plain.writable()

    def _fill(self) -> bool:
        """Keep what has come for OpenSSL; False when nothing has."""
        data = self._plain.receive_now(CIPHERTEXT_BYTES)
        if data is None:
            return False
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        self._has_some = True
        return True

    def peer_has_closed(self) -> bool:
        """Return True if the peer has closed the connection. Receives nothing."""
        return self._plain.peer_has_closed()

    @property
    def has_more(self) -> bool:
        """Whether something has come that was not looked at."""
        return self._has_some

    async def until(self, take: Step, answer: Step = nothing) -> None:
        """Call `take` each time that there may be something to receive, and then `answer`, until one of
        them returns True."""
        while self._has_some:
            await trio.lowlevel.checkpoint()
            if take() or answer():
                return
        await self._plain.until(take, answer)

    def watch(self, take: Step, answer: Step, go_on: GoOn) -> bool:
        """As `until` without a task that waits; False where something is to be looked at now."""
        return not self._has_some and self._plain.watch(take, answer, go_on)

    def let_go(self) -> bool:
        """Have who waits go on at once, as if a step had returned True; whether somebody did."""
        return self._plain.let_go()

    def receive_now(self, size: int) -> bytes | None:
        """Return up to `size` bytes, none when the peer has closed; None when no whole TLS record of
        what it sends is there."""
        if not self._has_some and not self._fill():
            return None
        parts: list[bytes] = []
        while size > 0 and (data := self._decrypted(size)) is not None:
            parts.append(data)
            if not data:
                break
            size -= len(data)
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def receive_into_now(self, buffer: memoryview) -> int | None:
        """As `receive_now`, into a part of `buffer`: how much it was, 0 when the peer has closed."""
        if not self._has_some and not self._fill():
            return None
        filled = 0
        while filled < len(buffer):
            size = self._decrypted_into(buffer[filled:])
            if size == 0:
                return filled
            if size is None:
                return filled or None
            filled += size
        return filled

    def _decrypted(self, size: int) -> bytes | None:
        """The next bytes, at most those of one TLS record; none at the end, None when more has to come."""
        if not self._has_some:
            return None  # OpenSSL would say so too, by an exception that takes as long as the rest
        asked = min(size, RECORD_BYTES)
        try:
            data = self._tls.read(asked)
        except ssl.SSLError as error:
            return b"" if self._is_end(error) else None
        self._look_for_more(is_full=len(data) == asked)
        return data

    def _decrypted_into(self, buffer: memoryview) -> int | None:
        """As `_decrypted`, into a buffer: how many bytes it was."""
        if not self._has_some:
            return None
        asked = min(len(buffer), RECORD_BYTES)
        try:
            size: int = self._tls.read(asked, buffer)  # type: ignore[assignment]
        except ssl.SSLError as error:
            return 0 if self._is_end(error) else None
        self._look_for_more(is_full=size == asked)
        return size

    def _look_for_more(self, *, is_full: bool) -> None:
        """After a read: whether there may be another one; OpenSSL holds nothing when it gave less."""
        if not self._incoming.pending:
            self._has_some = is_full and self._tls.pending() > 0

    def _is_end(self, error: ssl.SSLError) -> bool:
        """Whether the client says no more; or else more has to come. Raises what is neither."""
        if isinstance(error, ssl.SSLWantReadError):
            self._has_some = False
            return False
        if isinstance(error, ssl.SSLZeroReturnError):
            return True
        # Before Python 3.11.3 it has no exception of its own (python/cpython#95494).
        if isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING":
            # Some clients close without a word, and the length of a request says enough. Who does so
            # waits for no word either.
            self._is_heard = False
            return True
        raise error

    async def writable(self) -> None:
        """Wait until `send_now` can go on."""
        if not await self._stored.loaded():
            await self._plain.writable()

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        """Send buffers and file ranges in order, as far as the socket takes them, and as they are in
        memory, without waiting.

        Returns what is left to be sent; what is encrypted already comes first. Raises OSError as
        `PlainTransport.send_now` does.
        """
        sealed, clear = self._split(parts)
        while True:
            if sealed:
                left = self._plain.send_now([sealed])
                self._is_whole = not left
                if left:
                    return [_Sealed(left[0]), *clear]
            sealed = self._seal(clear)
            if not sealed:
                return [*clear]

    def _split(self, parts: Sequence[Any]) -> tuple[bytes, deque[Any]]:
        """What is encrypted already, and what is not, with small neighbours in one."""
        if parts and isinstance(parts[0], _Sealed):
            return parts[0], deque(gather(parts[1:], self._stored))
        return b"", deque(gather(parts, self._stored))

    def _seal(self, clear: deque[Any]) -> bytes:
        """Take some of what is to be sent, as far as it is in memory, and encrypt it."""
        left = SEAL_BYTES
        while clear and left > 0:
            part = clear[0]
            head = _head(part, left) if len(part) > left else part
            buffers = self._stored.read(head) if isinstance(head, FileRange) else (head,)
            if isinstance(buffers, NotCached):
                self._stored.awaits(buffers)
                break
            for buffer in buffers:
                self._tls.write(buffer)
            left -= len(head)
            if head is part:
                clear.popleft()
            else:
                clear[0] = after(part, len(head))
        return self._outgoing.read()

    def close(self) -> None:
        if self._is_shaken and self._is_whole and self._is_heard:
            self._send_close_notify()
        self._plain.close()

    def _send_close_notify(self) -> None:
        """Tell the client that the server ends the connection, so that it can detect truncation."""
        with contextlib.suppress(
            OSError
        ):  # it has not said so itself yet, and nobody waits for that
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._plain.send_now([self._outgoing.read()])

    def reset(self) -> None:
        self._is_whole = False  # it hears of an error, not of an end
        self._plain.reset()


def _head(part: Any, size: int) -> Any:
    """The first `size` bytes of a buffer or range."""
    if isinstance(part, FileRange):
        return FileRange(part.source, part.position, size)
    return memoryview(part)[:size]
