"""Words with a secret in them that no command line can take."""

from __future__ import annotations

from ..commands import invoke

SECRET = "hunter2"
NOWHERE = "127.0.0.1:1"
BAD_PAIRS = (
    SECRET,
    f"basic.auth.user.info:alice:{SECRET}",
    f"ssl.key.password {SECRET}=x",
    f"sasl.jaas.config:Plain required user=a password={SECRET};",
)
"""Items of options that take NAME=VALUE, with typing errors."""


def said_by(*words: str) -> str:
    """Return what a command line that fails prints."""
    try:
        done = invoke(*words, status=2)
    except AssertionError:
        done = invoke(*words, status=1)
    return done.output
