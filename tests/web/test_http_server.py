"""Isolation of HTTP clients from each other, and the end of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from kbroker.client.endpoint import Endpoint
from kbroker.net.server import CannotListen
from kbroker.web import guard
from kbroker.web.guard import Guard, Message, Receive, Rules, Send
from kbroker.web.http_server import HEAD_BYTES_MAX, HttpServer, Limits

from ..loop_latency import longest_step
from ..wire import ANSWER_SECONDS, until
from .client import get, open_http_client

ANY = Endpoint("127.0.0.1", 0)
# More bytes than the system buffers between two sockets.
MUCH = 64 * 1024 * 1024
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Return a small or a large response, wait forever, or fail, depending on the path."""
    path = scope["path"]
    if path == "/fails":
        raise RuntimeError("planted")
    while path == "/reads" and (await receive()).get("more_body"):
        pass
    if path == "/waits":
        await trio.sleep_forever()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = b"x" * MUCH if path == "/much" else b"little"
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def running(
    *, connections: int = 10, seconds: float = 60
) -> AsyncIterator[tuple[HttpServer, Endpoint]]:
    rules = Rules.of((), is_read_only=False, body_bytes_max=1000, seconds=seconds)
    server = HttpServer(Guard(app, rules), ANY, Limits(connections, seconds), "--http")
    await server.bind()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        try:
            yield server, server.endpoint
        finally:
            with trio.CancelScope(shield=True):
                await server.close()


async def test_longest_idle_connection_is_closed_at_the_limit() -> None:
    async with running(connections=3) as (server, endpoint):
        held = [await trio.open_tcp_stream(*endpoint) for _ in range(3)]
        await until(lambda: server.connections == 3)
        for stream in held[1:]:
            await stream.send_all(b"GET")
        for _ in range(2):
            assert (await get(endpoint, "/little")).body == b"little"
        assert await held[0].receive_some() == b""
        for stream in held:
            await stream.aclose()


async def test_limit_of_connections_is_kept_in_a_burst() -> None:
    count, limit = 60, 3
    async with running(connections=limit) as (_, endpoint), trio.open_nursery() as nursery:
        closed: list[trio.SocketStream] = []

        async def wait_closed() -> None:
            async with await trio.open_tcp_stream(*endpoint) as stream:
                assert await stream.receive_some() == b""
                closed.append(stream)

        for _ in range(count):
            nursery.start_soon(wait_closed)
        await until(lambda: len(closed) == count - limit, 5)
        nursery.cancel_scope.cancel()


async def test_client_that_does_not_read_its_response_is_disconnected() -> None:
    async with running(seconds=0.2) as (server, endpoint), open_http_client(endpoint) as slow:
        await slow.stream.send_all(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: server.connections == 1)
        await until(lambda: server.connections == 0)


