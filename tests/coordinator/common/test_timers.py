"""Timers with one deadline per key."""

from __future__ import annotations

import random

from kbroker.coordinator.common.timers import Timers


def fired(timers: Timers[str], now_ms: int) -> list[str]:
    keys = []
    while (key := timers.pop_due(now_ms)) is not None:
        keys.append(key)
    return keys


def test_deadlines_expire_in_order_and_once() -> None:
    timers: Timers[str] = Timers()
    for key, at in (("late", 30), ("early", 10), ("same", 30)):
        timers.schedule(key, at)
    assert timers.next_deadline() == 10
    assert fired(timers, 9) == []
    assert fired(timers, 30) == ["early", "late", "same"]
    assert timers.next_deadline() is None
    assert fired(timers, 1000) == []


def test_deadline_may_be_moved_both_ways() -> None:
    timers: Timers[str] = Timers()
    timers.schedule("a", 10)
    timers.schedule("a", 50)
    assert timers.next_deadline() == 50
    assert fired(timers, 49) == []
    timers.schedule("a", 20)
    assert timers.next_deadline() == 20
    assert fired(timers, 60) == ["a"]
    assert len(timers) == 0


def test_cancelled_deadline_does_not_expire_unless_rescheduled() -> None:
    timers: Timers[str] = Timers()
    timers.schedule("a", 10)
    timers.cancel("a")
    timers.cancel("never set")
    assert timers.deadline("a") is None
    timers.schedule("a", 40)
    assert fired(timers, 39) == []
    assert timers.deadline("a") == 40
    timers.cancel("a")
    assert timers.next_deadline() is None
    assert len(timers) == 0


def test_postponing_deadline_does_not_grow_heap() -> None:
    timers: Timers[str] = Timers()
    for at in range(10_000):
        timers.schedule("a", 10 + at)
    assert len(timers._heap) == 1


def test_random_operations_match_dictionary() -> None:
    rng = random.Random(7)
    timers: Timers[str] = Timers()
    model: dict[str, int] = {}
    now = 0
    popped = 0
    for _ in range(20_000):
        key = rng.choice("abcdefgh")
        action = rng.random()
        if action < 0.6:
            model[key] = now + rng.randrange(100)
            timers.schedule(key, model[key])
        elif action < 0.7:
            model.pop(key, None)
            timers.cancel(key)
        else:
            now += rng.randrange(40)
            due = sorted((at, key) for key, at in model.items() if at <= now)
            keys = fired(timers, now)
            assert sorted(keys) == sorted(key for _, key in due)
            assert [model[key] for key in keys] == [at for at, _ in due]
            for key in keys:
                del model[key]
            popped += len(keys)
        assert timers.next_deadline() == min(model.values(), default=None)
        assert len(timers) == len(model)
    assert popped > 1000
