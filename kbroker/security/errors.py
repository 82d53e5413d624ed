"""What goes wrong when somebody wants to come in, or is to be let in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class LoginFailed(Exception):
    """Who asked is not who it says, or did not speak as the mechanism has it.

    The text is for the log; `told` is what the client may know of it, `claimed` the name that it gave.
    """

    def __init__(self, reason: str, told: str = "", claimed: str = "") -> None:
        super().__init__(reason)
        self.told = told
        self.claimed = claimed


class NotYet(Exception):
    """What an answer hangs on is still to come: await `until`, and give the message again."""

    def __init__(self, until: Callable[[], Awaitable[None]]) -> None:
        super().__init__("something is still to come")
        self.until = until


class BadSettings(ValueError):
    """Settings of TLS or of logins that cannot be used; the text names the setting and what to do."""
