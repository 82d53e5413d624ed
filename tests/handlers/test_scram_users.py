"""SCRAM users that are made while the broker runs (KIP-554), and their logins."""

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

from ..node.test_listener_security import USERS, at, change, scram, started
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


def quick(name: str, **values: Any) -> Upsertion:
    """One of which nobody knows the password."""
    given: dict[str, Any] = {
        "mechanism": 1,
        "iterations": 4096,
        "salt": SALT,
        "salted_password": bytes(32),
    }
    return Upsertion(name=name, **given | values)


async def alter(broker: Broker, *rows: Upsertion | Deletion, node: int = 1) -> dict[str, int]:
    """Change credentials; the error code of each user. Errors have a text that shows no name."""
    ask = AlterUserScramCredentialsRequest(
        deletions=[each for each in rows if isinstance(each, Deletion)],
        upsertions=[each for each in rows if isinstance(each, Upsertion)],
    )
    async with connected(at(broker, "OPEN", node)) as wire:
        answer = await wire.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, ask)
    assert all(bool(each.error_code) == bool(each.error_message) for each in answer.results)
    told = {each.user: each.error_code for each in answer.results}
    assert len(told) == len(answer.results)
    return told


async def describe(broker: Broker, *names: str, node: int = 1) -> list[Any]:
    """What is told of users: error codes, or iterations by mechanism."""
    users = [DescribeUserScramCredentialsRequest.User(name=each) for each in names] or None
    ask = DescribeUserScramCredentialsRequest(users=users)
    async with connected(at(broker, "OPEN", node)) as wire:
        answer = await wire.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, ask)
    assert answer.error_code == 0
    return [
        (
            each.user,
            each.error_code or {row.mechanism: row.iterations for row in each.credential_infos},
        )
        for each in answer.results
    ]


async def logs_in(
    broker: Broker, name: str, password: str, mechanism: str = SHA_256, node: int = 1
) -> bool:
    security = Security(None, Credentials(mechanism, name, password))
    endpoint = at(broker, "INSIDE", node)
    async with open_cluster([endpoint], direct=True, security=security) as client:
        try:
            await client.metadata([])
        except CannotConnect:
            return False
    return True


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("iterations", [4096, 16384])
async def test_a_user_that_was_made(
    mechanism: ScramMechanism, iterations: int, authority: Authority
) -> None:
    async with started(authority) as broker:
        assert (
            await change(broker, {"listener.name.inside.sasl.enabled.mechanisms": mechanism})
            is None
        )
        assert not await logs_in(broker, "bob", "brush", mechanism)
        row = upsertion("bob", mechanism=mechanism, iterations=iterations)
        assert await alter(broker, row) == {"bob": 0}
        assert await logs_in(broker, "bob", "brush", mechanism)
        assert not await logs_in(broker, "bob", "pencil", mechanism)
        assert await alter(broker, upsertion("bob", "crayon", mechanism)) == {"bob": 0}
        assert not await logs_in(broker, "bob", "brush", mechanism)
        assert await logs_in(broker, "bob", "crayon", mechanism)
        assert await alter(broker, Deletion(name="bob", mechanism=mechanism.number)) == {"bob": 0}
        assert not await logs_in(broker, "bob", "crayon", mechanism)
        assert await describe(broker) == []


async def test_who_has_logged_in_stays_so(authority: Authority) -> None:
    async with started(authority) as broker:
        await alter(broker, upsertion("bob"))
        security = Security(None, Credentials(SHA_256, "bob", "brush"))
        endpoint = at(broker, "INSIDE")
        async with open_cluster([endpoint], direct=True, security=security) as client:
            await client.metadata([])
            await alter(broker, Deletion(name="bob", mechanism=1))
            await client.metadata([])
        assert not await logs_in(broker, "bob", "brush")


async def test_a_user_of_the_settings_gets_another_password(authority: Authority) -> None:
    """The one that was made comes first, as long as it is there."""
    async with started(authority) as broker:
        assert await logs_in(broker, "alice", "pencil")
        assert await describe(broker) == []
        await alter(broker, upsertion("alice", "brush"))
        assert await logs_in(broker, "alice", "brush")
        assert not await logs_in(broker, "alice", "pencil")
        assert await change(broker, {USERS: scram(alice="chalk")}) is None
        assert await logs_in(broker, "alice", "brush")
        await alter(broker, Deletion(name="alice", mechanism=1))
        assert not await logs_in(broker, "alice", "brush")


async def test_a_credential_is_of_one_mechanism(authority: Authority) -> None:
    async with started(authority) as broker:
        await alter(broker, upsertion("bob", mechanism=SHA_512))
        assert not await logs_in(broker, "bob", "brush")
        await alter(broker, upsertion("bob", iterations=8192))
        assert await logs_in(broker, "bob", "brush")
        assert await describe(broker, "bob") == [("bob", {1: 8192, 2: 4096})]
        await alter(broker, Deletion(name="bob", mechanism=1))
        assert await describe(broker, "bob") == [("bob", {2: 4096})]


