"""NAME=VALUE texts of command lines, which may hold secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[\w.-]+", re.ASCII)


def parse_pairs(texts: Iterable[str]) -> dict[str, str]:
    """Read NAME=VALUE texts; the last text of a name counts.

    Args:
        texts: Texts as a command line has them, in order.

    Returns:
        Values by name, with the white space that surrounds them.

    Raises:
        ValueError: A text is not NAME=VALUE. The message has its position and none of its
            characters: after a typing error a part of a secret may stand anywhere.
    """
    pairs = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise ValueError(f"item {number} is not KEY=VALUE (its text may hold a secret)")
        pairs[name.strip()] = value
    return pairs
