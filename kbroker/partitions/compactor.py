"""Where a compaction runs: in a process of its own, or in slices of the event loop.

Compaction is pure Python over every record of a topic, so it holds the interpreter's lock: in a
thread it would take turns of five milliseconds away from every client. It knows nothing but the
paths of files that do not change any more, so another process can do it on another core. In memory
there is no other process to ask; then it takes thin slices of the event loop.

The process runs `main`. It reads tasks from its standard input and writes what came
of each to its standard output, both as pickles behind their length, and it ends when its parent does.
It rests as often as it works, because the broker and its clients need the same processors and the
same disk. A low priority instead would make them wait longer: it may be held up in the middle of a
write, with the locks of the file system.
"""

from __future__ import annotations

import gc
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from subprocess import PIPE
from typing import NamedTuple, Protocol

import trio

from kbroker.runtime.slices import Slices
from kbroker.storage.compaction import Compacted, Compaction, CompactionTask
from kbroker.storage.errors import CorruptLogError, StorageError
from kbroker.storage.files import Files, OsFiles

TURN_SECONDS = 0.0005
REST = 1
"""How many times as long as it worked the process leaves processor and disk to others."""
_LENGTH = struct.Struct(">I")


class CompactionFailed(Exception):
    """A run came to nothing; the message says why.

    `is_damage`: because bytes of the log are not what was written.
    """

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


class Compactor(Protocol):
    """Runs compactions, one at a time."""

    async def compact(self, task: CompactionTask) -> Compacted:
        """Write the new segments of a task. Raises CompactionFailed; nothing is left then."""
        ...

    async def rest(self) -> None:
        """No further task comes soon."""
        ...


class InlineCompactor:
    """Runs compactions in slices of the event loop."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def compact(self, task: CompactionTask) -> Compacted:
        run = Compaction(self._files, task)
        slices = Slices()
        try:
            for _ in run.steps():
                await slices.pause()
        except CorruptLogError as error:
            run.discard()
            raise CompactionFailed(error.message or "", is_damage=True) from None
        except (StorageError, FileNotFoundError) as error:
            run.discard()
            raise CompactionFailed(str(error)) from None
        return run.result

    async def rest(self) -> None:
        pass


class _Failure(NamedTuple):
    message: str
    is_damage: bool


class ProcessCompactor:
    """Runs compactions in a process, which is there while there is work for it."""

    def __init__(self) -> None:
        self._process: trio.Process | None = None

    async def compact(self, task: CompactionTask) -> Compacted:
        try:
            reply = await self._ask(task)
        except BaseException as error:
            # Also when cancelled: a process that goes on would write into a folder of others.
            await self._end()
            if isinstance(error, OSError | trio.BrokenResourceError | EOFError):
                raise CompactionFailed(f"the compaction process ended: {error!r}") from None
            raise
        if isinstance(reply, _Failure):
            raise CompactionFailed(reply.message, is_damage=reply.is_damage)
        return reply

    async def _ask(self, task: CompactionTask) -> Compacted | _Failure:
        if self._process is None:
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-c", _program()],
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,  # a Ctrl-C in the terminal is for the broker alone
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        data = pickle.dumps(task)
        await process.stdin.send_all(_LENGTH.pack(len(data)) + data)
        (size,) = _LENGTH.unpack(await _receive(process.stdout, _LENGTH.size))
        reply: Compacted | _Failure = pickle.loads(await _receive(process.stdout, size))
        return reply

    async def rest(self) -> None:
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await stream.aclose()


def _program() -> str:
    """What the process runs, with modules from where this process has them: it may be embedded.

    Not `-m`, because pickles name the module where a class is from.
    """
    return f"import sys; sys.path[:] = {sys.path!r}; from kbroker.partitions.compactor import main; main()"


async def _receive(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = await stream.receive_some(size - len(data))
        if not chunk:
            raise EOFError("no answer")
        data += chunk
    return bytes(data)


# -- the process


def main() -> None:
    """Do tasks until standard input or the parent ends."""
    parent = os.getppid()
    gc.disable()  # nothing here makes cycles

    def look() -> None:
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for the result any more

    tasks, answers = sys.stdin.buffer, sys.stdout.buffer
    while head := tasks.read(_LENGTH.size):
        task = pickle.loads(tasks.read(_LENGTH.unpack(head)[0]))
        data = pickle.dumps(_run(task, look))
        try:
            answers.write(_LENGTH.pack(len(data)) + data)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody waits for it


def _run(task: CompactionTask, look: Callable[[], None]) -> Compacted | _Failure:
    run = Compaction(OsFiles(), task)
    try:
        began = time.perf_counter()
        for _ in run.steps():
            worked = time.perf_counter() - began
            if worked > TURN_SECONDS:
                look()
                time.sleep(worked * REST)
                began = time.perf_counter()
        return run.result
    except (StorageError, FileNotFoundError) as error:
        with suppress(StorageError):
            run.discard()
        is_damage = isinstance(error, CorruptLogError)
        message = error.message if isinstance(error, StorageError) else None
        return _Failure(message or str(error), is_damage)
