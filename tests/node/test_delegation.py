"""Tests of authentication with delegation tokens."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest
import trio

from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.data_dirs.found_directories import METADATA_JOURNAL
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
)
from kbroker.security.acls import AclOperation, AclResourceType
from kbroker.security.delegation import (
    DelegationKey,
    password_of,
)
from kbroker.security.principals import USER, Principal
from kbroker.security.scram import ScramClient, ScramMechanism

from ..handlers.test_scram_users import upsertion
from ..security.test_access import acl_for, grant
from ..security.test_login import authenticate, handshake
from ..security.tokens import (
    DAY,
    KEY,
    NOT_FOUND,
    SHA_256,
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
    texts,
    user,
    with_acls,
)
from ..wire import ConnectionClosed, batch, connected, create_topic, produce, request


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_token_authenticates_as_its_owner(mechanism: ScramMechanism) -> None:
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice)
        assert await logs_in(broker, token, mechanism)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            response = await show_token(
                wire, token.token_id, password_of(bytes(token.hmac)), mechanism
            )
            assert response.error_code == 0
            assert DAY - 60_000 < response.session_lifetime_ms <= DAY
            topic = await create_topic(wire, "t")
            assert (await produce(wire, topic, batch([b"a"]))).error_code == 0
            peers = [each.peer for each in broker.server.connections]
            assert {str(each.client.principal) for each in peers} == {"User:alice"}


async def test_tokens_are_invalid_under_another_secret_key(tmp_path: Path) -> None:
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


async def test_unknown_token_costs_as_much_work_as_known_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Response times reveal nothing: the costs are the HMAC and the usual work of SCRAM."""
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


async def test_replayed_authentication_fails() -> None:
    """The recorded messages belong to another SCRAM exchange."""
    async with guarded() as broker, user(broker, "alice") as alice:
        token = await create(alice)
        client = ScramClient(SHA_256, token.token_id, password_of(bytes(token.hmac)), is_token=True)
        recorded = [client.first()]
        endpoint = broker.nodes[0].endpoints()["INSIDE"]
        async with connected(endpoint) as wire:
            await handshake(wire, SHA_256)
            first = await authenticate(wire, recorded[0])
            recorded.append(client.final(bytes(first.auth_bytes)))
            assert not (await authenticate(wire, recorded[1])).error_code
        async with connected(endpoint) as wire:
            await handshake(wire, SHA_256)
            assert not (await authenticate(wire, recorded[0])).error_code
            rejection = await authenticate(wire, recorded[1])
            assert rejection.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("end", ["expired", "deleted"])
async def test_token_that_ends_during_authentication_is_rejected(end: str) -> None:
    time = Time()
    async with guarded(clock=time) as broker, user(broker, "alice") as alice:
        token = await create(alice)
        client = ScramClient(SHA_256, token.token_id, password_of(bytes(token.hmac)), is_token=True)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            await handshake(wire, SHA_256)
            first = await authenticate(wire, client.first())
            if end == "expired":
                time.added_ms += DAY
            else:
                assert (await expire(alice, bytes(token.hmac))).error_code == 0
            last = await authenticate(wire, client.final(bytes(first.auth_bytes)))
            assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            with pytest.raises((ConnectionClosed, trio.BrokenResourceError)):
                await create_topic(wire, "t")


async def test_session_ends_with_its_token() -> None:
    """The token expires before the session; re-authentication needs a valid token (KIP-368)."""
    async with (
        guarded("connections.max.reauth.ms=3600000") as broker,
        user(broker, "alice") as alice,
    ):
        token = await create(alice, lifetime_ms=1500)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            password = password_of(bytes(token.hmac))
            response = await show_token(wire, token.token_id, password)
            assert 0 < response.session_lifetime_ms <= 1500
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


async def test_token_session_is_limited_by_max_reauth() -> None:
    async with (
        guarded("connections.max.reauth.ms=60000") as broker,
        user(broker, "alice") as alice,
    ):
        token = await create(alice)
        async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
            response = await show_token(wire, token.token_id, password_of(bytes(token.hmac)))
            assert 0 < response.session_lifetime_ms <= 60_000


async def test_reauthentication_cannot_change_user() -> None:
    async with guarded() as broker, user(broker, "alice") as alice, user(broker, "bob") as bob:
        mine, other = await create(alice), await create(bob)
        async with bearer(broker, mine) as wire:
            await trio.sleep(1.1)
            rejection = await show_token(wire, other.token_id, password_of(bytes(other.hmac)))
            assert rejection.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert "Cannot change principals" in rejection.error_message


async def test_token_remains_valid_after_owner_is_deleted() -> None:
    """Kafka keeps the token too, since the broker does not know all users.

    The owner or a renewer can still end the token. It never grants more than the owner's ACLs.
    """
    async with with_acls() as (broker, admin, _, _):
        row = upsertion("dave")
        cls = AlterUserScramCredentialsRequest
        key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
        assert not (await admin.ask(key, 0, cls(upsertions=[row]))).results[0].error_code
        dave = Principal(USER, "dave")
        token = await create(admin, "admin", owner=dave)
        topics = acl_for(AclResourceType.TOPIC, AclOperation.ALL, principal="User:dave")
        await grant(admin, topics)
        deleted = cls.Deletion(name="dave", mechanism=1)
        assert not (await admin.ask(key, 0, cls(deletions=[deleted]))).results[0].error_code
        async with bearer(broker, token) as wire:
            await create_topic(wire, "t")
        assert await ids(admin, "dave") == [token.token_id]
        assert (await expire(admin, bytes(token.hmac))).error_code == 0
        assert not await logs_in(broker, token)


async def test_secrets_are_not_exposed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Secrets appear neither in logs nor in stored metadata nor in described settings."""
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
        (described,) = (await alice.ask(ApiKey.DESCRIBE_CONFIGS, 4, ask)).results
        (row,) = (each for each in described.configs if each.name == "delegation.token.secret.key")
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


async def test_only_the_correct_hmac_is_accepted() -> None:
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


async def test_token_and_user_namespaces_are_separate() -> None:
    """The tokenauth extension decides where a name is looked up."""
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
                with pytest.raises(CannotConnect, match="cannot authenticate as"):
                    await client.metadata([])


async def test_unknown_token_is_indistinguishable_from_wrong_password() -> None:
    """The exchange has the same shape on every node, also for an expired token."""
    time = Time()
    async with guarded(clock=time, nodes=2) as broker, user(broker, "alice") as alice:
        many = upsertion("dave", iterations=8192, salt=bytes(40))
        ask = AlterUserScramCredentialsRequest(upsertions=[many])
        await alice.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, ask)
        known, over = await create(alice), await create(alice, lifetime_ms=1000)
        time.added_ms += 2000
        exchanges = []
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
                    exchanges.append((shape, last.error_code, last.error_message))
                    salt = parts["s"]
            async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
                await handshake(wire, SHA_256)
                first = await authenticate(wire, f"n,,n={token_id},r=abc,tokenauth=true".encode())
                assert f"s={salt}," in bytes(first.auth_bytes).decode()
        assert set(exchanges) == {
            (("4096", 16), ErrorCode.SASL_AUTHENTICATION_FAILED, exchanges[0][2]),
        }
