"""Logins that are good for some time only, and those that follow on the same connection (KIP-368)."""

from __future__ import annotations

import logging

import pytest
import trio

from kbroker.cluster import ResourceType
from kbroker.config import Operation
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest
from kbroker.security.login import REAUTHENTICATION_SECONDS_MIN

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
    """Whether a request closes the connection without an answer."""
    try:
        await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)
    except (ConnectionClosed, trio.BrokenResourceError):
        return True
    return False


@pytest.mark.parametrize(("version", "told"), [(0, 0), (1, 3_600_000), (2, 3_600_000)])
async def test_clients_are_told_how_long(version: int, told: int) -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        assert (await authenticate(wire, GOOD, version)).session_lifetime_ms == told


async def test_a_login_lasts_unless_that_is_said() -> None:
    async with guarded() as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN")
        assert (await authenticate(wire, GOOD)).session_lifetime_ms == 0


async def test_each_mechanism_and_listener_may_have_its_own() -> None:
    own = [
        "connections.max.reauth.ms=1000000",
        "listener.name.sasl_plaintext.connections.max.reauth.ms=2000000",
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms=3000000",
    ]
    for count, told in enumerate((1_000_000, 2_000_000, 3_000_000), 1):
        async with guarded(*own[:count]) as broker, connected(broker.endpoint) as wire:
            await handshake(wire, "PLAIN")
            assert (await authenticate(wire, GOOD)).session_lifetime_ms == told


async def test_another_login_in_time() -> None:
    """Work goes on before and after it, also when the first one would be over."""
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


async def test_who_does_not_log_in_again_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(SHORT) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await trio.sleep(0.5)
        assert await wire.is_silent()  # nothing happens as long as nothing is asked for
        assert await is_closed_at(wire)
    (line,) = [each.message for each in caplog.records if "closing" in each.message]
    assert (
        "Metadata (3) arrived after the session of User:alice expired; re-authenticate first"
        in line
    )


async def test_it_may_still_log_in_when_the_time_is_over() -> None:
    async with guarded(SHORT) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await trio.sleep(0.5)
        await log_in(wire)
        assert await wire.works()


async def test_clients_without_headers_are_closed_too() -> None:
    """They cannot be told, and connect again (KIP-368)."""
    async with guarded(SHORT) as broker, connected(broker.endpoint) as wire:
        await handshake(wire, "PLAIN", version=0)
        assert await raw(wire, GOOD) == b""
        assert (await wire.ask(ApiKey.METADATA, 1, NO_TOPICS)).brokers
        await trio.sleep(0.5)
        assert await is_closed_at(wire)


async def test_a_wrong_password_ends_it() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        assert not (await handshake(wire, "PLAIN")).error_code
        answer = await authenticate(wire, b"\0alice\0pen")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.wait_closed() == b""


async def test_nobody_becomes_somebody_else() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        (connection,) = broker.server.connections
        await handshake(wire, "PLAIN")
        answer = await authenticate(wire, b"\0admin\0hush")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message.startswith("Cannot change principals")
        assert await wire.wait_closed() == b""
        login = connection.peer.login
        assert login is not None
        assert str(login.principal) == "User:alice"


async def test_the_mechanism_stays_the_same() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        answer = await handshake(wire, MECHANISMS[1])
        assert (answer.error_code, answer.mechanisms) == (0, [*MECHANISMS])
        assert await wire.wait_closed() == b""
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        answer = await handshake(wire, "GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert await wire.wait_closed() == b""


async def test_nothing_else_is_done_amidst_another_login() -> None:
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        assert not (await handshake(wire, "PLAIN")).error_code
        answer = await wire.ask(ApiKey.API_VERSIONS, 0, request(ApiKey.API_VERSIONS))
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.wait_closed() == b""


async def test_large_requests_have_no_place_amidst_another_login() -> None:
    own = "sasl.server.max.receive.size=1000"
    async with guarded(LONG, own) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        topic = await create_topic(wire, "t")
        assert not (await produce(wire, topic, batch([bytes(10_000)]))).error_code
        await handshake(wire, "PLAIN")
        await wire.send_bytes((1001).to_bytes(4, "big"))
        assert await wire.wait_closed() == b""


async def test_not_twice_in_a_second() -> None:
    """Else somebody could have a server make hashes all the time; the login before stays."""
    async with guarded(LONG) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await log_in(wire)
        answer = await handshake(wire, "PLAIN")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await wire.works()


async def test_the_time_for_a_first_login_is_not_that_for_another_one() -> None:
    """A connection is not too old because somebody logs in on it again."""
    own = "connection.setup.timeout.ms=300"
    async with guarded(LONG, own) as broker, connected(broker.endpoint) as wire:
        await log_in(wire)
        await trio.sleep(0.5)
        await handshake(wire, "PLAIN")
        await trio.sleep(1.5)
        assert not (await authenticate(wire, GOOD)).error_code
        assert await wire.works()


async def test_another_login_is_by_the_users_of_now() -> None:
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
        answer = await wire.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, change)
        assert not answer.responses[0].error_code, answer
        await until(lambda: security.users is not before)
        await handshake(wire, "PLAIN")
        answer = await authenticate(wire, GOOD)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def _broker_setting(name: str, value: str) -> IncrementalAlterConfigsRequest.Resource:
    cls = IncrementalAlterConfigsRequest
    row = cls.Config(name=name, config_operation=Operation.SET, value=value)
    return cls.Resource(resource_type=ResourceType.BROKER, resource_name="1", configs=[row])


async def test_answers_that_are_waited_for_come_before(caplog: pytest.LogCaptureFixture) -> None:
    """A client may log in again while a fetch of it waits."""
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
