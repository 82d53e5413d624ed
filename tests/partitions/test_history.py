"""A bounded history of changes."""

from __future__ import annotations

from kbroker.partitions.history import CHANGES_MAX, OBJECTS_MAX, History


def test_history_keeps_the_last_changes_of_each_object() -> None:
    history: History[str, int] = History()
    for number in range(CHANGES_MAX + 3):
        history.add("busy", number)
    history.add("calm", 7)
    assert history.of("busy") == list(range(3, CHANGES_MAX + 3))
    assert (history.of("calm"), history.of("unknown")) == ([7], [])


def test_history_drops_the_least_recently_changed_objects() -> None:
    history: History[int, int] = History()
    for key in range(OBJECTS_MAX):
        history.add(key, 1)
    history.add(0, 2)
    history.add(OBJECTS_MAX, 1)
    assert history.of(0) == [1, 2]
    assert (history.of(1), history.of(2)) == ([], [1])
