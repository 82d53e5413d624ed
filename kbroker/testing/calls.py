"""Calls of the schema registry by HTTP, and which of them a fault hits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, unquote

from .schedule import AnyRule, Effect

if TYPE_CHECKING:
    from kbroker.web.guard import Message

WITH_SUBJECT = re.compile(r"/(?:subjects|config|mode|compatibility/subjects)/([^/]+)")
"""What a path begins with that names a subject."""


class Call(NamedTuple):
    """What rules can tell of a call. `path` is as a person writes it, without what is quoted."""

    method: str
    path: str
    subject: str | None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def parse_call(scope: Message) -> Call:
    """What an ASGI server says of a request."""
    raw = scope["raw_path"].decode("latin-1")
    named = WITH_SUBJECT.match(raw)
    asked = parse_qs(scope["query_string"].decode("latin-1")).get("subject", [None])
    subject = unquote(named[1]) if named else asked[0]
    return Call(scope["method"], unquote(raw), subject)


@dataclass(frozen=True, slots=True)
class CallTarget:
    """Which calls a fault hits; None, and an empty set, stand for any. A * in `path` stands for
    anything."""

    methods: frozenset[str] = frozenset()
    path: str | None = None
    subject: str | None = None

    def has_method(self, method: str) -> bool:
        """Whether calls of this method are meant."""
        return not self.methods or method in self.methods

    def matches(self, call: Call) -> bool:
        """Whether the call meets every criterion."""
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
    """One armed fault for the schema registry; `code` is the number of the error that it answers with."""

    target: CallTarget
    code: int = 0

    def takes(self, call: Call) -> bool:
        """Whether this call is hit; counts it."""
        return not self.is_used_up and self.target.matches(call) and self.is_due()

    def __str__(self) -> str:
        what = f"error {self.code}" if self.effect is Effect.ERROR else self.effect.value
        return f"{what} for {self.target}"


def _path_matches(pattern: str, path: str) -> bool:
    """Whether a path is meant by a pattern."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), path, re.DOTALL) is not None
