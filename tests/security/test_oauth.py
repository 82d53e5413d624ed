"""OAUTHBEARER listeners: sources of keys, and responses to clients."""

from __future__ import annotations

import json
import logging
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import BadSecurity, Security
from kbroker.client.errors import CannotConnect
from kbroker.client.security import security_of
from kbroker.config import BrokerConfig, ConfigError
from kbroker.node import token_keys
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.security.oauth import INVALID_TOKEN, SEEN, first_message

from ..wire import ConnectionClosed, Wire, connected, until
from .certificates import Authority
from .issuers import AUDIENCE, ISSUER, Page, key_for, key_set, serving, signed, token_for
from .issuers import claims_for as claims_at
from .test_login import NO_TOPICS, authenticate, handshake, raw

PREFIX = "sasl.oauthbearer"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(key_for("ES256")))
    return path


@asynccontextmanager
async def guarded(url: str, *settings: str) -> AsyncIterator[Broker]:
    """Run a broker with one listener for OAUTHBEARER and SCRAM."""
    own = [
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms=SCRAM-SHA-256,OAUTHBEARER",
        f"{PREFIX}.jwks.endpoint.url={url}",
        f"{PREFIX}.expected.issuer={ISSUER}",
        f"{PREFIX}.expected.audience={AUDIENCE}",
        "connection.failed.authentication.delay.ms=0",
    ]
    config = BrokerConfig.load(options=[*own, *settings])
    assert not [each for each in config.notices if "sasl" in each.text]
    async with open_broker(config, data_dir=None, listeners=configured_listeners(config)) as broker:
        yield broker
        assert broker.node.context.error_log.unhandled_errors == 0


def trusting(authority: Authority) -> str:
    """Return the setting that makes a listener trust the key server."""
    name = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"
    return f'{name}=OAuthBearerLoginModule required ssl.truststore.location="{authority.trusted}";'


async def come_in(wire: Wire, token: str, **settings: Any) -> Any:
    """Authenticate and return the last response."""
    assert not (await handshake(wire, "OAUTHBEARER")).error_code
    response = await authenticate(wire, first_message(token), **settings)
    if response.auth_bytes:
        assert not response.error_code
        assert json.loads(response.auth_bytes) == {"status": "invalid_token"}
        response = await authenticate(wire, SEEN)
    return response


async def gets_in(broker: Broker, token: str) -> bool:
    """Return True if a token is accepted; a rejection contains no reason."""
    async with connected(broker.endpoint) as wire:
        response = await come_in(wire, token)
        if response.error_code:
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert response.error_message == INVALID_TOKEN
            assert await wire.wait_closed() == b""
            return False
        return await wire.works()


async def test_valid_token_authenticates_its_subject(keys: Path) -> None:
    async with guarded(keys.as_uri()) as broker, connected(broker.endpoint) as wire:
        response = await come_in(wire, token_for("alice"))
        assert (response.error_code, response.auth_bytes) == (0, b"")
        assert 290_000 < response.session_lifetime_ms <= 300_000
        assert (await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)).brokers
        (connection,) = broker.server.connections
        login = connection.peer.login
        assert login is not None
        assert str(login.principal) == "User:alice"


async def test_invalid_token_is_rejected_and_not_logged(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kbroker")
    token = token_for(aud="else")
    async with guarded(keys.as_uri()) as broker:
        assert not await gets_in(broker, token)
        assert await gets_in(broker, token_for())
    assert "the token is for another audience (aud)" in caplog.text
    assert token.split(".")[2] not in caplog.text


async def test_unframed_token_messages_work(keys: Path) -> None:
    async with guarded(keys.as_uri()) as broker:
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "OAUTHBEARER", version=0)
            assert await raw(wire, first_message(token_for())) == b""
            assert await wire.works()
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "OAUTHBEARER", version=0)
            assert await raw(wire, first_message(token_for(aud="x"))) == INVALID_TOKEN.encode()
            with pytest.raises(ConnectionClosed):
                await raw(wire, SEEN)


