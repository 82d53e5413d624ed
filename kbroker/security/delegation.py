"""Delegation tokens: short-lived credentials that act for their owner (KIP-48).

A token has an ID and an HMAC of the ID, made with a key that only the cluster's nodes know. A client
authenticates by SCRAM with the ID as the user name and the base64 HMAC as the password, and gets the
principal of the owner. A token expires; its owner and its renewers can renew it up to its maximum
lifetime. A user can create a token for another user if an ACL permits it (KIP-373).

This module contains the rules; all times are in milliseconds since the epoch.
`kbroker.cluster.delegation_tokens` stores the tokens.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode, KafkaError

from .errors import AuthenticationError
from .principals import USER, Principal
from .scram import ScramCredential, ScramMechanism, ScramServer, ScramUser, credential_of

# Maximum number of renewers of a token, and maximum size of all its principal names in UTF-8 bytes: all
# nodes keep the names in memory.
NAMES_MAX, NAMES_BYTES_MAX = 100, 4096
# Largest time in milliseconds that the protocol can represent.
TIME_MAX = 2**63 - 1


class DelegationToken(NamedTuple):
    """A delegation token as it is stored, without its HMAC.

    `requester` created the token. `digest` is the hash of the HMAC, the lookup key. `credentials`
    are the SCRAM credentials by mechanism.
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
        """Hide the digest and the credentials."""
        return f"DelegationToken({self.id} of {self.owner}, until {self.expires_ms})"

    def is_expired(self, now_ms: int) -> bool:
        """Return True if the token has expired or reached its maximum lifetime."""
        return min(self.expires_ms, self.max_ms) < now_ms

    def concerns(self, principal: Principal) -> bool:
        """Return True if a principal may see the token without a permission."""
        return principal in (self.owner, self.requester) or principal in self.renewers


class Lifetimes(NamedTuple):
    """Lifetimes of tokens in ms: the maximum, and the time until a renewal is due."""

    max_ms: int
    renewed_ms: int


class DelegationKey:
    """The key of the HMACs, from ``delegation.token.secret.key``."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def hmac(self, token_id: str) -> bytes:
        """Return the HMAC of a token (64 bytes)."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def has_created(self, token: DelegationToken) -> bool:
        """Return True if a token was created with this key, not with an earlier one."""
        return hmac.compare_digest(digest_of(self.hmac(token.id)), token.digest)


def digest_of(hmac: bytes) -> bytes:
    """Return the lookup key of a token."""
    return hashlib.sha256(hmac).digest()


def password_of(hmac: bytes) -> str:
    """Return the SCRAM password of a token."""
    return base64.b64encode(hmac).decode()


def check_principals(owner: Principal, renewers: Sequence[Principal]) -> None:
    """Reject principals that a token cannot have.

    Clients always authenticate as principals of type User, so no other owner can exist.

    Raises:
        KafkaError: A principal is not of type User, or there are too many or too long names.
    """
    if any(each.type != USER for each in (owner, *renewers)):
        raise KafkaError(
            ErrorCode.INVALID_PRINCIPAL_TYPE, f"invalid principal type (valid: {USER})"
        )
    names = sum(len(each.name.encode()) for each in (owner, *renewers))
    if len(renewers) >= NAMES_MAX or names > NAMES_BYTES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"too many renewers or too long names; use fewer than {NAMES_MAX} renewers and at most "
            f"{NAMES_BYTES_MAX} bytes of names",
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
    """Create a token that is valid from now on; uses some milliseconds of CPU time.

    Args:
        key: Key of the HMAC.
        owner: Principal that the token authenticates.
        requester: Principal that requested the token.
        renewers: Principals that may renew the token.
        lifetime_ms: Requested maximum lifetime; 0 or less selects the limit in `lifetimes`.
        lifetimes: Upper limits of the broker.
        now_ms: Current time.
    """
    token_id = _new_id()
    token_hmac = key.hmac(token_id)
    max_ms = min(now_ms + _limited(lifetimes.max_ms, lifetime_ms), TIME_MAX)
    return DelegationToken(
        token_id,
        owner,
        requester,
        tuple(renewers),
        issued_ms=now_ms,
        expires_ms=min(max_ms, now_ms + lifetimes.renewed_ms),
        max_ms=max_ms,
        digest=digest_of(token_hmac),
        credentials={each: credential_of(each, password_of(token_hmac)) for each in ScramMechanism},
    )


