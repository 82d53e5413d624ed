"""What goes wrong when somebody wants to come in, or is to be let in."""

from __future__ import annotations


class LoginFailed(Exception):
    """Who asked is not who it says, or did not speak as the mechanism has it."""


class BadSettings(ValueError):
    """Settings of TLS or of logins that cannot be used; the text names the setting and what to do."""
