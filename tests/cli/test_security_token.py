"""`kbroker security token`: create, list, renew, expire."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.broker import Broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.delegation_tokens import (
    create_delegation_token,
)

from ..commands import Cli, ReadJson
from ..security.test_login import guarded
from ..security.tokens import KEY
from .test_completion import proposed
from .test_output import EVIL

ALICE = Security(None, Credentials("PLAIN", "alice", "pencil"))


def login(name: str, password: str) -> tuple[str, ...]:
    settings = (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=PLAIN",
        f'sasl.jaas.config=a.PlainLoginModule required username="{name}" password="{password}";',
    )
    return tuple(word for each in settings for word in ("-X", each))


ADMIN, AS_ALICE = login("admin", "hush"), login("alice", "pencil")


def with_token(token_id: str, hmac: str) -> tuple[str, ...]:
    module = f'ScramLoginModule required username="{token_id}" password="{hmac}" tokenauth="true";'
    settings = (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanism=SCRAM-SHA-512",
        f"sasl.jaas.config={module}",
    )
    return tuple(word for each in settings for word in ("-X", each))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """Start a broker that requires authentication, also by delegation token."""
    async with guarded(f"delegation.token.secret.key={KEY}") as broker:
        yield broker


async def test_token_can_be_created_renewed_and_expired(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    arguments = ("--renewer", "User:alice", "--renewer", "bob", "--max-lifetime", "2d")
    (made,) = await read_json("security", "token", "create", *arguments, *ADMIN)
    token_id, hmac = made["token"], made.pop("hmac")
    assert (made["owner"], made["requester"]) == ("User:admin", "User:admin")
    assert made["renewers"] == ["User:alice", "User:bob"]
    assert made["issued"] < made["expires"] < made["latest"]
    assert await read_json("security", "token", "list", *ADMIN) == [made]
    assert await read_json("security", "token", "list", "--hmac", *AS_ALICE) == [
        made | {"hmac": hmac}
    ]
    assert await read_json("security", "token", "list", "bob", *ADMIN) == [made]
    assert await read_json("security", "token", "list", "User:carol", *ADMIN) == []
    table = (await cli("security", "token", "list", *ADMIN)).stdout.splitlines()
    assert table[0].split() == ["TOKEN", "OWNER", "EXPIRES", "LATEST"]
    assert table[1].split()[:2] == [token_id, "User:admin"]
    assert hmac not in "".join(table)
    own = with_token(token_id, hmac)
    assert (await cli("topic", "create", "orders", *own)).exit_code == 0
    renewed = await cli("security", "token", "renew", token_id, "--for", "1h", *AS_ALICE)
    (row,) = await read_json("security", "token", "list", *ADMIN)
    assert renewed.stdout == f"token {token_id} is valid until {row['expires']}\n"
    assert row["expires"] < made["expires"]
    ended = await cli("security", "token", "expire", "--yes", token_id, *ADMIN)
    assert ended.stdout == f"expired token {token_id}\n"
    assert await read_json("security", "token", "list", *ADMIN) == []
    refused = await cli("topic", "list", *own, status=1)
    assert "cannot authenticate as" in refused.stderr


async def test_failed_token_command_suggests_next_action(broker: Broker, cli: Cli) -> None:
    unknown = await cli("security", "token", "renew", "some-id", *ADMIN, status=1)
    assert "list tokens with `kbroker security token list`" in unknown.stderr
    made = await cli("security", "token", "create", "--json", *ADMIN)
    token_id, hmac = made.stdout.split('"')[3], made.stdout.split('"')[7]
    refused = await cli("security", "token", "create", *with_token(token_id, hmac), status=1)
    assert "authenticate as a user or with a certificate" in refused.stderr
    async with guarded() as other:
        bootstrap = ("-b", str(other.endpoint))
        disabled = await cli("security", "token", "create", *bootstrap, *ADMIN, status=1)
    assert "set delegation.token.secret.key on all brokers" in disabled.stderr


async def test_token_list_escapes_client_names(
    broker: Broker, cli: Cli, read_json: ReadJson
) -> None:
    (made,) = await read_json("security", "token", "create", "--renewer", EVIL, *ADMIN)
    assert made["renewers"] == [f"User:{EVIL}"]
    wide = await cli("security", "token", "list", "-o", "wide", *ADMIN)
    assert all(line.isprintable() for line in wide.stdout.splitlines())
    assert len(wide.stdout.splitlines()) == 2


async def test_completion_proposes_token_ids(broker: Broker, cli: Cli) -> None:
    settings = (f"brokers={broker.endpoint}", *AS_ALICE[1::2])
    await cli("profile", "add", "p", *(word for each in settings for word in ("-X", each)))
    async with open_cluster([broker.endpoint], security=ALICE) as cluster:
        token = await create_delegation_token(cluster)
    for verb in ("renew", "expire"):
        arguments = ("security", "token", verb)
        ask = functools.partial(proposed, *arguments, incomplete=token.id[:4])
        assert await trio.to_thread.run_sync(ask) == [token.id]
