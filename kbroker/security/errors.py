"""What goes wrong when somebody wants to come in."""

from __future__ import annotations


class LoginFailed(Exception):
    """Who asked is not who it says, or did not speak as the mechanism has it."""
