"""Calls that block, several at once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from kbroker.runtime import threads
from kbroker.runtime.threads import HELPERS_MAX, at_once, run_in_thread

WAIT_SECONDS = 20


def test_calls_that_take_long_are_made_at_once() -> None:
    """As many as there may be meet; one more would wait for ever."""
    meeting = threading.Barrier(HELPERS_MAX + 1, timeout=WAIT_SECONDS)
    first = threading.Event()
    met: list[int] = []

    def begin() -> None:
        first.wait(2 * threads.HELP_AFTER_SECONDS)

    calls: list[Callable[[], object]] = [begin, *[meeting.wait] * (HELPERS_MAX + 1)]
    at_once([lambda call=call: met.append(call() is None) for call in calls])  # type: ignore[misc]
    assert len(met) == len(calls)


def test_calls_that_are_quick_are_made_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", WAIT_SECONDS)
    made: list[tuple[int, int]] = []
    at_once([lambda n=n: made.append((n, threading.get_ident())) for n in range(100)])  # type: ignore[misc]
    assert made == [(number, threading.get_ident()) for number in range(100)]


def test_nothing_is_made_ready_for_helpers_that_are_not_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That would take longer than to sync one log, which is what most passes do."""
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(threads, "shares", lambda: pytest.fail("the system is asked"))
    made: list[int] = []
    at_once([partial(made.append, number) for number in range(3)])
    assert made == [0, 1, 2]


def test_each_call_is_made_once_whoever_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", 0)
    made: list[int] = []
    for count in (0, 1, 2, 1000):
        at_once([partial(made.append, number) for number in range(count)])
        assert sorted(made) == list(range(count))
        made.clear()


@pytest.mark.parametrize("alone", [True, False])
def test_what_fails_is_told_and_nothing_is_begun_after_it(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", WAIT_SECONDS if alone else 0)
    made: list[int] = []

    def fail() -> None:
        raise OSError("the disk is gone")

    # Each thread that had one in hand fails; the rest is left.
    calls: list[Callable[[], None]] = [fail] * (HELPERS_MAX + 1)
    calls += [partial(made.append, number) for number in range(10)]
    with pytest.raises(OSError, match="the disk is gone"):
        at_once(calls)
    assert made == []


def test_no_more_threads_than_allowed_make_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", 0)
    makers: set[int] = set()
    both = threading.Barrier(2, timeout=WAIT_SECONDS)

    def meet() -> None:
        makers.add(threading.get_ident())
        both.wait()

    at_once([meet] * 100, 2)
    assert len(makers) == 2


class Opened:
    """Stands for a decompressed batch that turns out to be invalid."""

    def refuse(self) -> None:
        raise ValueError("refused")


async def test_error_of_thread_frees_what_its_frames_reference() -> None:
    """The garbage collector of a server runs rarely, and one batch can be many megabytes."""
    alive: list[weakref.ref[Opened]] = []

    def work() -> None:
        opened = Opened()
        alive.append(weakref.ref(opened))
        opened.refuse()

    gc.disable()
    try:
        for _ in range(3):
            with suppress(ValueError):
                await run_in_thread(work)
        assert [each() for each in alive] == [None] * 3
    finally:
        gc.enable()
