"""Which transactions were aborted in one segment: the `.txnindex` file and what is known in memory.

Unlike the other indexes it is not built anew from the batches of its segment alone, and without it
what was aborted would look committed. So a damaged one is an error, and after a crash or a cut the
log forgets what became unsure and replays the batches that say it again.
"""

from __future__ import annotations

from .errors import CorruptLogError
from .files import Files
from .index import (
    ABORTED_ENTRY_SIZE,
    RELATIVE_OFFSET_MAX,
    AbortedTransaction,
    aborted_before,
    aborted_bytes,
)
from .naming import TXN_INDEX
from .sync import AtomicWrite, DirectorySync, FileWrite, SyncItem


class AbortedIndex:
    """The aborted transactions whose markers are in one segment, in order of their markers.

    Parameters:
        files: where the file is.
        path: of the segment's files, without what their names end in.
        base_offset: of the segment.
        suffix: what the names end in while the segment is not part of a log.
    """

    __slots__ = (
        "_base_offset",
        "_entries",
        "_files",
        "_path",
        "_replaces",
        "_saved",
        "_suffix",
        "_torn",
    )

    def __init__(self, files: Files, path: str, base_offset: int, suffix: str) -> None:
        self._files = files
        self._path = path
        self._base_offset = base_offset
        self._suffix = suffix
        self._entries: list[AbortedTransaction] | None = None
        self._saved = 0  # entries that stand in the file already
        self._torn = False  # behind them stands something else
        self._replaces = False  # the file is that of a segment that was replaced

    @property
    def path(self) -> str:
        """The file; it needs not exist."""
        return self._path + TXN_INDEX + self._suffix

    def begin(self) -> None:
        """There is nothing to read: the segment is new."""
        self._entries = []

    @property
    def in_memory(self) -> bool:
        return self._entries is not None

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All entries, read when they are not in memory; a new one is appended here.

        Raises CorruptLogError.
        """
        if self._entries is None:
            data = self._read()
            found = aborted_before(data, self._base_offset + RELATIVE_OFFSET_MAX)
            if len(found) * ABORTED_ENTRY_SIZE != len(data):
                position = len(found) * ABORTED_ENTRY_SIZE
                raise CorruptLogError(self.path, position, "no entry of an aborted transaction")
            self._entries, self._saved = found, len(found)
        return self._entries

    def _read(self) -> bytes:
        try:
            return self._files.read_bytes(self.path)
        except FileNotFoundError:
            return b""

    def forget_from(self, offset: int) -> None:
        """Forget the markers from `offset` on: a crash or a cut made what is known unsure."""
        data = self._read()
        self._entries = aborted_before(data, offset)
        self._saved = len(self._entries)
        self._torn = len(data) > self._saved * ABORTED_ENTRY_SIZE

    def unsaved(self) -> list[SyncItem]:
        """Writes that bring the file up to what is in memory."""
        entries, at = self._entries, self._saved
        if self._replaces and entries:
            # Sealed segments are not replayed after a crash, so the file must never be torn.
            self._saved, self._replaces = len(entries), False
            return [AtomicWrite(self._files, self.path, aborted_bytes(entries))]
        if entries is None or not (len(entries) > at or self._torn):
            return []
        self._saved, self._torn = len(entries), False
        data = aborted_bytes(entries[at:])
        write = FileWrite(self._files, self.path, at * ABORTED_ENTRY_SIZE, data)
        if at:
            return [write]
        # The name of a new file must be durable before something relies on it.
        return [write, DirectorySync(self._files, self._path.rpartition("/")[0])]

    def take_place(self) -> None:
        """The segment is part of the log now; what is in memory is not in its file yet."""
        self._suffix = ""
        self._saved = 0
        self._replaces = True
