"""SASL authentication of one connection, step by step.

A client selects a mechanism (SaslHandshake) and sends its messages: in SaslAuthenticate requests, or
unframed after version 0 of the handshake (KIP-43, KIP-152). Before authentication, kbroker answers
only one ApiVersions request. After a failure the client cannot retry on the same connection.

An authentication can have a limited lifetime (KIP-368): the client gets the lifetime, and
must re-authenticate within the lifetime, as the same user with the same mechanism. Afterwards kbroker
closes the connection at the first request that is not part of an authentication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from .errors import AuthenticationError, ResponsePending
from .principals import ANONYMOUS, USER, Principal

# Minimum time between two authentications on one connection, as in Kafka (KIP-368).
REAUTHENTICATION_SECONDS_MIN = 1.0
# Maximum session lifetime in responses to clients, in seconds.
LIFETIME_SECONDS_MAX = 10 * 365 * 86400


class Exchange(Protocol):
    """One authentication with one mechanism: client messages and responses."""

    def answer(self, message: bytes) -> bytes:
        """Return the response to the client's next message.

        Raises:
            AuthenticationError: The authentication failed.
            ResponsePending: The response depends on pending data; pass the same message again later.
        """
        ...

    @property
    def name(self) -> str | None:
        """Authenticated user name; None before the end of the exchange."""
        ...

    @property
    def lifetime_seconds(self) -> float | None:
        """Lifetime of the credentials in seconds; None if unlimited."""
        ...

    @property
    def is_delegated(self) -> bool:
        """True if the client used a delegation token (KIP-48)."""
        ...


class Mechanisms(Protocol):
    """The SASL mechanisms of a listener."""

    @property
    def mechanisms(self) -> Sequence[str]:
        """Names of the mechanisms."""
        ...

    def exchange(self, mechanism: str) -> Exchange:
        """Start an exchange with a mechanism."""
        ...

    def session_seconds(self, mechanism: str) -> float | None:
        """Return the maximum session lifetime in seconds; None if unlimited."""
        ...


class Login:
    """The authentication state of one connection.

    Args:
        users: Returns the current mechanisms of the listener.

    Attributes:
        knows_versions: True once ApiVersions was answered with a supported version (KIP-511).
        takes_raw_messages: True if the next frame is an unframed mechanism message.
        principal: Authenticated principal; ANONYMOUS before.
        has_session: True after a successful authentication, even if it has expired.
        is_delegated: True if a delegation token was used; it cannot create other tokens (KIP-48).
        ends_at: Time in seconds at which the session expires.
        lifetime_ms: Lifetime of the session for the client; 0 means unlimited.
        failure: Reason of the failed authentication; the connection answers nothing more.
        claimed: User name of the failed authentication, if the client gave one.
    """

    def __init__(self, users: Callable[[], Mechanisms]) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self._mechanism = ""
        # Maximum session lifetime of the mechanism in seconds; None if unlimited.
        self._session_seconds: float | None = None
        self._reauthenticated_at = -math.inf
        self.knows_versions = False
        self.takes_raw_messages = False
        self.principal = ANONYMOUS
        self.has_session = False
        self.is_delegated = False
        self.ends_at = math.inf
        self.lifetime_ms = 0
        self.failure = ""
        self.claimed = ""

    @property
    def is_done(self) -> bool:
        """True if the client is authenticated and no re-authentication is in progress."""
        return self.has_session and self._exchange is None

    @property
    def is_under_way(self) -> bool:
        """True if a mechanism message is expected next."""
        return self._exchange is not None

    def objection(self, key: int, now: float) -> str:
        """Return why a request must close the connection; empty if it is allowed."""
        if self.failure:
            return f"arrived after a failed authentication: {self.failure}"
        if self._exchange is not None:
            allowed = key == ApiKey.SASL_AUTHENTICATE
        elif self.has_session:
            if now < self.ends_at or (key == ApiKey.SASL_HANDSHAKE and self.may_begin(now)):
                return ""
            return f"arrived after the session of {self.principal} expired; re-authenticate first"
        elif key == ApiKey.API_VERSIONS:
            allowed = not self.knows_versions
        else:
            allowed = key == ApiKey.SASL_HANDSHAKE
        return "" if allowed else "is not allowed before or during authentication"

    def may_begin(self, now: float) -> bool:
        """Return True if the client may select a mechanism now (at first, or to re-authenticate)."""
        if self._exchange is not None or self.failure:
            return False
        if not self.has_session:
            return True
        return (
            self.ends_at < math.inf
            and now - self._reauthenticated_at >= REAUTHENTICATION_SECONDS_MIN
        )

    @property
    def mechanisms(self) -> Sequence[str]:
        """Mechanisms of the listener."""
        return self._users().mechanisms

    @property
    def mechanism(self) -> str:
        """The last selected mechanism; empty before the first selection."""
        return self._mechanism

    def choose(self, mechanism: str, *, raw: bool, now: float) -> ErrorCode:
        """Start an exchange.

        Args:
            mechanism: Name of the mechanism.
            raw: True if the client sends unframed messages instead of SaslAuthenticate requests.
            now: Current time in seconds.
        """
        users = self._users()
        if mechanism not in users.mechanisms:
            self.failure = f"unsupported mechanism {mechanism[:40]!r}"
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self.has_session:
            self._reauthenticated_at = now
            if mechanism != self._mechanism:  # Kafka does not send an error to the client either
                self.failure = f"mechanism {mechanism} differs from the previous {self._mechanism}"
                return ErrorCode.NONE
        self._exchange = users.exchange(mechanism)
        self._mechanism = mechanism
        # Not later: the mechanism may be disabled before the exchange ends.
        self._session_seconds = users.session_seconds(mechanism)
        self.takes_raw_messages = raw
        return ErrorCode.NONE

    async def answer(self, message: bytes, now: Callable[[], float]) -> bytes:
        """Return the response to a mechanism message. Raises AuthenticationError."""
        exchange = self._exchange
        assert exchange is not None
        try:
            try:
                answer = exchange.answer(message)
            except ResponsePending as pending:
                await pending.until()
                answer = exchange.answer(message)
            if exchange.name is not None:
                self._start_session(exchange, exchange.name, now())
        except AuthenticationError as error:
            self.failure, self.claimed = str(error), error.claimed
            raise
        return answer

    def _start_session(self, exchange: Exchange, name: str, now: float) -> None:
        """Start a session. Raises AuthenticationError if the principal differs from the previous one."""
        principal = Principal(USER, name)
        if self.has_session and principal != self.principal:
            raise AuthenticationError(
                f"{principal} differs from the previous principal {self.principal}",
                client_message=f"Cannot change principals during re-authentication from {self.principal}: "
                f"{principal}",
            )
        limits = (self._session_seconds, exchange.lifetime_seconds)
        seconds = min((each for each in limits if each is not None), default=math.inf)
        self.ends_at = now + seconds
        # 0 would mean that the session never expires.
        self.lifetime_ms = (
            0 if math.isinf(seconds) else max(int(min(seconds, LIFETIME_SECONDS_MAX) * 1000), 1)
        )
        self.principal, self.has_session = principal, True
        self.is_delegated = exchange.is_delegated
        self._exchange, self.takes_raw_messages = None, False
