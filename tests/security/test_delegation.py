"""Delegation tokens: the rules, with a clock in hand, and logins by them (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.client.security import BadSecurity, security_of
from kbroker.cluster import delegation_tokens
from kbroker.config import BrokerConfig, ConfigError
from kbroker.folders.found_folders import METADATA_JOURNAL
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
)
from kbroker.runtime.clock import SystemClock
from kbroker.security.acls import AclOperation, AclResourceType, PatternType
from kbroker.security.delegation import (
    NAMES_BYTES_MAX,
    NAMES_MAX,
    TIME_MAX,
    DelegationKey,
    DelegationToken,
    Lifetimes,
    _new_id,
    check_principals,
    ended,
    new_token,
    password_of,
    renewed,
)
from kbroker.security.principals import USER, Principal
from kbroker.security.scram import ScramClient, ScramMechanism

from ..handlers.test_scram_users import upsertion
from ..wire import ConnectionClosed, Wire, batch, connected, create_topic, produce, request, until
from .certificates import Authority
from .clients import encrypted
from .test_access import AUTHORIZER, grant, new
from .test_login import authenticate, handshake

KEY = "a key that only nodes know"
SHA_256, SHA_512 = ScramMechanism
ALICE, BOB, CAROL = (Principal(USER, name) for name in ("alice", "bob", "carol"))
DAY = 86_400_000
LIFETIMES = Lifetimes(max_ms=7 * DAY, renewed_ms=DAY)
NOW = 1_700_000_000_000

DISABLED = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
NOT_FOUND = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
MISMATCH = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
NOT_AUTHORIZED = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
EXPIRED = ErrorCode.DELEGATION_TOKEN_EXPIRED
BAD_TYPE = ErrorCode.INVALID_PRINCIPAL_TYPE


# -- the rules


def made(*renewers: Principal, lifetime_ms: int = -1) -> DelegationToken:
    return new_token(DelegationKey(KEY), ALICE, BOB, renewers, lifetime_ms, LIFETIMES, NOW)


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(KafkaError) as caught:
        yield
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expires_ms"),
    [
        (-1, 7 * DAY, DAY),
        (0, 7 * DAY, DAY),
        (-(2**63), 7 * DAY, DAY),
        (2 * DAY, 2 * DAY, DAY),
        (5, 5, 5),
        (8 * DAY, 7 * DAY, DAY),
        (2**63 - 1, 7 * DAY, DAY),
    ],
)
def test_how_long_a_new_token_is_good(lifetime_ms: int, max_ms: int, expires_ms: int) -> None:
    token = made(lifetime_ms=lifetime_ms)
    assert (token.issued_ms, token.max_ms - NOW, token.expires_ms - NOW) == (
        NOW,
        max_ms,
        expires_ms,
    )


def test_settings_may_say_for_ever() -> None:
    """Times are numbers of 64 bits on the wire."""
    token = new_token(
        DelegationKey(KEY), ALICE, ALICE, (), -1, Lifetimes(2**63 - 1, 2**63 - 1), NOW
    )
    assert (token.max_ms, token.expires_ms) == (TIME_MAX, TIME_MAX)
    assert renewed(token, ALICE, -1, Lifetimes(2**63 - 1, 2**63 - 1), NOW).expires_ms == TIME_MAX


@pytest.mark.parametrize(
    ("period_ms", "after_ms", "expires_ms"),
    [
        (-1, 5, 5 + DAY),
        (0, 5, 5 + DAY),
        (7, 5, 12),
        (2 * DAY, 5, 5 + DAY),
        (-1, DAY, 2 * DAY),
    ],
)
def test_a_token_is_renewed(period_ms: int, after_ms: int, expires_ms: int) -> None:
    token = renewed(made(), ALICE, period_ms, LIFETIMES, NOW + after_ms)
    assert token.expires_ms == NOW + expires_ms
    assert token.max_ms == NOW + 7 * DAY


def test_a_token_is_renewed_up_to_its_greatest_age() -> None:
    token, now = made(), NOW
    for _ in range(20):
        token = renewed(token, ALICE, -1, LIFETIMES, now)
        now = min(now + DAY // 2, NOW + 7 * DAY)
    assert token.expires_ms == token.max_ms == NOW + 7 * DAY
    assert not token.is_over(token.max_ms)
    assert token.is_over(token.max_ms + 1)
    with refused(EXPIRED):
        renewed(token, ALICE, -1, LIFETIMES, token.max_ms + 1)


def test_who_may_renew_and_end_a_token() -> None:
    """Its owner and those whom it names; who made it for somebody else may not, as in Kafka."""
    token = made(CAROL)
    for principal in (ALICE, CAROL):
        assert renewed(token, principal, 5, LIFETIMES, NOW).expires_ms == NOW + 5
        assert ended(token, principal, -1, NOW) is None
    for principal in (BOB, Principal(USER, "dave"), Principal("Group", "alice")):
        with refused(MISMATCH):
            renewed(token, principal, -1, LIFETIMES, NOW)
        with refused(MISMATCH):
            ended(token, principal, -1, NOW)


def test_a_token_ends() -> None:
    token = made()
    sooner = ended(token, ALICE, 5, NOW)
    assert sooner is not None
    assert sooner.expires_ms == NOW + 5
    now_at_once = ended(token, ALICE, 0, NOW)
    assert now_at_once is not None
    assert now_at_once.expires_ms == NOW
    later = ended(token, ALICE, 2**63 - 1, NOW)
    assert later is not None
    assert later.expires_ms == token.max_ms
    with refused(EXPIRED):
        ended(token, ALICE, 5, NOW + DAY + 1)
    assert ended(token, ALICE, -1, NOW + DAY + 1) is None


def test_of_two_causes_that_is_told_which_kafka_sees_first() -> None:
    token = made()
    with refused(MISMATCH):
        ended(token, BOB, 5, NOW + DAY + 1)
    with refused(MISMATCH):
        ended(token, BOB, -1, NOW + DAY + 1)
    with refused(EXPIRED):
        renewed(token, BOB, 5, LIFETIMES, NOW + DAY + 1)


def test_ids_are_kafkas() -> None:
    """22 characters of base64 that do not look like an option of its tools."""
    ids = {_new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in ids)


def test_principals_of_a_token() -> None:
    check_principals(ALICE, [BOB] * (NAMES_MAX - 1))
    check_principals(Principal(USER, "ö" * (NAMES_BYTES_MAX // 2)), [])
    for owner, renewers in (
        (Principal("Group", "a"), []),
        (ALICE, [BOB, Principal("Group", "b")]),
        (ALICE, [Principal("user", "b")]),
        (ALICE, [Principal("", "b")]),
    ):
        with refused(BAD_TYPE):
            check_principals(owner, renewers)
    for owner, renewers in (
        (ALICE, [BOB] * NAMES_MAX),
        (Principal(USER, "ö" * (NAMES_BYTES_MAX // 2)), [BOB]),
    ):
        with refused(ErrorCode.POLICY_VIOLATION):
            check_principals(owner, renewers)


def test_the_hmac_is_kafkas() -> None:
    """HMAC-SHA-512 of the id, by the key."""
    wanted = hmac.new(KEY.encode(), b"some id", hashlib.sha512).digest()
    assert DelegationKey(KEY).hmac("some id") == wanted
    assert password_of(wanted) == base64.b64encode(wanted).decode()


def test_a_token_of_another_key_is_none() -> None:
    token = made()
    assert DelegationKey(KEY).made(token)
    assert not DelegationKey(KEY + ".").made(token)
    assert not DelegationKey(KEY).made(token._replace(id=made().id))


def test_nothing_secret_is_shown() -> None:
    token = made()
    assert repr(token) == f"DelegationToken({token.id} of User:alice, until {token.expires_ms})"
    shown = repr([token, DelegationKey(KEY)])
    for secret in (KEY, *texts(DelegationKey(KEY).hmac(token.id)), *texts(token.digest)):
        assert secret not in shown


def texts(data: bytes) -> list[str]:
    """How it could stand in a file or in a log."""
    return [repr(data)[2:-1], data.hex(), base64.b64encode(data).decode()]


# -- over the wire


class Time(SystemClock):
    """The clock of the machine, and what a test adds."""

    added_ms = 0

    def log_ms(self) -> int:
        return super().log_ms() + self.added_ms


PLAIN_USERS = " ".join(f'user_{name}="hush"' for name in ("admin", "alice", "bob", "carol"))


@asynccontextmanager
async def guarded(
    *settings: str,
    key: str = KEY,
    data_dir: Path | None = None,
    nodes: int = 1,
    clock: Time | None = None,
) -> AsyncIterator[Broker]:
    """A broker with a listener for everybody, and one where users and tokens log in."""
    options = [
        "listeners=OPEN://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map=OPEN:PLAINTEXT,INSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"sasl.jaas.config=a.PlainLoginModule required {PLAIN_USERS};",
        *(
            f"listener.name.inside.scram-sha-{bits}.sasl.jaas.config=a.ScramLoginModule required;"
            for bits in (256, 512)
        ),
        "connection.failed.authentication.delay.ms=0",
        *([f"delegation.token.secret.key={key}"] if key else []),
        *settings,
    ]
    config = BrokerConfig.load(options=options, strict=True)
    folder = None if data_dir is None else str(data_dir)
    async with open_broker(
        config,
        data_dir=folder,
        listeners=configured_listeners(config),
        nodes=nodes,
        clock=clock,
    ) as broker:
        yield broker
        assert broker.node.context.troubles.unhandled_errors == 0


@asynccontextmanager
async def user(broker: Broker, name: str, node: int = 1) -> AsyncIterator[Wire]:
    """Somebody who has logged in by a password."""
    async with connected(broker.nodes[node - 1].endpoints()["INSIDE"]) as wire:
        await handshake(wire, "PLAIN")
        answer = await authenticate(wire, f"\0{name}\0hush".encode())
        assert not answer.error_code
        yield wire


async def show_token(
    wire: Wire, token_id: str, password: str, mechanism: ScramMechanism = SHA_256
) -> Any:
    """Log in by a token; the last answer of the broker."""
    await handshake(wire, mechanism)
    client = ScramClient(mechanism, token_id, password, is_token=True)
    first = await authenticate(wire, client.first())
    if first.error_code:
        return first
    last = await authenticate(wire, client.final(bytes(first.auth_bytes)))
    if not last.error_code:
        client.check(bytes(last.auth_bytes))
    return last


@asynccontextmanager
async def bearer(broker: Broker, token: Any) -> AsyncIterator[Wire]:
    """Somebody who has logged in by a token."""
    async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
        answer = await show_token(wire, token.token_id, password_of(bytes(token.hmac)))
        assert not answer.error_code
        yield wire


async def logs_in(
    broker: Broker,
    token: Any,
    mechanism: ScramMechanism = SHA_256,
    *,
    hmac: bytes | None = None,
    node: int = 1,
) -> bool:
    """Whether our own client comes in by a token."""
    password = password_of(bytes(token.hmac) if hmac is None else hmac)
    credentials = Credentials(mechanism, token.token_id, password, is_delegation_token=True)
    endpoint = broker.nodes[node - 1].endpoints()["INSIDE"]
    async with open_cluster(
        [endpoint], direct=True, security=Security(None, credentials)
    ) as client:
        try:
            await client.metadata([])
        except CannotConnect:
            return False
    return True


async def create(
    wire: Wire,
    *renewers: str,
    owner: Principal | None = None,
    lifetime_ms: int = -1,
    version: int = 3,
) -> Any:
    cls = CreateDelegationTokenRequest
    rows = [cls.Renewer(principal_type=USER, principal_name=each) for each in renewers]
    ask = cls(renewers=rows, max_lifetime_ms=lifetime_ms)
    if owner is not None:
        ask.owner_principal_type, ask.owner_principal_name = owner
    return await wire.ask(ApiKey.CREATE_DELEGATION_TOKEN, version, ask)


async def renew(wire: Wire, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    ask = request(ApiKey.RENEW_DELEGATION_TOKEN, hmac=hmac, renew_period_ms=period_ms)
    return await wire.ask(ApiKey.RENEW_DELEGATION_TOKEN, version, ask)


async def expire(wire: Wire, hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    ask = request(ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=hmac, expiry_time_period_ms=period_ms)
    return await wire.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, version, ask)


async def describe(wire: Wire, *owners: str, everybody: bool = True, version: int = 3) -> Any:
    cls = DescribeDelegationTokenRequest
    rows = [cls.Owner(principal_type=USER, principal_name=each) for each in owners]
    ask = cls(owners=None if everybody and not rows else rows)
    return await wire.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, ask)


async def ids(wire: Wire, *owners: str, everybody: bool = True) -> list[str]:
    answer = await describe(wire, *owners, everybody=everybody)
    assert answer.error_code == 0
    return [each.token_id for each in answer.tokens]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_token_is_made_and_described(version: int) -> None:
    time = Time()
    async with guarded(clock=time) as broker, user(broker, "alice") as alice:
        before = time.log_ms()
        token = await create(alice, "bob", "carol", version=version)
        assert token.error_code == 0
        assert (token.principal_type, token.principal_name) == (USER, "alice")
        assert before <= token.issue_timestamp_ms <= time.log_ms()
        assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY
        assert token.expiry_timestamp_ms - token.issue_timestamp_ms == DAY
        assert token.hmac == DelegationKey(KEY).hmac(token.token_id)
        (row,) = (await describe(alice, version=version)).tokens
        assert (row.token_id, row.hmac) == (token.token_id, token.hmac)
        assert (row.principal_type, row.principal_name) == (USER, "alice")
        assert [each.principal_name for each in row.renewers] == ["bob", "carol"]
        assert (row.issue_timestamp, row.expiry_timestamp, row.max_timestamp) == (
            token.issue_timestamp_ms,
            token.expiry_timestamp_ms,
            token.max_timestamp_ms,
        )
        if version == 3:
            for each in (token, row):
                assert each.token_requester_principal_name == "alice"


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_a_login_by_a_token_is_one_of_its_owner(mechanism: ScramMechanism) -> None:
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice)
        assert await logs_in(broker, token, mechanism)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            answer = await show_token(
                wire, token.token_id, password_of(bytes(token.hmac)), mechanism
            )
            assert answer.error_code == 0
            assert DAY - 60_000 < answer.session_lifetime_ms <= DAY
            topic = await create_topic(wire, "t")
            assert (await produce(wire, topic, batch([b"a"]))).error_code == 0
            peers = [each.peer for each in broker.server.connections]
            assert {str(each.client.principal) for each in peers} == {"User:alice"}


async def test_who_has_logged_in_by_a_token_gets_no_others() -> None:
    """Also when the owner lets them, and after another login on the same connection."""
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice, "alice")
        hmac = bytes(token.hmac)
        async with bearer(broker, token) as wire:
            for _ in range(2):
                assert (await create(wire)).error_code == NOT_ALLOWED
                assert (await renew(wire, hmac)).error_code == NOT_ALLOWED
                assert (await expire(wire, hmac)).error_code == NOT_ALLOWED
                told = await describe(wire)
                assert (told.error_code, told.tokens) == (NOT_ALLOWED, [])
                await trio.sleep(1.1)  # logins follow each other by a second at least
                again = await show_token(wire, token.token_id, password_of(hmac))
                assert again.error_code == 0
        assert await ids(alice) == [token.token_id]


async def test_who_shows_nothing_of_himself_gets_none(authority: Authority) -> None:
    safe = (
        "listeners=OPEN://127.0.0.1:0,INSIDE://127.0.0.1:0,SAFE://127.0.0.1:0",
        "listener.security.protocol.map=OPEN:PLAINTEXT,INSIDE:SASL_PLAINTEXT,SAFE:SSL",
        f"listener.name.safe.ssl.keystore.location={authority.pem('server')}",
    )
    async with guarded(*safe) as broker, user(broker, "alice") as alice:
        hmac = bytes((await create(alice)).hmac)
        endpoints = broker.nodes[0].endpoints()
        for opened in (
            connected(endpoints["OPEN"]),
            encrypted(endpoints["SAFE"], authority.context()),
        ):
            async with opened as wire:
                told = await create(wire, owner=ALICE)
                assert told.error_code == NOT_ALLOWED
                assert (told.token_id, told.hmac, told.max_timestamp_ms) == ("", b"", -1)
                for answer in (await renew(wire, hmac), await expire(wire, hmac)):
                    assert (answer.error_code, answer.expiry_timestamp_ms) == (NOT_ALLOWED, -1)
                assert (await describe(wire)).error_code == NOT_ALLOWED


async def test_who_shows_a_certificate_gets_one(authority: Authority) -> None:
    """Of the owner whom it names; where certificates are only requested, nobody else does."""
    safe = (
        "listeners=OPEN://127.0.0.1:0,INSIDE://127.0.0.1:0,SAFE://127.0.0.1:0",
        "listener.security.protocol.map=OPEN:PLAINTEXT,INSIDE:SASL_PLAINTEXT,SAFE:SSL",
        f"listener.name.safe.ssl.keystore.location={authority.pem('server')}",
        f"listener.name.safe.ssl.truststore.location={authority.trusted}",
        "listener.name.safe.ssl.client.auth=requested",
        "ssl.principal.mapping.rules=RULE:^CN=([a-z]+),.*$/$1/",
    )
    async with guarded(*safe) as broker:
        endpoint = broker.nodes[0].endpoints()["SAFE"]
        async with encrypted(endpoint, authority.context(authority.pem("alice"))) as wire:
            token = await create(wire)
            assert (token.error_code, token.principal_name) == (0, "alice")
            assert await ids(wire) == [token.token_id]
        assert await logs_in(broker, token)
        async with encrypted(endpoint, authority.context()) as wire:
            assert (await create(wire)).error_code == NOT_ALLOWED


async def test_without_a_key_there_are_none(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with guarded(data_dir=data) as broker, user(broker, "alice") as alice:
        token = await create(alice)
    async with guarded(key="", data_dir=data) as broker, user(broker, "alice") as alice:
        assert (await create(alice)).error_code == DISABLED
        assert (await renew(alice, bytes(token.hmac))).error_code == DISABLED
        assert (await expire(alice, bytes(token.hmac))).error_code == DISABLED
        assert (await describe(alice)).error_code == DISABLED
        assert not await logs_in(broker, token)
        wrong = CreateDelegationTokenRequest.Renewer(principal_type="Group", principal_name="a")
        ask = CreateDelegationTokenRequest(renewers=[wrong])
        answer = await alice.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, ask)
        assert answer.error_code == BAD_TYPE


async def test_another_key_makes_all_tokens_void(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with guarded(data_dir=data) as broker, user(broker, "alice") as alice:
        token = await create(alice)
        assert await logs_in(broker, token)
    async with guarded(key="another", data_dir=data) as broker, user(broker, "alice") as alice:
        assert not await logs_in(broker, token)
        assert not await logs_in(broker, token, hmac=DelegationKey("another").hmac(token.token_id))
        assert await ids(alice) == []
        for hmac in (bytes(token.hmac), DelegationKey("another").hmac(token.token_id)):
            assert (await renew(alice, hmac)).error_code == NOT_FOUND
            assert (await expire(alice, hmac)).error_code == NOT_FOUND
    async with guarded(data_dir=data) as broker:
        assert await logs_in(broker, token)


async def test_all_nodes_know_at_once_and_after_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with guarded(data_dir=data, nodes=2) as broker, user(broker, "alice", node=2) as alice:
        token = await create(alice, lifetime_ms=DAY)
        for node in (1, 2):
            assert await logs_in(broker, token, node=node)
        async with user(broker, "alice") as other:
            assert await ids(other) == [token.token_id]
            renewal = await renew(other, bytes(token.hmac), 60_000)
        (row,) = (await describe(alice)).tokens
        assert row.expiry_timestamp == renewal.expiry_timestamp_ms
    async with guarded(data_dir=data, nodes=2) as broker, user(broker, "alice") as alice:
        (row,) = (await describe(alice)).tokens
        assert (row.expiry_timestamp, row.max_timestamp) == (
            renewal.expiry_timestamp_ms,
            token.max_timestamp_ms,
        )
        assert await logs_in(broker, token, SHA_512, node=2)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_token_is_renewed_and_ended_by_its_hmac(version: int) -> None:
    time = Time()
    async with (
        guarded(clock=time) as broker,
        user(broker, "alice") as alice,
        user(broker, "bob") as bob,
        user(broker, "carol") as carol,
    ):
        token = await create(alice, "bob")
        hmac = bytes(token.hmac)
        time.added_ms += DAY // 2
        for wire in (alice, bob):
            answer = await renew(wire, hmac, version=version)
            assert answer.error_code == 0
            assert answer.expiry_timestamp_ms > token.expiry_timestamp_ms
        for answer in (await renew(carol, hmac), await expire(carol, hmac)):
            assert (answer.error_code, answer.expiry_timestamp_ms) == (MISMATCH, 0)
        answer = await expire(bob, hmac, 60_000, version)
        assert answer.error_code == 0
        assert 0 < answer.expiry_timestamp_ms - time.log_ms() <= 60_000
        (row,) = (await describe(alice)).tokens
        assert row.expiry_timestamp == answer.expiry_timestamp_ms
        assert await logs_in(broker, token)
        answer = await expire(alice, hmac, -1, version)
        assert answer.error_code == 0
        assert abs(answer.expiry_timestamp_ms - time.log_ms()) < 60_000
        assert await ids(alice) == []
        assert not await logs_in(broker, token)
        for answer in (await renew(alice, hmac), await expire(alice, hmac)):
            assert answer.error_code == NOT_FOUND


async def test_the_order_of_requests_is_that_of_their_effects() -> None:
    """Who does not wait for answers sees what it has done (one connection)."""
    describing = DescribeDelegationTokenRequest(owners=None)
    key = ApiKey.DESCRIBE_DELEGATION_TOKEN
    async with guarded() as broker, user(broker, "alice") as alice:
        ask = CreateDelegationTokenRequest()
        for api, message in (
            (ApiKey.CREATE_DELEGATION_TOKEN, ask),
            (key, describing),
        ):
            await alice.send(api, 3, message)
        made = await alice.receive()
        assert [each.token_id for each in (await alice.receive()).tokens] == [made.token_id]
        hmac = bytes(made.hmac)
        renewing = request(ApiKey.RENEW_DELEGATION_TOKEN, hmac=hmac, renew_period_ms=1_000_000)
        ending = request(ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=hmac, expiry_time_period_ms=-1)
        await alice.send(ApiKey.RENEW_DELEGATION_TOKEN, 2, renewing)
        await alice.send(key, 3, describing)
        await alice.send(ApiKey.EXPIRE_DELEGATION_TOKEN, 2, ending)
        await alice.send(key, 3, describing)
        renewal = await alice.receive()
        (row,) = (await alice.receive()).tokens
        assert row.expiry_timestamp == renewal.expiry_timestamp_ms
        assert (await alice.receive()).error_code == 0
        assert (await alice.receive()).tokens == []


async def test_tokens_that_have_ended_are_removed() -> None:
    time = Time()
    async with guarded(clock=time) as broker, user(broker, "alice") as alice:
        short = await create(alice, lifetime_ms=1000)
        long = await create(alice)
        time.added_ms += 2000
        assert not await logs_in(broker, short)
        assert (await renew(alice, bytes(short.hmac))).error_code == EXPIRED
        assert (await expire(alice, bytes(short.hmac), 5)).error_code == EXPIRED
        await broker.node.delegation.remove_over()
        assert await ids(alice) == [long.token_id]
        assert (await renew(alice, bytes(short.hmac))).error_code == NOT_FOUND
        time.added_ms += DAY
        await broker.node.delegation.remove_over()
        assert len(broker.node.cluster.delegation_tokens) == 0


async def test_they_are_removed_now_and_then() -> None:
    time = Time()
    often = "delegation.token.expiry.check.interval.ms=20"
    async with guarded(often, clock=time) as broker, user(broker, "alice") as alice:
        assert (await create(alice)).error_code == 0
        await trio.sleep(0.1)
        assert len(broker.node.cluster.delegation_tokens) == 1
        time.added_ms += 2 * DAY
        await until(lambda: not len(broker.node.cluster.delegation_tokens))


@pytest.mark.parametrize(
    ("setting", "field", "milliseconds"),
    [
        ("delegation.token.max.lifetime.ms", "max_timestamp_ms", 5000),
        ("delegation.token.expiry.time.ms", "expiry_timestamp_ms", 6000),
    ],
)
async def test_settings_say_how_long(setting: str, field: str, milliseconds: int) -> None:
    async with guarded(f"{setting}={milliseconds}") as broker, user(broker, "alice") as alice:
        token = await create(alice)
        assert getattr(token, field) - token.issue_timestamp_ms == milliseconds


@pytest.mark.parametrize("name", ["max.lifetime", "expiry.time", "expiry.check.interval"])
def test_settings_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"delegation.token.{name}.ms"):
        BrokerConfig.load(options=[f"delegation.token.{name}.ms=0"])


async def test_there_is_an_end_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 5)
    monkeypatch.setattr(delegation_tokens, "OF_ONE_MAX", 3)
    full = ErrorCode.POLICY_VIOLATION
    async with (
        guarded() as broker,
        user(broker, "alice") as alice,
        user(broker, "bob") as bob,
    ):
        tokens = [await create(alice) for _ in range(4)]
        assert [each.error_code for each in tokens] == [0, 0, 0, full]
        assert (await create(alice, owner=BOB)).error_code == full
        assert [(await create(bob)).error_code for _ in range(3)] == [0, 0, full]
        assert (await expire(alice, bytes(tokens[0].hmac))).error_code == 0
        assert (await create(alice)).error_code == 0
        assert (await create(bob, *["x"] * NAMES_MAX)).error_code == full
        assert (await create(bob, "x" * 5000)).error_code == full


async def test_two_who_change_one_token_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was ended in between does not come back."""
    async with guarded(nodes=2) as broker, user(broker, "alice") as alice:
        hmac = bytes((await create(alice)).hmac)
        store = broker.nodes[0].node.cluster._store
        inner = store.transact
        tries = 0

        async def with_somebody_else(*args: Any, **kw: Any) -> int | None:
            nonlocal tries
            tries += 1
            if tries == 1:
                async with user(broker, "alice", node=2) as other:
                    assert (await expire(other, hmac)).error_code == 0
            return await inner(*args, **kw)

        monkeypatch.setattr(store, "transact", with_somebody_else)
        assert (await renew(alice, hmac)).error_code == NOT_FOUND
        assert tries > 1
        assert await ids(alice) == []


