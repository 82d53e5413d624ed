"""Execution of compaction runs, in a separate process or in time slices of the event loop.

Compaction is pure Python over every record of a topic, so it holds the GIL: in a thread it would
take slices of 5 ms from all clients. It needs only the paths of immutable files, so another process
can run it on another core. Files in memory are not visible to another process; they are compacted
in short time slices of the event loop.
"""

from __future__ import annotations

import math
from typing import Protocol, cast

import trio

from kbroker.runtime.child_process import ChildProcess
from kbroker.runtime.threads import InThread, run_in_thread
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.compaction import Compaction, CompactionResult, CompactionTask
from kbroker.storage.errors import LostBytesError, StorageError
from kbroker.storage.files import Files

from .compaction_process import Failure, program

# Time that the child process stays alive without work.
KEPT_SECONDS = 60


class CompactionFailed(Exception):
    """A failed compaction run, with the reason as message.

    `has_lost_bytes` is True if a file of the log does not return the bytes that were written.
    """

    def __init__(self, message: str, *, has_lost_bytes: bool = False) -> None:
        super().__init__(message)
        self.has_lost_bytes = has_lost_bytes


class Compactor(Protocol):
    """Runs compactions, one at a time."""

    async def compact(self, task: CompactionTask) -> CompactionResult:
        """Write the new segments of a task. Raises CompactionFailed and then removes them."""
        ...

    async def release_if_idle(self, seconds: float) -> None:
        """Release resources that are no longer worth keeping if no task comes for `seconds`."""
        ...


class InlineCompactor:
    """Runs compactions in time slices of the event loop."""

    def __init__(self, files: Files, in_thread: InThread = run_in_thread) -> None:
        self._files = files
        self._in_thread = in_thread

    async def compact(self, task: CompactionTask) -> CompactionResult:
        run = Compaction(self._files, task)
        duty_cycle = DutyCycle()
        try:
            for work in run.steps():
                if work is not None:
                    await self._in_thread(work)
                await duty_cycle.pause()
        except LostBytesError as error:
            run.discard()
            raise CompactionFailed(error.message or "", has_lost_bytes=True) from None
        except (StorageError, FileNotFoundError) as error:
            run.discard()
            raise CompactionFailed(str(error)) from None
        return run.result

    async def release_if_idle(self, seconds: float) -> None:
        pass


class ProcessCompactor:
    """Runs compactions in a child process, which is kept alive for a while between tasks.

    Starting the process takes 0.1 s of CPU time.
    """

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._worked = -math.inf

    async def compact(self, task: CompactionTask) -> CompactionResult:
        try:
            reply = await self._ask(task)
        except BaseException as error:
            # Even if cancelled: a running process would write into a directory that may be reused.
            await self._end()
            if isinstance(error, OSError | trio.BrokenResourceError | EOFError):
                raise CompactionFailed(f"the compaction process ended: {error!r}") from None
            raise
        self._worked = trio.current_time()
        if isinstance(reply, Failure):
            raise CompactionFailed(reply.message, has_lost_bytes=reply.has_lost_bytes)
        return reply

    async def _ask(self, task: CompactionTask) -> CompactionResult | Failure:
        if self._process is None:
            self._process = await ChildProcess.start(program())
        return cast(CompactionResult | Failure, await self._process.ask(task))

    async def release_if_idle(self, seconds: float) -> None:
        if trio.current_time() + seconds - self._worked > KEPT_SECONDS:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()
