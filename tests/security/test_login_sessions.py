"""SASL sessions with a limited lifetime, and re-authentication (KIP-368)."""

from __future__ import annotations

import logging

import pytest
import trio

from kbroker.cluster import ResourceType
from kbroker.config import BrokerConfig, Operation
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.security.login import REAUTHENTICATION_SECONDS_MIN, Login
from kbroker.security.scram import ScramClient, ScramMechanism
from kbroker.security.users import Users

from ..wire import (
    ConnectionClosed,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
    request,
    until,
)
from .test_login import (
    MECHANISMS,
    NO_TOPICS,
    PLAIN_USERS,
    SCRAM_USERS,
    authenticate,
    guarded,
    handshake,
    log_in,
    raw,
)

GOOD = b"\0alice\0pencil"
SHORT, LONG = "connections.max.reauth.ms=400", "connections.max.reauth.ms=3600000"
USERS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


async def is_closed_at(wire: Wire) -> bool:
    """Return True if a request closes the connection without a response."""
    try:
        await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)
    except (ConnectionClosed, trio.BrokenResourceError):
        return True
    return False


@pytest.mark.parametrize(("version", "expected"), [(0, 0), (1, 3_600_000), (2, 3_600_000)])
async def test_authenticate_returns_session_lifetime(version: int, expected: int) -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        assert (await authenticate(wire, GOOD, version)).session_lifetime_ms == expected


async def test_session_lifetime_is_unlimited_by_default() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        assert (await authenticate(wire, GOOD)).session_lifetime_ms == 0


async def test_most_specific_reauth_setting_wins() -> None:
    own = [
        "connections.max.reauth.ms=1000000",
        "listener.name.sasl_plaintext.connections.max.reauth.ms=2000000",
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms=3000000",
    ]
    for count, expected in enumerate((1_000_000, 2_000_000, 3_000_000), 1):
        async with guarded(*own[:count]) as broker, connected(broker.endpoint) as wire:
            await handshake(wire, "PLAIN")
            assert (await authenticate(wire, GOOD)).session_lifetime_ms == expected


async def test_timely_reauthentication_keeps_connection() -> None:
    """Requests work before and after it, even when the first session would have expired."""
    async with (
        guarded("connections.max.reauth.ms=1500") as broker,
        connected(broker.endpoint) as wire,
    ):
        began = trio.current_time()
        await log_in(wire)
        topic = await create_topic(wire, "t")
        while trio.current_time() - began < 2.5:
            await log_in(wire)
            assert not (await produce(wire, topic, batch())).error_code
            await trio.sleep(REAUTHENTICATION_SECONDS_MIN + 0.05)
        assert not (await produce(wire, topic, batch())).error_code


async def test_request_after_session_expiry_closes_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded(SHORT) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await trio.sleep(0.5)
        assert await wire.is_silent()  # the connection stays open without requests
        assert await is_closed_at(wire)
    (line,) = [each.message for each in caplog.records if "closing" in each.message]
    assert (
        "Metadata (3) arrived after the session of User:alice expired; re-authenticate first"
        in line
    )


async def test_reauthentication_after_expiry_is_accepted() -> None:
    async with guarded(SHORT) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await trio.sleep(0.5)
        await log_in(wire)
        assert await wire.works()


async def test_unframed_client_is_closed_after_expiry() -> None:
    """Such clients cannot get the lifetime; they reconnect (KIP-368)."""
    async with guarded(SHORT) as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN", version=0)
        assert await raw(wire, GOOD) == b""
        assert (await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)).brokers
        await trio.sleep(0.5)
        assert await is_closed_at(wire)


async def test_failed_reauthentication_closes_connection() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        assert not (await handshake(wire, "PLAIN")).error_code
        response = await authenticate(wire, b"\0alice\0pen")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.wait_closed() == b""


async def test_reauthentication_cannot_change_principal() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        (connection,) = broker.server.connections
        await handshake(wire, "PLAIN")
        response = await authenticate(wire, b"\0admin\0hush")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message.startswith("Cannot change principals")
        assert await wire.wait_closed() == b""
        login = connection.peer.login
        assert login is not None
        assert str(login.principal) == "User:alice"


async def test_reauthentication_cannot_change_mechanism() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        response = await handshake(wire, MECHANISMS[1])
        assert (response.error_code, response.mechanisms) == (0, [*MECHANISMS])
        assert await wire.wait_closed() == b""
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        response = await handshake(wire, "GSSAPI")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert await wire.wait_closed() == b""


