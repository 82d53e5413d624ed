"""One broker for several processes, the workers of pytest-xdist for instance.

Whoever comes first starts it, in a process of its own, and stops it when all others have left. Each
user holds a lock on a file while it uses the broker, so that one that crashed counts as gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

STOP_SECONDS = 30
SERVE = ["serve", "--memory", "--port", "0", "--json", "--exit-with-parent"]


@contextlib.contextmanager
def shared_broker(directory: Path) -> Iterator[str]:
    """The address of the broker of those who name the same directory. Raises RuntimeError."""
    address, door = directory / "kbroker.address", FileLock(directory / "kbroker.lock")
    process = None
    presence = FileLock(directory / f"kbroker-user-{os.getpid()}.lock")
    with door:
        if not address.exists():
            process, started = _start()
            address.write_text(started, encoding="utf-8")
        presence.acquire()
        bootstrap = address.read_text(encoding="utf-8")
    try:
        yield bootstrap
    finally:
        presence.release()
        if process is not None:
            _wait_for_others(directory, door, address)
            _stop(process)


def _start() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "kbroker", *SERVE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "ready":
            return process, event["bootstrap_servers"]
    _stop(process)
    raise RuntimeError("the shared broker did not start; kbroker serve --memory says why")


def _wait_for_others(directory: Path, door: FileLock, address: Path) -> None:
    """Return when nobody uses the broker and nobody will: its address is gone."""
    while True:
        with door:
            busy = next(filter(_is_held, directory.glob("kbroker-user-*.lock")), None)
            if busy is None:
                address.unlink()
                return
        left = FileLock(busy)
        left.acquire()
        left.release()


def _is_held(path: Path) -> bool:
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
