"""Settings of TLS and of logins that clients change while a node runs (KIP-226)."""

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
    """A broker with an open listener, one with TLS and one with logins."""
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
    """A login module with these passwords."""
    options = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return f"org.apache.kafka.common.security.scram.ScramLoginModule required {options};"


def at(broker: Broker, listener: str, node: int = 1) -> Endpoint:
    return broker.nodes[node - 1].endpoints()[listener]


async def change(broker: Broker, values: dict[str, str], node: int = 1) -> str | None:
    """Give a node settings; returns what it says against them."""
    cls = IncrementalAlterConfigsRequest
    rows = [
        cls.Config(name=name, config_operation=Operation.SET, value=value)
        for name, value in values.items()
    ]
    resource = cls.Resource(
        resource_type=ResourceType.BROKER, resource_name=str(node), configs=rows
    )
    ask = cls(resources=[resource])
    async with connected(at(broker, "OPEN", node)) as wire:
        (told,) = (await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, ask)).responses
    assert told.error_code in (0, ErrorCode.INVALID_REQUEST)
    return str(told.error_message) if told.error_code else None


async def is_trusted(broker: Broker, authority: Authority, node: int = 1) -> bool:
    """Whether a new client takes what the listener with TLS shows."""
    try:
        async with encrypted(at(broker, "SAFE", node), authority.context()) as wire:
            return await wire.works()
    except trio.BrokenResourceError:
        return False


async def gets_in(
    broker: Broker, name: str, password: str, mechanism: str = "SCRAM-SHA-256"
) -> bool:
    """Whether somebody may log in."""
    security = Security(None, Credentials(mechanism, name, password))
    try:
        async with open_cluster([at(broker, "INSIDE")], direct=True, security=security) as client:
            await client.metadata([])
    except CannotConnect:
        return False
    return True


async def test_another_certificate(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority) as broker:
        assert await is_trusted(broker, authority)
        async with encrypted(at(broker, "SAFE"), authority.context()) as before:
            assert await change(broker, {KEYSTORE: str(other.pem("new"))}) is None
            assert await is_trusted(broker, other)
            assert not await is_trusted(broker, authority)
            assert await before.works()


async def test_other_users(authority: Authority) -> None:
    async with started(authority) as broker:
        assert await gets_in(broker, "alice", "pencil")
        for users in ({"bob": "brush"}, {"bob": "crayon"}, {}, {"carol": "chalk"}):
            assert await change(broker, {USERS: scram(**users)}) is None
            assert not await gets_in(broker, "alice", "pencil")
            for name in ("bob", "carol"):
                assert await gets_in(broker, name, "brush") is (users.get(name) == "brush")
                assert await gets_in(broker, name, users.get(name, "-")) is (name in users)


async def accepts(broker: Broker, context: ssl.SSLContext) -> bool:
    """Whether the listener with TLS goes on with such a client."""
    try:
        async with encrypted(at(broker, "SAFE"), context) as wire:
            return await wire.works()
    except (trio.BrokenResourceError, ConnectionClosed):
        return False


async def safely(broker: Broker, values: dict[str, str]) -> None:
    """Give the listener with TLS these settings at once."""
    assert (
        await change(broker, {f"listener.name.safe.{name}": values[name] for name in values})
        is None
    )


@pytest.mark.parametrize("store", ["ssl.truststore.location", "ssl.truststore.certificates"])
async def test_clients_have_to_show_certificates(store: str, authority: Authority) -> None:
    is_text = store.endswith("certificates")
    trusted = authority.trusted.read_text() if is_text else str(authority.trusted)
    async with started(authority) as broker:
        await safely(broker, {"ssl.client.auth": "required", store: trusted})
        assert not await accepts(broker, authority.context())
        assert await accepts(broker, authority.context(authority.pem("alice")))


async def test_versions_that_are_spoken(authority: Authority) -> None:
    context = authority.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    async with started(authority) as broker:
        assert await accepts(broker, context)
        await safely(broker, {"ssl.enabled.protocols": "TLSv1.2"})
        assert not await accepts(broker, context)


