"""What a start says when it cannot go on."""

from __future__ import annotations


class StartFailed(Exception):
    """The server cannot start; the message names the cause and the next action."""
