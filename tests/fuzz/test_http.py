"""Malformed HTTP requests, control-port lines and tokens.

No server may respond with status 500 or log a traceback: the console with metrics and probes, the
schema registry, and the control port.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.client.endpoint import Endpoint
from kbroker.config import BrokerConfig
from kbroker.process.http import http_service
from kbroker.security.tokens import BadToken, Tokens, UnknownKey, Verified
from kbroker.testing.control import run_controlled_broker

from ..brokers import LOOPBACK
from ..security.issuers import NOW, claims_for, key_for, key_set, signed
from ..security.test_tokens import MODULE, lookup, settings_for
from ..web.client import broker_with

# HTTP requests per frame of `--frames`: each needs a connection.
REQUESTS_PER_FRAME = 1 / 50
TOKENS_PER_FRAME = 1 / 10
ANSWER_SECONDS, PATIENCE_SECONDS = 30, 0.5
HEAD_BYTES = 65_536
DIGITS = "9" * 5_000

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "X", "")
UNUSUAL_WORDS = (
    *("", "[", "]", "http://[", "//[::1", ":", "a:b:c", "@", "http://a@b:c", "\\", "'", '"', ";"),
    *(DIGITS, "-" + DIGITS, "-1", "0x10", "1e999", "NaN", "Infinity", "1_000", "+1", "00", " 1"),
    *(
        "%",
        "%%",
        "%zz",
        "%00",
        "%ff",
        "%ed%a0%80",
        "%F0%9F%92%A9",
        "%2e%2e%2f",
        "..",
        "//",
        "a" * 3_000,
    ),
    *("null", "true", "{}", "[]", "\x7f", "\xff", "\xb2", "%D9%A1", "t", "0", "g", "1"),
)
PATHS = (
    *(
        "/",
        "/console",
        "/console/",
        "/console/X",
        "/metrics",
        "/livez",
        "/readyz",
        "/healthz",
        "/X",
    ),
    *(
        "/api/v1/session",
        "/api/v1/overview",
        "/api/v1/cluster",
        "/api/v1/storage",
        "/api/v1/activity",
    ),
    *("/api/v1/topics", "/api/v1/topics/X", "/api/v1/topics/X/config", "/api/v1/topics/X/messages"),
    *("/api/v1/topics/X/live", "/api/v1/topics/X/records", "/api/v1/topics/X/records/X/X/X"),
    *("/api/v1/topics/X/records/X/X/resend", "/api/v1/groups", "/api/v1/groups/X/details"),
    *("/api/v1/groups/X/seek", "/api/v1/groups/X/delete", "/api/v1/explain/group/X"),
    *("/api/v1/explain/transaction/X", "/api/v1/explain/client/X", "/api/v1/explain/partition/X/X"),
    *(
        "/api/v1/transactions",
        "/api/v1/transactions/abort",
        "/api/v1/tests",
        "/api/v1/tests/disarm",
    ),
    *("/api/v1/tests/advance", "/subjects", "/subjects/X", "/subjects/X/versions"),
    *(
        "/subjects/X/versions/X",
        "/subjects/X/versions/X/schema",
        "/subjects/X/versions/X/referencedby",
    ),
    *("/schemas", "/schemas/ids/X", "/schemas/ids/X/schema", "/schemas/ids/X/versions"),
    *(
        "/schemas/ids/X/subjects",
        "/schemas/guids/X",
        "/schemas/types",
        "/config",
        "/config/X",
        "/mode",
    ),
    *("/mode/X", "/contexts", "/compatibility/subjects/X/versions", "/v1/metadata/id"),
    *("/compatibility/subjects/X/versions/X",),
)
QUERY = (
    *("offset", "limit", "search", "after", "internal", "from", "timestamp", "partition", "cursor"),
    *("ms", "bytes", "committed", "contains", "key", "header", "where", "decoded", "deleted"),
    *("deletedOnly", "normalize", "format", "subject", "subjectPrefix", "permanent", "verbose"),
    *("latestOnly", "defaultToGlobal", "fetchMaxId", "force", "", "%"),
)
HEADERS = (
    *("Host", "Origin", "Authorization", "Content-Length", "Content-Type", "Transfer-Encoding"),
    *("Sec-Fetch-Site", "Last-Event-ID", "X-Kbroker-Token", "Expect", "Upgrade", "Connection"),
    *(
        "Accept",
        "Accept-Encoding",
        "If-None-Match",
        "Range",
        "Cookie",
        "User-Agent",
        "X-Forwarded-For",
    ),
    *("HTTP2-Settings", "Sec-WebSocket-Key", "Sec-WebSocket-Version"),
)
VALUES = (
    *("Basic", "Basic =", "Basic \xff\xfe", "Basic Og==", "Basic gIA6gA==", "Bearer x", "chunked"),
    *("chunked, chunked", "gzip", "same-origin", "cross-site", "100-continue", "h2c", "websocket"),
    *(
        "Upgrade",
        "close",
        "keep-alive",
        '{"0": ' + DIGITS + "}",
        '{"x": 1}',
        "[[]]",
        "localhost:99999",
    ),
)
FIELDS = (
    *(
        "to",
        "value",
        "topic",
        "partitions",
        "dry_run",
        "partition",
        "start_offset",
        "fault",
        "clock",
    ),
    *("seconds", "schema", "schemaType", "references", "compatibility", "mode", "id", "version"),
    *("key", "headers", "offset", "timestamp", "normalize", "metadata", "ruleSet", "key_base64"),
)


class RequestGenerator:
    """A generator of random requests."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def unusual_word(self) -> str:
        return self.chance.choice(UNUSUAL_WORDS)

    def target(self) -> str:
        parts = self.chance.choice(PATHS).split("/")
        path = "/".join(self._part() if each == "X" else each for each in parts)
        if self.chance.random() < 0.4:
            return path
        pairs = (self._pair() for _ in range(self.chance.randint(1, 4)))
        return f"{path}?{'&'.join(pairs)}"

    def _part(self) -> str:
        return self.chance.choice(("t", "g", "0", "1", self.unusual_word(), self.unusual_word()))

    def _pair(self) -> str:
        return f"{self.chance.choice(QUERY)}={self.unusual_word()}"

    def json(self, depth: int = 0) -> Any:
        draw = self.chance.random()
        if depth < 3 and draw < 0.15:
            return [self.json(depth + 1) for _ in range(self.chance.randint(0, 3))]
        if depth < 3 and draw < 0.3:
            return {self.chance.choice((*FIELDS, "\ud800")): self.json(depth + 1) for _ in range(3)}
        return self.chance.choice(
            (
                *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e300),
                *(
                    float("nan"),
                    float("inf"),
                    "",
                    "t",
                    "g",
                    "start",
                    "end",
                    "offset",
                    "time",
                    "log",
                ),
                *("\ud800", "\0", "x" * 500, self.unusual_word()),
            )
        )

    def body(self) -> bytes:
        draw = self.chance.random()
        if draw < 0.3:
            return b""
        if draw < 0.4:
            return self.chance.choice(
                (b"{", b"[" * 5_000, DIGITS.encode(), b"\xff\xfe", b'"\\ud800"')
            )
        fields = self.chance.sample(FIELDS, self.chance.randint(0, 6))
        return json.dumps({each: self.json(1) for each in fields}).encode()

    def request(self, host: str) -> bytes:
        body = self.body()
        method = self.chance.choice(
            METHODS if self.chance.random() < 0.3 else ("GET", "POST", "PUT")
        )
        headers = [("Host", host), ("Connection", "close"), ("Content-Length", str(len(body)))]
        if self.chance.random() < 0.4:
            name = self.chance.choice(HEADERS)
            headers = [each for each in headers if each[0] != name or self.chance.random() < 0.5]
            headers.append((name, self.chance.choice((*VALUES, *UNUSUAL_WORDS))))
        head = f"{method} {self.target()} HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers
        )
        return head.encode("latin-1", "replace") + b"\r\n" + body


