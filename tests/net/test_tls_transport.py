"""The transport of TLS by itself: what it sends and when, and how it puts together what comes."""

from __future__ import annotations

import random
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from kbroker.net.readiness_poller import OnDone, Step, send_nothing
from kbroker.net.tls_transport import RECORD_BYTES, TlsTransport
from kbroker.runtime.time_slices import StepThrottle
from kbroker.security.tls import server_context

from ..receiving import receive, receive_into
from ..security.certificates import Authority
from ..security.test_stores import setting


class Line:
    """Stands for a socket: what comes is given to it, and what is sent is kept."""

    has_more = False

    def __init__(self) -> None:
        self.coming: deque[bytes] = deque()
        self.sent: list[bytes] = []
        self.is_closed = False
        self.acknowledged = 0
        self.can_acknowledge = True

    def acknowledge(self) -> bool:
        self.acknowledged += 1
        return self.can_acknowledge

    async def until(self, take: Step, answer: Step = send_nothing) -> None:
        await trio.lowlevel.checkpoint()
        while not self.coming or not (take() or answer()):
            await trio.lowlevel.checkpoint()

    def watch(self, take: Step, answer: Step, on_done: OnDone) -> bool:
        return False

    def wake(self) -> bool:
        return False

    def peer_has_closed(self) -> bool:
        return self.is_closed

    def receive_now(self, size: int) -> bytes | None:
        return self.coming.popleft() if self.coming else None

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
    """A client of OpenSSL's, and the server's transport, with nothing but buffers between them."""

    def __init__(
        self,
        authority: Authority,
        version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
        session: ssl.SSLSession | None = None,
        trusts: ssl.SSLContext | None = None,
        server: ssl.SSLContext | None = None,
    ) -> None:
        self.server = server or server_context(setting(ssl_keystore_location=authority.pem("own")))
        self.trusts = trusts or authority.context()
        self.trusts.maximum_version = version
        self.line = Line()
        self.transport = TlsTransport(self.line, self.server)
        self._to_client, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = self.trusts.wrap_bio(
            self._to_client, self._to_server, server_hostname="localhost", session=session
        )
        self._seen = 0

    def take(self) -> None:
        """Let the client have what was sent to it."""
        self._to_client.write(b"".join(self.line.sent[self._seen :]))
        self._seen = len(self.line.sent)

    def give(self) -> None:
        """Let the server have what the client has sent."""
        if self._to_server.pending:
            self.line.coming.append(self._to_server.read())

    async def handshake(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._shake_client)
            await self.transport.handshake(StepThrottle())

    async def _shake_client(self) -> None:
        while True:
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.give()
                while self._seen == len(self.line.sent):
                    await trio.lowlevel.checkpoint()
                self.take()
            else:
                self.give()
                return


def asking(authority: Authority, client_auth: str) -> ssl.SSLContext:
    """The context of a listener that asks clients for certificates."""
    return server_context(
        setting(
            ssl_keystore_location=authority.pem("own"),
            ssl_client_auth=client_auth,
            ssl_truststore_location=authority.trusted,
        )
    )


