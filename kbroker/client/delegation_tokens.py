"""Create, describe, renew and expire delegation tokens (KIP-48)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.protocol.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kbroker.security.delegation import password_of
from kbroker.security.principals import Principal
from kbroker.text.times import iso_time

from .cluster import ClusterClient
from .errors import NoSuchToken, check

# Requests the lifetime or period that the broker is configured with.
BROKER_DEFAULT = -1
NOW = -1


class DelegationToken(NamedTuple):
    """A delegation token; times are in ms since the epoch. `password` is the HMAC in base64."""

    id: str
    owner: Principal
    requester: Principal
    renewers: Sequence[Principal]
    issued_ms: int
    expires_ms: int
    max_ms: int
    hmac: bytes

    def __repr__(self) -> str:
        """Return a representation that omits the HMAC."""
        return f"DelegationToken({self.id} of {self.owner}, until {self.expires_ms})"

    @property
    def password(self) -> str:
        """Password with which a client authenticates by this token."""
        return password_of(self.hmac)

    def row(self, *, with_hmac: bool) -> dict[str, object]:
        """Return the fields for commands and the console.

        Args:
            with_hmac: Include the HMAC, with which anyone can authenticate.
        """
        return {
            "token": self.id,
            **({"hmac": self.password} if with_hmac else {}),
            "owner": str(self.owner),
            "requester": str(self.requester),
            "renewers": [str(each) for each in self.renewers],
            "issued": iso_time(self.issued_ms),
            "expires": iso_time(self.expires_ms),
            "latest": iso_time(self.max_ms),
        }


async def create_delegation_token(
    cluster: ClusterClient,
    renewers: Iterable[Principal] = (),
    *,
    owner: Principal | None = None,
    lifetime_ms: int = BROKER_DEFAULT,
) -> DelegationToken:
    """Create a delegation token.

    Args:
        cluster: The cluster to send the request to.
        renewers: Principals that may renew the token, in addition to its owner.
        owner: Owner of the token, or None for the authenticated user.
        lifetime_ms: Maximum lifetime in ms, capped by the brokers.

    Raises:
        KafkaError: The broker rejects the request.
    """
    cls = CreateDelegationTokenRequest
    rows = [cls.Renewer(principal_type=each.type, principal_name=each.name) for each in renewers]
    request = cls(renewers=rows, max_lifetime_ms=lifetime_ms)
    connection = await cluster.controller()
    if owner is None:
        answer = await connection.ask(request)
    else:
        request.owner_principal_type, request.owner_principal_name = owner
        answer = await connection.ask(request, oldest=3)
    check(answer.error_code)
    created_owner = Principal(answer.principal_type, answer.principal_name)
    return DelegationToken(
        answer.token_id,
        created_owner,
        _requester(answer, created_owner),
        [Principal(each.principal_type, each.principal_name) for each in rows],
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
        bytes(answer.hmac),
    )


def _requester(
    row: DescribeDelegationTokenResponse.Token | CreateDelegationTokenResponse, owner: Principal
) -> Principal:
    """Return the requester of a token; brokers before Kafka 3.3 omit it, as it is the owner."""
    name = row.token_requester_principal_name
    return Principal(row.token_requester_principal_type, name) if name else owner


async def describe_delegation_tokens(
    cluster: ClusterClient, owners: Iterable[Principal] = ()
) -> list[DelegationToken]:
    """Return the tokens that this user may see, oldest first.

    Args:
        cluster: The cluster to query.
        owners: Only tokens that these principals own or may renew; all tokens if empty.

    Raises:
        KafkaError: The broker rejects the request.
    """
    cls = DescribeDelegationTokenRequest
    rows = [cls.Owner(principal_type=each.type, principal_name=each.name) for each in owners]
    answer = await (await cluster.controller()).ask(cls(owners=rows or None))
    check(answer.error_code)
    tokens = [_token(row) for row in answer.tokens]
    return sorted(tokens, key=lambda token: (token.issued_ms, token.id))


def _token(row: DescribeDelegationTokenResponse.Token) -> DelegationToken:
    owner = Principal(row.principal_type, row.principal_name)
    return DelegationToken(
        row.token_id,
        owner,
        _requester(row, owner),
        [Principal(each.principal_type, each.principal_name) for each in row.renewers],
        row.issue_timestamp,
        row.expiry_timestamp,
        row.max_timestamp,
        bytes(row.hmac),
    )


async def delegation_token(cluster: ClusterClient, token_id: str) -> DelegationToken:
    """Return the token with this ID.

    Raises:
        NoSuchToken: The token does not exist, or this user may not see it.
        KafkaError: The broker rejects the request.
    """
    for token in await describe_delegation_tokens(cluster):
        if token.id == token_id:
            return token
    raise NoSuchToken(token_id)


async def renew_delegation_token(
    cluster: ClusterClient, hmac: bytes, period_ms: int = BROKER_DEFAULT
) -> int:
    """Extend the expiry time of a token.

    Args:
        cluster: The cluster to send the request to.
        hmac: HMAC of the token.
        period_ms: Time from now until the token expires, in ms.

    Returns:
        The new expiry time in ms since the epoch.

    Raises:
        KafkaError: The broker rejects the request.
    """
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code)
    return int(answer.expiry_timestamp_ms)


async def expire_delegation_token(
    cluster: ClusterClient, hmac: bytes, period_ms: int = NOW
) -> None:
    """Set the expiry time of a token.

    Args:
        cluster: The cluster to send the request to.
        hmac: HMAC of the token.
        period_ms: Time from now until the token expires, in ms; -1 expires it at once.

    Raises:
        KafkaError: The broker rejects the request.
    """
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code)
