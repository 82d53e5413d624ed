"""Tests of SCRAM users that are managed at runtime (KIP-554) and of their authentication."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.data_dirs.found_directories import METADATA_JOURNAL
from kbroker.handlers import scram_users
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from kbroker.security.scram import ScramMechanism, salted_password

from ..node.test_listener_security import USERS, change, endpoint_of_listener, scram, started
from ..security.certificates import Authority
from ..security.test_login import authenticate, handshake
from ..wire import connected

SHA_256, SHA_512 = ScramMechanism
SALT = b"grain of salt, and another"
Upsertion = AlterUserScramCredentialsRequest.Upsertion
Deletion = AlterUserScramCredentialsRequest.Deletion
DUPLICATE, NOT_FOUND = ErrorCode.DUPLICATE_RESOURCE, ErrorCode.RESOURCE_NOT_FOUND
UNACCEPTABLE, UNSUPPORTED = (
    ErrorCode.UNACCEPTABLE_CREDENTIAL,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM,
)


def upsertion(
    name: str,
    password: str = "brush",
    mechanism: ScramMechanism = SHA_256,
    iterations: int = 4096,
    salt: bytes = SALT,
) -> Upsertion:
    salted = salted_password(mechanism, password, salt, iterations)
    return Upsertion(
        name=name,
        mechanism=mechanism.number,
        iterations=iterations,
        salt=salt,
        salted_password=salted,
    )


def passwordless(name: str, **values: Any) -> Upsertion:
    """Return an upsertion with an unknown password, without computing a hash."""
    defaults: dict[str, Any] = {
        "mechanism": 1,
        "iterations": 4096,
        "salt": SALT,
        "salted_password": bytes(32),
    }
    return Upsertion(name=name, **defaults | values)


async def alter(broker: Broker, *rows: Upsertion | Deletion, node: int = 1) -> dict[str, int]:
    """Alter credentials and return the error code per user; error messages contain no names."""
    ask = AlterUserScramCredentialsRequest(
        deletions=[each for each in rows if isinstance(each, Deletion)],
        upsertions=[each for each in rows if isinstance(each, Upsertion)],
    )
    async with connected(endpoint_of_listener(broker, "OPEN", node)) as wire:
        response = await wire.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, ask)
    assert all(bool(each.error_code) == bool(each.error_message) for each in response.results)
    codes = {each.user: each.error_code for each in response.results}
    assert len(codes) == len(response.results)
    return codes


async def describe(broker: Broker, *names: str, node: int = 1) -> list[Any]:
    """Return users with error codes, or with iterations by mechanism."""
    users = [DescribeUserScramCredentialsRequest.User(name=each) for each in names] or None
    ask = DescribeUserScramCredentialsRequest(users=users)
    async with connected(endpoint_of_listener(broker, "OPEN", node)) as wire:
        response = await wire.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, ask)
    assert response.error_code == 0
    return [
        (
            each.user,
            each.error_code or {row.mechanism: row.iterations for row in each.credential_infos},
        )
        for each in response.results
    ]


async def can_authenticate(
    broker: Broker, name: str, password: str, mechanism: str = SHA_256, node: int = 1
) -> bool:
    security = Security(None, Credentials(mechanism, name, password))
    endpoint = endpoint_of_listener(broker, "INSIDE", node)
    async with open_cluster([endpoint], direct=True, security=security) as client:
        try:
            await client.metadata([])
        except CannotConnect:
            return False
    return True


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("iterations", [4096, 16384])
async def test_created_user_can_authenticate(
    mechanism: ScramMechanism, iterations: int, authority: Authority
) -> None:
    async with started(authority) as broker:
        assert (
            await change(broker, {"listener.name.inside.sasl.enabled.mechanisms": mechanism})
            is None
        )
        assert not await can_authenticate(broker, "bob", "brush", mechanism)
        row = upsertion("bob", mechanism=mechanism, iterations=iterations)
        assert await alter(broker, row) == {"bob": 0}
        assert await can_authenticate(broker, "bob", "brush", mechanism)
        assert not await can_authenticate(broker, "bob", "pencil", mechanism)
        assert await alter(broker, upsertion("bob", "crayon", mechanism)) == {"bob": 0}
        assert not await can_authenticate(broker, "bob", "brush", mechanism)
        assert await can_authenticate(broker, "bob", "crayon", mechanism)
        assert await alter(broker, Deletion(name="bob", mechanism=mechanism.number)) == {"bob": 0}
        assert not await can_authenticate(broker, "bob", "crayon", mechanism)
        assert await describe(broker) == []


async def test_authenticated_connection_survives_deletion_of_user(authority: Authority) -> None:
    async with started(authority) as broker:
        await alter(broker, upsertion("bob"))
        security = Security(None, Credentials(SHA_256, "bob", "brush"))
        endpoint = endpoint_of_listener(broker, "INSIDE")
        async with open_cluster([endpoint], direct=True, security=security) as client:
            await client.metadata([])
            await alter(broker, Deletion(name="bob", mechanism=1))
            await client.metadata([])
        assert not await can_authenticate(broker, "bob", "brush")


async def test_stored_credential_overrides_configured_one(authority: Authority) -> None:
    async with started(authority) as broker:
        assert await can_authenticate(broker, "alice", "pencil")
        assert await describe(broker) == []
        await alter(broker, upsertion("alice", "brush"))
        assert await can_authenticate(broker, "alice", "brush")
        assert not await can_authenticate(broker, "alice", "pencil")
        assert await change(broker, {USERS: scram(alice="chalk")}) is None
        assert await can_authenticate(broker, "alice", "brush")
        await alter(broker, Deletion(name="alice", mechanism=1))
        assert not await can_authenticate(broker, "alice", "brush")


async def test_credentials_are_separate_per_mechanism(authority: Authority) -> None:
    async with started(authority) as broker:
        await alter(broker, upsertion("bob", mechanism=SHA_512))
        assert not await can_authenticate(broker, "bob", "brush")
        await alter(broker, upsertion("bob", iterations=8192))
        assert await can_authenticate(broker, "bob", "brush")
        assert await describe(broker, "bob") == [("bob", {1: 8192, 2: 4096})]
        await alter(broker, Deletion(name="bob", mechanism=1))
        assert await describe(broker, "bob") == [("bob", {2: 4096})]


async def test_users_are_known_on_all_nodes_and_after_restart(
    authority: Authority, tmp_path: Path
) -> None:
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        await alter(broker, upsertion("bob"), node=2)
        for node in (1, 2):
            assert await can_authenticate(broker, "bob", "brush", node=node)
        secrets = {each.node.cluster.scram_users.secret for each in broker.nodes}
        assert len(secrets) == 1
        await broker.nodes[1].stop()
        await broker.nodes[1].start()
        assert await can_authenticate(broker, "bob", "brush", node=2)
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        assert await can_authenticate(broker, "bob", "brush", node=2)
        assert {each.node.cluster.scram_users.secret for each in broker.nodes} == secrets


async def test_stored_metadata_contains_no_password(authority: Authority, tmp_path: Path) -> None:
    data = tmp_path / "data"
    row = upsertion("bob", "s3cret")
    async with started(authority, data) as broker:
        await alter(broker, row)
        assert "key" not in repr(broker.node.cluster.scram_users.credentials("bob"))
    stored = (data / METADATA_JOURNAL).read_text()
    assert '"scram/bob":{"SCRAM-SHA-256":{' in stored
    assert base64.b64encode(row.salt).decode() in stored
    for secret in ("s3cret", *encodings(row.salted_password)):
        assert secret not in stored


def encodings(data: bytes) -> list[str]:
    """Return the encodings that the data could have in a file or in a log."""
    return [repr(data)[2:-1], data.hex(), base64.b64encode(data).decode()]


async def test_describe_returns_users_and_errors(authority: Authority) -> None:
    """The errors equal those of Kafka 4.3. Without names, all users are returned."""
    async with started(authority) as broker:
        names = [f"user-{number}" for number in range(300)]
        await alter(broker, *map(passwordless, reversed(names)), passwordless("bob", mechanism=2))
        assert [name for name, _ in await describe(broker)] == sorted([*names, "bob"])
        assert await describe(
            broker, "user-7", "nobody", "bob", "", "bob", "user-6", "no", "no"
        ) == [
            ("user-7", {1: 4096}),
            ("nobody", NOT_FOUND),
            ("bob", DUPLICATE),
            ("", NOT_FOUND),
            ("user-6", {1: 4096}),
            ("no", DUPLICATE),
        ]


ALTERATIONS: list[tuple[Any, Any]] = [
    ([], {}),
    ([passwordless("a"), passwordless("b", mechanism=2)], {"a": 0, "b": 0}),
    ([passwordless("a"), passwordless("a", mechanism=2)], {"a": DUPLICATE}),
    (
        [passwordless("a"), passwordless("a"), passwordless("a"), passwordless("b")],
        {"a": DUPLICATE, "b": 0},
    ),
    ([Deletion(name="old", mechanism=1), passwordless("old", mechanism=2)], {"old": DUPLICATE}),
    ([Deletion(name="old", mechanism=1), Deletion(name="old", mechanism=2)], {"old": DUPLICATE}),
    ([Deletion(name="old", mechanism=1), passwordless("a")], {"old": 0, "a": 0}),
    ([Deletion(name="old", mechanism=2)], {"old": NOT_FOUND}),
    ([Deletion(name="none", mechanism=1)], {"none": NOT_FOUND}),
    ([Deletion(name="none", mechanism=1), passwordless("none")], {"none": NOT_FOUND}),
    ([passwordless("a", iterations=1), passwordless("a")], {"a": UNACCEPTABLE}),
    ([passwordless("a"), passwordless("a", iterations=1)], {"a": DUPLICATE}),
    *(
        ([passwordless("a", iterations=number)], {"a": UNACCEPTABLE})
        for number in (-1, 0, 4095, 16385, 2**31 - 1)
    ),
    ([passwordless("a", iterations=16384)], {"a": 0}),
    *(([passwordless("a", mechanism=number)], {"a": UNSUPPORTED}) for number in (-1, 0, 3, 127)),
    ([Deletion(name="old", mechanism=0)], {"old": UNSUPPORTED}),
    ([passwordless("a", mechanism=9, iterations=1)], {"a": UNSUPPORTED}),
    ([passwordless("")], {"": UNACCEPTABLE}),
    ([passwordless("", mechanism=9)], {"": UNACCEPTABLE}),
    ([Deletion(name="", mechanism=1)], {"": UNACCEPTABLE}),
    ([passwordless("a", salt=b"")], {"a": UNACCEPTABLE}),
    ([passwordless("a", salted_password=b"")], {"a": UNACCEPTABLE}),
    ([passwordless("a", salt=bytes(257))], {"a": UNACCEPTABLE}),
    ([passwordless("a", salted_password=bytes(257))], {"a": UNACCEPTABLE}),
    ([passwordless("n" * 513), passwordless("ö" * 256)], {"n" * 513: UNACCEPTABLE, "ö" * 256: 0}),
    ([passwordless("a,=/\n\0 b")], {"a,=/\n\0 b": 0}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "codes"), ALTERATIONS, ids=map(str, range(len(ALTERATIONS))))
async def test_alterations_are_validated(
    rows: list[Upsertion | Deletion], codes: dict[str, int], authority: Authority
) -> None:
    """The codes equal those of Kafka 4.3, except for values that are too long or missing."""
    async with started(authority) as broker:
        await alter(broker, passwordless("old"))
        assert await alter(broker, *rows) == codes
        deleted = {
            each.name for each in rows if isinstance(each, Deletion) and not codes[each.name]
        }
        created = {
            each.name for each in rows if isinstance(each, Upsertion) and not codes[each.name]
        }
        assert {name for name, _ in await describe(broker)} == ({"old"} | created) - deleted


async def test_number_of_users_is_bounded(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scram_users, "USERS_MAX", 300)
    async with started(authority) as broker:
        codes = await alter(broker, *(passwordless(f"user-{number}") for number in range(310)))
        assert Counter(codes.values()) == {0: 300, ErrorCode.POLICY_VIOLATION: 10}
        assert await alter(broker, passwordless("one more")) == {
            "one more": ErrorCode.POLICY_VIOLATION
        }
        assert await alter(broker, passwordless("user-7", mechanism=2)) == {"user-7": 0}
        assert await alter(broker, Deletion(name="user-8", mechanism=1)) == {"user-8": 0}
        assert await alter(broker, passwordless("one more")) == {"one more": 0}
        assert len(await describe(broker)) == 300


async def test_concurrent_changes_of_one_user_are_merged(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change of the other node in between is not lost."""
    async with started(authority, nodes=2) as broker:
        store = broker.nodes[0].node.cluster._store
        inner = store.transact
        tries = 0

        async def transact_after_other_node(*args: Any, **kw: Any) -> int | None:
            nonlocal tries
            tries += 1
            if tries == 1:
                other = passwordless("bob", mechanism=2)
                assert await alter(broker, other, Deletion(name="dave", mechanism=1), node=2)
            return await inner(*args, **kw)

        await alter(broker, passwordless("dave"))
        monkeypatch.setattr(store, "transact", transact_after_other_node)
        rows = passwordless("bob"), passwordless("carol"), Deletion(name="dave", mechanism=1)
        assert await alter(broker, *rows) == {"bob": 0, "carol": 0, "dave": NOT_FOUND}
        assert tries > 1
        assert await describe(broker) == [("bob", {1: 4096, 2: 4096}), ("carol", {1: 4096})]