async def test_other_request_during_reauthentication_is_rejected() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        assert not (await handshake(wire, "PLAIN")).error_code
        response = await wire.ask(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.wait_closed() == b""


async def test_large_request_during_reauthentication_closes_connection() -> None:
    own = "sasl.server.max.receive.size=1000"
    async with guarded(LONG, own) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        topic = await create_topic(wire, "t")
        assert not (await produce(wire, topic, batch([bytes(10_000)]))).error_code
        await handshake(wire, "PLAIN")
        await wire.send_bytes((1001).to_bytes(4, "big"))
        assert await wire.wait_closed() == b""


async def test_reauthentication_within_a_second_is_rejected() -> None:
    """The rule limits hash computations by the server. The previous session stays valid."""
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await log_in(wire)
        response = await handshake(wire, "PLAIN")
        assert response.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.works()


async def test_setup_timeout_does_not_apply_to_reauthentication() -> None:
    """The age of the connection must not count for re-authentication."""
    own = "connection.setup.timeout.ms=300"
    async with guarded(LONG, own) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await trio.sleep(0.5)
        await handshake(wire, "PLAIN")
        await trio.sleep(1.5)
        assert not (await authenticate(wire, GOOD)).error_code
        assert await wire.works()


async def test_reauthentication_uses_current_users() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        security = broker.nodes[0].listeners[0].security
        assert security is not None
        before = security.users
        assert before is not None
        change = request(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            resources=[_broker_setting(USERS, 'PlainLoginModule required user_alice="new";')],
        )
        response = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, change)
        assert not response.responses[0].error_code, response
        await until(lambda: security.users is not before)
        await handshake(wire, "PLAIN")
        response = await authenticate(wire, GOOD)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def _broker_setting(name: str, value: str) -> IncrementalAlterConfigsRequest.Resource:
    cls = IncrementalAlterConfigsRequest
    row = cls.Config(name=name, config_operation=Operation.SET, value=value)
    return cls.Resource(resource_type=ResourceType.BROKER, resource_name="1", configs=[row])


async def test_pending_fetch_is_answered_before_reauthentication(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A client may re-authenticate while its fetch waits."""
    caplog.set_level(logging.ERROR)
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        topic = await create_topic(wire, "t")
        await wire.send(ApiKey.FETCH, 4, fetch_request(topic, 0, max_wait_ms=500))
        await wire.send(ApiKey.SASL_HANDSHAKE, 1, request(ApiKey.SASL_HANDSHAKE, mechanism="PLAIN"))
        assert not (await wire.receive()).error_code
        assert not (await wire.receive()).error_code
        assert not (await authenticate(wire, GOOD)).error_code
        assert await wire.works()
    assert not caplog.records


def users_of(*mechanisms: str) -> Users:
    """Return the users of a listener with these mechanisms and a session lifetime of an hour."""
    prefix = "listener.name.sasl_plaintext"
    options = [f"sasl.enabled.mechanisms={','.join(mechanisms)}", LONG]
    for each in mechanisms:
        texts = PLAIN_USERS if each == "PLAIN" else SCRAM_USERS
        options.append(f"{prefix}.{each.lower()}.sasl.jaas.config={texts}")
    users = Users(BrokerConfig.load(options=options).lookup_for_listener("SASL_PLAINTEXT"))
    users.prepare()
    return users


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_exchange_ends_although_its_mechanism_is_disabled_during_it(mechanism: str) -> None:
    other = next(each for each in MECHANISMS if each != mechanism)
    current = users_of(*MECHANISMS)
    login = Login(lambda: current)
    assert not login.choose(mechanism, raw=False, now=0)
    if mechanism == "PLAIN":
        current = users_of(other)
        await login.answer(GOOD, lambda: 0)
    else:
        client = ScramClient(ScramMechanism(mechanism), "alice", "pencil")
        first = await login.answer(client.first(), lambda: 0)
        current = users_of(other)
        await login.answer(client.final(first), lambda: 0)
    assert login.is_done
    assert (login.lifetime_ms, login.ends_at) == (3_600_000, 3_600)
    assert login.choose(mechanism, raw=False, now=10) == ErrorCode.UNSUPPORTED_SASL_MECHANISM
