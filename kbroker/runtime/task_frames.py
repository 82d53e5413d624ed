"""Child side of `child_process`: tasks and results are pickles, each with its length in front.

This module imports as little as possible, because a child process should start quickly.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from collections.abc import Iterator

LENGTH = struct.Struct(">I")


def program_of(module: str, niceness: int) -> str:
    """Return the program of a child process that runs `main` of a module.

    The program uses the module search path of this process, as a broker may be embedded. It is not
    started with `python -m`, because pickles name the module of a class.

    Args:
        module: Full name of the module.
        niceness: By how much the priority of the child is lower than that of this process (POSIX).
    """
    # Lower the priority before the imports, so that they run with the lower priority.
    nice = f"os.nice({niceness}); " if niceness and hasattr(os, "nice") else ""
    return f"import os, sys; {nice}sys.path[:] = {sys.path!r}; from {module} import main; main()"


def read_tasks() -> Iterator[object]:
    """Yield the tasks in standard input until it ends."""
    tasks = sys.stdin.buffer
    while head := tasks.read(LENGTH.size):
        yield pickle.loads(tasks.read(LENGTH.unpack(head)[0]))


def write_result(data: bytes) -> None:
    """Write a pickled result to standard output. End the process if its parent has exited."""
    results = sys.stdout.buffer
    try:
        results.write(LENGTH.pack(len(data)) + data)
        results.flush()
    except BrokenPipeError:
        os._exit(1)
