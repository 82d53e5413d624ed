"""Processes that read and compare schemas, off the event loop and on a deadline.

A schema can be made to need any amount of time. So it is read in a process that can be killed, and several
of them, so that one schema does not hold up the others. None is started before the first schema that
needs one, and each ends when it has had nothing to do for `KEPT_SECONDS`.
"""

from __future__ import annotations

import logging
import pickle
import signal
import sys
from subprocess import PIPE
from typing import cast

import trio

from kbroker.runtime.fair_slots import FairSlots

from .core.errors import STORE_FAILED, RegistryError, invalid_schema, schema_too_large
from .core.registry import Checked, Compared
from .core.work import Failed, Refused, Result, Serialize, Task, Vet, batches, characters_of
from .worker_process import (
    LENGTH,
    MEMORY_BYTES,
    NICENESS,
    OUT_OF_MEMORY,
    SMALL_CHARACTERS,
    cpu_seconds,
    program,
)

logger = logging.getLogger(__name__)

SMALL_WORKERS_MAX, LARGE_WORKERS_MAX = 2, 2
"""Processes for small schemas, and those for larger ones, which have a lower priority."""
WALL_SECONDS = 25.0
"""How long a task may take where other processes want the processors too."""
KEPT_SECONDS = 60.0
END_SECONDS = 2.0
"""How long a process that has closed its output may take to end by itself."""
_STOPPED = frozenset({-getattr(signal, "SIGPROF", 27), -9})
"""Exit statuses of a process that used up its processor time, or that somebody killed."""


class SchemaWorkers:
    """Does work on schemas. `run` ends processes that are idle."""

    def __init__(self) -> None:
        self._small = _Pool(SMALL_WORKERS_MAX, 0)
        self._large = _Pool(LARGE_WORKERS_MAX, NICENESS)
        self._workers: set[_Worker] = set()
        self._used = trio.Event()

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that there are now."""
        return [each.pid for each in self._workers]

    async def check(self, compared: Compared, client: str) -> Checked:
        """Check a schema against earlier versions.

        Args:
            compared: The schema, and the versions that it has to go with.
            client: For whom: the tasks of clients take turns.

        Raises:
            RegistryError: The schema is malformed, or takes too much time.
        """
        for batch in batches(compared):
            checked = cast(Checked, await self._done(batch, client))
            if checked.reasons:
                break
        return checked

    async def serialized(self, task: Serialize, client: str) -> str:
        """Return the descriptor of a file of Protobuf, in base64. Raises RegistryError."""
        return cast(str, await self._done(task, client))

    async def vet(self, task: Vet, client: str) -> None:
        """Raise RegistryError for a schema that cannot be read, or not in bounded time."""
        await self._done(task, client)

    async def run(self) -> None:
        """End processes that have had nothing to do; all of them when cancelled."""
        try:
            while True:
                await self._used.wait()
                self._used = trio.Event()
                while idle := [*self._small.idle, *self._large.idle]:
                    oldest = min(each.idle_since for each in idle)
                    await trio.sleep_until(oldest + KEPT_SECONDS)
                    for pool in (self._small, self._large):
                        await self._end_idle(pool, trio.current_time() - KEPT_SECONDS)
        finally:
            await self.close()

    async def _end_idle(self, pool: _Pool, since: float) -> None:
        # A task may take one of them while another one ends.
        while old := [each for each in pool.idle if each.idle_since <= since]:
            pool.idle.remove(old[0])
            await self._end(old[0])

    async def close(self) -> None:
        """End all processes."""
        self._small.idle.clear()
        self._large.idle.clear()
        for each in [*self._workers]:
            await self._end(each)

    async def _done(self, task: Task, client: str) -> Result:
        pool = self._small if characters_of(task) <= SMALL_CHARACTERS else self._large
        async with pool.slots.taken(client):
            return await self._ask(task, pool)

    async def _ask(self, task: Task, pool: _Pool) -> Result:
        worker = pool.idle.pop() if pool.idle else await self._start(pool)
        try:
            with trio.fail_after(WALL_SECONDS):
                reply = await worker.ask(task)
        except trio.TooSlowError:
            await self._end(worker)
            raise _too_slow(task) from None
        except (OSError, trio.BrokenResourceError, EOFError):
            status = await self._end(worker, is_ending=True)
            raise _failure(status, task) from None
        except BaseException:
            await self._end(worker)
            raise
        worker.idle_since = trio.current_time()
        pool.idle.append(worker)
        self._used.set()
        if isinstance(reply, Refused):
            raise RegistryError(reply.code, reply.message)
        if isinstance(reply, Failed):
            logger.error(
                "cannot read a schema of type %s, rejecting it: %s", task.content.type, reply.error
            )
            raise invalid_schema("it cannot be read; see the broker's log")
        return reply

    async def _start(self, pool: _Pool) -> _Worker:
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-c", program(pool.niceness)],
                stdin=PIPE,
                stdout=PIPE,
                process_group=0,  # a Ctrl-C in the terminal is for the broker alone
            )
        except OSError as error:
            raise RegistryError(STORE_FAILED, f"no process reads schemas: {error}") from None
        worker = _Worker(process)
        self._workers.add(worker)
        return worker

    async def _end(self, worker: _Worker, *, is_ending: bool = False) -> int:
        """Kill a process, unless it ends by itself; returns its exit status."""
        with trio.CancelScope(shield=True):
            status = await worker.end(END_SECONDS if is_ending else 0)
            self._workers.discard(worker)
        return status


class _Pool:
    """Processes for tasks of one kind, at most as many as there are slots."""

    def __init__(self, workers_max: int, niceness: int) -> None:
        self.slots = FairSlots(workers_max)
        self.niceness = niceness
        self.idle: list[_Worker] = []


class _Worker:
    """One process."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self.idle_since = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, task: Task) -> Result:
        """Have a task done. Raises OSError, BrokenResourceError or EOFError if the process ends."""
        tasks, results = self._process.stdin, self._process.stdout
        assert tasks is not None
        assert results is not None
        data = pickle.dumps(task)
        await tasks.send_all(LENGTH.pack(len(data)) + data)
        (size,) = LENGTH.unpack(await _receive(results, LENGTH.size))
        reply: Result = pickle.loads(await _receive(results, size))
        return reply

    async def end(self, seconds: float) -> int:
        """Kill the process if it does not end within some seconds; returns its exit status."""
        process = self._process
        with trio.move_on_after(seconds):
            await process.wait()
        process.kill()
        status = await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
        return status


async def _receive(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = await stream.receive_some(size - len(data))
        if not chunk:
            raise EOFError("no answer")
        data += chunk
    return bytes(data)


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
