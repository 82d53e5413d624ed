"""Logins with delegation tokens."""

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
from ..security.test_access import grant, new
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

    What the owner may not do any more, it cannot authenticate as anybody do.
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
                with pytest.raises(CannotConnect, match="cannot authenticate as"):
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