async def test_close_does_not_wait_for_requests() -> None:
    async with (
        running() as (server, endpoint),
        open_http_client(endpoint) as slow,
        open_http_client(endpoint) as waiting,
        open_http_client(endpoint) as idle,
    ):
        await slow.stream.send_all(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await waiting.stream.send_all(b"GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await idle.ask("/little")).status == 200
        await server.close()
        assert server.connections == 0
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream(*endpoint)


@pytest.mark.parametrize("waits_to_accept", [False, True])
async def test_server_that_is_closed_before_it_runs_ends_at_once(waits_to_accept: bool) -> None:
    may_accept = trio.Event() if waits_to_accept else None
    server = HttpServer(app, ANY, Limits(10, 60), "--http", may_accept=may_accept)
    for _ in range(2):  # it can be bound again
        await server.bind()
        await server.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await trio.testing.wait_all_tasks_blocked()
            is_ended = not nursery.child_tasks
            if may_accept is not None:
                may_accept.set()
        assert is_ended


async def test_slow_request_gets_timeout_response() -> None:
    async with running(seconds=0.1) as (_, endpoint):
        response = await get(endpoint, "/waits")
        assert (response.status, "too long" in response.text) == (503, True)


async def test_failing_request_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (_, endpoint):
        assert (await get(endpoint, "/fails")).status == 500
        assert (await get(endpoint, "/little")).status == 200
    assert "planted" in caplog.text


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("path", "status"), [("/little", 200), ("/fails", 500), ("/reads", 413)])
async def test_unread_body_does_not_block_connection(
    path: str, status: int, is_chunked: bool
) -> None:
    """The client sends a body that is larger than all buffers before it reads the response."""
    headers = {"Transfer-Encoding": "chunked"} if is_chunked else {}
    async with running() as (server, endpoint):
        async with open_http_client(endpoint) as client:
            with trio.fail_after(ANSWER_SECONDS):
                response = await client.ask(path, "POST", headers, bytes(MUCH // 4))
            assert response.status == (status if is_chunked else 413)
            if path != "/fails":
                assert (await client.ask("/little")).status == 200
        await until(lambda: server.connections == 0)


@pytest.mark.parametrize("path", ["/little", "/reads", "/fails"])
@pytest.mark.parametrize("is_short", [False, True])
async def test_endless_body_ends_connection_after_response(
    monkeypatch: pytest.MonkeyPatch, path: str, is_short: bool
) -> None:
    monkeypatch.setattr(guard, "DISCARD_SECONDS", 0.1)
    chunk = b"1\r\nx\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running(seconds=0.2) as (server, endpoint), open_http_client(endpoint) as client:
        await client.stream.send_all(head.encode())
        with trio.fail_after(ANSWER_SECONDS), suppress(trio.BrokenResourceError):
            await client.stream.send_all(chunk)
            while not is_short:
                await client.stream.send_all(chunk * 1000)
        await until(lambda: server.connections == 0)


async def test_request_head_is_limited() -> None:
    async with running() as (_, endpoint):
        assert (await get(endpoint, "/little", X_Long="x" * (HEAD_BYTES_MAX // 2))).status == 200
        assert (await get(endpoint, "/little", X_Long="x" * 2 * HEAD_BYTES_MAX)).status == 431


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\x00\x00\x10" + bytes(16),
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        UPGRADE,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
    ],
)
async def test_malformed_request_closes_only_its_connection(nonsense: bytes) -> None:
    async with running() as (server, endpoint):
        async with open_http_client(endpoint) as client:
            await client.stream.send_all(nonsense)
            while await client.stream.receive_some():
                pass
        await until(lambda: server.connections == 0)
        assert (await get(endpoint, "/little")).status == 200


async def test_port_in_use_is_reported_with_fix() -> None:
    async with running() as (_, endpoint):
        other = HttpServer(app, endpoint, Limits(1, 1), "--http")
        with pytest.raises(CannotListen, match=f"port {endpoint.port} .* --http-port 0"):
            await other.bind()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "localhost"])
async def test_http_listens_on_ipv4_and_ipv6(host: str) -> None:
    server = HttpServer(app, Endpoint(host, 0), Limits(1, 1), "--http")
    await server.bind()
    try:
        for address in ("127.0.0.1", "::1"):
            await (await trio.open_tcp_stream(address, server.endpoint.port)).aclose()
    finally:
        await server.close()


async def test_foreign_address_is_reported() -> None:
    with pytest.raises(CannotListen, match="--http-host"):
        await HttpServer(app, Endpoint("192.0.2.1", 0), Limits(1, 1), "--http").bind()


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return an HTTP/2 frame."""
    head = len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4)
    return head + payload


HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
# GET / from the host `a`, in HPACK.
INDEXED_REQUEST = b"\x82\x84\x86\x41\x01a"
END_STREAM_AND_HEADERS = 5
FLOODS = {
    "settings": frame(SETTINGS, 0) * 10_000,
    "reset requests": b"".join(
        frame(HEADERS, each, INDEXED_REQUEST, END_STREAM_AND_HEADERS)
        + frame(RST_STREAM, each, b"\0\0\0\x08")
        for each in range(1, 4001, 2)
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
async def test_many_http2_frames_do_not_block_event_loop(flood: bytes) -> None:
    async with running() as (server, endpoint):
        stream = await trio.open_tcp_stream(*endpoint)
        with longest_step() as step:
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(receive_all, stream)
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0) + flood
                    )
                await trio.testing.wait_all_tasks_blocked(0.2)
                nursery.cancel_scope.cancel()
            await until(lambda: server.connections == 0)
        assert step.seconds < 0.04, step


async def receive_all(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        async for _ in stream:
            pass
