"""The index of aborted transactions of one segment: its `.txnindex` file and its entries in memory.

Unlike the other indexes, this index cannot be rebuilt from the batches of its segment alone.
Without the index, aborted records would look committed. So a damaged file is an error. After a
crash or truncation, the uncertain entries are dropped and added again by replaying the batches.
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
    """The aborted transactions whose markers are in one segment, in the order of their markers.

    Args:
        files: File system of the directory.
        path: Path of the segment files without the file extension.
        base_offset: Base offset of the segment.
        suffix: End of the file names while the segment is not part of a log.
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
        self._saved = 0  # number of entries that are in the file
        self._torn = False  # the file has other bytes after the saved entries
        self._replaces = False  # the file is that of a replaced segment

    @property
    def path(self) -> str:
        """Path of the file, which may not exist."""
        return self._path + TXN_INDEX + self._suffix

    def start_empty(self) -> None:
        """Start with no entries, for a new segment."""
        self._entries = []

    @property
    def in_memory(self) -> bool:
        return self._entries is not None

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All entries, loaded on demand; new entries are appended to this list.

        Raises CorruptLogError.
        """
        if self._entries is None:
            data = self._read()
            found = aborted_before(data, self._base_offset + RELATIVE_OFFSET_MAX)
            if len(found) * ABORTED_ENTRY_SIZE != len(data):
                position = len(found) * ABORTED_ENTRY_SIZE
                raise CorruptLogError(
                    self.path, position, "invalid entry of an aborted transaction"
                )
            self._entries, self._saved = found, len(found)
        return self._entries

    def _read(self) -> bytes:
        try:
            return self._files.read_bytes(self.path)
        except FileNotFoundError:
            return b""

    def drop_from(self, offset: int) -> None:
        """Drop the markers from `offset` on, which a crash or truncation made uncertain."""
        data = self._read()
        self._entries = aborted_before(data, offset)
        self._saved = len(self._entries)
        self._torn = len(data) > self._saved * ABORTED_ENTRY_SIZE

    def unsaved(self) -> list[SyncItem]:
        """Return the writes that save the entries from memory."""
        entries, at = self._entries, self._saved
        if self._replaces and entries:
            # Closed segments are not replayed after a crash, so the file must never be torn.
            self._saved, self._replaces = len(entries), False
            return [AtomicWrite(self._files, self.path, aborted_bytes(entries))]
        if entries is None or not (len(entries) > at or self._torn):
            return []
        self._saved, self._torn = len(entries), False
        data = aborted_bytes(entries[at:])
        write = FileWrite(self._files, self.path, at * ABORTED_ENTRY_SIZE, data)
        if at:
            return [write]
        # The name of a new file must be durable before the caller relies on the file.
        return [write, DirectorySync(self._files, self._path.rpartition("/")[0])]

    def move_to_final_name(self) -> None:
        """Use the final file name; the entries are not saved under it yet."""
        self._suffix = ""
        self._saved = 0
        self._replaces = True
