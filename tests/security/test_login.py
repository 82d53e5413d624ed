"""SASL listeners: responses before, during and after authentication."""

from __future__ import annotations

import base64
import logging
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from kafka.net.sasl.scram import ScramClient

from kbroker.broker import Broker, open_broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import BadSecurity, Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.client.security import security_of
from kbroker.config import BrokerConfig, ConfigError
from kbroker.handlers.registry import load_apis
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from ..wire import ConnectionClosed, Wire, batch, connected, create_topic, produce, request
from .certificates import Authority
from .clients import encrypted

PLAIN_USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="hush" user_admin="hush" user_alice="pencil";'
)
SCRAM_USERS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'user_admin="hush" user_alice="pencil";'
)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
NO_TOPICS = request(ApiKey.METADATA, topics=[])
# Mutated frames per connection.
FRAMES_TOGETHER = 4
VERSIONS = request(ApiKey.API_VERSIONS)


@asynccontextmanager
async def guarded(*settings: str, protocol: str = "SASL_PLAINTEXT") -> AsyncIterator[Broker]:
    """Run a broker with one SASL listener."""
    prefix = f"listener.name.{protocol.lower()}"
    own = [
        f"listeners={protocol}://127.0.0.1:0",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"{prefix}.plain.sasl.jaas.config={PLAIN_USERS}",
        f"{prefix}.scram-sha-256.sasl.jaas.config={SCRAM_USERS}",
        f"{prefix}.scram-sha-512.sasl.jaas.config={SCRAM_USERS}",
        "connection.failed.authentication.delay.ms=50",
        "connection.setup.timeout.ms=3600000",
    ]
    config = BrokerConfig.load(options=[*own, *settings])
    assert not [each for each in config.notices if "sasl" in each.text]
    async with open_broker(config, data_dir=None, listeners=configured_listeners(config)) as broker:
        yield broker
        assert broker.node.context.error_log.unhandled_errors == 0


async def handshake(wire: Wire, mechanism: str, version: int = 1) -> Any:
    ask = request(ApiKey.SASL_HANDSHAKE, mechanism=mechanism)
    return await wire.ask(ApiKey.SASL_HANDSHAKE, version, ask)


async def authenticate(wire: Wire, message: bytes, version: int = 2) -> Any:
    ask = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=message)
    return await wire.ask(ApiKey.SASL_AUTHENTICATE, version, ask)


async def log_in(wire: Wire, password: str = "pencil") -> None:
    await handshake(wire, "PLAIN")
    response = await authenticate(wire, b"\0alice\0" + password.encode())
    assert not response.error_code, response


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_own_client_authenticates(mechanism: str) -> None:
    security = Security(None, Credentials(mechanism, "alice", "pencil"))
    async with guarded() as broker, open_cluster([broker.endpoint], security=security) as cluster:
        metadata = await cluster.metadata([])
        assert metadata.cluster_id == broker.node.cluster.id
        (connection,) = broker.server.connections
        login = connection.peer.login
        assert login is not None
        assert str(login.principal) == "User:alice"


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "pen"), ("mallory", "pencil")])
async def test_wrong_user_or_password_is_rejected(mechanism: str, name: str, password: str) -> None:
    security = Security(None, Credentials(mechanism, name, password))
    async with guarded() as broker, open_cluster([broker.endpoint], security=security) as cluster:
        with pytest.raises(
            CannotConnect, match=r"cannot authenticate as .*: Authentication failed"
        ):
            await cluster.metadata([])


async def test_sasl_ssl_authenticates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = f"ssl.keystore.location={authority.pem('server')}"
    async with (
        guarded(own, protocol="SASL_SSL") as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        await log_in(wire)
        assert (await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)).brokers


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_every_sasl_authenticate_version_works(version: int) -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        assert not (await wire.ask(ApiKey.API_VERSIONS, 3, versions())).error_code
        found = await handshake(wire, "SCRAM-SHA-512")
        assert (found.error_code, found.mechanisms) == (0, [*MECHANISMS])
        client = ScramClient("alice", "pencil", "SCRAM-SHA-512")
        first = await authenticate(wire, client.first_message(), version)
        client.process_server_first_message(first.auth_bytes)
        last = await authenticate(wire, client.final_message(), version)
        client.process_server_final_message(last.auth_bytes)
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())


def versions() -> Any:
    return request(ApiKey.API_VERSIONS, client_software_name="test", client_software_version="1")


async def raw(wire: Wire, message: bytes) -> bytes:
    """Send an unframed message, as after handshake version 0, and return the response."""
    await wire.stream.send_all(struct.pack(">i", len(message)) + message)
    with trio.fail_after(5):
        size = await exactly(wire, 4)
        return await exactly(wire, struct.unpack(">i", size)[0])


