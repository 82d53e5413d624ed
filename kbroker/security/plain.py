"""The server's side of PLAIN (RFC 4616): the password itself, for connections that nobody reads."""

from __future__ import annotations

from collections.abc import Callable

from .errors import LoginFailed

MESSAGE_BYTES_MAX = 4096


class PlainServer:
    """One exchange with one client: one message. `knows` checks a user's password."""

    lifetime_seconds: float | None = None
    """A password is good as long as it is one."""
    is_delegated = False

    def __init__(self, knows: Callable[[str, str], bool]) -> None:
        self._knows = knows
        self.name: str | None = None
        """Who it is, once that is shown."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's message: nothing. Raises LoginFailed."""
        if len(message) > MESSAGE_BYTES_MAX or self.name is not None:
            raise LoginFailed("a message that is not expected")
        try:
            authorization, name, password = message.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise LoginFailed("the message is not understood") from None
        if not name or not password:
            raise LoginFailed("the message has no user or no password")
        if authorization not in ("", name):
            raise LoginFailed("nobody acts for somebody else")
        if not self._knows(name, password):
            raise LoginFailed("the user or the password is wrong", claimed=name)
        self.name = name
        return b""
