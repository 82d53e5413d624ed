"""One broker for several processes, for example the workers of pytest-xdist.

The first process starts the broker as a child process, and stops the broker when all other processes
have finished. Each process holds a file lock while it uses the broker. The lock of a crashed process
is released, so the crashed process counts as finished.
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
    with lock:
        if not address.exists():
            process, started = start_server(["--memory"])
            address.write_text(started, encoding="utf-8")
        user_lock.acquire()
        bootstrap = address.read_text(encoding="utf-8")
    try:
        yield bootstrap
    finally:
        user_lock.release()
        if process is not None:
            _wait_for_others(directory, lock, address)
            stop_server(process)


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
