"""Delegation tokens: what somebody gives to those who work for him, in place of a password (KIP-48).

A token has an id and an HMAC of that, made with a key that only the cluster's nodes know. Who shows
both logs in by SCRAM, as the token's owner: the id is the user's name, the HMAC in base64 the password.
A token ends, and may be renewed before that up to its greatest age, by its owner and by those whom it
names. Somebody may make one for another one who lets him (KIP-373).

Here are the rules; `now_ms` is milliseconds since 1970, as all times of a token. Where tokens are kept
says `kbroker.cluster.delegation_tokens`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode, KafkaError

from .errors import LoginFailed
from .principals import USER, Principal
from .scram import ScramCredential, ScramMechanism, ScramServer, ScramUser, credential_of

NAMES_MAX, NAMES_BYTES_MAX = 100, 4096
"""Of the principals of one token, and of all their names together: all nodes have them in memory."""
TIME_MAX = 2**63 - 1
"""The last one that there is on the wire."""


class DelegationToken(NamedTuple):
    """One token, as it is kept: nothing here shows its HMAC.

    `requester` made it. `digest` is the hash of the HMAC, by which it is found, and `credentials` is
    what a server keeps of a password.
    """

    id: str
    owner: Principal
    requester: Principal
    renewers: Sequence[Principal]
    issued_ms: int
    expires_ms: int
    max_ms: int
    digest: bytes
    credentials: Mapping[ScramMechanism, ScramCredential]

    def __repr__(self) -> str:
        """Without what belongs to the secret."""
        return f"DelegationToken({self.id} of {self.owner}, until {self.expires_ms})"

    def is_over(self, now_ms: int) -> bool:
        """Whether it is of no use any more."""
        return min(self.expires_ms, self.max_ms) < now_ms

    def concerns(self, principal: Principal) -> bool:
        """Whether somebody may know of it without being allowed to."""
        return principal in (self.owner, self.requester) or principal in self.renewers


class Lifetimes(NamedTuple):
    """How long tokens are good in ms: at most, and until they have to be renewed."""

    max_ms: int
    renewed_ms: int


class DelegationKey:
    """What HMACs are made with: ``delegation.token.secret.key``."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def hmac(self, token_id: str) -> bytes:
        """The HMAC of a token (64 bytes)."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def made(self, token: DelegationToken) -> bool:
        """Whether a token was made with this key, not with an earlier one."""
        return hmac.compare_digest(digest_of(self.hmac(token.id)), token.digest)


def digest_of(hmac: bytes) -> bytes:
    """That by which a token is found."""
    return hashlib.sha256(hmac).digest()


def password_of(hmac: bytes) -> str:
    """What a client shows of a token."""
    return base64.b64encode(hmac).decode()


def check_principals(owner: Principal, renewers: Sequence[Principal]) -> None:
    """Raise KafkaError for principals that no token can have.

    Nobody logs in as anything but a user, so that it could be the token of no other owner.
    """
    if any(each.type != USER for each in (owner, *renewers)):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE, f"there are principals of type {USER}")
    names = sum(len(each.name.encode()) for each in (owner, *renewers))
    if len(renewers) >= NAMES_MAX or names > NAMES_BYTES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"a token has fewer than {NAMES_MAX} renewers, and names of {NAMES_BYTES_MAX} bytes together",
        )


def new_token(
    key: DelegationKey,
    owner: Principal,
    requester: Principal,
    renewers: Sequence[Principal],
    lifetime_ms: int,
    lifetimes: Lifetimes,
    now_ms: int,
) -> DelegationToken:
    """A token that begins now; takes some milliseconds of a processor.

    Parameters: `lifetime_ms` is its greatest age, at most that of `lifetimes`; without a positive one
    it is that.
    """
    token_id = _new_id()
    made = key.hmac(token_id)
    max_ms = min(now_ms + _at_most(lifetimes.max_ms, lifetime_ms), TIME_MAX)
    return DelegationToken(
        token_id,
        owner,
        requester,
        tuple(renewers),
        issued_ms=now_ms,
        expires_ms=min(max_ms, now_ms + lifetimes.renewed_ms),
        max_ms=max_ms,
        digest=digest_of(made),
        credentials={each: credential_of(each, password_of(made)) for each in ScramMechanism},
    )


def _new_id() -> str:
    """As Kafka makes them: 16 random bytes in base64, which do not look like an option."""
    while (made := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return made


def renewed(
    token: DelegationToken, by: Principal, period_ms: int, lifetimes: Lifetimes, now_ms: int
) -> DelegationToken:
    """A token that ends later, or sooner. Raises KafkaError for the first cause that Kafka sees.

    Parameters: `period_ms` is how long it is good from now on, at most as `lifetimes` says; without a
    positive one it is that.
    """
    _check_is_good(token, now_ms)
    _check_may_change(token, by)
    return _until(token, now_ms + _at_most(lifetimes.renewed_ms, period_ms))


def ended(
    token: DelegationToken, by: Principal, period_ms: int, now_ms: int
) -> DelegationToken | None:
    """A token that ends in `period_ms`; None for one that ends at once, which a negative one says.

    Raises KafkaError for the first cause that Kafka sees. One that has ended can end at once.
    """
    _check_may_change(token, by)
    if period_ms < 0:
        return None
    _check_is_good(token, now_ms)
    return _until(token, now_ms + period_ms)


def _check_is_good(token: DelegationToken, now_ms: int) -> None:
    if token.is_over(now_ms):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has ended; make another one"
        )


def _check_may_change(token: DelegationToken, by: Principal) -> None:
    if by != token.owner and by not in token.renewers:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            f"{by} is neither the owner of the token nor one of its renewers",
        )


def _until(token: DelegationToken, expires_ms: int) -> DelegationToken:
    return token._replace(expires_ms=min(token.max_ms, expires_ms))


def _at_most(limit_ms: int, wanted_ms: int) -> int:
    return min(limit_ms, wanted_ms) if wanted_ms > 0 else limit_ms


class ShownToken(NamedTuple):
    """A token that somebody may log in by: whose it is, and how long it is still good."""

    owner: Principal
    seconds: float
    credentials: Mapping[ScramMechanism, ScramCredential]


class TokenUsers(Protocol):
    """Tokens by which somebody may log in now."""

    def shown(self, token_id: str) -> ShownToken | None:
        """The token with this id; None when there is none, or not any more.

        Takes as long for one as for the other.
        """
        ...


class ScramLogin:
    """A login by SCRAM, as a user or by a token. `server` speaks it; `tokens` are those that there are."""

    def __init__(self, server: ScramServer, tokens: TokenUsers | None) -> None:
        self._server = server
        self._tokens = tokens
        self.name: str | None = None
        """Who it is, once that is shown: of a token its owner."""
        self.lifetime_seconds: float | None = None
        """How long a token is still good; a password is as long as it is one."""
        self.is_delegated = False
        """Whether it was shown by a token."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises LoginFailed."""
        answer = self._server.answer(message)
        user = self._server.user
        if user is not None:
            self._came_in(user)
        return answer

    def _came_in(self, user: ScramUser) -> None:
        if not user.is_token:
            self.name = user.name
            return
        # It may have ended since the first message.
        token = None if self._tokens is None else self._tokens.shown(user.name)
        if token is None:
            raise LoginFailed("the token has ended")
        self.name, self.lifetime_seconds = token.owner.name, token.seconds
        self.is_delegated = True
