"""Requests that create, renew, expire and describe delegation tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kbroker.cluster import delegation_tokens
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
)
from kbroker.security.acls import AclOperation, AclResourceType, PatternType
from kbroker.security.delegation import (
    NAMES_MAX,
    DelegationKey,
    password_of,
)
from kbroker.security.principals import USER, Principal

from ..security.certificates import Authority
from ..security.clients import encrypted
from ..security.test_access import grant, new
from ..security.tokens import (
    ALICE,
    BAD_TYPE,
    BOB,
    CAROL,
    DAY,
    KEY,
    MISMATCH,
    NOT_FOUND,
    Time,
    bearer,
    create,
    describe,
    expire,
    guarded,
    ids,
    logs_in,
    renew,
    show_token,
    user,
    with_acls,
)
from ..wire import connected, request

DISABLED = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


NOT_AUTHORIZED = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


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


async def test_there_is_an_end_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_MAX", 5)
    monkeypatch.setattr(delegation_tokens, "TOKENS_PER_REQUESTER_MAX", 3)
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


async def test_many_who_make_tokens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not make more than there may be."""
    monkeypatch.setattr(delegation_tokens, "TOKENS_PER_REQUESTER_MAX", 3)
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
