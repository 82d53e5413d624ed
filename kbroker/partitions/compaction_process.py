"""The compaction process, which `compactor` starts.

It reads tasks from its standard input and writes their results to its standard output, both as
pickles with a length prefix. It exits when its parent exits. Broker and clients use the same cores
and disk, so the process sleeps as long as it works and has a lower priority. The priority is not
the lowest, because the process could then be descheduled while it holds file system locks.

It imports as few modules as possible, because its start is not throttled.
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
from kbroker.storage.compaction import Compaction, CompactionResult, CompactionTask
from kbroker.storage.errors import LostBytesError, StorageError
from kbroker.storage.files import OsFiles

# Time to work between two sleeps.
TIME_SLICE_SECONDS = 0.0005
# Time to sleep after each time slice, as a multiple of the slice.
SLEEP_FACTOR = 1
# Increase of the nice value compared with the broker (POSIX); on Linux a tenth of the CPU weight.
NICENESS = 10


class Failure(NamedTuple):
    """The reason why a compaction failed.

    Attributes:
        message: Text for the operator.
        has_lost_bytes: True if a file of the log does not return the bytes that were written.
    """

    message: str
    has_lost_bytes: bool


def program() -> str:
    """Return the Python program of the process."""
    return program_of(__name__, NICENESS)


def main() -> None:
    """Run tasks until standard input is closed or the parent exits."""
    parent = os.getppid()
    gc.disable()  # no reference cycles are created here

    def exit_if_orphaned() -> None:
        if os.getppid() != parent:
            os._exit(1)  # the parent is dead: the result has no receiver

    for task in read_tasks():
        write_result(pickle.dumps(_run(cast(CompactionTask, task), exit_if_orphaned)))


def _run(task: CompactionTask, exit_if_orphaned: Callable[[], None]) -> CompactionResult | Failure:
    run = Compaction(OsFiles(), task)
    try:
        began = time.perf_counter()
        for work in run.steps():
            if work is not None:
                work()
            worked = time.perf_counter() - began
            if worked > TIME_SLICE_SECONDS:
                exit_if_orphaned()
                time.sleep(worked * SLEEP_FACTOR)
                began = time.perf_counter()
        return run.result
    except (StorageError, FileNotFoundError) as error:
        with suppress(StorageError):
            run.discard()
        message = error.message if isinstance(error, StorageError) else None
        return Failure(message or str(error), isinstance(error, LostBytesError))
