"""Attacks of a client on a schema registry: each function is one round of an attack."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import h11
import trio

from ..schemas.attacks import ATTACKS, BYTES
from .attacks import Attack, BrokerMisbehaved, Target

VERSIONS = 20
ANSWERS = 30
SERVER_ERROR = 500
HEADERS = [("host", "localhost"), ("content-type", "application/json")]


@cache
def bodies_of(name: str) -> tuple[bytes, ...]:
    """Return the requests of an attack at full size, the earlier schema first."""
    made = ATTACKS[name](BYTES)
    texts = (each for each in (made.earlier, made.text) if each is not None)
    return tuple(json.dumps({"schema": each, "schemaType": made.type}).encode() for each in texts)


async def ask(target: Target, method: str, path: str, body: bytes = b"") -> int:
    """Send one request on a new connection and return the HTTP status."""
    assert target.registry is not None
    http = h11.Connection(h11.CLIENT)
    length = [("content-length", str(len(body)))]
    head = h11.Request(method=method, target=path, headers=[*HEADERS, *length])
    data = (http.send(head) or b"") + (http.send(h11.Data(data=body)) or b"")
    data += http.send(h11.EndOfMessage()) or b""
    stream = await trio.open_tcp_stream(*target.registry)
    body_start = b""
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        while True:
            event: Any = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body_start = bytes(event.data)[:200]
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                break
        nursery.cancel_scope.cancel()
    if status == SERVER_ERROR:
        raise BrokerMisbehaved(f"{method} {path} returned {status}: {body_start!r}")
    return status


async def expensive_schemas(target: Target) -> None:
    name = random.choice([*ATTACKS])
    for body in bodies_of(name):
        await ask(target, "POST", f"/subjects/{name}/versions", body)


async def comparisons_with_many_versions(target: Target) -> None:
    await ask(target, "PUT", "/config/long", b'{"compatibility": "NONE"}')
    for number in range(VERSIONS):
        symbols = [f"s{i}" for i in range(number, 4000 + number)]
        text = json.dumps({"type": "enum", "name": "E", "symbols": symbols})
        body = json.dumps({"schema": text}).encode()
        await ask(target, "POST", "/subjects/long/versions", body)
    await ask(target, "PUT", "/config/long", b'{"compatibility": "FULL_TRANSITIVE"}')
    for _ in range(2):
        await ask(target, "POST", "/compatibility/subjects/long/versions", body)


async def long_lists_never_read(target: Target) -> None:
    assert target.registry is not None
    async with trio.open_nursery() as nursery:
        for _ in range(ANSWERS):
            nursery.start_soon(_ask_and_hold, target)


async def _ask_and_hold(target: Target) -> None:
    assert target.registry is not None
    async with await trio.open_tcp_stream(*target.registry) as stream:
        await stream.send_all(b"GET /schemas?deleted=true HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await trio.sleep(target.hold_seconds)


# Attacks on a schema registry, with the number of concurrent clients.
ATTACKS_ON_REGISTRY: Mapping[Attack, int] = {
    expensive_schemas: 3,
    comparisons_with_many_versions: 1,
    long_lists_never_read: 1,
}