def _new_id() -> str:
    """Return 16 random bytes in base64, as in Kafka, without a leading dash (a CLI option)."""
    while (token_id := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return token_id


def renew(
    token: DelegationToken, by: Principal, period_ms: int, lifetimes: Lifetimes, now_ms: int
) -> DelegationToken:
    """Return the token with a new expiry time.

    Args:
        token: The token to renew.
        by: Principal that renews the token.
        period_ms: New remaining lifetime; 0 or less selects the period in `lifetimes`.
        lifetimes: Upper limits of the broker.
        now_ms: Current time.

    Raises:
        KafkaError: The token has expired, or `by` may not renew it.
    """
    _check_not_expired(token, now_ms)
    _check_is_owner_or_renewer(token, by)
    return _with_expiry(token, now_ms + _limited(lifetimes.renewed_ms, period_ms))


def expire(
    token: DelegationToken, by: Principal, period_ms: int, now_ms: int
) -> DelegationToken | None:
    """Return the token with an earlier expiry time, or None if it expires immediately.

    Args:
        token: The token; an expired one can still be expired immediately.
        by: Principal that expires the token.
        period_ms: Remaining lifetime; a negative value expires the token immediately.
        now_ms: Current time.

    Raises:
        KafkaError: `by` may not change the token, or it has expired.
    """
    _check_is_owner_or_renewer(token, by)
    if period_ms < 0:
        return None
    _check_not_expired(token, now_ms)
    return _with_expiry(token, now_ms + period_ms)


def _check_not_expired(token: DelegationToken, now_ms: int) -> None:
    if token.is_expired(now_ms):
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_EXPIRED, "the token has expired; create another one"
        )


def _check_is_owner_or_renewer(token: DelegationToken, by: Principal) -> None:
    if by != token.owner and by not in token.renewers:
        raise KafkaError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
            f"{by} is neither the owner of the token nor one of its renewers",
        )


def _with_expiry(token: DelegationToken, expires_ms: int) -> DelegationToken:
    return token._replace(expires_ms=min(token.max_ms, expires_ms))


def _limited(limit_ms: int, wanted_ms: int) -> int:
    return min(limit_ms, wanted_ms) if wanted_ms > 0 else limit_ms


class ValidToken(NamedTuple):
    """A valid token: its owner, its remaining lifetime in seconds and its credentials."""

    owner: Principal
    seconds: float
    credentials: Mapping[ScramMechanism, ScramCredential]


class TokenUsers(Protocol):
    """The delegation tokens that are valid now."""

    def find_valid(self, token_id: str) -> ValidToken | None:
        """Return the token with an ID, or None if it does not exist or has expired.

        Takes the same time in all cases, so that the time does not reveal the existence of a token.
        """
        ...


class ScramLogin:
    """A SCRAM authentication of a user or with a token.

    Args:
        server: The SCRAM exchange.
        tokens: The valid tokens; None if tokens are disabled.
    """

    def __init__(self, server: ScramServer, tokens: TokenUsers | None) -> None:
        self._server = server
        self._tokens = tokens
        # Name of the authenticated user; the owner if a token was used.
        self.name: str | None = None
        # Remaining lifetime of the token; None after a password authentication.
        self.lifetime_seconds: float | None = None
        # True if the client used a token.
        self.is_delegated = False

    def answer(self, message: bytes) -> bytes:
        """Return the response to the client's next message. Raises AuthenticationError."""
        answer = self._server.answer(message)
        user = self._server.user
        if user is not None:
            self._accept_user(user)
        return answer

    def _accept_user(self, user: ScramUser) -> None:
        if not user.is_token:
            self.name = user.name
            return
        # The token may have expired since the first message.
        token = None if self._tokens is None else self._tokens.find_valid(user.name)
        if token is None:
            raise AuthenticationError("the delegation token has expired")
        self.name, self.lifetime_seconds = token.owner.name, token.seconds
        self.is_delegated = True