# -- who may know of whose tokens


@asynccontextmanager
async def with_acls() -> AsyncIterator[tuple[Broker, Wire, Wire, Wire]]:
    """A broker where nobody may do anything but `admin`; admin, alice and bob have logged in."""
    own = (f"authorizer.class.name={AUTHORIZER}", "super.users=User:admin")
    async with (
        guarded(*own) as broker,
        user(broker, "admin") as admin,
        user(broker, "alice") as alice,
        user(broker, "bob") as bob,
    ):
        yield broker, admin, alice, bob


async def test_tokens_of_others_need_a_right() -> None:
    async with with_acls() as (broker, admin, alice, bob):
        refusal = await create(alice, owner=BOB)
        assert refusal.error_code == NOT_AUTHORIZED
        assert (refusal.principal_name, refusal.token_requester_principal_name) == ("bob", "alice")
        assert (await create(alice, owner=ALICE)).error_code == 0
        allowed = new(AclResourceType.USER, AclOperation.CREATE_TOKENS, "User:bob")
        await grant(admin, allowed)
        token = await create(alice, owner=BOB)
        assert token.error_code == 0
        assert (token.principal_name, token.token_requester_principal_name) == ("bob", "alice")
        assert (await create(alice, owner=CAROL)).error_code == NOT_AUTHORIZED
        async with bearer(broker, token):
            (peer,) = (
                each.peer
                for each in broker.server.connections
                if each.peer.login is not None and each.peer.login.is_delegated
            )
            assert str(peer.client.principal) == "User:bob"
        assert (await renew(alice, bytes(token.hmac))).error_code == MISMATCH
        assert (await renew(bob, bytes(token.hmac))).error_code == 0
        assert token.token_id in await ids(alice)
        assert await ids(bob) == [token.token_id]
        assert (await create(admin, owner=CAROL)).error_code == 0


