"""The process in which compactions run: `compactor` starts it and says what there is to do.

It reads tasks from its standard input and writes what came of each to its standard output, both as
pickles behind their length, and it ends when its parent does. The broker and its clients need the same
processors and the same disk: so it rests as often as it works, and lets them go first. It has not the
lowest priority, for it may be held up in the middle of a write, with the locks of the file system.

It starts with as few modules as it can, because its start has no rests.
"""

from __future__ import annotations

import gc
import os
import pickle
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, cast

from kbroker.runtime.task_frames import program_of, read_tasks, write_result
from kbroker.storage.compaction import Compacted, Compaction, CompactionTask
from kbroker.storage.errors import LostBytesError, StorageError
from kbroker.storage.files import OsFiles

TIME_SLICE_SECONDS = 0.0005
REST = 1
"""How many times as long as it worked the process leaves processor and disk to others."""
NICENESS = 10
"""By how much its priority is lower than the broker's (POSIX): a tenth of the weight, in Linux."""


class Failure(NamedTuple):
    """The reason why a compaction failed.

    Attributes:
        message: Text for the operator.
        has_lost_bytes: True if a file of the log does not return the bytes that were written.
    """

    message: str
    has_lost_bytes: bool


def program() -> str:
    """Return the program of the process."""
    return program_of(__name__, NICENESS)


def main() -> None:
    """Do tasks until standard input or the parent ends."""
    parent = os.getppid()
    gc.disable()  # nothing here makes cycles

    def look() -> None:
        if os.getppid() != parent:
            os._exit(1)  # nobody waits for the result any more

    for task in read_tasks():
        write_result(pickle.dumps(_run(cast(CompactionTask, task), look)))


def _run(task: CompactionTask, look: Callable[[], None]) -> Compacted | Failure:
    run = Compaction(OsFiles(), task)
    try:
        began = time.perf_counter()
        for work in run.steps():
            if work is not None:
                work()
            worked = time.perf_counter() - began
            if worked > TIME_SLICE_SECONDS:
                look()
                time.sleep(worked * REST)
                began = time.perf_counter()
        return run.result
    except (StorageError, FileNotFoundError) as error:
        with suppress(StorageError):
            run.discard()
        message = error.message if isinstance(error, StorageError) else None
        return Failure(message or str(error), isinstance(error, LostBytesError))
