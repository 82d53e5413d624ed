"""Brokers with delegation tokens, and requests that create, change and use them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kbroker.broker import Broker, open_broker
from kbroker.client.cluster import open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.errors import CannotConnect
from kbroker.config import BrokerConfig
from kbroker.process.listeners import configured_listeners
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.security import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
)
from kbroker.runtime.clock import SystemClock
from kbroker.security.delegation import (
    DelegationKey,
    DelegationToken,
    Lifetimes,
    new_token,
    password_of,
)
from kbroker.security.principals import USER, Principal
from kbroker.security.scram import ScramClient, ScramMechanism

from ..wire import Wire, connected, request
from .test_access import AUTHORIZER
from .test_login import authenticate, handshake

KEY = "a key that only nodes know"


SHA_256, SHA_512 = ScramMechanism


ALICE, BOB, CAROL = (Principal(USER, name) for name in ("alice", "bob", "carol"))


DAY = 86_400_000


LIFETIMES = Lifetimes(max_ms=7 * DAY, renewed_ms=DAY)


NOW = 1_700_000_000_000


NOT_FOUND = ErrorCode.DELEGATION_TOKEN_NOT_FOUND


MISMATCH = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


BAD_TYPE = ErrorCode.INVALID_PRINCIPAL_TYPE


def token_of_alice(*renewers: Principal, lifetime_ms: int = -1) -> DelegationToken:
    return new_token(DelegationKey(KEY), ALICE, BOB, renewers, lifetime_ms, LIFETIMES, NOW)


class Time(SystemClock):
    """The system clock plus an offset that tests set."""

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
    """Run a broker with a plaintext listener and a SASL listener for users and tokens."""
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
    directory = None if data_dir is None else str(data_dir)
    async with open_broker(
        config,
        data_dir=directory,
        listeners=configured_listeners(config),
        nodes=nodes,
        clock=clock,
    ) as broker:
        yield broker
        assert broker.node.context.error_log.unhandled_errors == 0


@asynccontextmanager
async def user(broker: Broker, name: str, node: int = 1) -> AsyncIterator[Wire]:
    """Connect as a user with a password."""
    async with connected(broker.nodes[node - 1].endpoints()["INSIDE"]) as wire:
        await handshake(wire, "PLAIN")
        response = await authenticate(wire, f"\0{name}\0hush".encode())
        assert not response.error_code
        yield wire


async def show_token(
    wire: Wire, token_id: str, password: str, mechanism: ScramMechanism = SHA_256
) -> Any:
    """Authenticate with a token and return the last response."""
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
    """Connect with a token."""
    async with connected(broker.nodes[0].endpoints()["INSIDE"]) as wire:
        response = await show_token(wire, token.token_id, password_of(bytes(token.hmac)))
        assert not response.error_code
        yield wire


async def logs_in(
    broker: Broker,
    token: Any,
    mechanism: ScramMechanism = SHA_256,
    *,
    hmac: bytes | None = None,
    node: int = 1,
) -> bool:
    """Return True if the own client can authenticate with a token."""
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
    response = await describe(wire, *owners, everybody=everybody)
    assert response.error_code == 0
    return [each.token_id for each in response.tokens]


@asynccontextmanager
async def with_acls() -> AsyncIterator[tuple[Broker, Wire, Wire, Wire]]:
    """Run a broker with only `admin` as super user; yields it and connected admin, alice and bob."""
    own = (f"authorizer.class.name={AUTHORIZER}", "super.users=User:admin")
    async with (
        guarded(*own) as broker,
        user(broker, "admin") as admin,
        user(broker, "alice") as alice,
        user(broker, "bob") as bob,
    ):
        yield broker, admin, alice, bob


EXPIRED = ErrorCode.DELEGATION_TOKEN_EXPIRED


def texts(data: bytes) -> list[str]:
    """Return encodings in which the bytes could appear in a file or a log."""
    return [repr(data)[2:-1], data.hex(), base64.b64encode(data).decode()]