async def test_session_lifetime_is_minimum_of_token_and_setting(keys: Path) -> None:
    own = "listener.name.sasl_plaintext.oauthbearer.connections.max.reauth.ms=60000"
    async with guarded(keys.as_uri(), own) as broker:
        for left, least, most in ((300, 60_000, 60_000), (30, 20_000, 30_000)):
            async with connected(broker.endpoint) as wire:
                response = await come_in(wire, token_for(exp=time.time() + left))
                assert least <= response.session_lifetime_ms <= most
        async with connected(broker.endpoint) as wire:
            # Valid only by the clock skew; 0 would mean an unlimited lifetime.
            response = await come_in(wire, token_for(exp=time.time() - 5))
            assert response.session_lifetime_ms == 1
        async with connected(broker.endpoint) as wire:
            response = await come_in(wire, token_for(exp=1e300))
            assert response.session_lifetime_ms == 60_000


async def test_connection_is_closed_when_token_expires(keys: Path) -> None:
    own = f"{PREFIX}.clock.skew.seconds=0"
    async with guarded(keys.as_uri(), own) as broker:  # noqa: SIM117
        async with connected(broker.endpoint) as wire, connected(broker.endpoint) as other:
            end = time.time() + 1.5
            assert not (await come_in(wire, token_for(exp=end))).error_code
            assert not (await come_in(other, token_for(exp=end))).error_code
            assert await wire.works()
            await trio.sleep(1.0)
            assert not (await come_in(other, token_for())).error_code
            await trio.sleep(1.0)
            assert await other.works()
            with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
                await wire.works()


async def test_reauthentication_with_other_subject_or_mechanism_is_rejected(keys: Path) -> None:
    users = "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config="
    own = users + 'ScramLoginModule required user_alice="pencil";'
    async with guarded(keys.as_uri(), own) as broker:
        async with connected(broker.endpoint) as wire:
            await come_in(wire, token_for("alice"))
            response = await come_in(wire, token_for("bob"))
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert response.error_message.startswith("Cannot change principals")
            assert await wire.wait_closed() == b""
        async with connected(broker.endpoint) as wire:
            await come_in(wire, token_for("alice"))
            assert not (await handshake(wire, "SCRAM-SHA-256")).error_code
            assert await wire.wait_closed() == b""


# -- sources of keys


async def test_keys_are_fetched_by_https(authority: Authority) -> None:
    page = Page(key_set(key_for("ES256")))
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(authority)) as broker,
    ):
        assert await gets_in(broker, token_for())
        assert page.asked == 1
        assert page.requests[0].startswith(b"GET /keys HTTP/1.1\r\n")


async def test_rotated_key_is_fetched(authority: Authority) -> None:
    page = Page(key_set(key_for("ES256")))
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(authority)) as broker,
    ):
        assert await gets_in(broker, token_for())
        new = signed(claims_at(now=time.time()), key_for("ES256", "new"), "ES256")
        assert not await gets_in(broker, new)
        page.body = key_set(key_for("ES256", "new"))
        assert await gets_in(broker, new)
        assert not await gets_in(broker, token_for())


async def test_unknown_keys_do_not_cause_constant_fetches(authority: Authority) -> None:
    page = Page(key_set(key_for("ES256")))
    own = "max.connections.per.ip=1000"
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(authority), own) as broker,
    ):
        assert await gets_in(broker, token_for())
        began = trio.current_time()

        async def try_it(number: int) -> None:
            forged = signed(claims_at(), key_for("ES256"), "ES256", {"kid": f"k{number}"})
            assert not await gets_in(broker, forged)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(try_it, number)
        took = trio.current_time() - began
        assert 2 <= page.asked <= 3 + took / token_keys.REFRESH_SECONDS_MIN


async def test_changed_key_file_is_reloaded(keys: Path) -> None:
    async with guarded(keys.as_uri()) as broker:
        new = signed(claims_at(now=time.time()), key_for("ES256", "new"), "ES256")
        assert not await gets_in(broker, new)
        keys.write_bytes(key_set(key_for("ES256", "new")))  # noqa: ASYNC240
        assert await gets_in(broker, new)


