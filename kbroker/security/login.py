"""What one client shows of itself on one connection, step by step.

A client names a mechanism (SaslHandshake), then sends the messages of that (SaslAuthenticate, or as they
are after version 0 of the handshake: KIP-43, KIP-152). Before that only ApiVersions is answered, once.
Who has failed is told so and gets no second try on this connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from .errors import LoginFailed
from .principals import ANONYMOUS, USER, Principal


class Exchange(Protocol):
    """One login by one mechanism: messages of the client, and the answers to them."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises LoginFailed."""
        ...

    @property
    def name(self) -> str | None:
        """Who it is, once that is shown."""
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


class Login:
    """The login of one connection, at a listener with these users."""

    def __init__(self, users: Mechanisms) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self.knows_versions = False
        """ApiVersions was answered, and not by telling which of its versions there are (KIP-511)."""
        self.takes_raw_messages = False
        """Whether the next frame is a message of the mechanism as it is, not a request."""
        self.principal = ANONYMOUS
        self.is_done = False
        self.failure = ""
        """Why it has failed; then nothing more is answered."""

    def allows(self, key: int) -> bool:
        """Whether a request may be looked at now; otherwise the connection is closed."""
        if self.is_done:
            return True
        if self.failure:
            return False
        if key == ApiKey.API_VERSIONS:
            return not self.knows_versions and self._exchange is None
        return key == (
            ApiKey.SASL_HANDSHAKE if self._exchange is None else ApiKey.SASL_AUTHENTICATE
        )

    @property
    def mechanisms(self) -> Sequence[str]:
        """What the listener offers."""
        return self._users.mechanisms

    def choose(self, mechanism: str, *, raw: bool) -> ErrorCode:
        """Begin with a mechanism; `raw` says that its messages come as they are."""
        if mechanism not in self._users.mechanisms:
            self.failure = f"there is no mechanism {mechanism[:40]!r}"
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._exchange = self._users.exchange(mechanism)
        self.takes_raw_messages = raw
        return ErrorCode.NONE

    def answer(self, message: bytes) -> bytes:
        """The answer to a message of the mechanism. Raises LoginFailed."""
        assert self._exchange is not None
        try:
            answer = self._exchange.answer(message)
        except LoginFailed as error:
            self.failure = str(error)
            raise
        if self._exchange.name is not None:
            self.is_done, self.takes_raw_messages = True, False
            self.principal = Principal(USER, self._exchange.name)
        return answer
