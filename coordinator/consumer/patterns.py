"""Regular expressions that clients send, in the syntax of RE2: time is linear in the text."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.protocol.errors import ErrorCode, KafkaError

PATTERN_BYTES_MAX = 1 << 20
"""Memory that a compiled pattern may take."""
PATTERN_LENGTH_MAX = 10_000


def compile_pattern(pattern: str) -> Callable[[str], object]:
    """A test whether a whole text fits a pattern.

    Raises KafkaError INVALID_REGULAR_EXPRESSION.
    """
    import re2  # not before somebody asks: it takes 2.6 MB

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"A regular expression may have {PATTERN_LENGTH_MAX} characters; this one has {len(pattern)}",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        fullmatch: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"Not a regular expression of RE2: {error}"
        ) from None
    return fullmatch
