"""Invalid arguments that contain a secret."""

from __future__ import annotations

from ..commands import invoke

SECRET = "hunter2"
NOWHERE = "127.0.0.1:1"
# Invalid values for options that take NAME=VALUE.
BAD_PAIRS = (
    SECRET,
    f"basic.auth.user.info:alice:{SECRET}",
    f"ssl.key.password {SECRET}=x",
    f"sasl.jaas.config:Plain required user=a password={SECRET};",
)


def output_of_failing(*arguments: str) -> str:
    """Return the output of a command line that fails."""
    try:
        done = invoke(*arguments, status=2)
    except AssertionError:
        done = invoke(*arguments, status=1)
    return done.output
