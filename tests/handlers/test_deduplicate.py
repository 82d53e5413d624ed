"""Tests of the removal of duplicate names from requests."""

from __future__ import annotations

from kbroker.handlers.deduplicate import distinct


def test_distinct_yields_first_occurrences_lazily() -> None:
    """Building a set of all names at once would block the event loop."""
    names = iter("abacb")
    found = distinct(names)
    assert next(found) == "a"
    assert next(names) == "b", "it consumes only what it yields"
    assert "".join(found) == "cb"
