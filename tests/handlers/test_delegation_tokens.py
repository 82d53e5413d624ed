"""Tests of requests that create, renew, expire and describe delegation tokens."""

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
from ..security.test_access import acl_for, grant
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
async def test_token_is_created_and_described(version: int) -> None:
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


async def test_token_authenticated_client_cannot_manage_tokens() -> None:
    """The rule applies even to the token owner and after re-authentication."""
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice, "alice")
        hmac = bytes(token.hmac)
        async with bearer(broker, token) as wire:
            for _ in range(2):
                assert (await create(wire)).error_code == NOT_ALLOWED
                assert (await renew(wire, hmac)).error_code == NOT_ALLOWED
                assert (await expire(wire, hmac)).error_code == NOT_ALLOWED
                response = await describe(wire)
                assert (response.error_code, response.tokens) == (NOT_ALLOWED, [])
                await trio.sleep(1.1)  # re-authentication is allowed once per second
                reauthentication = await show_token(wire, token.token_id, password_of(hmac))
                assert reauthentication.error_code == 0
        assert await ids(alice) == [token.token_id]


async def test_unauthenticated_client_cannot_manage_tokens(authority: Authority) -> None:
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
                response = await create(wire, owner=ALICE)
                assert response.error_code == NOT_ALLOWED
                assert (response.token_id, response.hmac, response.max_timestamp_ms) == (
                    "",
                    b"",
                    -1,
                )
                for response in (await renew(wire, hmac), await expire(wire, hmac)):
                    assert (response.error_code, response.expiry_timestamp_ms) == (NOT_ALLOWED, -1)
                assert (await describe(wire)).error_code == NOT_ALLOWED


async def test_client_with_certificate_can_create_token(authority: Authority) -> None:
    """The token belongs to the certificate's principal. Clients without a certificate get none."""
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


async def test_requests_are_rejected_without_secret_key(tmp_path: Path) -> None:
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
        response = await alice.ask(ApiKey.CREATE_DELEGATION_TOKEN, 3, ask)
        assert response.error_code == BAD_TYPE


@pytest.mark.parametrize("version", [1, 2])
async def test_token_is_renewed_and_expired_by_hmac(version: int) -> None:
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
            response = await renew(wire, hmac, version=version)
            assert response.error_code == 0
            assert response.expiry_timestamp_ms > token.expiry_timestamp_ms
        for response in (await renew(carol, hmac), await expire(carol, hmac)):
            assert (response.error_code, response.expiry_timestamp_ms) == (MISMATCH, 0)
        response = await expire(bob, hmac, 60_000, version)
        assert response.error_code == 0
        assert 0 < response.expiry_timestamp_ms - time.log_ms() <= 60_000
        (row,) = (await describe(alice)).tokens
        assert row.expiry_timestamp == response.expiry_timestamp_ms
        assert await logs_in(broker, token)
        response = await expire(alice, hmac, -1, version)
        assert response.error_code == 0
        assert abs(response.expiry_timestamp_ms - time.log_ms()) < 60_000
        assert await ids(alice) == []
        assert not await logs_in(broker, token)
        for response in (await renew(alice, hmac), await expire(alice, hmac)):
            assert response.error_code == NOT_FOUND


async def test_pipelined_token_requests_take_effect_in_order() -> None:
    """A client that pipelines requests on one connection sees the effects of earlier ones."""
    describing = DescribeDelegationTokenRequest(owners=None)
    key = ApiKey.DESCRIBE_DELEGATION_TOKEN
    async with guarded() as broker, user(broker, "alice") as alice:
        ask = CreateDelegationTokenRequest()
        for api, message in (
            (ApiKey.CREATE_DELEGATION_TOKEN, ask),
            (key, describing),
        ):
            await alice.send(api, 3, message)
        created = await alice.receive()
        assert [each.token_id for each in (await alice.receive()).tokens] == [created.token_id]
        hmac = bytes(created.hmac)
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


async def test_number_and_size_of_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_creating_token_for_other_owner_requires_acl() -> None:
    async with with_acls() as (broker, admin, alice, bob):
        refusal = await create(alice, owner=BOB)
        assert refusal.error_code == NOT_AUTHORIZED
        assert (refusal.principal_name, refusal.token_requester_principal_name) == ("bob", "alice")
        assert (await create(alice, owner=ALICE)).error_code == 0
        allowed = acl_for(AclResourceType.USER, AclOperation.CREATE_TOKENS, "User:bob")
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


async def test_token_owner_must_be_user() -> None:
    """Authenticated principals are users, so an ACL on `Group:bob` does not cover `User:bob`."""
    async with with_acls() as (_, admin, alice, _):
        await grant(admin, acl_for(AclResourceType.USER, AclOperation.CREATE_TOKENS, "Group:bob"))
        assert (await create(alice, owner=Principal("Group", "bob"))).error_code == BAD_TYPE


async def test_visible_tokens_depend_on_ownership_and_acls() -> None:
    describes, lets = AclOperation.DESCRIBE, AclOperation.DESCRIBE_TOKENS
    async with with_acls() as (_, admin, alice, bob):
        first, second = [(await create(alice)).token_id for _ in range(2)]
        shared = (await create(alice, "bob")).token_id
        own = (await create(bob)).token_id
        all_tokens = {first, second, shared, own}
        assert set(await ids(alice)) == {first, second, shared}
        assert set(await ids(bob)) == {shared, own}
        assert set(await ids(admin)) == all_tokens
        assert await ids(bob, everybody=False) == []
        assert await ids(bob, "alice") == [shared]
        assert set(await ids(bob, "bob")) == {shared, own}
        assert set(await ids(admin, "alice")) == {first, second, shared}
        assert await ids(admin, "carol") == []
        await grant(
            admin, acl_for(AclResourceType.DELEGATION_TOKEN, describes, first, principal="User:bob")
        )
        assert set(await ids(bob)) == {first, shared, own}
        await grant(admin, acl_for(AclResourceType.USER, lets, "User:alice", principal="User:bob"))
        assert set(await ids(bob)) == all_tokens
        prefix = acl_for(AclResourceType.USER, lets, "User:b", pattern=PatternType.PREFIXED)
        await grant(admin, prefix)
        assert set(await ids(alice)) == all_tokens


async def test_concurrent_token_creation_respects_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegation_tokens, "TOKENS_PER_REQUESTER_MAX", 3)
    async with guarded() as broker:
        codes: list[int] = []

        async def create_one() -> None:
            async with user(broker, "alice") as wire:
                codes.append((await create(wire)).error_code)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(create_one)
        assert sorted(codes) == [0] * 3 + [ErrorCode.POLICY_VIOLATION] * 7
        assert len(broker.node.cluster.delegation_tokens) == 3
