"""The `.log` file of one segment and its file descriptor.

The file of an active segment is open from its first append until it is idle for long (see
`open_segments`). When a segment is closed for appends, its file is closed as soon as it is synced.
If the file is closed, a read opens it for the lifetime of the range.

The owner appends. `sync` may run in a worker thread concurrently; it uses only the open file and
the flags of this class. A comment explains their order wherever they are set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import CorruptLogError, StorageError
from .files import File, Files, truncate_torn
from .open_segments import OpenSegments


class SegmentFile:
    """The file of a segment, for appends and reads.

    Attributes:
        opened: The file while it is kept open.
        dirty: True if bytes were appended after the last sync started.
        is_closed_for_appends: True if the segment accepts no more appends.
        used: True if the file was used since the last check for idle files.
    """

    __slots__ = (
        "_files",
        "_lost",
        "_open_segments",
        "_syncing",
        "dirty",
        "is_closed_for_appends",
        "opened",
        "path",
        "used",
    )

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self.opened: File | None = None
        self.dirty = False
        self.is_closed_for_appends = True
        self.used = False
        self._open_segments: OpenSegments | None = None
        self._syncing = False  # a sync runs, possibly in another thread
        self._lost: StorageError | None = None  # a sync error that no sync pass has reported yet

    def open_for_appends(self, open_segments: OpenSegments | None) -> None:
        """Allow appends. `open_segments` limits the number of open files; None for no limit."""
        self._open_segments = open_segments
        self.is_closed_for_appends = False

    def create(self) -> None:
        """Create or truncate the file, and keep it open. Raises StorageError."""
        file = self._keep_file(self._files.open(self.path, create=True))
        if file.size:
            file.truncate(0)

    def keep_open(self, size: int) -> File:
        """Open the file and keep it open. Raises StorageError, and CorruptLogError if it is missing.

        Bytes after `size`, which a failed append may have left, are truncated.
        """
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            raise CorruptLogError(self.path, 0, "it is missing") from None
        if file.size > size:
            try:
                file.truncate(size)
            except StorageError:
                file.close()
                raise
        return self._keep_file(file)

    def _keep_file(self, file: File) -> File:
        self.opened = file
        if self._open_segments is not None:
            self._open_segments.register(self)
        return file

    def reader(self) -> File:
        """Return the file for reading. A file that is not kept open closes when it is released.

        Raises CorruptLogError if the file is missing.
        """
        if self.opened is not None:
            return self.opened
        try:
            return self._files.open(self.path)
        except FileNotFoundError:
            raise CorruptLogError(self.path, 0, "it is missing") from None

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Keep the file open for several look-ups. Raises CorruptLogError."""
        self.opened = self.reader()
        try:
            yield
        finally:
            self.close()

    # -- sync

    def sync(self) -> None:
        """Make all appended bytes durable; thread-safe. Raises StorageError."""
        # In this order: a file that is neither dirty nor syncing is durable.
        self._syncing = self.used = True
        self.dirty = False
        file = self.opened
        if file is not None:
            file.sync()
        if self._lost is not None:
            raise self._lost
        self._syncing = False
        if self.is_closed_for_appends:
            self.close()

    def _is_durable(self) -> bool:
        """Return True if nothing waits for a sync, including one that runs in another thread."""
        return not self.dirty and not self._syncing

    def _sync_new_descriptor(self) -> bool:
        """Sync through a new descriptor; return False if none could be opened.

        The kernel reports a write error once per descriptor, so a sync pass in another thread still
        gets the error.
        """
        try:
            file = self._files.open(self.path)
        except StorageError:
            return False
        try:
            file.sync()
        except StorageError as error:
            self._lost = error
        file.close()
        return True

    # -- close

    def truncate_torn(self) -> None:
        """Truncate the bytes that a failed append left at the end. Raises WriteRefusedError.

        A closed segment, and each segment after a clean shutdown, must end with its last batch.
        """
        if self.opened is not None:
            truncate_torn(self.opened)

    def close_for_appends(self) -> None:
        """Close the file if it is durable, otherwise with its next sync."""
        self.is_closed_for_appends = True
        if self._is_durable():
            self.close()

    def close_if_idle(self, *, at_once: bool) -> bool:
        """Close the file if it is idle; the next append reopens it. Return True if it is closed.

        A file that was used since the last call or that waits for a sync stays open, unless
        `at_once` is set. A file with bytes of a failed append at its end always stays open.
        """
        if not at_once and (self.used or not self._is_durable()):
            self.used = False
            return False
        try:
            self.truncate_torn()
        except StorageError:
            return False
        if self.dirty:
            if not self._sync_new_descriptor():
                return False
        elif self._syncing:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Close the file; existing ranges keep it open."""
        file, self.opened = self.opened, None
        if file is not None:
            file.close()
            if self._open_segments is not None:
                self._open_segments.unregister(self)
