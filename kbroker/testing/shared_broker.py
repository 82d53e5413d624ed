"""One broker for several processes, for example the workers of pytest-xdist.

The first process starts the broker as a child process, and stops the broker when all other processes
have finished. Each process holds a file lock while it uses the broker. The lock of a crashed process
is released, so the crashed process counts as finished. If the first process crashes, its broker stops,
and the next process that joins starts another one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from .child_server import start_server, stop_server


@contextlib.contextmanager
def shared_broker(directory: Path) -> Iterator[str]:
    """Start or join the broker that all users of a directory share, and yield its address.

    Args:
        directory: Directory of the address and the locks.

    Raises:
        RuntimeError: The broker cannot be started.
    """
    address, lock = directory / "kbroker.address", FileLock(directory / "kbroker.lock")
    process = None
    user_lock = FileLock(directory / f"kbroker-user-{os.getpid()}.lock")
    with contextlib.ExitStack() as stack:
        with lock:
            if not _has_owner(directory, address):
                process, started = start_server(["--memory"])
                stack.callback(stop_server, process)
                address.write_text(f"{started}\n{os.getpid()}", encoding="utf-8")
            user_lock.acquire()
            bootstrap = address.read_text(encoding="utf-8").partition("\n")[0]
        if process is not None:
            stack.callback(_wait_for_others, directory, lock, address)
        stack.callback(user_lock.release)
        yield bootstrap


def _has_owner(directory: Path, address: Path) -> bool:
    """Return True if the process that has started the broker still uses it."""
    if not address.exists():
        return False
    owner = address.read_text(encoding="utf-8").partition("\n")[2]
    return _is_held(directory / f"kbroker-user-{owner}.lock")


def _wait_for_others(directory: Path, lock: FileLock, address: Path) -> None:
    """Wait until no process uses the broker, then delete its address so that no process joins."""
    while True:
        with lock:
            busy = next(filter(_is_held, directory.glob("kbroker-user-*.lock")), None)
            if busy is None:
                address.unlink()
                return
        user_lock = FileLock(busy)
        user_lock.acquire()
        user_lock.release()


def _is_held(path: Path) -> bool:
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False
