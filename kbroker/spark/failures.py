"""Texts that Spark and its Kafka connector fail with, what they mean, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A known text."""

    name: str
    pattern: str
    """A regular expression for one line."""
    cause: str
    action: str
    harmless: bool = False
    """Said often, and nothing is wrong."""
    last_resort: bool = False
    """Says little: it counts only where nothing else is found."""


@dataclass(frozen=True)
class Finding:
    """A known text in a log."""

    failure: Failure
    line: str
    number: int
    """Of the line, from 1."""


FAILURES: tuple[Failure, ...] = ()


def explain(text: str | Iterable[str]) -> list[Finding]:
    """The known failures in a log, each once at its first line; those that say little are last."""
    found: dict[str, Finding] = {}
    for number, line in enumerate(text.splitlines() if isinstance(text, str) else text, 1):
        for failure in FAILURES:
            if failure.name not in found and re.search(failure.pattern, line):
                found[failure.name] = Finding(failure, line.strip(), number)
    telling = [each for each in found.values() if not each.failure.last_resort]
    serious = [each for each in telling if not each.failure.harmless]
    return telling if serious else telling + [f for f in found.values() if f.failure.last_resort]
