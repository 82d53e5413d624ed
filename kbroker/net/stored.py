"""Stored bytes in responses to one client, which may have to be loaded from disk."""

from __future__ import annotations

from kbroker.runtime.disk_reads import DiskReads
from kbroker.storage.cached import NotCached, only_cached, waiting
from kbroker.storage.files import Buffer, FileRange

# Maximum number of bytes of one sendfile call; larger calls would delay other clients.
SENDFILE_BYTES = 1024 * 1024
FILE_TOO_SHORT = "a segment file is shorter than the size announced to a client"


class StoredBytes:
    """Page cache state of the file ranges that one connection sends.

    A caller that gets NotCached and has no earlier bytes to send calls `set_missing`, and then waits
    for `load_missing`. After that, the range counts as cached without another check.

    Args:
        disk: Loads ranges in another thread.
    """

    __slots__ = ("_begin", "_disk", "_end", "_missing", "_path")

    def __init__(self, disk: DiskReads) -> None:
        self._disk = disk
        self._missing: NotCached | None = None
        # Path of a file, and the range of positions known to be cached. A reference to the file
        # itself would keep it open.
        self._path, self._begin, self._end = "", 0, 0

    async def load_missing(self) -> bool:
        """Load the missing range, and return True; return False if no range is missing.

        Raises:
            UnreadableError: The disk cannot read the range.
        """
        absent, self._missing = self._missing, None
        if absent is None:
            return False
        await self._disk.load(absent)
        if absent.failure is not None:
            raise absent.failure
        self._path, self._begin, self._end = absent.file.path, absent.position, absent.end
        return True

    def _known_bytes(self, part: FileRange) -> int:
        """Return the number of bytes at the beginning of a range that are known to be cached."""
        if self._begin <= part.position < self._end and part.source.path == self._path:
            return min(len(part), self._end - part.position)
        return 0

    def set_missing(self, absent: NotCached) -> None:
        """Set the range to load before anything else is sent."""
        self._missing = absent

    def sendable(self, part: FileRange) -> int | NotCached:
        """Return the number of bytes to send with one call, or the range to load first."""
        known = self._known_bytes(part)
        if known:
            return known
        size = min(len(part), SENDFILE_BYTES)
        absent = part.uncached_range(size)
        if absent is not None:
            return absent
        self._path, self._begin, self._end = (
            part.source.path,
            part.position,
            part.position + size,
        )
        return size

    def read(self, part: FileRange) -> list[Buffer] | NotCached:
        """Return all bytes of a range, or the range to load first.

        Raises:
            OSError: The file is too short.
        """
        if self._known_bytes(part) == len(part):
            return waiting(_parts, part)
        try:
            return only_cached(_parts, part)
        except NotCached as absent:
            return absent.with_traceback(None)


def _parts(part: FileRange) -> list[Buffer]:
    buffers = part.parts()
    if sum(map(len, buffers)) < len(part):
        raise OSError(FILE_TOO_SHORT)
    return buffers
