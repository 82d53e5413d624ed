"""Waiting for a condition in tests that run brokers in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable

# Time limit in seconds. A condition that takes longer counts as never met.
WAIT_SECONDS = 60.0


def wait_until(
    condition: Callable[[], object],
    description: str,
    *,
    seconds: float = WAIT_SECONDS,
    pause: float = 0.005,
) -> None:
    """Wait until `condition()` is true, checking every `pause` seconds.

    Fails with `description` after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{description}: not within {seconds} s"
        time.sleep(pause)