async def test_old_keys_stay_if_fetch_fails(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    page = Page(key_set(key_for("ES256")))
    often = f"{PREFIX}.jwks.endpoint.refresh.ms=1000"
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url + "?secret=x", trusting(authority), often) as broker,
    ):
        assert await gets_in(broker, token_for())
        for body, status in ((b"x", "200 OK"), (b"", "500 No"), (b"x" * 300_000, "200 OK")):
            page.body, page.status = body, status
            requested = page.asked
            await until(lambda: page.asked >= requested + 2)  # noqa: B023
            assert await gets_in(broker, token_for())
        lines = [each.message for each in caplog.records if "the token keys" in each.message]
        assert len(lines) == 1, lines
        assert "keeping the previous keys" in lines[0]
        assert "secret" not in lines[0]
        page.body, page.status = key_set(key_for("ES256", "new")), "200 OK"
        new = signed(claims_at(now=time.time()), key_for("ES256", "new"), "ES256")
        requested = page.asked
        await until(lambda: page.asked >= requested + 2)  # the first request may get the old keys
        assert await gets_in(broker, new)


async def test_broker_starts_without_keys_and_accepts_tokens_later(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    page = Page(b"", "503 Later")
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(authority)) as broker,
    ):
        assert not await gets_in(broker, token_for())
        assert "cannot read the token keys, clients cannot authenticate with tokens" in caplog.text
        page.body, page.status = key_set(key_for("ES256")), "200 OK"
        assert await gets_in(broker, token_for())


async def test_untrusted_key_server_is_rejected(authority: Authority, tmp_path: Path) -> None:
    page = Page(key_set(key_for("ES256")))
    other = Authority(tmp_path, "other")
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(other)) as broker,
    ):
        assert not await gets_in(broker, token_for())


async def test_slow_key_fetch_does_not_delay_other_clients(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "FETCH_SECONDS", 60)
    monkeypatch.setattr(token_keys, "LOOK_UP_SECONDS", 2)
    page = Page(key_set(key_for("ES256")))
    own = f"{PREFIX}.jwks.endpoint.refresh.ms=1000"
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(authority), own) as broker,
    ):
        assert await gets_in(broker, token_for())
        page.delay_seconds = 60
        requested = page.asked
        await until(lambda: page.asked > requested)
        began = trio.current_time()
        assert await gets_in(broker, token_for())
        assert trio.current_time() - began < 1
        forged = signed(claims_at(), key_for("ES256"), "ES256", {"kid": "k"})
        assert not await gets_in(broker, forged)
        assert trio.current_time() - began < 10


async def test_key_fetch_times_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(token_keys, "FETCH_SECONDS", 0.2)
    page = Page(key_set(key_for("ES256")))
    page.delay_seconds = 60
    async with (
        serving(page, authority.pem("server")) as url,
        guarded(url, trusting(authority)) as broker,
    ):
        await until(lambda: "no response within 0.2 seconds" in caplog.text)
        page.delay_seconds = 0
        assert await gets_in(broker, token_for())


@pytest.mark.parametrize("left_out", ["jwks.endpoint.url", "expected.issuer", "expected.audience"])
def test_missing_issuer_audience_or_keys_rejects_start(left_out: str, keys: Path) -> None:
    """Without these checks any token would be accepted (CVE-2026-110985, CVE-2026-33557)."""
    given = {
        "jwks.endpoint.url": keys.as_uri(),
        "expected.issuer": ISSUER,
        "expected.audience": AUDIENCE,
    }
    del given[left_out]
    own = ["listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=OAUTHBEARER"]
    config = BrokerConfig.load(
        options=[*own, *(f"{PREFIX}.{name}={text}" for name, text in given.items())]
    )
    with pytest.raises(ConfigError, match=f"OAUTHBEARER without {PREFIX}.{left_out}"):
        configured_listeners(config)


def test_unencrypted_public_oauth_listener_is_rejected(keys: Path) -> None:
    options = [
        "listeners=SASL_PLAINTEXT://0.0.0.0:0",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        f"{PREFIX}.jwks.endpoint.url={keys.as_uri()}",
        f"{PREFIX}.expected.issuer={ISSUER}",
        f"{PREFIX}.expected.audience={AUDIENCE}",
    ]
    with pytest.raises(ConfigError, match="OAUTHBEARER sends tokens in plain text"):
        configured_listeners(BrokerConfig.load(options=options))


