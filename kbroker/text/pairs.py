"""NAME=VALUE arguments of command lines, which may contain secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[\w.-]+", re.ASCII)


def parse_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Parse NAME=VALUE arguments; the last value of a name takes effect.

    Args:
        texts: Arguments in order.

    Returns:
        Values by name, with surrounding white space preserved.

    Raises:
        ValueError: An argument is not NAME=VALUE. The message contains only its position, because
            any part of a mistyped argument may be a secret.
    """
    pairs = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise ValueError(f"item {number} is not KEY=VALUE (its text may contain a secret)")
        pairs[name.strip()] = value
    return pairs
