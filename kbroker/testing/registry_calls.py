"""Calls of the schema registry over HTTP, and the rules that match them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, unquote

from .schedule import AnyRule, Effect

if TYPE_CHECKING:
    from kbroker.web.guard import Message

# Paths that contain a subject.
SUBJECT_PATH = re.compile(r"/(?:subjects|config|mode|compatibility/subjects)/([^/]+)")


class Call(NamedTuple):
    """The parts of a call that rules compare; `path` is percent-decoded."""

    method: str
    path: str
    subject: str | None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def parse_call(scope: Message) -> Call:
    """Return the parts of the call that an ASGI scope describes."""
    raw = scope["raw_path"].decode("latin-1")
    in_path = SUBJECT_PATH.match(raw)
    in_query = parse_qs(scope["query_string"].decode("latin-1")).get("subject", [None])
    subject = unquote(in_path[1]) if in_path else in_query[0]
    return Call(scope["method"], unquote(raw), subject)


@dataclass(frozen=True, slots=True)
class CallTarget:
    """Criteria of the calls that a fault hits; None or an empty set matches any call.

    A * in `path` matches any text.
    """

    methods: frozenset[str] = frozenset()
    path: str | None = None
    subject: str | None = None

    def has_method(self, method: str) -> bool:
        """Return True if calls with this method can match."""
        return not self.methods or method in self.methods

    def matches(self, call: Call) -> bool:
        """Return True if the call meets all criteria."""
        return (
            self.has_method(call.method)
            and self.subject in (None, call.subject)
            and (self.path is None or _path_matches(self.path, call.path))
        )

    def __str__(self) -> str:
        parts = [" or ".join(sorted(self.methods)) or "any call of the schema registry"]
        parts += [] if self.path is None else [f"path {self.path!r}"]
        parts += [] if self.subject is None else [f"subject {self.subject!r}"]
        return ", ".join(parts)


@dataclass(slots=True, eq=False)
class CallRule(AnyRule):
    """One armed fault of the schema registry; `code` is the error of the response."""

    target: CallTarget
    code: int = 0

    def try_hit(self, call: Call) -> bool:
        """Count a call if it matches. Return True if the fault hits the call."""
        return not self.is_used_up and self.target.matches(call) and self.count_match()

    def __str__(self) -> str:
        effect = f"error {self.code}" if self.effect is Effect.ERROR else self.effect.value
        return f"{effect} for {self.target}"


def _path_matches(pattern: str, path: str) -> bool:
    """Return True if a path matches a pattern in which * stands for any text."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), path, re.DOTALL) is not None
