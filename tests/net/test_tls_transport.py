"""Tests of the TLS transport without sockets: when it sends, and how it reads partial records."""

from __future__ import annotations

import random
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from kbroker.net.readiness_poller import OnDone, Step, send_nothing
from kbroker.net.tls_transport import (
    HEADER_BYTES,
    RECORD_BYTES,
    RECORDS_AT_ONCE,
    TlsTransport,
)
from kbroker.runtime.time_slices import StepThrottle
from kbroker.security.tls import server_context

from ..receiving import receive, receive_into
from ..security.certificates import Authority
from ..security.test_stores import setting


class FakeSocket:
    """An in-memory replacement of a socket: a queue of incoming data and a list of sent data."""

    has_more = False

    def __init__(self) -> None:
        self.incoming: deque[bytes] = deque()
        self.sent: list[bytes] = []
        self.is_closed = False
        self.acknowledged = 0
        self.can_acknowledge = True

    def acknowledge(self) -> bool:
        self.acknowledged += 1
        return self.can_acknowledge

    async def until(self, take: Step, respond: Step = send_nothing) -> None:
        await trio.lowlevel.checkpoint()
        while not self.incoming or not (take() or respond()):
            await trio.lowlevel.checkpoint()

    def watch(self, take: Step, respond: Step, on_done: OnDone) -> bool:
        return False

    def wake(self) -> bool:
        return False

    def peer_has_closed(self) -> bool:
        return self.is_closed

    def receive_now(self, size: int) -> bytes | None:
        return self.incoming.popleft() if self.incoming else None

    def receive_into_now(self, buffer: memoryview) -> int | None:
        raise NotImplementedError

    async def writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def send_now(self, parts: Sequence[Any]) -> list[Any]:
        self.sent += [bytes(part) for part in parts]
        return []

    def close(self) -> None:
        self.is_closed = True

    def reset(self) -> None:
        raise NotImplementedError


class Pair:
    """An OpenSSL client and the server's transport, connected by memory buffers."""

    def __init__(
        self,
        authority: Authority,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        session: ssl.SSLSession | None = None,
        client_context: ssl.SSLContext | None = None,
        server: ssl.SSLContext | None = None,
    ) -> None:
        self.server = server or server_context(setting(ssl_keystore_location=authority.pem("own")))
        self.client_context = client_context or authority.context()
        self.client_context.maximum_version = version
        self.socket = FakeSocket()
        self.transport = TlsTransport(self.socket, self.server)
        self._to_client, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = self.client_context.wrap_bio(
            self._to_client, self._to_server, server_hostname="localhost", session=session
        )
        self._seen = 0

    def deliver_to_client(self) -> None:
        """Deliver the sent data to the client."""
        self._to_client.write(b"".join(self.socket.sent[self._seen :]))
        self._seen = len(self.socket.sent)

    def deliver_to_server(self) -> None:
        """Deliver the client's data to the server."""
        if self._to_server.pending:
            self.socket.incoming.append(self._to_server.read())

    async def handshake(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shake_client)
            await self.transport.handshake(StepThrottle())

    async def _shake_client(self) -> None:
        while True:
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.deliver_to_server()
                while self._seen == len(self.socket.sent):
                    await trio.lowlevel.checkpoint()
                self.deliver_to_client()
            else:
                self.deliver_to_server()
                return


def context_with_client_auth(authority: Authority, client_auth: str) -> ssl.SSLContext:
    """Return the TLS context of a listener that requests client certificates."""
    return server_context(
        setting(
            ssl_keystore_location=authority.pem("own"),
            ssl_client_auth=client_auth,
            ssl_truststore_location=authority.trusted,
        )
    )


