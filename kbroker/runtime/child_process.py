"""Child processes that do tasks for a broker and can be killed."""

from __future__ import annotations

import pickle
import sys
from subprocess import PIPE

import trio

from .task_frames import LENGTH


class ChildProcess:
    """A Python process that does one task at a time.

    Its program reads tasks with `task_frames.read_tasks` and writes a result for each of them with
    `task_frames.write_result`.
    """

    def __init__(self, process: trio.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, program: str) -> ChildProcess:
        """Start a process.

        Args:
            program: Python code, normally from `task_frames.program_of`.

        Raises:
            OSError: The process cannot be started.
        """
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", program],
            stdin=PIPE,
            stdout=PIPE,
            # Ctrl-C in the terminal must reach the broker only. In a new session, the child would get
            # as much CPU time as the broker, whatever its priority (Linux, sched_autogroup).
            process_group=0,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, None while the process runs."""
        return self._process.returncode

    async def ask(self, task: object) -> object:
        """Send a task and wait for its result.

        Raises:
            OSError: The process has ended.
            trio.BrokenResourceError: The process has ended.
            EOFError: The process ended during the task.
        """
        tasks, results = self._process.stdin, self._process.stdout
        assert tasks is not None
        assert results is not None
        data = pickle.dumps(task)
        await tasks.send_all(LENGTH.pack(len(data)) + data)
        (size,) = LENGTH.unpack(await _receive(results, LENGTH.size))
        result: object = pickle.loads(await _receive(results, size))
        return result

    async def end(self, seconds: float = 0) -> int:
        """Kill the process, even if the caller is cancelled.

        Args:
            seconds: Time for which the process may end by itself.

        Returns:
            The exit status.
        """
        process = self._process
        with trio.CancelScope(shield=True):
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
            raise EOFError("no response")
        data += chunk
    return bytes(data)
