"""A test token issuer: keys, signed tokens, and a server for the key set."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import trio
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

Key = RSAKey | ECKey | OKPKey

ISSUER, AUDIENCE = "https://issuer.test", "kafka"
# Time at which unit tests verify tokens, in seconds since the epoch.
NOW = 1_800_000_000


@cache
def key_for(algorithm: str, name: str = "one") -> Key:
    """Return a cached key pair for an algorithm, because generation is slow; `name` is its key ID."""
    facts: Any = {"kid": name, "use": "sig"}
    if algorithm.startswith(("RS", "PS")):
        return RSAKey.generate_key(2048, facts)
    if algorithm.startswith("ES"):
        curves: Any = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
        return ECKey.generate_key(curves[algorithm], facts)
    return OKPKey.generate_key("Ed25519", facts)


def key_set(*keys: Key, **facts: Any) -> bytes:
    """Return a JWKS with the public keys."""
    return json.dumps(
        {"keys": [{**each.as_dict(private=False), **facts} for each in keys]}
    ).encode()


class _Any(jws.JWSRegistry):
    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


def signed(
    claims: Any, key: Key | OctKey, algorithm: str, header: dict[str, Any] | None = None
) -> str:
    """Return a token signed by a key, even with invalid contents."""
    named = {"kid": key.kid} if key.kid else {}
    text = claims if isinstance(claims, str) else json.dumps(claims)
    whole = {"alg": algorithm, "typ": "JWT", **named, **(header or {})}
    return jws.serialize_compact(
        {name: value for name, value in whole.items() if value is not None},
        text,
        key,
        registry=_Any(strict_check_header=False),
    )


def claims_for(name: str = "alice", now: float | None = None, **more: Any) -> dict[str, Any]:
    """Return the claims of a valid token; None omits a claim."""
    now = NOW if now is None else now
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now - 10, "exp": now + 300}
    return {key: value for key, value in {**claims, **more}.items() if value is not None}


def token_for(name: str = "alice", algorithm: str = "ES256", **more: Any) -> str:
    """Return a token that is valid now."""
    return signed(claims_for(name, time.time(), **more), key_for(algorithm), algorithm)


class Page:
    """The response of a test server; `asked` counts the client's requests."""

    def __init__(self, body: bytes, status: str = "200 OK") -> None:
        self.body = body
        self.status = status
        self.asked = 0
        self.requests: list[bytes] = []
        self.delay_seconds = 0.0


@asynccontextmanager
async def serving(page: Page, shown: Path) -> AsyncIterator[str]:
    """Run an HTTPS server with the certificate file `shown`; yields its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown)

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        async with stream:
            try:
                page.requests.append(bytes(await stream.receive_some()))
                page.asked += 1
                await trio.sleep(page.delay_seconds)
                head = f"HTTP/1.1 {page.status}\r\nContent-Length: {len(page.body)}\r\n\r\n"
                await stream.send_all(head.encode() + page.body)
            except trio.BrokenResourceError:
                pass

    async with trio.open_nursery() as nursery:
        serve = partial(
            trio.serve_ssl_over_tcp, ssl_context=context, host="127.0.0.1", https_compatible=True
        )
        listeners = await nursery.start(serve, answer, 0)
        port = listeners[0].transport_listener.socket.getsockname()[1]
        yield f"https://127.0.0.1:{port}/keys"
        nursery.cancel_scope.cancel()