async def test_an_owner_can_only_be_a_user() -> None:
    """Who logs in is one: a right over `Group:bob` is none over `User:bob`."""
    async with with_acls() as (_, admin, alice, _):
        await grant(admin, new(AclResourceType.USER, AclOperation.CREATE_TOKENS, "Group:bob"))
        assert (await create(alice, owner=Principal("Group", "bob"))).error_code == BAD_TYPE


async def test_who_sees_which_tokens() -> None:
    describes, lets = AclOperation.DESCRIBE, AclOperation.DESCRIBE_TOKENS
    async with with_acls() as (_, admin, alice, bob):
        first, second = [(await create(alice)).token_id for _ in range(2)]
        shared = (await create(alice, "bob")).token_id
        own = (await create(bob)).token_id
        everything = {first, second, shared, own}
        assert set(await ids(alice)) == {first, second, shared}
        assert set(await ids(bob)) == {shared, own}
        assert set(await ids(admin)) == everything
        assert await ids(bob, everybody=False) == []
        assert await ids(bob, "alice") == [shared]
        assert set(await ids(bob, "bob")) == {shared, own}
        assert set(await ids(admin, "alice")) == {first, second, shared}
        assert await ids(admin, "carol") == []
        await grant(
            admin, new(AclResourceType.DELEGATION_TOKEN, describes, first, principal="User:bob")
        )
        assert set(await ids(bob)) == {first, shared, own}
        await grant(admin, new(AclResourceType.USER, lets, "User:alice", principal="User:bob"))
        assert set(await ids(bob)) == everything
        prefix = new(AclResourceType.USER, lets, "User:b", pattern=PatternType.PREFIXED)
        await grant(admin, prefix)
        assert set(await ids(alice)) == everything


