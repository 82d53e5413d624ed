"""Lock that limits a topic's part of a lake to one writing process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .commits import LakeError
from .layout import PRIVATE

# Time to wait for the lock, in seconds.
_SECONDS = 10


def take_lock(lake: Path, topic: str) -> FileLock:
    """Lock a topic's part of a lake.

    Call ``release()`` on the result to unlock. The lock also ends with the process.

    Args:
        lake: Directory of the lake.
        topic: Name of the topic.

    Returns:
        The lock.

    Raises:
        LakeError: Another process holds the lock.
    """
    directory = lake / PRIVATE / topic
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / "lock", thread_local=False)
    try:
        lock.acquire(timeout=_SECONDS)
    except Timeout:
        raise LakeError(
            f"another process writes {topic} in {lake}: stop it first (archivers also merge files)"
        ) from None
    return lock


@contextmanager
def topic_lock(lake: Path, topic: str) -> Iterator[None]:
    """Hold the lock of a topic's part of a lake. Raises as `take_lock`."""
    lock = take_lock(lake, topic)
    try:
        yield
    finally:
        lock.release()