async def test_cipher_suites_that_are_spoken(authority: Authority) -> None:
    """One of TLS 1.2 alone lets nobody in who speaks nothing older than 1.3."""
    context = authority.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    async with started(authority) as broker:
        assert await accepts(broker, context)
        await safely(broker, {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"})
        assert not await accepts(broker, context)
        assert await accepts(broker, authority.context())


async def test_a_key_as_text(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    chain, key = other.texts()
    names = "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location"
    async with started(authority) as broker:
        await safely(broker, dict(zip(names, (chain, key, ""), strict=True)))
        assert await is_trusted(broker, other)


async def test_stores_with_passwords(authority: Authority) -> None:
    """As keytool makes them."""
    other = Authority(authority.directory, "other")
    both = str(other.pkcs12("server"))
    async with started(authority) as broker:
        names = "ssl.keystore.location", "ssl.truststore.location"
        passwords = "ssl.keystore.password", "ssl.truststore.password"
        await safely(broker, dict.fromkeys(names, both) | dict.fromkeys(passwords, PASSWORD))
        assert await is_trusted(broker, other)


async def test_a_key_with_a_password(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority) as broker:
        await safely(
            broker,
            {"ssl.keystore.location": str(other.locked("new")), "ssl.key.password": PASSWORD},
        )
        assert await is_trusted(broker, other)


async def test_whether_nodes_look_at_names(authority: Authority) -> None:
    async with started(authority) as broker:
        security = broker.nodes[0].listeners[1].security
        assert security is not None
        assert security.certificates is not None
        assert security.certificates.peer_client_context().check_hostname
        await safely(broker, {"ssl.endpoint.identification.algorithm": ""})
        assert not security.certificates.peer_client_context().check_hostname


async def test_mechanisms_and_users_of_all_listeners(authority: Authority) -> None:
    """Without the prefix of one."""
    async with started(authority) as broker:
        own = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", "sasl.jaas.config": scram(bob="brush")}
        assert await change(broker, own) is None
        assert not await gets_in(broker, "alice", "pencil")
        assert await gets_in(broker, "bob", "brush", mechanism="SCRAM-SHA-512")


async def test_a_node_has_settings_of_its_own(authority: Authority) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority, nodes=2) as broker:
        assert await change(broker, {KEYSTORE: str(other.pem("new"))}, node=2) is None
        assert await is_trusted(broker, other, node=2)
        assert await is_trusted(broker, authority, node=1)


async def test_changes_last(authority: Authority, tmp_path: Path) -> None:
    other = Authority(authority.directory, "other")
    async with started(authority, tmp_path / "data") as broker:
        assert await change(broker, {KEYSTORE: str(other.pem("new"))}) is None
        assert await change(broker, {USERS: scram(bob="brush")}) is None
    async with started(authority, tmp_path / "data") as broker:
        assert await is_trusted(broker, other)
        assert await gets_in(broker, "bob", "brush")
        assert not await gets_in(broker, "alice", "pencil")


async def test_what_is_kept_and_cannot_be_used_any_more(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node starts with what it was started with, and says so."""
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
async def test_what_cannot_be_used_is_refused(
    name: str, value: str, message: str, authority: Authority
) -> None:
    async with started(authority) as broker:
        said = await change(broker, {name: value})
        assert said is not None
        assert message in said
        assert await is_trusted(broker, authority)
        assert await gets_in(broker, "alice", "pencil")


async def test_a_file_that_never_comes_is_not_waited_for(authority: Authority) -> None:
    os.mkfifo(authority.directory / "pipe")
    async with started(authority) as broker:
        said = await change(broker, {KEYSTORE: str(authority.directory / "pipe")})
        assert said is not None
        assert "is not a regular file" in said


async def test_no_secret_is_logged_or_told(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kbroker")
    async with started(authority) as broker:
        for value in (scram(bob="s3cret"), 'NoModule required user_bob="s3cret";', "s3cret"):
            said = await change(broker, {USERS: value})
            assert "s3cret" not in (said or "")
    assert "s3cret" not in caplog.text