# -- attacks


async def test_only_the_right_hmac_lets_in() -> None:
    async with guarded() as broker, user(broker, "alice") as alice:
        token, other = await create(alice), await create(alice)
        right = bytes(token.hmac)
        for wrong in (
            bytes([right[0] ^ 1]) + right[1:],
            right[:-1],
            right + b"\0",
            bytes(other.hmac),
            token.token_id.encode(),
            bytes(64),
        ):
            assert not await logs_in(broker, token, hmac=wrong)
            assert (await renew(alice, wrong)).error_code in (
                [0] if wrong == bytes(other.hmac) else [NOT_FOUND]
            )
        assert (await renew(alice, b"")).error_code == NOT_FOUND


async def test_a_token_is_no_user_and_a_user_no_token() -> None:
    """The extension decides in which of the two a name is looked up."""
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice)
        row = upsertion("dave")
        ask = AlterUserScramCredentialsRequest(upsertions=[row])
        assert (
            not (await alice.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, ask)).results[0].error_code
        )
        endpoint = broker.nodes[0].endpoints()["INSIDE"]
        password = password_of(bytes(token.hmac))
        for name, secret, is_token in (
            (token.token_id, password, False),
            ("dave", "brush", True),
            ("alice", password, True),
        ):
            credentials = Credentials(SHA_256, name, secret, is_delegation_token=is_token)
            security = Security(None, credentials)
            async with open_cluster([endpoint], direct=True, security=security) as client:
                with pytest.raises(CannotConnect, match="does not let"):
                    await client.metadata([])


