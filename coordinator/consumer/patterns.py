"""Regular expressions of clients, in RE2 syntax. Matching takes linear time."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode, KafkaError

# Maximum memory of a compiled pattern, in bytes. It limits a pattern to about 2,700 instructions.
# RE2 may visit each instruction at each character, so the longest topic name takes up to 11 ms.
PATTERN_BYTES_MAX = 1 << 16
# Maximum memory of a compiled list of names, which RE2 visits only once.
NAMES_BYTES_MAX = 1 << 20
# Maximum length of a pattern, in characters.
PATTERN_LENGTH_MAX = 10_000
# Maximum number of Unicode classes in a pattern. Each takes 0.1 ms to compile, and three of them
# fill the memory of a pattern.
UNICODE_CLASSES_MAX = 10
# Maximum number of visited instructions of one match, at about 20 ns each.
MATCH_STEPS_MAX = 700_000
# Names that are separated by `|`, without parentheses, classes and repetitions.
_NAMES = re.compile(r"(?:[\w\-|^$]|\\[.\-_])*", re.ASCII)
_UNICODE_CLASS = re.compile(r"\\[pP]")


class _CompiledRegex(Protocol):
    def fullmatch(self, text: str) -> object: ...


class Pattern(NamedTuple):
    """A compiled pattern with a known maximum cost of a match.

    Attributes:
        regex: The pattern, compiled by RE2.
        size: Number of instructions.
        is_names: True for a list of names, whose instructions are visited once per match.
    """

    regex: _CompiledRegex
    size: int
    is_names: bool

    def steps(self, text_bytes: int) -> int:
        """Return the maximum number of visited instructions for texts of this total size."""
        return self.size + text_bytes if self.is_names else self.size * text_bytes

    def matches(self, text: str) -> bool:
        """Return True if the whole text matches.

        Raises:
            KafkaError: INVALID_REGULAR_EXPRESSION: a match of a text of this length may take too
                long. Topic names are never too long.
        """
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self.steps(size) > MATCH_STEPS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"The regular expression is too complex for a text of {size} bytes",
            )
        return self.regex.fullmatch(text) is not None


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


def compile_pattern(pattern: str) -> Pattern:
    """Compile a pattern that must match whole strings.

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
    classes = len(_UNICODE_CLASS.findall(pattern))
    if classes > UNICODE_CLASSES_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression has {classes} Unicode classes (maximum: {UNICODE_CLASSES_MAX})",
        )
    is_names = _NAMES.fullmatch(pattern) is not None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = NAMES_BYTES_MAX if is_names else PATTERN_BYTES_MAX
    try:
        regex = re2.compile(pattern, options)
    except re2.error as error:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression is not valid in RE2 syntax: {error}",
        ) from None
    return Pattern(regex, regex.programsize, is_names)
