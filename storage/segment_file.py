"""The `.log` file of one segment, and the descriptor that it has while it is in use.

The file of an active segment stays open from its first append until it has been idle for long (see
`open_segments`); of a sealed one it is closed as soon as its bytes are durable. Where none is open, a
read opens it for as long as the range lives.

The owner appends; `sync` may run in a worker thread meanwhile, and touches nothing but the open file
and the flags here, whose order is explained where they are set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import CorruptLogError, StorageError
from .files import File, Files, cut_torn
from .open_segments import OpenSegments


class SegmentFile:
    """One file that batches are appended to, and read from.

    `opened` is the file while it is kept open; `dirty` says that bytes were appended after the last
    sync began; `is_sealed`, that no more will be; `used`, that it was read since somebody last asked
    for its descriptor.
    """

    __slots__ = (
        "_files",
        "_lost",
        "_open_segments",
        "_syncing",
        "dirty",
        "is_sealed",
        "opened",
        "path",
        "used",
    )

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self.opened: File | None = None
        self.dirty = False
        self.is_sealed = True
        self.used = False
        self._open_segments: OpenSegments | None = None
        self._syncing = False  # in another thread, perhaps
        self._lost: StorageError | None = None  # why bytes may be lost that no sync has told of

    def unseal(self, open_segments: OpenSegments | None) -> None:
        """Let it be appended to. `open_segments` bounds how many such files stay open, None for no
        bound."""
        self._open_segments = open_segments
        self.is_sealed = False

    def create(self) -> None:
        """Make it anew, empty, and keep it open. Raises StorageError."""
        file = self._keep(self._files.open(self.path, create=True))
        if file.size:
            file.truncate(0)

    def keep_open(self, size: int) -> File:
        """Open it, of which `size` bytes count, and keep it open. Raises StorageError.

        What a failed append has left behind them, if it could not be taken back, is cut away.
        """
        file = self._files.open(self.path)
        if file.size > size:
            try:
                file.truncate(size)
            except StorageError:
                file.close()
                raise
        return self._keep(file)

    def _keep(self, file: File) -> File:
        self.opened = file
        if self._open_segments is not None:
            self._open_segments.opened(self)
        return file

    def reader(self) -> File:
        """What to read from; it is closed when nobody holds it, unless it was open before.

        Raises CorruptLogError when there is no file.
        """
        if self.opened is not None:
            return self.opened
        try:
            return self._files.open(self.path)
        except FileNotFoundError:
            raise CorruptLogError(self.path, 0, "it is missing") from None

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Open it once for everything that is looked up meanwhile. Raises CorruptLogError."""
        self.opened = self.reader()
        try:
            yield
        finally:
            self.close()

    # -- durable

    def sync(self) -> None:
        """Make durable what was appended until now. Any thread may call it. Raises StorageError."""
        # In this order: a file that is not dirty is durable, or says that it is being synced.
        self._syncing = self.used = True
        self.dirty = False
        file = self.opened
        if file is not None:
            file.sync()
        if self._lost is not None:
            raise self._lost
        self._syncing = False
        if self.is_sealed:
            self.close()

    def _is_durable(self) -> bool:
        """Whether nothing waits for a sync, not even for one that runs in another thread."""
        return not self.dirty and not self._syncing

    def _sync_apart(self) -> bool:
        """Sync without taking an error away from a sync pass in another thread: the system tells
        it once for each descriptor. Returns whether a descriptor was to be had."""
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

    # -- closed

    def cut_torn(self) -> None:
        """Cut away what a failed append has left at the end, if it could not be taken back then.

        A sealed segment, and any after a clean stop, must end with its last batch. Raises WriteRefusedError.
        """
        if self.opened is not None:
            cut_torn(self.opened)

    def seal(self) -> None:
        """Close it now if it is durable, otherwise with its next sync."""
        self.is_sealed = True
        if self._is_durable():
            self.close()

    def let_go(self, *, at_once: bool) -> bool:
        """Close it; the next append opens it again. Returns whether it is closed.

        Unless it must be `at_once`, not when it was used since this was asked last, and not before
        a sync has made its bytes durable. Never while bytes of a failed append lie at its end.
        """
        if not at_once and (self.used or not self._is_durable()):
            self.used = False
            return False
        try:
            self.cut_torn()
        except StorageError:
            return False
        if self.dirty:
            if not self._sync_apart():
                return False
        elif self._syncing:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Give up the open file; ranges that are alive keep it."""
        file, self.opened = self.opened, None
        if file is not None:
            file.close()
            if self._open_segments is not None:
                self._open_segments.closed(self)