async def test_an_unknown_token_looks_like_a_wrong_password() -> None:
    """Step by step, in shape, and from every node; so does one that has ended."""
    time = Time()
    async with guarded(clock=time, nodes=2) as broker, user(broker, "alice") as alice:
        many = upsertion("dave", iterations=8192, salt=bytes(40))
        ask = AlterUserScramCredentialsRequest(upsertions=[many])
        await alice.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, ask)
        known, over = await create(alice), await create(alice, lifetime_ms=1000)
        time.added_ms += 2000
        told = []
        for token_id in (known.token_id, over.token_id, "f0a9b5d2-0000-4000-8000-000000000000"):
            for node in broker.nodes:
                async with connected(node.endpoints()["INSIDE"]) as wire:
                    await handshake(wire, SHA_256)
                    client = ScramClient(SHA_256, token_id, "wrong", is_token=True)
                    first = await authenticate(wire, client.first())
                    parts = dict(
                        part.split("=", 1) for part in bytes(first.auth_bytes).decode().split(",")
                    )
                    last = await authenticate(wire, client.final(bytes(first.auth_bytes)))
                    shape = parts["i"], len(base64.b64decode(parts["s"]))
                    told.append((shape, last.error_code, last.error_message))
                    salt = parts["s"]
            async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
                await handshake(wire, SHA_256)
                first = await authenticate(wire, f"n,,n={token_id},r=abc,tokenauth=true".encode())
                assert f"s={salt}," in bytes(first.auth_bytes).decode()
        assert set(told) == {
            (("4096", 16), ErrorCode.SASL_AUTHENTICATION_FAILED, told[0][2]),
        }


