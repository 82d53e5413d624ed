"""Where cluster metadata lives: keys with revisions, changed by compare-and-set.

The interface is what a single process, a simulator and etcd can all give: a transaction compares
the revision of keys and then puts or deletes others, all or nothing, and returns the revision that
it made. A revision is never used twice, so a compare on it cannot be fooled by an equal value that
was written later (the ABA problem of comparing values).
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kbroker.storage.errors import StorageError
from kbroker.storage.files import File, Files

logger = logging.getLogger(__name__)

Document = dict[str, Any]
"""A value: what JSON can say."""

ABSENT = 0
"""The revision of a key that does not exist."""


class Entry(NamedTuple):
    """One stored value and the revision of the transaction that wrote it."""

    value: Document
    revision: int


class Change(NamedTuple):
    """What one transaction did. A value of None stands for a deleted key."""

    revision: int
    entries: Mapping[str, Document | None]
    cause: str


Watcher = Callable[[Change], None]


class MetadataStore(Protocol):
    """Shared truth of a cluster. Watchers see each change once, in order of revision."""

    @property
    def revision(self) -> int:
        """That of the newest transaction; each one raises it by 1."""
        ...

    async def range(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key starts with `prefix`."""
        ...

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
    ) -> int | None:
        """Write all of `puts` if every compare holds, else nothing.

        Parameters: `puts` maps keys to new values, None deletes; `compares` maps keys to the
        revision that they must have now (`ABSENT`: must not exist); `cause` says why, for logs
        and watchers. Returns the new revision, or None when a compare failed. Raises StorageError
        when it could not be stored.
        """
        ...

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with every later change."""
        ...

    async def aclose(self) -> None:
        """Release what the store holds open."""
        ...


class LocalStore:
    """Metadata of a cluster that lives in one process: a journal file, replayed at start.

    Format: one line a transaction, `crc32-in-hex SP json LF`. A line is synced before the
    transaction answers. Crash policy: what a crash tears can only be the last line, that of a
    transaction that was never answered, so it is cut. A bad line that sound ones follow is damage:
    StorageError, and the file is left as it is.
    At open, a journal that is mostly history is rewritten without it (temporary file, rename).
    """

    REWRITE_BYTES = 1 << 20

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self._watchers: list[Watcher] = []
        self._failed: str | None = None
        self._journal: File = self._load()

    def _load(self) -> File:
        text = self._files.read_bytes(self._path) if self._files.exists(self._path) else b""
        good = replayed = 0
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            record = _parse_line(line)
            if record is None:
                self._check_torn(number, lines[number:])
                break
            self._apply(record["revision"], record["entries"])
            good += len(line)
            replayed += len(record["entries"])
        if good < len(text):
            logger.warning("%s: cut %d bytes of a torn last line", self._path, len(text) - good)
        is_history = good > self.REWRITE_BYTES and replayed > 2 * len(self._entries)
        if is_history or good < len(text):
            self._files.write_atomic(self._path, self._snapshot_lines())
        created = not self._files.exists(self._path)
        journal = self._files.open(self._path, create=True)
        if created:
            self._files.sync_dir(_parent(self._path))
        return journal

    def _check_torn(self, number: int, behind: list[bytes]) -> None:
        """Raise StorageError when a crash cannot have left a bad line `number`."""
        sound = sum(_parse_line(line) is not None for line in behind)
        if sound:
            raise StorageError(
                f"{self._path}: line {number} is damaged, and {sound} sound ones follow; restore "
                "the file from a copy"
            )

    def _snapshot_lines(self) -> bytes:
        """All entries, one line for each revision that is still the newest of some key."""
        by_revision: dict[int, dict[str, Document | None]] = {}
        for key, entry in self._entries.items():
            by_revision.setdefault(entry.revision, {})[key] = entry.value
        by_revision.setdefault(self._revision, {})
        return b"".join(_format_line(r, by_revision[r]) for r in sorted(by_revision))

    def _apply(self, revision: int, entries: Mapping[str, Document | None]) -> None:
        self._revision = revision
        for key, value in entries.items():
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = Entry(value, revision)

    @property
    def revision(self) -> int:
        return self._revision

    async def range(self, prefix: str) -> dict[str, Entry]:
        return {k: e for k, e in self._entries.items() if k.startswith(prefix)}

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
    ) -> int | None:
        for key, revision in compares.items():
            entry = self._entries.get(key)
            if (entry.revision if entry else ABSENT) != revision:
                return None
        revision = self._revision + 1
        self._write(_format_line(revision, puts))
        self._apply(revision, puts)
        change = Change(revision, puts, cause)
        for watcher in self._watchers:
            watcher(change)
        return revision

    def _write(self, line: bytes) -> None:
        """Append a line and make it durable.

        An append that fails takes back what it wrote: on a disk that was full, the next one may do.
        After a sync that failed nothing is known of the end of the file, so nothing more is written
        to it.
        """
        if self._failed is not None:
            raise StorageError(self._failed)
        try:
            self._journal.append([line])
        except StorageError as error:
            logger.error("metadata could not be written: %s", error.message)
            raise
        try:
            self._journal.sync()
        except StorageError as error:
            self._failed = f"{self._path} cannot be written ({error.message}); restart the server"
            logger.error("%s", self._failed)
            raise

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    async def aclose(self) -> None:
        self._journal.close()


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _format_line(revision: int, entries: Mapping[str, Document | None]) -> bytes:
    body = json.dumps({"revision": revision, "entries": entries}, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse_line(line: bytes) -> Any | None:
    """Return the transaction of a journal line, None when the line is torn."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    return json.loads(body)
