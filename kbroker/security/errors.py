"""Errors of authentication and of security settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class AuthenticationError(Exception):
    """The authentication of a client failed.

    Args:
        reason: Reason for the log.
        client_message: Text that the client may see.
        claimed: User name that the client gave.
    """

    def __init__(self, reason: str, client_message: str = "", claimed: str = "") -> None:
        super().__init__(reason)
        self.client_message = client_message
        self.claimed = claimed


class ResponsePending(Exception):
    """The response depends on pending data: await `until`, then pass the message again."""

    def __init__(self, until: Callable[[], Awaitable[None]]) -> None:
        super().__init__("the response depends on pending data")
        self.until = until


class BadSettings(ValueError):
    """Invalid TLS or authentication settings; the message names the setting and the fix."""