async def status_of(endpoint: Endpoint, request: bytes) -> int | None:
    """Send a request and return the status of the response, or None without a response."""
    data = b""
    async with await trio.open_tcp_stream(*endpoint) as stream:
        with suppress(trio.BrokenResourceError), trio.fail_after(ANSWER_SECONDS):
            await stream.send_all(request)
            with trio.move_on_after(PATIENCE_SECONDS):
                data = await stream.receive_some(HEAD_BYTES)
            if not data:  # the server may wait for more of a body
                await stream.send_eof()
                data = await stream.receive_some(HEAD_BYTES)
    parts = bytes(data).split(None, 2)
    return int(parts[1]) if len(parts) > 1 and parts[0].startswith(b"HTTP/") else None


def check_log(caplog: pytest.LogCaptureFixture, sent: object) -> None:
    """Check that no error was logged; a failure shows what was sent."""
    bad = [each for each in caplog.records if each.exc_info or each.levelno >= logging.ERROR]
    assert not bad, (sent, [each.getMessage() for each in bad], bad[0].exc_info)


async def test_random_http_requests_cause_no_error(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    options = {"http.port": "0", "registry.port": "0", "connection.setup.timeout.ms": "3600000"}
    config = BrokerConfig.load(options=options)
    service = http_service(config, [LOOPBACK])
    assert service is not None
    assert service.http is not None
    assert service.registry is not None
    generator = RequestGenerator(random.Random(request.config.option.seed))
    number = int(request.config.option.frames * REQUESTS_PER_FRAME)
    statuses: set[int | None] = set()
    async with broker_with(service, config, None, None):
        for endpoint in (service.http.endpoint_of(1), service.registry.endpoint_of(1)):
            for _ in range(number):
                sent = generator.request(str(endpoint))
                status = await status_of(endpoint, sent)
                statuses.add(status)
                assert status != 500, sent[:2_000]
                check_log(caplog, sent[:2_000])
    assert {200, 400, 404} <= statuses, "the requests did not reach handlers"


@pytest.mark.parametrize(
    "head",
    [
        "GET /api/v1/session HTTP/1.1\r\nOrigin: http://[\r\n",
        f"GET /api/v1/topics/t/records/0/{DIGITS}/value HTTP/1.1\r\n",
        f"GET /api/v1/topics/t/records/{DIGITS}/0/value HTTP/1.1\r\n",
        f"GET /api/v1/explain/partition/t/{DIGITS} HTTP/1.1\r\n",
        f"GET /subjects?offset={DIGITS} HTTP/1.1\r\n",
        f"GET /subjects?limit={DIGITS} HTTP/1.1\r\n",
        f"POST /subjects HTTP/1.1\r\nContent-Length: {DIGITS}\r\n",
        "GET /api/v1/session HTTP/1.1\r\nAuthorization: Basic \xff\r\n",
    ],
)
async def test_malformed_http_head_is_rejected(head: str, caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig.load(options={"http.port": "0", "registry.port": "0"})
    service = http_service(config, [LOOPBACK])
    assert service is not None
    assert service.http is not None
    assert service.registry is not None
    async with broker_with(service, config, None, None):
        for endpoint in (service.http.endpoint_of(1), service.registry.endpoint_of(1)):
            text = f"{head}Host: {endpoint}\r\nConnection: close\r\n\r\n"
            status = await status_of(endpoint, text.encode("latin-1"))
            assert status in (200, 400, 403, 404, 405, 413), status
            check_log(caplog, head)


async def test_control_port_survives_random_lines(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    generator = RequestGenerator(random.Random(request.config.option.seed))

    async def prepare(_: object) -> None:
        await trio.lowlevel.checkpoint()

    async with run_controlled_broker(0, None, prepare) as (_, port):
        host, _, number = port.address.rpartition(":")
        for _ in range(50):
            fields = {"do": generator.json(), "token": generator.json()}
            line = generator.chance.choice(
                (json.dumps(fields).encode(), generator.body(), generator.request("x"))
            )
            async with await trio.open_tcp_stream(host, int(number)) as stream:
                await stream.send_all(line + b"\n")
                with trio.fail_after(ANSWER_SECONDS):
                    response = await stream.receive_some(HEAD_BYTES)
            assert response == b"" or json.loads(response)["ok"] is False
            check_log(caplog, line)


def claims_at_random(generator: RequestGenerator) -> Any:
    """Return the claims of a valid token with some of them replaced."""
    claims: dict[str, Any] = dict(claims_for("alice"))
    for name in generator.chance.sample(
        ("aud", "iss", "sub", "exp", "iat", "nbf", "scope", "jti"), generator.chance.randint(1, 3)
    ):
        claims[name] = generator.chance.choice(
            (generator.json(), [[generator.json()]], [{}], {"a": []})
        )
    return claims if generator.chance.random() < 0.8 else json.dumps(generator.json())


def outcome_of(tokens: Tokens, token: str) -> Verified | Exception:
    try:
        return tokens.check(token)
    except (BadToken, UnknownKey) as error:
        return error


def test_random_tokens_are_accepted_or_rejected_without_error(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The tokens also have random headers, with and without a valid signature."""
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(key_for("ES256")))
    tokens = Tokens(lookup(settings_for(file)), MODULE, lambda: NOW)
    generator = RequestGenerator(random.Random(request.config.option.seed))
    accepted = 0
    for _ in range(int(request.config.option.frames * TOKENS_PER_FRAME)):
        token = signed(claims_at_random(generator), key_for("ES256"), "ES256")
        if generator.chance.random() < 0.3:
            token = mutated(token, generator)
        accepted += isinstance(outcome_of(tokens, token), Verified)
    assert accepted, "no token was accepted, although some claims may have any value"


def mutated(token: str, generator: RequestGenerator) -> str:
    parts: list[str] = token.split(".")
    at = generator.chance.randrange(3)
    parts[at] = generator.chance.choice(
        (generator.unusual_word(), _encoded(generator.json()), _encoded(_header(generator)))
    )
    return ".".join(_without(parts, generator))


def _without(parts: Sequence[str], generator: RequestGenerator) -> Sequence[str]:
    return parts[1:] if generator.chance.random() < 0.1 else parts


def _header(generator: RequestGenerator) -> dict[str, Any]:
    names = ("alg", "kid", "crit", "b64", "typ", "zip", "jwk", "x5c")
    return {"alg": "ES256"} | {each: generator.json() for each in generator.chance.sample(names, 2)}


def _encoded(value: Any) -> str:
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