async def exactly(wire: Wire, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await wire.stream.receive_some(size - len(data))
        if not more:
            raise ConnectionClosed
        data += more
    return data


async def test_unframed_messages_after_handshake_v0_work() -> None:
    """Old clients send them (KIP-43)."""
    async with guarded() as broker:
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "PLAIN", version=0)
            assert await raw(wire, b"\0alice\0pencil") == b""
            assert (await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)).brokers
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "SCRAM-SHA-256", version=0)
            client = ScramClient("alice", "pencil", "SCRAM-SHA-256")
            client.process_server_first_message(await raw(wire, client.first_message()))
            client.process_server_final_message(await raw(wire, client.final_message()))
            assert (await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)).brokers
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "PLAIN", version=0)
            with pytest.raises(ConnectionClosed):
                await raw(wire, b"\0alice\0pen")


async def test_failed_authentication_returns_error_and_closes() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        began = trio.current_time()
        response = await authenticate(wire, b"\0alice\0pen")
        assert trio.current_time() - began >= 0.05
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message.startswith("Authentication failed")
        assert await wire.wait_closed() == b""


async def test_requests_after_failed_authentication_are_ignored() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        bad = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\0alice\0pen")
        good = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\0alice\0pencil")
        frames = [
            wire.frame(ApiKey.SASL_AUTHENTICATE, 1, bad),
            wire.frame(ApiKey.SASL_AUTHENTICATE, 1, good),
            wire.frame(ApiKey.METADATA, 1, NO_TOPICS),
        ]
        await wire.stream.send_all(b"".join(frames))
        assert (await wire.receive()).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.wait_closed() == b""


async def test_unknown_mechanism_is_rejected() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        response = await handshake(wire, "GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == [*MECHANISMS]
        assert await wire.wait_closed() == b""


@pytest.mark.parametrize(
    "asks",
    [
        [(ApiKey.METADATA, 1, NO_TOPICS)],
        [(ApiKey.API_VERSIONS, 0, VERSIONS), (ApiKey.API_VERSIONS, 0, VERSIONS)],
        [(ApiKey.SASL_AUTHENTICATE, 1, request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"x"))],
    ],
    ids=["Metadata", "ApiVersions twice", "no handshake"],
)
async def test_other_request_before_authentication_closes_connection(
    asks: list[tuple[ApiKey, int, Any]],
) -> None:
    """The client gets no response, as in Kafka."""
    async with guarded() as broker, connected(broker.endpoint) as wire:
        for key, version, message in asks[:-1]:
            await wire.ask(key, version, message)
        await wire.send(*asks[-1])
        assert await wire.wait_closed() == b""


@pytest.mark.slow
async def test_other_request_during_authentication_returns_error_and_closes() -> None:
    """The response contains the error if its schema has a field for it, as in Kafka."""
    errors = 0
    async with guarded() as broker:
        for api in load_apis().values():
            if api.key == ApiKey.SASL_AUTHENTICATE:
                continue
            for version in api.versions:
                async with connected(broker.endpoint) as wire:
                    await handshake(wire, "PLAIN")
                    response = await wire.ask(api.key, version, request(api.key))
                    assert await wire.wait_closed() == b""
                errors += getattr(response, "error_code", 0) == ErrorCode.ILLEGAL_SASL_STATE
    assert errors > 100


async def test_unsupported_version_during_authentication_closes_connection() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        await wire.send_bytes(struct.pack(">ihhih", 10, ApiKey.METADATA, 99, 7, -1))
        assert await wire.wait_closed() == b""


async def test_expected_node_is_checked_after_authentication() -> None:
    """Before authentication the client learns nothing about the cluster (KIP-1242)."""
    ask = versions()
    ask.cluster_id, ask.node_id = "other", 1
    async with guarded() as broker, connected(broker.endpoint) as wire:
        assert not (await wire.ask(ApiKey.API_VERSIONS, 5, ask)).error_code
        await log_in(wire)
        response = await wire.ask(ApiKey.API_VERSIONS, 5, ask)
        assert response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED


async def test_api_versions_can_be_retried_after_unsupported_version() -> None:
    """Newer clients do this (KIP-511)."""
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await wire.stream.send_all(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 50, 7, -1))
        size = struct.unpack(">i", await exactly(wire, 4))[0]
        response = await exactly(wire, size)
        assert struct.unpack_from(">ih", response) == (7, ErrorCode.UNSUPPORTED_VERSION)
        assert not (await wire.ask(ApiKey.API_VERSIONS, 3, versions())).error_code
        await log_in(wire)
        assert await wire.works()


