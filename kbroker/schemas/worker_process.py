"""Program of the worker processes that parse and compare schemas; `workers` starts and kills them.

The kernel kills a worker when a task has used up its CPU time limit, even if no Python code can run at
that moment. A worker exits if a task needs too much memory.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from typing import cast

from kbroker.runtime.task_frames import program_of, read_tasks, write_result

from .core.work import Task, characters_of, run

# Maximum number of characters of a small task.
SMALL_CHARACTERS = 32 * 1024
# CPU time limits of small and of large tasks.
SMALL_CPU_SECONDS, CPU_SECONDS = 1.0, 5.0
# Maximum size of the address space (Linux).
MEMORY_BYTES = 1 << 30
# Exit status of a worker whose task needed more than `MEMORY_BYTES`.
OUT_OF_MEMORY = 3
# Niceness of workers for large tasks (POSIX).
NICENESS = 10


def program(niceness: int) -> str:
    """Return the program of a worker; `niceness` lowers its priority."""
    return program_of(__name__, niceness)


def cpu_seconds(characters: int) -> float:
    """Return the CPU time limit in seconds for a task of this size."""
    return SMALL_CPU_SECONDS if characters <= SMALL_CHARACTERS else CPU_SECONDS


def main() -> None:
    """Run tasks until standard input ends."""
    _limit_memory()
    for each in read_tasks():
        task = cast(Task, each)
        _set_timer(cpu_seconds(characters_of(task)))
        try:
            data = pickle.dumps(run(task))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        _set_timer(0)
        write_result(data)


def _limit_memory() -> None:
    try:
        import resource  # POSIX
    except ModuleNotFoundError:
        return
    with suppress(ValueError, OSError):  # macOS cannot limit the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _set_timer(seconds: float) -> None:
    """Make the kernel kill this process with SIGPROF after `seconds` of CPU time; 0 stops the timer."""
    try:
        from signal import ITIMER_PROF, setitimer  # POSIX
    except ImportError:
        return
    setitimer(ITIMER_PROF, seconds)