async def test_all_nodes_know_at_once_and_after_a_restart(
    authority: Authority, tmp_path: Path
) -> None:
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        await alter(broker, upsertion("bob"), node=2)
        for node in (1, 2):
            assert await logs_in(broker, "bob", "brush", node=node)
        secrets = {each.node.cluster.scram_users.secret for each in broker.nodes}
        assert len(secrets) == 1
        await broker.nodes[1].stop()
        await broker.nodes[1].start()
        assert await logs_in(broker, "bob", "brush", node=2)
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        assert await logs_in(broker, "bob", "brush", node=2)
        assert {each.node.cluster.scram_users.secret for each in broker.nodes} == secrets


async def test_what_is_kept_shows_no_password(authority: Authority, tmp_path: Path) -> None:
    data = tmp_path / "data"
    row = upsertion("bob", "s3cret")
    async with started(authority, data) as broker:
        await alter(broker, row)
        assert "key" not in repr(broker.node.cluster.scram_users.credentials("bob"))
    kept = (data / METADATA_JOURNAL).read_text()
    assert '"scram/bob":{"SCRAM-SHA-256":{' in kept
    assert base64.b64encode(row.salt).decode() in kept
    for secret in ("s3cret", *texts(row.salted_password)):
        assert secret not in kept


def texts(data: bytes) -> list[str]:
    """How it could stand in a file or in a log."""
    return [repr(data)[2:-1], data.hex(), base64.b64encode(data).decode()]


async def test_what_is_told(authority: Authority) -> None:
    """As by Kafka 4.3; without a name, all."""
    async with started(authority) as broker:
        names = [f"user-{number}" for number in range(300)]
        await alter(broker, *map(quick, reversed(names)), quick("bob", mechanism=2))
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


RULES: list[tuple[Any, Any]] = [
    ([], {}),
    ([quick("a"), quick("b", mechanism=2)], {"a": 0, "b": 0}),
    ([quick("a"), quick("a", mechanism=2)], {"a": DUPLICATE}),
    ([quick("a"), quick("a"), quick("a"), quick("b")], {"a": DUPLICATE, "b": 0}),
    ([Deletion(name="old", mechanism=1), quick("old", mechanism=2)], {"old": DUPLICATE}),
    ([Deletion(name="old", mechanism=1), Deletion(name="old", mechanism=2)], {"old": DUPLICATE}),
    ([Deletion(name="old", mechanism=1), quick("a")], {"old": 0, "a": 0}),
    ([Deletion(name="old", mechanism=2)], {"old": NOT_FOUND}),
    ([Deletion(name="none", mechanism=1)], {"none": NOT_FOUND}),
    ([Deletion(name="none", mechanism=1), quick("none")], {"none": NOT_FOUND}),
    ([quick("a", iterations=1), quick("a")], {"a": UNACCEPTABLE}),
    ([quick("a"), quick("a", iterations=1)], {"a": DUPLICATE}),
    *(
        ([quick("a", iterations=number)], {"a": UNACCEPTABLE})
        for number in (-1, 0, 4095, 16385, 2**31 - 1)
    ),
    ([quick("a", iterations=16384)], {"a": 0}),
    *(([quick("a", mechanism=number)], {"a": UNSUPPORTED}) for number in (-1, 0, 3, 127)),
    ([Deletion(name="old", mechanism=0)], {"old": UNSUPPORTED}),
    ([quick("a", mechanism=9, iterations=1)], {"a": UNSUPPORTED}),
    ([quick("")], {"": UNACCEPTABLE}),
    ([quick("", mechanism=9)], {"": UNACCEPTABLE}),
    ([Deletion(name="", mechanism=1)], {"": UNACCEPTABLE}),
    ([quick("a", salt=b"")], {"a": UNACCEPTABLE}),
    ([quick("a", salted_password=b"")], {"a": UNACCEPTABLE}),
    ([quick("a", salt=bytes(257))], {"a": UNACCEPTABLE}),
    ([quick("a", salted_password=bytes(257))], {"a": UNACCEPTABLE}),
    ([quick("n" * 513), quick("ö" * 256)], {"n" * 513: UNACCEPTABLE, "ö" * 256: 0}),
    ([quick("a,=/\n\0 b")], {"a,=/\n\0 b": 0}),
]


@pytest.mark.parametrize(("rows", "told"), RULES, ids=map(str, range(len(RULES))))
async def test_what_is_taken_and_what_is_refused(
    rows: list[Upsertion | Deletion], told: dict[str, int], authority: Authority
) -> None:
    """The codes are those of Kafka 4.3, but for what is too long or missing."""
    async with started(authority) as broker:
        await alter(broker, quick("old"))
        assert await alter(broker, *rows) == told
        gone = {each.name for each in rows if isinstance(each, Deletion) and not told[each.name]}
        made = {each.name for each in rows if isinstance(each, Upsertion) and not told[each.name]}
        assert {name for name, _ in await describe(broker)} == ({"old"} | made) - gone


