"""What one client shows of itself on one connection, step by step.

A client names a mechanism (SaslHandshake), then sends the messages of that (SaslAuthenticate, or as they
are after version 0 of the handshake: KIP-43, KIP-152). Before that only ApiVersions is answered, once.
Who has failed is told so and gets no second try on this connection.

What was shown may be good for some time only (KIP-368): the client is told for how long, logs in again
before that is over, as the same user by the same mechanism, and goes on. One that does not is closed
when it asks for anything else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from .errors import LoginFailed, NotYet
from .principals import ANONYMOUS, USER, Principal

REAUTHENTICATION_SECONDS_MIN = 1.0
"""Minimum time between two authentications on one connection, as in Kafka (KIP-368)."""
LIFETIME_SECONDS_MAX = 10 * 365 * 86400
"""What is good for longer is told to be good so long."""


class Exchange(Protocol):
    """One login by one mechanism: messages of the client, and the answers to them."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises LoginFailed; NotYet, then give it again."""
        ...

    @property
    def name(self) -> str | None:
        """Who it is, once that is shown."""
        ...

    @property
    def lifetime_seconds(self) -> float | None:
        """How long what was shown is good; None: as long as the connection lives."""
        ...

    @property
    def is_delegated(self) -> bool:
        """Whether it was shown by a delegation token, which somebody else has made (KIP-48)."""
        ...


class Mechanisms(Protocol):
    """What a listener offers."""

    @property
    def mechanisms(self) -> Sequence[str]:
        """Their names."""
        ...

    def exchange(self, mechanism: str) -> Exchange:
        """A new login by one of them."""
        ...

    def session_seconds(self, mechanism: str) -> float | None:
        """How long a login by one of them is good at most; None: as long as the connection lives."""
        ...


class Login:
    """The login of one connection. `users` are those whom the listener knows now."""

    def __init__(self, users: Callable[[], Mechanisms]) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self._mechanism = ""
        self._began_again_at = -math.inf
        self.knows_versions = False
        """ApiVersions was answered, and not by telling which of its versions there are (KIP-511)."""
        self.takes_raw_messages = False
        """Whether the next frame is a message of the mechanism as it is, not a request."""
        self.principal = ANONYMOUS
        self.has_session = False
        """Whether somebody has logged in, if only for some time."""
        self.is_delegated = False
        """Whether that was by a delegation token, which lets nobody make others (KIP-48)."""
        self.ends_at = math.inf
        """When another login is due."""
        self.lifetime_ms = 0
        """How long the last login is good; 0: as long as the connection lives."""
        self.failure = ""
        """Why it has failed; then nothing more is answered."""
        self.claimed = ""
        """Who failed to show that it is that one, where it gave a name."""

    @property
    def is_done(self) -> bool:
        """Whether somebody has logged in and does not just do so again."""
        return self.has_session and self._exchange is None

    @property
    def is_under_way(self) -> bool:
        """Whether a message of a mechanism comes next."""
        return self._exchange is not None

    def objection(self, key: int, now: float) -> str:
        """What is wrong with a request, so that the connection is closed; empty when nothing is."""
        if self.failure:
            return f"comes after a login that has failed: {self.failure}"
        if self._exchange is not None:
            allowed = key == ApiKey.SASL_AUTHENTICATE
        elif self.has_session:
            if now < self.ends_at or (key == ApiKey.SASL_HANDSHAKE and self.may_begin(now)):
                return ""
            return f"comes when {self.principal} was to log in again first"
        elif key == ApiKey.API_VERSIONS:
            allowed = not self.knows_versions
        else:
            allowed = key == ApiKey.SASL_HANDSHAKE
        return "" if allowed else "has no place before or in a login"

    def may_begin(self, now: float) -> bool:
        """Whether a mechanism may be chosen: for the first time, or when another login will be due."""
        if self._exchange is not None or self.failure:
            return False
        if not self.has_session:
            return True
        return (
            self.ends_at < math.inf and now - self._began_again_at >= REAUTHENTICATION_SECONDS_MIN
        )

    @property
    def mechanisms(self) -> Sequence[str]:
        """What the listener offers."""
        return self._users().mechanisms

    @property
    def mechanism(self) -> str:
        """The one that was chosen last; empty before."""
        return self._mechanism

    def choose(self, mechanism: str, *, raw: bool, now: float) -> ErrorCode:
        """Begin with a mechanism; `raw` says that its messages come as they are."""
        users = self._users()
        if mechanism not in users.mechanisms:
            self.failure = f"there is no mechanism {mechanism[:40]!r}"
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        if self.has_session:
            self._began_again_at = now
            if mechanism != self._mechanism:  # Kafka does not tell the client either
                self.failure = f"{mechanism} where the login before was by {self._mechanism}"
                return ErrorCode.NONE
        self._exchange = users.exchange(mechanism)
        self._mechanism = mechanism
        self.takes_raw_messages = raw
        return ErrorCode.NONE

    async def answer(self, message: bytes, now: Callable[[], float]) -> bytes:
        """The answer to a message of the mechanism. Raises LoginFailed."""
        exchange = self._exchange
        assert exchange is not None
        try:
            try:
                answer = exchange.answer(message)
            except NotYet as not_yet:
                await not_yet.until()
                answer = exchange.answer(message)
            if exchange.name is not None:
                self._came_in(exchange, exchange.name, now())
        except LoginFailed as error:
            self.failure, self.claimed = str(error), error.claimed
            raise
        return answer

    def _came_in(self, exchange: Exchange, name: str, now: float) -> None:
        """Somebody has shown who it is. Raises LoginFailed when it was somebody else before."""
        principal = Principal(USER, name)
        if self.has_session and principal != self.principal:
            raise LoginFailed(
                f"{principal} where {self.principal} was before",
                told=f"Cannot change principals during re-authentication from {self.principal}: "
                f"{principal}",
            )
        limits = (self._users().session_seconds(self._mechanism), exchange.lifetime_seconds)
        seconds = min((each for each in limits if each is not None), default=math.inf)
        self.ends_at = now + seconds
        # 0 would tell the client that there is no end.
        self.lifetime_ms = (
            0 if math.isinf(seconds) else max(int(min(seconds, LIFETIME_SECONDS_MAX) * 1000), 1)
        )
        self.principal, self.has_session = principal, True
        self.is_delegated = exchange.is_delegated
        self._exchange, self.takes_raw_messages = None, False
