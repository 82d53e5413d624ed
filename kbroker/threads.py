"""Where blocking work runs: in worker threads, or wherever a simulation wants it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class InThread(Protocol):
    """Runs a function off the event loop, as `trio.to_thread.run_sync` does."""

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Return what `work` returns, or raise what it raises."""
        ...
