"""Host, origin, method and size limits of HTTP requests."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
import trio

from kbroker.web.guard import App, Guard, Message, Receive, Rules, Send

from .client import get, open_http_client, served

RULES = Rules(frozenset({"kafka.example.org"}), False, 10, math.inf)


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("127.0.0.1:1", True),
        ("[::1]:8080", True),
        ("10.1.2.3", True),
        ("broker-1:8080", True),
        ("kafka.example.org", True),
        ("Kafka.Example.org:80", True),
        ("evil.example.org", False),
        ("127.0.0.1.evil.org", False),
        ("", False),
        ("[::1", False),
        ("localhost.evil.org:8080", False),
    ],
)
def test_foreign_host_names_are_rejected(host: str, accepted: bool) -> None:
    assert RULES.accepts_host(host) is accepted


async def test_cross_origin_request_is_rejected() -> None:
    async with served() as (_, http):
        endpoint = http.endpoint_of(1)
        for path in ("/livez", "/readyz", "/metrics", "/nothing"):
            assert (await get(endpoint, path, Host="evil.example.org")).status == 421
            assert (await get(endpoint, path, Origin="http://evil.example.org")).status == 403
        own = f"http://{endpoint}"
        response = await get(endpoint, "/livez", Origin=own)
        assert response.status == 200
        assert "access-control-allow-origin" not in response.headers
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["content-security-policy"].startswith("default-src 'self'")


async def test_allowed_host_name_is_served() -> None:
    async with served(http_allowed_hosts="kafka.example.org") as (_, http):
        response = await get(http.endpoint_of(1), "/livez", Host="kafka.example.org:8080")
        assert response.status == 200


async def test_write_on_exposed_address_is_rejected() -> None:
    async with served(http_host="0.0.0.0") as (_, http):
        async with open_http_client(http.endpoint_of(1)) as client:
            response = await client.ask("/livez", "POST")
        assert (response.status, response.json()["error"]) == (
            403,
            "this server is read-only on non-loopback addresses",
        )
        assert (await get(http.endpoint_of(1), "/livez")).status == 200


async def test_unknown_path_is_not_found_and_get_changes_nothing() -> None:
    async with served() as (_, http), open_http_client(http.endpoint_of(1)) as client:
        assert (await client.ask("/nothing")).status == 404
        assert (await client.ask("/livez", "DELETE")).status == 405
        assert (await client.ask("/livez", "HEAD")).body == b""
        assert (await client.ask("/livez")).status == 200, "on the same connection"


TOO_LONG = "the request took too long (http.request.timeout.ms)"


@pytest.mark.parametrize(
    ("method", "hint"),
    [("GET", ""), ("POST", "; check whether the change was made before you repeat it")],
)
async def test_change_that_takes_too_long_may_have_been_made(method: str, hint: str) -> None:
    async def never(*_: object) -> None:
        await trio.sleep_forever()

    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Message = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "headers": [(b"host", b"localhost")],
    }
    await Guard(never, replace(RULES, seconds=0.01))(scope, receive, send)
    start, body = sent
    assert start["status"] == 503
    assert json.loads(body["body"])["error"] == TOO_LONG + hint


async def return_body_size(scope: Message, receive: Receive, send: Send) -> None:
    """An application that reads the whole request and returns its size."""
    size = 0
    while True:
        message = await receive()
        size += len(message["body"])
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % size})


async def respond_500_to_errors(scope: Message, receive: Receive, send: Send) -> None:
    """An application with its own response to unexpected errors."""
    try:
        await return_body_size(scope, receive, send)
    except Exception:  # noqa: BLE001  # as in the schema registry
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"unexpected error"})


async def status_of(*parts: bytes, **headers: str) -> int:
    """Return the response status of a request whose body has several parts."""
    return await status_from(return_body_size, parts, headers)


async def status_from(app: App, parts: Iterable[bytes], headers: Mapping[str, str]) -> int:
    """Return the response status of a request to an application."""
    queue = [{"type": "http.request", "body": each, "more_body": True} for each in parts]
    queue.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[Message] = []

    async def receive() -> Message:
        return queue.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    fields = [(b"host", b"localhost"), *((k.encode(), v.encode()) for k, v in headers.items())]
    scope = {"type": "http", "method": "POST", "headers": fields}
    await Guard(app, RULES)(scope, receive, send)
    status: int = sent[0]["status"]
    return status


async def test_request_body_is_limited_with_and_without_content_length() -> None:
    assert await status_of(b"12345", b"67890") == 200
    assert await status_of(b"12345", b"678901") == 413
    assert await status_from(respond_500_to_errors, [b"12345678901"], {}) == 413
    assert await status_of(**{"content-length": "11"}) == 413
    assert await status_of(**{"content-length": "10"}) == 200
    assert await status_of(**{"content-length": "-1"}) == 200, "hypercorn rejects it earlier"