async def test_second_authentication_without_session_lifetime_is_rejected() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        assert (await handshake(wire, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        response = await authenticate(wire, b"\0admin\0hush")
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.works()


async def test_sasl_on_plaintext_listener_is_rejected() -> None:
    config = BrokerConfig.load(options=["listeners=PLAINTEXT://127.0.0.1:0"])
    async with (
        open_broker(config, data_dir=None, listeners=configured_listeners(config)) as broker,
        connected(broker.endpoint) as wire,
    ):
        assert (await handshake(wire, "PLAIN")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        response = await authenticate(wire, b"\0alice\0pencil")
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.works()


async def test_large_frames_are_rejected_before_authentication() -> None:
    async with guarded("sasl.server.max.receive.size=1000") as broker:
        async with connected(broker.endpoint) as wire:
            await wire.stream.send_all(struct.pack(">i", 1001))
            assert await wire.wait_closed() == b""
        async with connected(broker.endpoint) as wire:
            await log_in(wire)
            topic = await create_topic(wire, "t")
            assert not (await produce(wire, topic, batch([bytes(100_000)]))).error_code


async def test_unauthenticated_connection_is_closed_after_timeout() -> None:
    async with (
        guarded("connection.setup.timeout.ms=300") as broker,
        connected(broker.endpoint) as wire,
    ):
        assert await wire.works()
        with trio.fail_after(10):
            assert await wire.wait_closed() == b""


async def test_authentication_logs_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as broker:
        async with connected(broker.endpoint) as wire:
            await log_in(wire)
        async with connected(broker.endpoint) as wire:
            await handshake(wire, "PLAIN")
            await authenticate(wire, b"\0alice\0wrong-secret")
    for secret in ("pencil", "hush", "wrong-secret", base64.b64encode(b"pencil").decode()):
        assert secret not in caplog.text
    assert "authenticated: User:alice at 127.0.0.1, by PLAIN" in caplog.text
    assert "authentication failed: the user or the password is wrong" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["sasl.enabled.mechanisms=GSSAPI"], "valid: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (["listeners=SASL_PLAINTEXT://0.0.0.0:0"], "PLAIN sends passwords in plain text"),
        (["sasl.jaas.config=x"], "sasl.jaas.config of PLAIN: it does not begin with a login"),
        (
            ["sasl.jaas.config=com.mine.Module required;"],
            "unsupported login module com.mine.Module",
        ),
    ],
)
def test_invalid_sasl_settings_are_rejected(settings: list[str], message: str) -> None:
    own = ["listeners=SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms=PLAIN"]
    config = BrokerConfig.load(options=[*own, *settings])
    with pytest.raises(ConfigError, match=message):
        configured_listeners(config)


def test_client_settings_are_parsed() -> None:
    given = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": 'a.ScramLoginModule required username="alice" password="pencil";',
    }
    assert security_of(given) == Security(None, Credentials("SCRAM-SHA-256", "alice", "pencil"))
    for wrong, message in (
        ({"security.protocol": "TLS"}, "valid: PLAINTEXT, SSL"),
        ({"sasl.mechanism": "GSSAPI"}, "valid: PLAIN"),
        ({"sasl.mechanism": ""}, "^sasl.mechanism is not set .valid: PLAIN"),
        ({"sasl.jaas.config": ""}, "sasl.jaas.config: it does not begin"),
        ({"sasl.jaas.config": "a.B required;"}, "set username=... and password=..."),
    ):
        with pytest.raises(BadSecurity, match=message):
            security_of({**given, **wrong})


@pytest.mark.sized
@pytest.mark.slow
async def test_mutated_frames_never_authenticate(pytestconfig: pytest.Config) -> None:
    """`guarded` checks that there are no unhandled errors and no successful authentication."""
    count, seed = pytestconfig.getoption("--frames"), pytestconfig.getoption("--seed")
    chance = random.Random(seed)
    hello = request(ApiKey.SASL_HANDSHAKE, mechanism="SCRAM-SHA-256")
    first = request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"n,,n=alice,r=abc")
    settings = (
        "connection.failed.authentication.delay.ms=0",
        f"max.connection.creation.rate={2**31 - 1}",
    )
    async with guarded(*settings) as broker:
        for number in range(count // FRAMES_TOGETHER):
            async with connected(broker.endpoint) as wire:
                frames = bytearray(
                    wire.frame(ApiKey.API_VERSIONS, 3, versions())
                    + wire.frame(ApiKey.SASL_HANDSHAKE, number % 2, hello)
                    + wire.frame(ApiKey.SASL_AUTHENTICATE, number % 3, first)
                    + wire.frame(ApiKey.METADATA, 2, NO_TOPICS)
                )
                for _ in range(chance.randint(1, 8)):
                    frames[chance.randrange(len(frames))] = chance.randrange(256)
                await wire.stream.send_all(bytes(frames))
                await wire.stream.send_eof()
                answers = b""
                with trio.fail_after(5), suppress(trio.BrokenResourceError):
                    while more := await wire.stream.receive_some(65536):
                        answers += more
                assert broker.node.cluster.id.encode() not in answers
        async with connected(broker.endpoint) as wire:
            await log_in(wire)
            response = await wire.ask(ApiKey.METADATA, 2, NO_TOPICS)
            assert response.cluster_id == broker.node.cluster.id
    print(f"\nfigures: seed {seed}, {count} frames before and in a login, nobody came in")
