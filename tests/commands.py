"""Commands of `kbroker`, run in this process."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
from click.testing import CliRunner, Result

from kbroker.cli import main

# A command in a separate process.
KBROKER = [sys.executable, "-m", "kbroker"]


class Cli(Protocol):
    """Run a command; fail the test if the exit status is not `status`."""

    def __call__(
        self, *args: str, stdin: str | bytes | None = None, status: int = 0
    ) -> Awaitable[Result]: ...


ReadJson = Callable[..., Awaitable[Any]]


# CliRunner replaces `sys.stdout`, so concurrent commands would mix their outputs.
_alone = threading.Lock()


def invoke(*args: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
    """Run a command in this thread; only one command runs at a time."""
    assert _alone.acquire(blocking=False), f"{args}: one command at a time"
    try:
        result = CliRunner().invoke(main, list(args), input=stdin, catch_exceptions=False)
    finally:
        _alone.release()
    assert result.exit_code == status, (args, result.exit_code, result.output)
    return result


async def invoke_in_thread(*args: str, stdin: str | bytes | None = None, status: int = 0) -> Result:
    """Run a command in a worker thread, so that a broker of this thread can respond."""
    with trio.fail_after(30):
        work = functools.partial(invoke, *args, stdin=stdin, status=status)
        return await trio.to_thread.run_sync(work)
