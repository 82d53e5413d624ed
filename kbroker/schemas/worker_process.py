"""The process in which schemas are read and compared: `workers` starts it and kills it.

It reads tasks from its standard input and writes results to its standard output, both as pickles behind
their length. The kernel ends it when a task has used up its processor time, whatever holds the interpreter
then; a task that needs too much memory ends it too.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from contextlib import suppress

from .core.work import characters_of, run

LENGTH = struct.Struct(">I")
SMALL_CHARACTERS = 32 * 1024
"""Up to so much text a task is small."""
SMALL_CPU_SECONDS, CPU_SECONDS = 1.0, 5.0
"""Processor time of a small task, and of any other one."""
MEMORY_BYTES = 1 << 30
"""Address space of the process (Linux)."""
OUT_OF_MEMORY = 3
"""The exit status of a process whose task needed more memory."""
NICENESS = 10
"""By how much the priority of a process for large schemas is lower than the broker's (POSIX)."""


def program(niceness: int) -> str:
    """Return what a process runs, with modules from where this process has them."""
    yields = f"os.nice({niceness}); " if niceness and hasattr(os, "nice") else ""
    return (
        f"import os, sys; {yields}sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    )


def cpu_seconds(characters: int) -> float:
    """Return the processor time that a task on so much text may take."""
    return SMALL_CPU_SECONDS if characters <= SMALL_CHARACTERS else CPU_SECONDS


def main() -> None:
    """Do tasks until standard input ends."""
    _limit_memory()
    tasks, results = sys.stdin.buffer, sys.stdout.buffer
    while head := tasks.read(LENGTH.size):
        task = pickle.loads(tasks.read(LENGTH.unpack(head)[0]))
        _set_timer(cpu_seconds(characters_of(task)))
        try:
            data = pickle.dumps(run(task))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        _set_timer(0)
        try:
            results.write(LENGTH.pack(len(data)) + data)
            results.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody waits for it


def _limit_memory() -> None:
    try:
        import resource  # POSIX
    except ModuleNotFoundError:
        return
    with suppress(ValueError, OSError):  # of macOS, which does not bound the address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def _set_timer(seconds: float) -> None:
    """Let the kernel send SIGPROF after so much processor time: nothing catches that here."""
    try:
        from signal import ITIMER_PROF, setitimer  # POSIX
    except ImportError:
        return
    setitimer(ITIMER_PROF, seconds)
