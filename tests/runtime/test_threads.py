"""Blocking calls that run concurrently in several threads."""

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


def test_long_calls_run_concurrently() -> None:
    """The barrier needs the maximum number of threads; with one more it would wait forever."""
    meeting = threading.Barrier(HELPERS_MAX + 1, timeout=WAIT_SECONDS)
    first = threading.Event()
    met: list[int] = []

    def begin() -> None:
        first.wait(2 * threads.HELP_AFTER_SECONDS)

    calls: list[Callable[[], object]] = [begin, *[meeting.wait] * (HELPERS_MAX + 1)]
    at_once([lambda call=call: met.append(call() is None) for call in calls])  # type: ignore[misc]
    assert len(met) == len(calls)


def test_quick_calls_run_in_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", WAIT_SECONDS)
    done: list[tuple[int, int]] = []
    at_once([lambda n=n: done.append((n, threading.get_ident())) for n in range(100)])  # type: ignore[misc]
    assert done == [(number, threading.get_ident()) for number in range(100)]


def test_quick_calls_do_not_prepare_helpers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Preparing helpers would take longer than the sync of one log, the usual case."""
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", WAIT_SECONDS)
    monkeypatch.setattr(threads, "shares", lambda: pytest.fail("helpers were prepared"))
    done: list[int] = []
    at_once([partial(done.append, number) for number in range(3)])
    assert done == [0, 1, 2]


def test_each_call_runs_once_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", 0)
    done: list[int] = []
    for count in (0, 1, 2, 1000):
        at_once([partial(done.append, number) for number in range(count)])
        assert sorted(done) == list(range(count))
        done.clear()


@pytest.mark.parametrize("alone", [True, False])
def test_first_failure_is_raised_and_remaining_calls_are_skipped(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", WAIT_SECONDS if alone else 0)
    done: list[int] = []

    def fail() -> None:
        raise OSError("the disk is gone")

    # Each thread that runs a call fails; the remaining calls are skipped.
    calls: list[Callable[[], None]] = [fail] * (HELPERS_MAX + 1)
    calls += [partial(done.append, number) for number in range(10)]
    with pytest.raises(OSError, match="the disk is gone"):
        at_once(calls)
    assert done == []


def test_calls_use_at_most_the_allowed_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "HELP_AFTER_SECONDS", 0)
    makers: set[int] = set()
    barrier = threading.Barrier(2, timeout=WAIT_SECONDS)

    def meet() -> None:
        makers.add(threading.get_ident())
        barrier.wait()

    at_once([meet] * 100, 2)
    assert len(makers) == 2


class Opened:
    """Stand-in for a decompressed batch that turns out to be invalid."""

    def reject(self) -> None:
        raise ValueError("rejected")


async def test_error_of_thread_does_not_keep_its_frames_alive() -> None:
    """The garbage collector of a server runs rarely, and one batch can be many megabytes."""
    alive: list[weakref.ref[Opened]] = []

    def work() -> None:
        opened = Opened()
        alive.append(weakref.ref(opened))
        opened.reject()

    gc.disable()
    try:
        for _ in range(3):
            with suppress(ValueError):
                await run_in_thread(work)
        assert [each() for each in alive] == [None] * 3
    finally:
        gc.enable()