# -- the own client


def security_with_tokens(**settings: str) -> Security:
    given = {name.replace("_", "."): text for name, text in settings.items()}
    return security_of(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **given}
    )


async def test_own_client_reads_token_from_file(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token_for() + "\n")
    security = security_with_tokens(sasl_oauthbearer_token_endpoint_url=file.as_uri())
    async with guarded(keys.as_uri()) as broker:
        async with open_cluster([broker.endpoint], security=security) as cluster:
            assert (await cluster.metadata([])).cluster_id == broker.node.cluster.id
        for text, message in ((token_for(aud="x"), "invalid_token"), (None, "cannot be read")):
            file.unlink() if text is None else file.write_text(text)
            async with open_cluster([broker.endpoint], security=security) as cluster:
                with pytest.raises(CannotConnect, match=message):
                    await cluster.metadata([])


async def test_own_client_fetches_token_from_issuer(keys: Path, authority: Authority) -> None:
    page = Page(json.dumps({"access_token": token_for(), "expires_in": 300}).encode())
    async with serving(page, authority.pem("server")) as url, guarded(keys.as_uri()) as broker:
        security = security_with_tokens(
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_jaas_config="OAuthBearerLoginModule required clientId=me clientSecret=hush scope=all "
            f'ssl.truststore.location="{authority.trusted}";',
        )
        for _ in range(2):
            async with open_cluster([broker.endpoint], security=security) as cluster:
                assert (await cluster.metadata([])).cluster_id == broker.node.cluster.id
        (request,) = page.requests  # the token is reused
        assert request.startswith(b"POST /keys HTTP/1.1\r\n")
        assert b"Basic " + b64encode(b"me:hush") in request
        assert request.endswith(b"\r\n\r\ngrant_type=client_credentials&scope=all")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{}", "200 OK", "no valid access_token"),
        (b"7", "200 OK", "no valid access_token"),
        (b"", "401 No", "HTTP status 401; check .*"),
        (b"x" * 200_000, "200 OK", "larger than"),
    ],
)
async def test_own_client_reports_issuer_errors(
    keys: Path, authority: Authority, body: bytes, status: str, message: str
) -> None:
    page = Page(body, status)
    async with serving(page, authority.pem("server")) as url, guarded(keys.as_uri()) as broker:
        name = "sasl.oauthbearer.client.credentials.client."
        security = security_with_tokens(
            **{
                "sasl_oauthbearer_token_endpoint_url": url,
                name + "id": "me",
                name + "secret": "hush",
            },
            sasl_jaas_config=f'M required ssl.truststore.location="{authority.trusted}";',
        )
        async with open_cluster([broker.endpoint], security=security) as cluster:
            with pytest.raises(CannotConnect, match=message) as caught:
                await cluster.metadata([])
            assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "endpoint.url is missing"),
        ("http://h/token", "neither https"),
        ("https://h/token", "needs .*client.id"),
    ],
)
def test_invalid_token_endpoint_is_rejected(url: str, message: str) -> None:
    with pytest.raises(BadSecurity, match=message):
        security_with_tokens(sasl_oauthbearer_token_endpoint_url=url)


async def test_own_client_reauthenticates(keys: Path, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token_for())
    security = security_with_tokens(sasl_oauthbearer_token_endpoint_url=file.as_uri())
    own = "connections.max.reauth.ms=1500"
    async with (
        guarded(keys.as_uri(), own) as broker,
        open_cluster([broker.endpoint], security=security, direct=True) as cluster,
    ):
        began = trio.current_time()
        await cluster.metadata([])
        (before,) = broker.server.connections
        while trio.current_time() - began < 4:
            await cluster.metadata([])
            await trio.sleep(0.1)
        (after,) = broker.server.connections
        assert before is after
        file.write_text("no token")
        await trio.sleep(1.5)
        with pytest.raises(OSError, match="cannot authenticate as this token"):
            await cluster.metadata([])
