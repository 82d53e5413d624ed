"""Stored bytes on their way to one client, of which some may have to come from a disk."""

from __future__ import annotations

from kbroker.runtime.disk_reads import DiskReads
from kbroker.storage.cached import NotCached, only_cached, waiting
from kbroker.storage.files import Buffer, FileRange

SENDFILE_BYTES = 1024 * 1024
"""At most this much a call: longer ones would keep others waiting."""
FILE_TOO_SHORT = "a segment file is shorter than what was promised to a client"


class StoredBytes:
    """What of file ranges can be sent without a wait for the disk.

    Who is told NotCached, and has nothing else to send first, says so by `awaits`, and waits until it is
    `loaded`. The next try asks no more, whatever the system would say.

    Parameters: `disk` is what loads.
    """

    __slots__ = ("_absent", "_begin", "_disk", "_end", "_path")

    def __init__(self, disk: DiskReads) -> None:
        self._disk = disk
        self._absent: NotCached | None = None
        self._path, self._begin, self._end = "", 0, 0
        """A file, and between which positions it is known to be in memory; the file itself would stay
        open."""

    async def loaded(self) -> bool:
        """Have what was missing in memory; False where nothing was. Raises UnreadableError."""
        absent, self._absent = self._absent, None
        if absent is None:
            return False
        await self._disk.load(absent)
        if absent.failure is not None:
            raise absent.failure
        self._path, self._begin, self._end = absent.file.path, absent.position, absent.end
        return True

    def _known_bytes(self, part: FileRange) -> int:
        """How much of the beginning of a range is known to be in memory."""
        if self._begin <= part.position < self._end and part.source.path == self._path:
            return min(len(part), self._end - part.position)
        return 0

    def awaits(self, absent: NotCached) -> None:
        """What has to be loaded before anything else is sent."""
        self._absent = absent

    def sendable(self, part: FileRange) -> int | NotCached:
        """How much of a range can be sent by one call, or what has to be loaded before."""
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
        """All bytes of a range, or what has to be loaded before. Raises OSError where the file has
        fewer."""
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