async def test_there_is_an_end_to_them(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scram_users, "USERS_MAX", 300)
    async with started(authority) as broker:
        told = await alter(broker, *(quick(f"user-{number}") for number in range(310)))
        assert Counter(told.values()) == {0: 300, ErrorCode.POLICY_VIOLATION: 10}
        assert await alter(broker, quick("one more")) == {"one more": ErrorCode.POLICY_VIOLATION}
        assert await alter(broker, quick("user-7", mechanism=2)) == {"user-7": 0}
        assert await alter(broker, Deletion(name="user-8", mechanism=1)) == {"user-8": 0}
        assert await alter(broker, quick("one more")) == {"one more": 0}
        assert len(await describe(broker)) == 300


async def test_two_who_change_one_user_at_a_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other one did in between is not undone."""
    async with started(authority, nodes=2) as broker:
        store = broker.nodes[0].node.cluster._store
        inner = store.transact
        tries = 0

        async def with_somebody_else(*args: Any, **kw: Any) -> int | None:
            nonlocal tries
            tries += 1
            if tries == 1:
                other = quick("bob", mechanism=2)
                assert await alter(broker, other, Deletion(name="dave", mechanism=1), node=2)
            return await inner(*args, **kw)

        await alter(broker, quick("dave"))
        monkeypatch.setattr(store, "transact", with_somebody_else)
        rows = quick("bob"), quick("carol"), Deletion(name="dave", mechanism=1)
        assert await alter(broker, *rows) == {"bob": 0, "carol": 0, "dave": NOT_FOUND}
        assert tries > 1
        assert await describe(broker) == [("bob", {1: 4096, 2: 4096}), ("carol", {1: 4096})]


async def test_no_secret_is_logged(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kbroker")
    row = upsertion("bob")
    async with started(authority) as broker:
        await alter(broker, row)
        assert await logs_in(broker, "bob", "brush")
    assert "AlterUserScramCredentials by" in caplog.text
    for secret in texts(row.salted_password):
        assert secret not in caplog.text


# -- who there is stays unknown


async def first_answer(broker: Broker, name: str, node: int = 1) -> tuple[int, int, str]:
    """What a client is told of a user before it has shown anything: iterations, length of the salt, salt."""
    async with connected(at(broker, "INSIDE", node)) as wire:
        await handshake(wire, SHA_256)
        answer = await authenticate(wire, f"n,,n={name},r=abc".encode())
    parts = dict(part.split("=", 1) for part in bytes(answer.auth_bytes).decode().split(","))
    return int(parts["i"]), len(base64.b64decode(parts["s"])), parts["s"]


async def test_users_whom_there_are_not_look_like_those_that_were_made(
    authority: Authority, tmp_path: Path
) -> None:
    nobodies = [f"nobody-{number}" for number in range(20)]
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        assert await change(broker, {USERS: scram()}) is None
        assert await change(broker, {USERS: scram()}, node=2) is None
        await alter(broker, upsertion("bob", iterations=8192))
        told = [await first_answer(broker, name) for name in nobodies]
        assert {each[:2] for each in told} == {(8192, len(SALT))}
        assert len({each[2] for each in told}) == len(nobodies)
        assert told == [await first_answer(broker, name, node=2) for name in nobodies]
        await alter(broker, upsertion("carol", iterations=5000, salt=bytes(64)))
        told = [await first_answer(broker, name) for name in nobodies]
        assert {each[:2] for each in told} == {(8192, len(SALT)), (5000, 64)}
    async with started(authority, tmp_path / "data", nodes=2) as broker:
        assert told == [await first_answer(broker, name) for name in nobodies]
        await alter(broker, Deletion(name="bob", mechanism=1))
        told = [await first_answer(broker, name) for name in nobodies]
        assert {each[:2] for each in told} == {(5000, 64)}


async def test_first_answer_does_not_tell_configured_users_from_unknown_ones(
    authority: Authority, tmp_path: Path
) -> None:
    """It is the same on all nodes and after a restart, whether the user exists or not."""
    names = ["alice", *(f"nobody-{number}" for number in range(5))]
    told: list[tuple[int, int, str]] = []
    for _ in range(2):
        async with started(authority, tmp_path / "data", nodes=2) as broker:
            for node in (1, 2):
                now = [await first_answer(broker, name, node) for name in names]
                told = told or now
                assert now == told
    assert {each[:2] for each in told} == {(4096, 16)}
    assert len({each[2] for each in told}) == len(names)


async def test_users_may_change_amidst_a_login(authority: Authority) -> None:
    async with started(authority) as broker, connected(at(broker, "INSIDE")) as wire:
        await alter(broker, quick("bob"))
        await handshake(wire, SHA_256)
        await alter(broker, quick("carol", iterations=5000))
        assert not (await authenticate(wire, b"n,,n=mallory,r=abc")).error_code