@pytest.mark.parametrize("client_auth", ["required", "requested"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_expired_client_certificate_cannot_resume_session(
    authority: Authority,
    version: ssl.TLSVersion,
    client_auth: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = context_with_client_auth(authority, client_auth)
    client_context = authority.context(authority.pem("client"))
    first = Pair(authority, version, client_context=client_context, server=server)
    await first.handshake()
    first.transport.send_now([b"response"])
    first.deliver_to_client()
    assert first.client.read(100) == b"response"
    assert first.transport.certificate is not None
    session = first.client.session
    assert session is not None
    assert not session.has_ticket
    # trustme certificates expire at the end of the year 2999.
    later = ssl.cert_time_to_seconds("Jan  2 00:00:00 3000 GMT")
    monkeypatch.setattr("kbroker.net.tls_transport.time.time", lambda: later)
    expired = Pair(
        authority, version, session=session, client_context=client_context, server=server
    )
    if version is ssl.TLSVersion.TLSv1_3:
        await expired.handshake()
        assert not expired.client.session_reused, "OpenSSL must verify the certificate again"
    else:
        with pytest.raises(ExceptionGroup) as caught:
            await expired.handshake()
        assert expired.client.session_reused
        assert caught.group_contains(ssl.SSLError, match="certificate has expired")


async def test_session_tickets_are_sent_with_first_response(authority: Authority) -> None:
    pair = Pair(authority)
    await pair.handshake()
    assert len(pair.socket.sent) == 1, "only the handshake is sent"
    pair.transport.send_now([b"response"])
    assert len(pair.socket.sent) == 2
    pair.deliver_to_client()
    assert pair.client.read(100) == b"response"
    session = pair.client.session
    assert session is not None
    assert session.has_ticket
    resumed = Pair(
        authority, session=session, client_context=pair.client_context, server=pair.server
    )
    await resumed.handshake()
    assert resumed.client.session_reused


async def test_end_of_handshake_is_acknowledged_immediately(
    authority: Authority,
) -> None:
    """Nagle's algorithm delays a small request until the end of the handshake is acknowledged."""
    pair = Pair(authority)
    await pair.handshake()
    assert pair.socket.acknowledged == 1
    assert len(pair.socket.sent) == 1
    pair = Pair(authority)
    pair.socket.can_acknowledge = False
    await pair.handshake()
    assert len(pair.socket.sent) == 2, "the session tickets act as the acknowledgement"


async def test_tls_1_2_handshake_completes(authority: Authority) -> None:
    pair = Pair(authority, ssl.TLSVersion.TLSv1_2)
    await pair.handshake()
    assert pair.client.version() == "TLSv1.2"
    pair.client.write(b"request")
    pair.deliver_to_server()
    assert await receive(pair.transport, 100) == b"request"


async def test_request_sent_with_end_of_handshake_is_received(
    authority: Authority,
) -> None:
    pair = Pair(authority)

    async def send_together() -> None:
        await pair._shake_client()
        pair.client.write(b"request")
        first = pair.socket.incoming.pop()
        pair.deliver_to_server()
        pair.socket.incoming.append(first + pair.socket.incoming.pop())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_together)
        await pair.transport.handshake(StepThrottle())
    assert await receive(pair.transport, 100) == b"request"


async def test_client_with_rejected_tls_version_gets_alert(authority: Authority) -> None:
    pair = Pair(authority)
    pair.server.minimum_version = ssl.TLSVersion.TLSv1_3
    old = Pair(authority, ssl.TLSVersion.TLSv1_2, server=pair.server)
    with pytest.raises(ssl.SSLWantReadError):
        old.client.do_handshake()
    old.deliver_to_server()
    with pytest.raises(ssl.SSLError):
        await old.transport.handshake(StepThrottle())
    old.deliver_to_client()
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        old.client.do_handshake()


async def test_close_after_end_of_stream_sends_nothing(authority: Authority) -> None:
    pair = Pair(authority)
    await pair.handshake()
    sent = len(pair.socket.sent)
    pair.socket.incoming.append(b"")
    assert await receive(pair.transport, 100) == b""
    pair.transport.close()
    assert pair.socket.is_closed
    assert len(pair.socket.sent) == sent


@pytest.mark.parametrize("client_closes", [False, True])
async def test_close_sends_close_notify(authority: Authority, *, client_closes: bool) -> None:
    """The client sends close_notify, or the broker closes first."""
    pair = Pair(authority)
    await pair.handshake()
    if client_closes:
        with pytest.raises(ssl.SSLWantReadError):
            pair.client.unwrap()
        pair.deliver_to_server()
        assert await receive(pair.transport, 100) == b""
    pair.transport.close()
    pair.deliver_to_client()
    if client_closes:
        pair.client.unwrap()
    else:
        assert pair.client.read(1) == b"", "an end of stream, not an error"


async def test_many_small_records_are_decrypted_in_limited_steps(authority: Authority) -> None:
    """OpenSSL would process any number of records without plaintext, such as KeyUpdate, in one call."""
    pair = Pair(authority)
    await pair.handshake()
    count = 10 * RECORDS_AT_ONCE + 1
    for _ in range(count):
        pair.client.write(b"x")
    pair.deliver_to_server()
    assert pair.transport.receive_now(count) == b"x" * RECORDS_AT_ONCE
    assert pair.transport.has_more
    left = count - RECORDS_AT_ONCE
    while left:
        some = await receive(pair.transport, count)
        assert 0 < len(some) <= RECORDS_AT_ONCE
        left -= len(some)
    assert pair.transport.receive_now(count) is None
    assert not pair.transport.has_more


async def test_handshake_message_in_many_records_is_accepted(authority: Authority) -> None:
    pair = Pair(authority)
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.do_handshake()
    pair.deliver_to_server()
    hello = pair.socket.incoming.pop()
    header, body = hello[: HEADER_BYTES - 2], hello[HEADER_BYTES:]
    assert len(body) > 2 * RECORDS_AT_ONCE
    pair.socket.incoming.append(b"".join(header + b"\0\1%c" % each for each in body))
    with trio.fail_after(10):
        await pair.handshake()


SIZES = (1, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES)


@pytest.mark.parametrize("seed", range(5))
async def test_records_in_arbitrary_fragments_are_read_completely(
    authority: Authority, seed: int
) -> None:
    """Records, fragments and reads have random sizes."""
    pair = Pair(authority)
    await pair.handshake()
    numbers = random.Random(seed)
    sent = b""
    for _ in range(20):
        each = numbers.randbytes(numbers.choice(SIZES))
        pair.client.write(each)
        sent += each
    pair.deliver_to_server()
    encrypted = pair.socket.incoming.pop()
    while encrypted:
        size = numbers.choice((1, 5, 1000, RECORD_BYTES, 5 * RECORD_BYTES))
        pair.socket.incoming.append(encrypted[:size])
        encrypted = encrypted[size:]
    got = b""
    while len(got) < len(sent):
        size = numbers.choice(SIZES)
        if numbers.random() < 0.5:
            some = await receive(pair.transport, size)
        else:
            buffer = bytearray(size)
            some = bytes(buffer[: await receive_into(pair.transport, memoryview(buffer))])
        assert 0 < len(some) <= size
        got += some
    assert got == sent
    pair.socket.incoming.append(b"")
    assert not await receive_into(pair.transport, memoryview(bytearray(1)))