async def test_as_much_is_worked_for_a_token_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of an answer tells nothing: what takes it is the HMAC, and what SCRAM always does."""
    inner = DelegationKey.hmac
    counted: list[str] = []

    def counting(key: DelegationKey, token_id: str) -> bytes:
        counted.append(token_id)
        return inner(key, token_id)

    time = Time()
    async with guarded(clock=time) as broker, user(broker, "alice") as alice:
        known, over = await create(alice), await create(alice, lifetime_ms=1000)
        time.added_ms += 2000
        monkeypatch.setattr(DelegationKey, "hmac", counting)
        for token_id in (known.token_id, over.token_id, "nothing"):
            counted.clear()
            async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
                assert (await show_token(wire, token_id, "wrong")).error_code
            assert counted == [token_id]


async def test_many_who_make_tokens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not make more than there may be."""
    monkeypatch.setattr(delegation_tokens, "OF_ONE_MAX", 3)
    async with guarded() as broker:
        codes: list[int] = []

        async def one() -> None:
            async with user(broker, "alice") as wire:
                codes.append((await create(wire)).error_code)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one)
        assert sorted(codes) == [0] * 3 + [ErrorCode.POLICY_VIOLATION] * 7
        assert len(broker.node.cluster.delegation_tokens) == 3


async def test_a_login_that_was_heard_does_not_work_again() -> None:
    """Its messages belong to another exchange."""
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice)
        client = ScramClient(SHA_256, token.token_id, password_of(bytes(token.hmac)), is_token=True)
        heard = [client.first()]
        endpoint = broker.nodes[0].endpoints()["INSIDE"]
        async with connected(endpoint) as wire:
            await handshake(wire, SHA_256)
            first = await authenticate(wire, heard[0])
            heard.append(client.final(bytes(first.auth_bytes)))
            assert not (await authenticate(wire, heard[1])).error_code
        async with connected(endpoint) as wire:
            await handshake(wire, SHA_256)
            assert not (await authenticate(wire, heard[0])).error_code
            refusal = await authenticate(wire, heard[1])
            assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("end", ["its time", "its owner"])
