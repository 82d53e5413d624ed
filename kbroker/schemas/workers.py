"""Worker processes that parse and compare schemas, with limits on time and memory.

A client can send a schema that takes any amount of time to parse. Schemas are therefore parsed in
processes that the broker can kill. Several processes run concurrently, so that one schema does not block
the others. A process starts when a task needs it, and ends after `KEPT_SECONDS` without work.
"""

from __future__ import annotations

import logging
import signal
from typing import cast

import trio

from kbroker.runtime.child_process import ChildProcess
from kbroker.runtime.fair_slots import FairSlots

from .core.errors import STORE_FAILED, RegistryError, invalid_schema, schema_too_large
from .core.registry import CheckResult, CheckTask
from .core.work import (
    Encode,
    Failed,
    Mismatched,
    Rejected,
    Result,
    Serialize,
    Task,
    Vet,
    batches,
    characters_of,
)
from .worker_process import (
    MEMORY_BYTES,
    NICENESS,
    OUT_OF_MEMORY,
    SMALL_CHARACTERS,
    cpu_seconds,
    program,
)

logger = logging.getLogger(__name__)

# Maximum number of processes for small tasks, and for large ones with a lower priority.
SMALL_WORKERS_MAX, LARGE_WORKERS_MAX = 2, 2
# Maximum duration of a task in seconds, for machines on which other processes use the CPU.
WALL_SECONDS = 25.0
# Seconds after which an idle process is ended.
KEPT_SECONDS = 60.0
# Seconds within which a process that has closed its output must exit.
END_SECONDS = 2.0
# Exit status of a process that its CPU timer has killed.
_TIMED_OUT = -getattr(signal, "SIGPROF", 27)
# Exit statuses of a process that its CPU timer or SIGKILL has killed.
_STOPPED = frozenset({_TIMED_OUT, -9})


class _Ended(Exception):
    """A process ended without a result."""

    def __init__(self, status: int) -> None:
        self.status = status


