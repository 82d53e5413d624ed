"""One process at a time writes a topic's part of a lake."""

from __future__ import annotations

from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout

from .commits import LakeError
from .layout import PRIVATE

_SECONDS = 10


def topic_lock(lake: Path, topic: str) -> AcquireReturnProxy:
    """Take a topic's part of a lake; the lock goes with the process, however that ends.

    Resource handling: a context manager gives it back, or ``lock.release()`` of what is returned.

    Raises:
        LakeError: another process has it.
    """
    folder = lake / PRIVATE / topic
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock", thread_local=False)
    try:
        return lock.acquire(timeout=_SECONDS)
    except Timeout:
        raise LakeError(
            f"another process writes {topic} in {lake}: stop it first (an archiver merges files by "
            "itself)"
        ) from None
