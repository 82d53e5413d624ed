"""Regular expressions of clients, in RE2 syntax. Matching takes linear time."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.protocol.errors import ErrorCode, KafkaError

# Maximum memory of a compiled pattern, in bytes.
PATTERN_BYTES_MAX = 1 << 20
# Maximum length of a pattern, in characters.
PATTERN_LENGTH_MAX = 10_000


class MissingPatternEngineError(KafkaError):
    """A regular expression that cannot be used because RE2 is not installed."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "Regular expressions need the package 'google-re2', which is not installed on the "
            "broker; run 'pip install google-re2' there and restart the broker",
        )


def check_pattern_engine() -> None:
    """Import RE2, unless it was imported before.

    Raises:
        MissingPatternEngineError: RE2 is not installed.
    """
    try:
        import re2  # noqa: F401  # the caller compiles patterns later
    except ImportError:
        raise MissingPatternEngineError from None


def compile_pattern(pattern: str) -> Callable[[str], object]:
    """Return a function that tests whether a whole string matches a pattern.

    Raises:
        MissingPatternEngineError: RE2 is not installed.
        KafkaError: INVALID_REGULAR_EXPRESSION.
    """
    check_pattern_engine()
    import re2  # imported on first use: it takes 2.6 MB of memory

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression has {len(pattern)} characters (maximum: {PATTERN_LENGTH_MAX})",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES_MAX
    try:
        fullmatch: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression is not valid in RE2 syntax: {error}",
        ) from None
    return fullmatch