@pytest.mark.parametrize("client_auth", ["required", "requested"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_expired_client_certificate_does_not_come_in_by_a_resumed_session(
    authority: Authority,
    version: ssl.TLSVersion,
    client_auth: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = asking(authority, client_auth)
    trusts = authority.context(authority.pem("client"))
    first = Pair(authority, version, trusts=trusts, server=server)
    await first.handshake()
    first.transport.send_now([b"answer"])
    first.take()
    assert first.client.read(100) == b"answer"
    assert first.transport.certificate is not None
    session = first.client.session
    assert session is not None
    assert not session.has_ticket
    later = ssl.cert_time_to_seconds("Jan  2 00:00:00 3000 GMT")  # trustme's end with that year
    monkeypatch.setattr("kbroker.net.tls_transport.time.time", lambda: later)
    expired = Pair(authority, version, session=session, trusts=trusts, server=server)
    if version is ssl.TLSVersion.TLSv1_3:
        await expired.handshake()
        assert not expired.client.session_reused, "OpenSSL has verified the certificate again"
    else:
        with pytest.raises(ExceptionGroup) as caught:
            await expired.handshake()
        assert expired.client.session_reused
        assert caught.group_contains(ssl.SSLError, match="certificate has expired")


async def test_tickets_go_out_with_the_first_answer(authority: Authority) -> None:
    pair = Pair(authority)
    await pair.handshake()
    assert len(pair.line.sent) == 1, "what the client has to know, and nothing more"
    pair.transport.send_now([b"answer"])
    assert len(pair.line.sent) == 2
    pair.take()
    assert pair.client.read(100) == b"answer"
    session = pair.client.session
    assert session is not None
    assert session.has_ticket
    again = Pair(authority, session=session, trusts=pair.trusts, server=pair.server)
    await again.handshake()
    assert again.client.session_reused


async def test_a_client_that_keeps_its_request_back_until_it_has_heard_hears_at_once(
    authority: Authority,
) -> None:
    """Nagle's algorithm: its request is a small piece behind another one, the end of the handshake."""
    pair = Pair(authority)
    await pair.handshake()
    assert pair.line.acknowledged == 1
    assert len(pair.line.sent) == 1
    pair = Pair(authority)
    pair.line.can_acknowledge = False
    await pair.handshake()
    assert len(pair.line.sent) == 2, "the tickets say so"


async def test_an_older_version_waits_for_the_end_of_the_handshake(authority: Authority) -> None:
    pair = Pair(authority, ssl.TLSVersion.TLSv1_2)
    await pair.handshake()
    assert pair.client.version() == "TLSv1.2"
    pair.client.write(b"request")
    pair.give()
    assert await receive(pair.transport, 100) == b"request"


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_there(
    authority: Authority,
) -> None:
    pair = Pair(authority)

    async def ask() -> None:
        await pair._shake_client()
        pair.client.write(b"request")
        first = pair.line.coming.pop()
        pair.give()
        pair.line.coming.append(first + pair.line.coming.pop())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await pair.transport.handshake(StepThrottle())
    assert await receive(pair.transport, 100) == b"request"


async def test_who_is_refused_hears_why(authority: Authority) -> None:
    pair = Pair(authority)
    pair.server.minimum_version = ssl.TLSVersion.TLSv1_3
    old = Pair(authority, ssl.TLSVersion.TLSv1_2, server=pair.server)
    with pytest.raises(ssl.SSLWantReadError):
        old.client.do_handshake()
    old.give()
    with pytest.raises(ssl.SSLError):
        await old.transport.handshake(StepThrottle())
    old.take()
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        old.client.do_handshake()


async def test_who_closes_without_a_word_is_sent_none(authority: Authority) -> None:
    pair = Pair(authority)
    await pair.handshake()
    sent = len(pair.line.sent)
    pair.line.coming.append(b"")
    assert await receive(pair.transport, 100) == b""
    pair.transport.close()
    assert pair.line.is_closed
    assert len(pair.line.sent) == sent


@pytest.mark.parametrize("says_so", [False, True])
async def test_who_may_listen_hears_of_the_end(authority: Authority, *, says_so: bool) -> None:
    """Whether it has said itself that nothing more comes, or the broker closes first."""
    pair = Pair(authority)
    await pair.handshake()
    if says_so:
        with pytest.raises(ssl.SSLWantReadError):
            pair.client.unwrap()
        pair.give()
        assert await receive(pair.transport, 100) == b""
    pair.transport.close()
    pair.take()
    if says_so:
        pair.client.unwrap()
    else:
        assert pair.client.read(1) == b"", "and not an error: nothing is missing"


SIZES = (1, 100, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES)


@pytest.mark.parametrize("seed", range(5))
async def test_all_that_comes_is_read_however_it_is_cut(authority: Authority, seed: int) -> None:
    """Records of all sizes, which come in parts, a part or several at a time, to reads of all sizes."""
    pair = Pair(authority)
    await pair.handshake()
    numbers = random.Random(seed)
    told = b""
    for _ in range(20):
        each = numbers.randbytes(numbers.choice(SIZES))
        pair.client.write(each)
        told += each
    pair.give()
    sealed = pair.line.coming.pop()
    while sealed:
        size = numbers.choice((1, 5, 1000, RECORD_BYTES, 5 * RECORD_BYTES))
        pair.line.coming.append(sealed[:size])
        sealed = sealed[size:]
    got = b""
    while len(got) < len(told):
        size = numbers.choice(SIZES)
        if numbers.random() < 0.5:
            some = await receive(pair.transport, size)
        else:
            buffer = bytearray(size)
            some = bytes(buffer[: await receive_into(pair.transport, memoryview(buffer))])
        assert 0 < len(some) <= size
        got += some
    assert got == told
    pair.line.coming.append(b"")
    assert not await receive_into(pair.transport, memoryview(bytearray(1)))
