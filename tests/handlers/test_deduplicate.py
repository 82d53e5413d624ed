"""What requests name, each once."""

from __future__ import annotations

from kbroker.handlers.deduplicate import distinct


def test_names_are_taken_one_by_one_each_where_it_came_first() -> None:
    """A set of all of them at once would keep the event loop."""
    names = iter("abacb")
    found = distinct(names)
    assert next(found) == "a"
    assert next(names) == "b", "no more than that was taken"
    assert "".join(found) == "cb"
