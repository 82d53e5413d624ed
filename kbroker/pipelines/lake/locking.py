"""One process at a time writes a topic's part of a lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .commits import LakeError
from .layout import PRIVATE

_SECONDS = 10


def take_lock(lake: Path, topic: str) -> FileLock:
    """Take a topic's part of a lake.

    Resource handling: give it back with ``release()``; it goes with the process, however that ends.

    Raises:
        LakeError: another process has it.
    """
    directory = lake / PRIVATE / topic
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / "lock", thread_local=False)
    try:
        lock.acquire(timeout=_SECONDS)
    except Timeout:
        raise LakeError(
            f"another process writes {topic} in {lake}: stop it first (an archiver merges files by "
            "itself)"
        ) from None
    return lock


@contextmanager
def topic_lock(lake: Path, topic: str) -> Iterator[None]:
    """Have a topic's part of a lake for a while. Raises as `take_lock`."""
    lock = take_lock(lake, topic)
    try:
        yield
    finally:
        lock.release()
