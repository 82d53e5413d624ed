"""Tests of dynamic changes of TLS and SASL settings (KIP-226)."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import CannotConnect
from kbroker.cluster import ResourceType
from kbroker.config import BrokerConfig, Operation
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest

from ..security.certificates import PASSWORD, Authority
from ..security.clients import encrypted
from ..wire import ConnectionClosed, connected

KEYSTORE = "listener.name.safe.ssl.keystore.location"
USERS = "listener.name.inside.scram-sha-256.sasl.jaas.config"


@asynccontextmanager
async def started(
    authority: Authority, data_dir: Path | None = None, nodes: int = 1
) -> AsyncIterator[Broker]:
    """Start a broker with a plaintext listener, a TLS listener and a SASL listener."""
    options = [
        "listeners=OPEN://127.0.0.1:0,SAFE://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map=OPEN:PLAINTEXT,SAFE:SSL,INSIDE:SASL_PLAINTEXT",
        "connection.failed.authentication.delay.ms=0",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
        f"{KEYSTORE}={authority.directory / 'server.pem'}",
        f"sasl.jaas.config={scram(alice='pencil')}",
    ]
    if not (authority.directory / "server.pem").exists():
        authority.pem("server")
    config = BrokerConfig.load(options=options)
    directory = None if data_dir is None else str(data_dir)
    listeners = configured_listeners(config)
    async with open_broker(config, data_dir=directory, listeners=listeners, nodes=nodes) as broker:
        yield broker


def scram(**users: str) -> str:
    """Return a JAAS login module with these users and passwords."""
    options = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f"org.apache.kafka.common.security.scram.ScramLoginModule required {options};"


def endpoint_of_listener(broker: Broker, listener: str, node: int = 1) -> Endpoint:
    return broker.nodes[node - 1].endpoints()[listener]


async def change(broker: Broker, values: dict[str, str], node: int = 1) -> str | None:
    """Change the settings of a node, and return the error message or None."""
    cls = IncrementalAlterConfigsRequest
    rows = [
        cls.Config(name=name, config_operation=Operation.SET, value=value)
        for name, value in values.items()
    ]
    resource = cls.Resource(
        resource_type=ResourceType.BROKER, resource_name=str(node), configs=rows
    )
    ask = cls(resources=[resource])
    async with connected(endpoint_of_listener(broker, "OPEN", node)) as wire:
        (result,) = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)).responses
    assert result.error_code in (0, ErrorCode.INVALID_REQUEST)
    return str(result.error_message) if result.error_code else None


async def is_trusted(broker: Broker, authority: Authority, node: int = 1) -> bool:
    """Return True if a new client trusts the certificate of the TLS listener."""
    try:
        async with encrypted(
            endpoint_of_listener(broker, "SAFE", node), authority.context()
        ) as wire:
            return await wire.works()
    except trio.BrokenResourceError:
        return False


async def can_authenticate(
    broker: Broker, name: str, password: str, mechanism: str = "SCRAM-SHA-256"
) -> bool:
    """Return True if a client can authenticate."""
    security = Security(None, Credentials(mechanism, name, password))
    try:
        async with open_cluster(
            [endpoint_of_listener(broker, "INSIDE")], direct=True, security=security
        ) as client:
            await client.metadata([])
    except CannotConnect:
        return False
    return True


async def test_new_certificate_applies_to_new_connections(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority) as broker:
        assert await is_trusted(broker, authority)
        async with encrypted(endpoint_of_listener(broker, "SAFE"), authority.context()) as before:
            assert await change(broker, {KEYSTORE: str(other.pem("new"))}) is None
            assert await is_trusted(broker, other)
            assert not await is_trusted(broker, authority)
            assert await before.works()


async def test_changed_users_replace_previous_users(authority: Authority) -> None:
    async with started(authority) as broker:
        assert await can_authenticate(broker, "alice", "pencil")
        for users in ({"bob": "brush"}, {"bob": "crayon"}, {}, {"carol": "chalk"}):
            assert await change(broker, {USERS: scram(**users)}) is None
            assert not await can_authenticate(broker, "alice", "pencil")
            for name in ("bob", "carol"):
                assert await can_authenticate(broker, name, "brush") is (users.get(name) == "brush")
                assert await can_authenticate(broker, name, users.get(name, "-")) is (name in users)


async def accepts(broker: Broker, context: ssl.SSLContext) -> bool:
    """Return True if the TLS listener accepts a client with this context."""
    try:
        async with encrypted(endpoint_of_listener(broker, "SAFE"), context) as wire:
            return await wire.works()
    except (trio.BrokenResourceError, ConnectionClosed):
        return False


async def change_tls_listener(broker: Broker, values: dict[str, str]) -> None:
    """Change settings of the TLS listener in one request."""
    assert (
        await change(broker, {f"listener.name.safe.{name}": values[name] for name in values})
        is None
    )


@pytest.mark.parametrize("store", ["ssl.truststore.location", "ssl.truststore.certificates"])
async def test_client_certificates_can_be_required_at_runtime(
    store: str, authority: Authority
) -> None:
    is_text = store.endswith("certificates")
    trusted = authority.trusted.read_text() if is_text else str(authority.trusted)
    async with started(authority) as broker:
        await change_tls_listener(broker, {"ssl.client.auth": "required", store: trusted})
        assert not await accepts(broker, authority.context())
        assert await accepts(broker, authority.context(authority.pem("alice")))


async def test_enabled_protocols_can_be_changed(authority: Authority) -> None:
    context = authority.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    async with started(authority) as broker:
        assert await accepts(broker, context)
        await change_tls_listener(broker, {"ssl.enabled.protocols": "TLSv1.2"})
        assert not await accepts(broker, context)


async def test_cipher_suites_can_be_changed(authority: Authority) -> None:
    """A suite for TLS 1.2 only excludes clients that require TLS 1.3."""
    context = authority.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    async with started(authority) as broker:
        assert await accepts(broker, context)
        await change_tls_listener(
            broker, {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}
        )
        assert not await accepts(broker, context)
        assert await accepts(broker, authority.context())


async def test_keystore_can_be_given_as_pem_text(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    chain, key = other.texts()
    names = "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location"
    async with started(authority) as broker:
        await change_tls_listener(broker, dict(zip(names, (chain, key, ""), strict=True)))
        assert await is_trusted(broker, other)


async def test_password_protected_stores_are_accepted(authority: Authority) -> None:
    """The stores have the format that keytool creates."""
    other = Authority(authority.directory, "other")
    store = str(other.pkcs12("server"))
    async with started(authority) as broker:
        names = "ssl.keystore.location", "ssl.truststore.location"
        passwords = "ssl.keystore.password", "ssl.truststore.password"
        await change_tls_listener(
            broker, dict.fromkeys(names, store) | dict.fromkeys(passwords, PASSWORD)
        )
        assert await is_trusted(broker, other)


async def test_encrypted_key_is_accepted(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority) as broker:
        await change_tls_listener(
            broker,
            {"ssl.keystore.location": str(other.locked("new")), "ssl.key.password": PASSWORD},
        )
        assert await is_trusted(broker, other)


async def test_endpoint_identification_can_be_disabled(authority: Authority) -> None:
    async with started(authority) as broker:
        security = broker.nodes[0].listeners[1].security
        assert security is not None
        assert security.certificates is not None
        assert security.certificates.peer_client_context().check_hostname
        await change_tls_listener(broker, {"ssl.endpoint.identification.algorithm": ""})
        assert not security.certificates.peer_client_context().check_hostname


async def test_unprefixed_sasl_settings_can_be_changed(authority: Authority) -> None:
    """Settings without a listener prefix apply to all listeners."""
    async with started(authority) as broker:
        own = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", "sasl.jaas.config": scram(bob="brush")}
        assert await change(broker, own) is None
        assert not await can_authenticate(broker, "alice", "pencil")
        assert await can_authenticate(broker, "bob", "brush", mechanism="SCRAM-SHA-512")


async def test_changed_settings_apply_only_to_their_node(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority, nodes=2) as broker:
        assert await change(broker, {KEYSTORE: str(other.pem("new"))}, node=2) is None
        assert await is_trusted(broker, other, node=2)
        assert await is_trusted(broker, authority, node=1)


async def test_changed_settings_survive_restart(authority: Authority, tmp_path: Path) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority, tmp_path / "data") as broker:
        assert await change(broker, {KEYSTORE: str(other.pem("new"))}) is None
        assert await change(broker, {USERS: scram(bob="brush")}) is None
    async with started(authority, tmp_path / "data") as broker:
        assert await is_trusted(broker, other)
        assert await can_authenticate(broker, "bob", "brush")
        assert not await can_authenticate(broker, "alice", "pencil")


async def test_stored_settings_that_became_unusable_are_ignored(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node starts with its configured settings and logs a warning."""
    new = Authority(authority.directory, "other").pem("new")
    async with started(authority, tmp_path / "data") as broker:
        assert await change(broker, {KEYSTORE: str(new)}) is None
    new.unlink()
    async with started(authority, tmp_path / "data") as broker:
        assert await is_trusted(broker, authority)
    assert (
        "cannot apply the new listener security settings, keeping the previous ones: listener SAFE"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (KEYSTORE, "/nowhere", "cannot be read"),
        (KEYSTORE, "/dev/zero", "is not a regular file"),
        ("listener.name.safe.ssl.keystore.key", "x", "two key stores"),
        ("listener.name.safe.ssl.client.auth", "required", "no CA is trusted"),
        ("listener.name.safe.ssl.enabled.protocols", "SSLv3", "unsupported version SSLv3"),
        (USERS, "x", "does not begin with a login module"),
        ("listener.name.inside.sasl.enabled.mechanisms", "GSSAPI", "valid: PLAIN"),
    ],
)
async def test_unusable_settings_are_rejected(
    name: str, value: str, message: str, authority: Authority
) -> None:
    async with started(authority) as broker:
        error = await change(broker, {name: value})
        assert error is not None
        assert message in error
        assert await is_trusted(broker, authority)
        assert await can_authenticate(broker, "alice", "pencil")


async def test_named_pipe_as_keystore_is_rejected(authority: Authority) -> None:
    os.mkfifo(authority.directory / "pipe")
    async with started(authority) as broker:
        error = await change(broker, {KEYSTORE: str(authority.directory / "pipe")})
        assert error is not None
        assert "is not a regular file" in error


async def test_secrets_are_neither_logged_nor_returned(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kbroker")
    async with started(authority) as broker:
        for value in (scram(bob="s3cret"), 'NoModule required user_bob="s3cret";', "s3cret"):
            error = await change(broker, {USERS: value})
            assert "s3cret" not in (error or "")
    assert "s3cret" not in caplog.text