class SchemaWorkers:
    """Pools of worker processes for schemas. `run` ends processes that are idle."""

    def __init__(self) -> None:
        self._small = _Pool(SMALL_WORKERS_MAX, 0)
        self._large = _Pool(LARGE_WORKERS_MAX, NICENESS)
        self._workers: set[ChildProcess] = set()
        self._used = trio.Event()
        # True after `close`, until the next `run`: no process may start, or be kept for other tasks.
        self._is_closed = False

    @property
    def processes(self) -> list[int]:
        """IDs of the running processes."""
        return [each.pid for each in self._workers]

    async def check(self, task: CheckTask, client: str) -> CheckResult:
        """Check a schema against earlier versions.

        Args:
            task: The schema, and the versions that it must be compatible with.
            client: The client, for the round-robin order of tasks.

        Returns:
            The result, with the reasons of the first batch that contains incompatible versions.

        Raises:
            RegistryError: The schema is malformed, or exceeds a limit on time or memory.
        """
        for batch in batches(task):
            checked = cast(CheckResult, await self._run_task(batch, client))
            if checked.reasons:
                break
        return checked

    async def serialized(self, task: Serialize, client: str) -> str:
        """Return the descriptor of a Protobuf file in base64. Raises RegistryError."""
        return cast(str, await self._run_task(task, client))

    async def vet(self, task: Vet, client: str) -> None:
        """Raise RegistryError if a schema is malformed or exceeds a limit on time or memory."""
        await self._run_task(task, client)

    async def encoded(self, task: Encode, client: str) -> tuple[bytes, ...] | Mismatched:
        """Return the encoded documents, or the first document that does not match its schema.

        Raises:
            RegistryError: The schema is malformed, or the work exceeds a limit on time or memory.
        """
        return cast("tuple[bytes, ...] | Mismatched", await self._run_task(task, client))

    async def run(self) -> None:
        """End processes that are idle for `KEPT_SECONDS`; end all of them when cancelled."""
        self._is_closed = False
        try:
            while True:
                await self._used.wait()
                self._used = trio.Event()
                while idle := [*self._small.idle, *self._large.idle]:
                    oldest = min(since for _, since in idle)
                    await trio.sleep_until(oldest + KEPT_SECONDS)
                    for pool in (self._small, self._large):
                        await self._end_idle(pool, trio.current_time() - KEPT_SECONDS)
        finally:
            await self.close()

    async def _end_idle(self, pool: _Pool, since: float) -> None:
        # Read `pool.idle` each time: while one process ends, a task may take another one from it.
        while old := [each for each in pool.idle if each[1] <= since]:
            pool.idle.remove(old[0])
            await self._end(old[0][0])

    async def close(self) -> None:
        """End all processes; tasks in progress fail."""
        self._is_closed = True
        self._small.idle.clear()
        self._large.idle.clear()
        for each in [*self._workers]:
            await self._end(each)

    async def _run_task(self, task: Task, client: str) -> Result:
        pool = self._small if characters_of(task) <= SMALL_CHARACTERS else self._large
        async with pool.slots.taken(client):
            return await self._run_in_pool(task, pool)

    async def _run_in_pool(self, task: Task, pool: _Pool) -> Result:
        reply = await self._result(task, pool)
        if isinstance(reply, Rejected):
            raise RegistryError(reply.code, reply.message)
        if isinstance(reply, Failed):
            logger.error(
                "cannot read a schema of type %s, rejecting it: %s", task.content.type, reply.error
            )
            raise invalid_schema("cannot be parsed; see the broker's log")
        return reply

    async def _result(self, task: Task, pool: _Pool) -> Result:
        """Run a task; repeat it if an idle process had been killed before it received the task."""
        while True:
            is_reused = bool(pool.idle)
            worker = pool.idle.pop()[0] if is_reused else await self._start(pool)
            try:
                return await self._result_of(worker, task, pool)
            except _Ended as ended:
                if self._is_closed:
                    raise _stopping() from None
                if not is_reused or ended.status in (_TIMED_OUT, OUT_OF_MEMORY):
                    raise _failure(ended.status, task) from None
                logger.warning(
                    "an idle process that reads schemas ended with status %d, using another one",
                    ended.status,
                )

    async def _result_of(self, worker: ChildProcess, task: Task, pool: _Pool) -> Result:
        try:
            with trio.fail_after(WALL_SECONDS):
                reply = cast(Result, await worker.ask(task))
        except trio.TooSlowError:
            await self._end(worker)
            raise _too_slow(task) from None
        except (OSError, trio.BrokenResourceError, EOFError):
            raise _Ended(await self._end(worker, END_SECONDS)) from None
        except BaseException:
            await self._end(worker)
            raise
        if self._is_closed:
            await self._end(worker)
            return reply
        pool.idle.append((worker, trio.current_time()))
        self._used.set()
        return reply

    async def _start(self, pool: _Pool) -> ChildProcess:
        if self._is_closed:
            raise _stopping()
        try:
            worker = await ChildProcess.start(program(pool.niceness))
        except OSError as error:
            raise RegistryError(
                STORE_FAILED, f"cannot start a process that parses schemas: {error}"
            ) from None
        self._workers.add(worker)
        if self._is_closed:  # `close` did not know the process
            await self._end(worker)
            raise _stopping()
        return worker

    async def _end(self, worker: ChildProcess, seconds: float = 0) -> int:
        """Kill a process that does not exit within some seconds; return its exit status."""
        status = await worker.end(seconds)
        self._workers.discard(worker)
        return status


class _Pool:
    """Processes for small or for large tasks, at most as many as there are slots."""

    def __init__(self, workers_max: int, niceness: int) -> None:
        self.slots = FairSlots(workers_max)
        self.niceness = niceness
        # Idle processes, each with the time (trio clock, s) at which its last task ended.
        self.idle: list[tuple[ChildProcess, float]] = []


def _stopping() -> RegistryError:
    return RegistryError(STORE_FAILED, "the schema registry is stopping; try again later")


def _too_slow(task: Task) -> RegistryError:
    seconds = cpu_seconds(characters_of(task))
    return schema_too_large(f"it needs more than {seconds:g} s of processor time")


def _failure(status: int, task: Task) -> RegistryError:
    """Return the error for a task whose process has ended."""
    if status == OUT_OF_MEMORY:
        return schema_too_large(f"it needs more than {MEMORY_BYTES >> 20} MiB of memory")
    if status in _STOPPED:
        return _too_slow(task)
    logger.error("a process that reads schemas ended with status %d", status)
    return RegistryError(STORE_FAILED, "the process that reads schemas ended; see the log")
