"""The server side of PLAIN (RFC 4616), which sends the password itself."""

from __future__ import annotations

from collections.abc import Callable

from .errors import AuthenticationError

MESSAGE_BYTES_MAX = 4096


class PlainServer:
    """One exchange with one client.

    Args:
        knows: Returns True for a user name and its password.
    """

    # A password has no lifetime.
    lifetime_seconds: float | None = None
    is_delegated = False

    def __init__(self, knows: Callable[[str, str], bool]) -> None:
        self._knows = knows
        # Authenticated user name; None before.
        self.name: str | None = None

    def answer(self, message: bytes) -> bytes:
        """Return the empty response to the client's message. Raises AuthenticationError."""
        if len(message) > MESSAGE_BYTES_MAX or self.name is not None:
            raise AuthenticationError("unexpected message")
        try:
            authorization, name, password = message.decode().split("\0")
        except ValueError:  # includes UnicodeDecodeError
            raise AuthenticationError("malformed message") from None
        if not name or not password:
            raise AuthenticationError("the message lacks the user or the password")
        if authorization not in ("", name):
            raise AuthenticationError("the authorization identity differs from the user")
        if not self._knows(name, password):
            raise AuthenticationError("the user or the password is wrong", claimed=name)
        self.name = name
        return b""