async def test_no_secrets_are_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kbroker")
    row = upsertion("bob")
    async with started(authority) as broker:
        await alter(broker, row)
        assert await can_authenticate(broker, "bob", "brush")
    assert "AlterUserScramCredentials by" in caplog.text
    for secret in encodings(row.salted_password):
        assert secret not in caplog.text


# -- existing users are not revealed


async def server_first_message(broker: Broker, name: str, node: int = 1) -> tuple[int, int, str]:
    """Return iterations, salt length and salt of the server-first message for a user."""
    async with connected(endpoint_of_listener(broker, "INSIDE", node)) as wire:
        await handshake(wire, SHA_256)
        response = await authenticate(wire, f"n,,n={name},r=abc".encode())
    parts = dict(part.split("=", 1) for part in bytes(response.auth_bytes).decode().split(","))
    return int(parts["i"]), len(base64.b64decode(parts["s"])), parts["s"]


async def test_unknown_users_look_like_stored_users(authority: Authority, tmp_path: Path) -> None:
    nobodies = [f"nobody-{number}" for number in range(20)]
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        assert await change(broker, {USERS: scram()}) is None
        assert await change(broker, {USERS: scram()}, node=2) is None
        await alter(broker, upsertion("bob", iterations=8192))
        messages = [await server_first_message(broker, name) for name in nobodies]
        assert {each[:2] for each in messages} == {(8192, len(SALT))}
        assert len({each[2] for each in messages}) == len(nobodies)
        assert messages == [await server_first_message(broker, name, node=2) for name in nobodies]
        await alter(broker, upsertion("carol", iterations=5000, salt=bytes(64)))
        messages = [await server_first_message(broker, name) for name in nobodies]
        assert {each[:2] for each in messages} == {(8192, len(SALT)), (5000, 64)}
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        assert messages == [await server_first_message(broker, name) for name in nobodies]
        await alter(broker, Deletion(name="bob", mechanism=1))
        messages = [await server_first_message(broker, name) for name in nobodies]
        assert {each[:2] for each in messages} == {(5000, 64)}


async def test_unknown_users_look_like_configured_users(
    authority: Authority, tmp_path: Path
) -> None:
    """The server-first message is the same on all nodes and after a restart."""
    names = ["alice", *(f"nobody-{number}" for number in range(5))]
    messages: list[tuple[int, int, str]] = []
    for _ in range(2):
        async with started(authority, tmp_path / "data", nodes=2) as broker:
            for node in (1, 2):
                now = [await server_first_message(broker, name, node) for name in names]
                messages = messages or now
                assert now == messages
    assert {each[:2] for each in messages} == {(4096, 16)}
    assert len({each[2] for each in messages}) == len(names)


async def test_users_can_change_during_authentication(authority: Authority) -> None:
    async with (
        started(authority) as broker,
        connected(endpoint_of_listener(broker, "INSIDE")) as wire,
    ):
        await alter(broker, passwordless("bob"))
        await handshake(wire, SHA_256)
        await alter(broker, passwordless("carol", iterations=5000))
        assert not (await authenticate(wire, b"n,,n=mallory,r=abc")).error_code