async def test_a_token_may_end_amidst_a_login(end: str) -> None:
    time = Time()
    async with guarded(clock=time) as broker, user(broker, "alice") as alice:
        token = await create(alice)
        client = ScramClient(SHA_256, token.token_id, password_of(bytes(token.hmac)), is_token=True)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            await handshake(wire, SHA_256)
            first = await authenticate(wire, client.first())
            if end == "its time":
                time.added_ms += DAY
            else:
                assert (await expire(alice, bytes(token.hmac))).error_code == 0
            last = await authenticate(wire, client.final(bytes(first.auth_bytes)))
            assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
                await create_topic(wire, "t")


async def test_a_session_ends_with_its_token() -> None:
    """Though it may last for much longer; another login needs a token that is still good (KIP-368)."""
    async with (
        guarded("connections.max.reauth.ms=3600000") as broker,
        user(broker, "alice") as alice,
    ):
        token = await create(alice, lifetime_ms=1500)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            password = password_of(bytes(token.hmac))
            answer = await show_token(wire, token.token_id, password)
            assert 0 < answer.session_lifetime_ms <= 1500
            await create_topic(wire, "t")
            await trio.sleep(1.6)
            assert (await show_token(wire, token.token_id, password)).error_code
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            token = await create(alice, lifetime_ms=600)
            assert not (
                await show_token(wire, token.token_id, password_of(bytes(token.hmac)))
            ).error_code
            await trio.sleep(0.8)
            with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
                await create_topic(wire, "u")


