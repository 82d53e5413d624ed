"""Delegation tokens: made, renewed and ended by who has logged in by something else (KIP-48)."""

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

from .cluster import ClusterClient
from .errors import NoSuchToken, check

BY_OWN_RULES = -1
"""Stands for the time that the brokers' settings say."""
AT_ONCE = -1


class DelegationToken(NamedTuple):
    """A token; times are in ms since 1970. `password` is its HMAC in base64, by which a client logs in."""

    id: str
    owner: Principal
    requester: Principal
    renewers: Sequence[Principal]
    issued_ms: int
    expires_ms: int
    max_ms: int
    hmac: bytes

    def __repr__(self) -> str:
        """Without the HMAC."""
        return f"DelegationToken({self.id} of {self.owner}, until {self.expires_ms})"

    @property
    def password(self) -> str:
        """What a client shows."""
        return password_of(self.hmac)


async def create_delegation_token(
    cluster: ClusterClient,
    renewers: Iterable[Principal] = (),
    *,
    owner: Principal | None = None,
    lifetime_ms: int = BY_OWN_RULES,
) -> DelegationToken:
    """Make a token of who has logged in here, or of an `owner` who lets him. Raises KafkaError.

    Parameters: `lifetime_ms` is its greatest age, at most what the brokers allow.
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
    made = Principal(answer.principal_type, answer.principal_name)
    return DelegationToken(
        answer.token_id,
        made,
        _requester(answer, made),
        [Principal(each.principal_type, each.principal_name) for each in rows],
        answer.issue_timestamp_ms,
        answer.expiry_timestamp_ms,
        answer.max_timestamp_ms,
        bytes(answer.hmac),
    )


def _requester(
    row: DescribeDelegationTokenResponse.Token | CreateDelegationTokenResponse, owner: Principal
) -> Principal:
    """Who made a token; brokers before Kafka 3.3 do not tell, because it is the owner."""
    name = row.token_requester_principal_name
    return Principal(row.token_requester_principal_type, name) if name else owner


async def describe_delegation_tokens(
    cluster: ClusterClient, owners: Iterable[Principal] = ()
) -> list[DelegationToken]:
    """The tokens of these owners and renewers that one may see, the oldest first; without any, of all.

    Raises KafkaError.
    """
    cls = DescribeDelegationTokenRequest
    rows = [cls.Owner(principal_type=each.type, principal_name=each.name) for each in owners]
    answer = await (await cluster.controller()).ask(cls(owners=rows or None))
    check(answer.error_code)
    tokens = [_described(row) for row in answer.tokens]
    return sorted(tokens, key=lambda token: (token.issued_ms, token.id))


def _described(row: DescribeDelegationTokenResponse.Token) -> DelegationToken:
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
    """The token with this id. Raises NoSuchToken, also when one may not see it, and KafkaError."""
    for token in await describe_delegation_tokens(cluster):
        if token.id == token_id:
            return token
    raise NoSuchToken(token_id)


async def renew_delegation_token(
    cluster: ClusterClient, hmac: bytes, period_ms: int = BY_OWN_RULES
) -> int:
    """Let a token be good for longer; returns when it ends, in ms since 1970. Raises KafkaError."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code)
    return int(answer.expiry_timestamp_ms)


async def expire_delegation_token(
    cluster: ClusterClient, hmac: bytes, period_ms: int = AT_ONCE
) -> None:
    """Let a token end in `period_ms`, or at once. Raises KafkaError."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = await (await cluster.controller()).ask(request)
    check(answer.error_code)