async def test_a_session_is_no_longer_than_other_logins() -> None:
    async with (
        guarded("connections.max.reauth.ms=60000") as broker,
        user(broker, "alice") as alice,
    ):
        token = await create(alice)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            answer = await show_token(wire, token.token_id, password_of(bytes(token.hmac)))
            assert 0 < answer.session_lifetime_ms <= 60_000


async def test_another_login_is_by_the_same_user() -> None:
    async with guarded() as broker, user(broker, "alice") as alice, user(broker, "bob") as bob:
        mine, other = await create(alice), await create(bob)
        async with bearer(broker, mine) as wire:
            await trio.sleep(1.1)
            refusal = await show_token(wire, other.token_id, password_of(bytes(other.hmac)))
            assert refusal.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "Cannot change principals" in refusal.error_message


async def test_a_token_outlives_its_owners_password() -> None:
    """As in Kafka, which does not know all users: it ends by itself, or its owner or a renewer ends it.

    What the owner may not do any more, it does not let anybody do.
    """
    async with with_acls() as (broker, admin, _, _):
        row = upsertion("dave")
        cls = AlterUserScramCredentialsRequest
        key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
        assert not (await admin.ask(key, 0, cls(upsertions=[row]))).results[0].error_code
        dave = Principal(USER, "dave")
        token = await create(admin, "admin", owner=dave)
        topics = new(AclResourceType.TOPIC, AclOperation.ALL, principal="User:dave")
        await grant(admin, topics)
        gone = cls.Deletion(name="dave", mechanism=1)
        assert not (await admin.ask(key, 0, cls(deletions=[gone]))).results[0].error_code
        async with bearer(broker, token) as wire:
            await create_topic(wire, "t")
        assert await ids(admin, "dave") == [token.token_id]
        assert (await expire(admin, bytes(token.hmac))).error_code == 0
        assert not await logs_in(broker, token)


async def test_no_secret_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in logs, not in what is kept, not in settings that anybody asks for."""
    caplog.set_level(logging.DEBUG)
    data = tmp_path / "data"
    async with guarded(data_dir=data) as broker, user(broker, "alice") as alice:
        token = await create(alice)
        hmac = bytes(token.hmac)
        assert await logs_in(broker, token)
        assert (await renew(alice, hmac)).error_code == 0
        await describe(alice)
        cls = type(request(ApiKey.DESCRIBE_CONFIGS))
        ask = cls(resources=[cls.Resource(resource_type=4, resource_name="1")])
        (told,) = (await alice.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask)).results
        (row,) = (each for each in told.configs if each.name == "delegation.token.secret.key")
        assert (row.value, row.is_sensitive, row.read_only) == (None, True, True)
        shown = repr([token, broker.node.cluster.delegation_tokens.get(token.token_id)])
    kept = (data / METADATA_JOURNAL).read_text()
    assert f'"tokens/{token.token_id}"' in kept
    assert f"CreateDelegationToken by None: token {token.token_id}" in caplog.text.replace(
        "by test", "by None"
    )
    for secret in (KEY, *texts(hmac), password_of(hmac)):
        assert secret not in kept
        assert secret not in caplog.text
        assert secret not in shown


# -- our own client


def test_settings_of_our_own_client() -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'a.ScramLoginModule required username="id" password="h" tokenauth="TRUE";',
    }
    assert security_of(settings).credentials == Credentials(
        SHA_512, "id", "h", is_delegation_token=True
    )
    plain = settings | {"sasl.jaas.config": settings["sasl.jaas.config"].replace("TRUE", "no")}
    assert security_of(plain).credentials == Credentials(SHA_512, "id", "h")
    with pytest.raises(BadSecurity, match=r"tokenauth=true needs sasl\.mechanism=SCRAM"):
        security_of(settings | {"sasl.mechanism": "PLAIN"})
