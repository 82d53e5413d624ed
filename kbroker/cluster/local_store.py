"""A metadata store in one process, with a journal file."""

from __future__ import annotations

import json
import logging
import math
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio

from kbroker.runtime.threads import InThread
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.errors import StorageError, SyncFailedError, WriteRefusedError
from kbroker.storage.files import File, Files, truncate_torn
from kbroker.storage.naming import RESERVE
from kbroker.storage.reserve import Reserve

from .store import ABSENT, Change, Document, Entry, Lease, Snapshot, StoreProblem, Watcher
from .watchers import Watchers

logger = logging.getLogger(__name__)

CLEAN_END = ".clean"
NO_LEASE = 0
RETRY_ACTION = (
    "free space on the disk (`kbroker topic delete`, a larger disk) or make it writable: kbroker retries "
    "every few seconds"
)


class LocalStore:
    """A store with a journal file, which all nodes of the process share.

    Format: one line per transaction, `crc32-in-hex SP json LF`, which is synced before the
    transaction returns. The journal is replayed at startup.

    * Crashes: a crash can only tear the last line, of a transaction that never returned. It is
      truncated. A bad line before good ones is damage: StorageError, and the file is not modified.
    * Clean stops: the size and the revision of the journal are stored in a second file (`.clean`,
      removed before the first write). If the journal does not match it, the journal was truncated or
      replaced by another copy: StorageError.
    * Leases: entries with a lease contain its ID. They are dropped at startup, because the process
      that held the lease has terminated.
    * Rewrites: a journal with much history is rewritten without it (temporary file, rename), by the
      first write and by `run`. A torn journal is rewritten by the first write.
    * Full disks: a reserve file allows metadata changes on a full disk, so topics can be deleted.

    Watchers are called within `transact`: when it returns, all nodes know the change. Changes are
    serialized. A failed write sets `problem`. Then `run` writes a line without entries every
    `PROBE_SECONDS`, so `problem` ends even without changes.

    Args:
        files: The file system.
        path: Path of the journal.
        in_thread: Runs syncs, so that a slow disk blocks only metadata changes. If None, syncs
            block the event loop.
    """

    # Journal size in bytes above which a journal with much history is rewritten.
    REWRITE_BYTES = 1 << 20
    # Number of changed entries kept for `watch`.
    HISTORY_ENTRIES = 10_000
    # Seconds between two checks for expired leases.
    TICK_SECONDS = 0.05
    # Seconds between attempts to write after a failed write.
    PROBE_SECONDS = 5.0

    def __init__(self, files: Files, path: str, *, in_thread: InThread | None = None) -> None:
        self._files = files
        self._in_thread = in_thread
        self._writing = trio.Lock()
        self._path = path
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self._watchers = Watchers()
        self._leases: dict[int, LocalLease] = {}
        self._lease_of: dict[str, LocalLease] = {}
        self._last_lease = 0
        self._expiring = trio.Event()
        self._problem: StoreProblem | None = None
        # True after a failed sync: the journal is no longer written.
        self._is_failed = False
        # Set, and replaced, when a write fails.
        self._write_failed = trio.Event()
        self._reserve = Reserve(files, path + RESERVE)
        self._has_reserve = not files.durable
        # Opened by the first write, so that read-only use leaves no trace.
        self._journal: File | None = None
        # Number of entries in the journal, including entries that were replaced later.
        self._written_entries = 0
        self._grew = trio.Event()
        self._read_bytes = self._torn_bytes = 0
        self._load()
        self._check_clean_end()
        self._watchers.forget(self._revision)

    def _load(self) -> None:
        text = self._files.read_bytes(self._path) if self._files.exists(self._path) else b""
        good = 0
        leased: set[str] = set()
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            record = _parse_line(line)
            if record is None:
                self._check_torn(number, lines[number:])
                break
            entries = record["entries"]
            self._apply(_change(record["revision"], entries, "read from the journal"))
            leased.difference_update(entries)
            if "lease" in record:
                leased.update(entries)
            good += len(line)
            self._written_entries += len(entries)
        for key in leased:
            self._entries.pop(key, None)
        self._read_bytes, self._torn_bytes = len(text), len(text) - good

    def _open_journal(self) -> File:
        """Open the journal for the first write. Raises StorageError."""
        created = not self._files.exists(self._path)
        if self._read_bytes != (0 if created else self._files.size(self._path)):
            raise StorageError(
                f"{self._path} was written by another process; start the server again"
            )
        if self._torn_bytes:
            logger.warning(
                "%s: truncated %d bytes of a torn last line", self._path, self._torn_bytes
            )
        clean_end = clean_end_path(self._path)
        if self._files.exists(clean_end):
            self._files.remove(clean_end)
            self._files.sync_dir(_parent(self._path))
        if self._torn_bytes or self._is_history(self._read_bytes):
            rewrite = partial(self._files.write_atomic, self._path, b"".join(self._snapshot()))
            self._with_reserve(rewrite)
            self._written_entries = len(self._entries)
            self._read_bytes, self._torn_bytes = self._files.size(self._path), 0
        journal = self._files.open(self._path, create=True)
        if created:
            self._files.sync_dir(_parent(self._path))
        self._create_reserve()
        return journal

    def _with_reserve(self, write: Callable[[], object]) -> None:
        """Run a write; if the disk is full, release the reserve and try again."""
        try:
            write()
        except WriteRefusedError:
            self._has_reserve = is_released = False
            with suppress(StorageError):  # report the first error
                is_released = self._reserve.release()
            if not is_released:
                raise
            write()

    def _create_reserve(self) -> None:
        """Create the reserve file if there is enough free space."""
        if not self._has_reserve:
            with suppress(StorageError):
                self._reserve.create()
                self._has_reserve = True

    def _is_history(self, size: int) -> bool:
        """Return True if a journal of `size` bytes is mostly history and should be rewritten."""
        return size > self.REWRITE_BYTES and self._written_entries > 2 * len(self._entries)

    def _check_clean_end(self) -> None:
        """Raise StorageError if the journal differs from its state at the last clean stop."""
        path = clean_end_path(self._path)
        if not self._files.exists(path):
            return
        end = _parse_line(self._files.read_bytes(path))
        if end is None:
            logger.warning(
                "%s is damaged: a truncated or replaced %s cannot be detected", path, self._path
            )
        elif self._revision > end["revision"]:
            logger.warning(
                "%s was written after the last clean stop by a version that does not update %s",
                self._path,
                path,
            )
        elif (end["bytes"], end["revision"]) != (self._read_bytes, self._revision):
            raise StorageError(
                f"{self._path} ends at byte {self._read_bytes - self._torn_bytes:,}, revision "
                f"{self._revision}; the last clean stop left it at byte {end['bytes']:,}, revision "
                f"{end['revision']}. It was truncated or replaced by another copy: restore the newest "
                f"copy, or remove {path} to start with the topics, settings and users of this copy "
                "(records of other topics are kept in directories that end in -stray)"
            )

    def _store_clean_end(self) -> None:
        """Store the size and the revision of the journal. Raises StorageError."""
        end = {"bytes": self._files.size(self._path), "revision": self._revision}
        self._files.write_atomic(clean_end_path(self._path), _format_line(_to_json(end)))

    def _check_torn(self, number: int, following: list[bytes]) -> None:
        """Raise StorageError if a crash cannot explain the bad line `number`."""
        intact = sum(_parse_line(line) is not None for line in following)
        if intact:
            raise StorageError(
                f"{self._path}: line {number} is damaged, and {intact} intact lines follow; restore "
                "the file from a copy"
            )

    def _snapshot(self) -> Iterator[bytes]:
        """Yield all entries as lines, one for each pair of revision and lease."""
        groups: dict[tuple[int, int], dict[str, Document | None]] = {}
        for key, entry in self._entries.items():
            lease = self._lease_of.get(key)
            group = entry.revision, NO_LEASE if lease is None else lease.id
            groups.setdefault(group, {})[key] = entry.value
        groups.setdefault((self._revision, NO_LEASE), {})
        for revision, lease_id in sorted(groups):
            record: dict[str, Any] = {
                "revision": revision,
                "entries": groups[revision, lease_id],
            }
            if lease_id != NO_LEASE:
                record["lease"] = lease_id
            yield _format_line(_to_json(record))

    def _apply(self, change: Change) -> None:
        self._revision = change.revision
        for key, entry in change.entries.items():
            if entry is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = entry

    # -- reads and writes

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def problem(self) -> StoreProblem | None:
        return self._problem

    async def range(self, prefix: str) -> Snapshot:
        found = {k: e for k, e in self._entries.items() if k.startswith(prefix)}
        return Snapshot(self._revision, found)

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        async with self._exclusive():
            if not all(self._is_at(key, revision) for key, revision in compares.items()):
                return None
            if lease is None:
                return await self._commit(puts, cause, None)
            held = self._leases.get(lease.id)
            return None if held is None else await self._commit(puts, cause, held)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Wait for the previous change, and shield this change from cancellation."""
        try:
            self._writing.acquire_nowait()
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            with trio.CancelScope(shield=True):
                yield
        finally:
            self._writing.release()

    def _is_at(self, key: str, revision: int) -> bool:
        entry = self._entries.get(key)
        return (entry.revision if entry else ABSENT) == revision

    async def _commit(
        self, puts: Mapping[str, Document | None], cause: str, lease: LocalLease | None
    ) -> int:
        record: dict[str, Any] = {"revision": self._revision + 1, "entries": puts}
        if lease is not None:
            record["lease"] = lease.id
        body = _to_json(record)
        await self._write(_format_line(body))
        # Parsed again, as after a restart, because the caller may modify its values.
        change = _change(self._revision + 1, json.loads(body)["entries"], cause)
        self._apply(change)
        self._written_entries += len(puts)
        if self._journal is not None and self._is_history(self._journal.size):
            self._grew.set()
        self._attach(change.entries, lease)
        self._watchers.notify(change, keep=self.HISTORY_ENTRIES)
        return change.revision

    async def _write(self, line: bytes) -> None:
        """Append a line and make it durable.

        A failed append removes what it wrote, so a later one may succeed when the disk has space again.
        After a failed sync the end of the file is unknown, so nothing more is written.
        """
        if self._is_failed:
            raise StorageError(str(self._problem))
        try:
            journal = self._journal = self._journal or self._open_journal()
            self._with_reserve(lambda: journal.append([line]))
        except SyncFailedError as error:
            self._stop_writing(error)
            raise
        except StorageError as error:
            self._report_failed_write(error)
            raise
        try:
            if self._in_thread is None:
                journal.sync()
            else:
                await self._in_thread(journal.sync)
                await trio.lowlevel.checkpoint()  # the thread may have been done immediately
        except StorageError as error:
            self._stop_writing(error)
            raise
        self._report_writable()
        self._create_reserve()

    def _report_failed_write(self, error: StorageError) -> None:
        """Report that the metadata cannot be changed, and let `run` retry."""
        description, _, action = str(error.message).partition("; ")
        description = f"the metadata cannot be written: {description}"
        if self._problem is None:
            self._write_failed.set()
        if self._problem is None or self._problem.description != description:
            self._problem = StoreProblem(description, action or RETRY_ACTION)
            logger.error("%s", self._problem)

    def _report_writable(self) -> None:
        """Report that the metadata can be changed."""
        if self._problem is not None:
            self._problem = None
            logger.warning("the metadata can be written again: %s", self._path)

    def _stop_writing(self, error: StorageError) -> None:
        """Stop writing, because the contents of the journal on the disk are unknown."""
        description = f"{self._path} cannot be written ({error.message})"
        self._problem, self._is_failed = StoreProblem(description, "restart the server"), True
        logger.error("%s", self._problem)

    async def _probe_regularly(self) -> None:
        while True:
            await self._write_failed.wait()
            self._write_failed = trio.Event()
            while self._is_write_failing:
                await trio.sleep(self.PROBE_SECONDS)
                async with self._exclusive():
                    if self._is_write_failing:
                        await self._probe()

    @property
    def _is_write_failing(self) -> bool:
        return self._problem is not None and not self._is_failed

    async def _probe(self) -> None:
        """Write a line without changes; a journal without history ends with such a line too."""
        with suppress(StorageError):
            await self._write(_format_line(_to_json({"revision": self._revision, "entries": {}})))

    # -- watchers

    def watch(self, watcher: Watcher, *, after: int) -> None:
        self._watchers.add(watcher, after=after)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    # -- leases

    async def grant(self, ttl_seconds: float, *, holder: str) -> LocalLease:
        self._last_lease += 1
        lease = LocalLease(self, self._last_lease, ttl_seconds, holder)
        self._leases[lease.id] = lease
        if ttl_seconds < math.inf:
            self._expiring.set()
        return lease

    def has(self, lease: LocalLease) -> bool:
        """Return True if a lease has not ended."""
        return lease.id in self._leases

    async def end(self, lease: LocalLease, cause: str) -> None:
        """End a lease and delete its entries. Raises StorageError, and then the lease continues."""
        async with self._exclusive():
            await self._end(lease, cause)

    async def _end(self, lease: LocalLease, cause: str) -> None:
        """End a lease; the caller prevents other changes. See `end`."""
        # First, so that the lease cannot be renewed while its entries are deleted.
        self._leases.pop(lease.id, None)
        try:
            if lease.keys:
                await self._commit(dict.fromkeys(lease.keys), cause, None)
        except StorageError:
            self._leases[lease.id] = lease
            raise

    def _attach(self, entries: Mapping[str, Entry | None], lease: LocalLease | None) -> None:
        for key, entry in entries.items():
            before = self._lease_of.pop(key, None)
            if before is not None:
                del before.keys[key]
            if lease is not None and entry is not None:
                lease.keys[key] = None
                self._lease_of[key] = lease

    async def run(self) -> None:
        """Expire leases, rewrite a long journal, and retry after failed writes, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probe_regularly)
            nursery.start_soon(self._end_leases)
            nursery.start_soon(self._rewrite_regularly)

    async def _rewrite_regularly(self) -> None:
        while True:
            await self._grew.wait()
            self._grew = trio.Event()
            async with self._exclusive():
                if self._journal is not None and self._is_history(self._journal.size):
                    await self._rewrite(self._journal)

    async def _rewrite(self, journal: File) -> None:
        """Replace the journal by one without history. The caller must prevent other changes.

        A crash leaves either the old or the new journal, which hold the same entries. If the disk has
        no space for the new journal, the old one stays in use.
        """
        duty_cycle, lines = DutyCycle(), []
        for line in self._snapshot():
            lines.append(line)
            await duty_cycle.pause()
        write = partial(self._files.write_atomic, self._path, b"".join(lines))
        try:
            if self._in_thread is None:
                write()
            else:
                await self._in_thread(write)
            self._journal = self._files.open(self._path)
        except WriteRefusedError as error:
            logger.warning("cannot rewrite %s without its history: %s", self._path, error.message)
            return
        except StorageError as error:
            self._stop_writing(error)
            return
        finally:
            # Otherwise each change would start another rewrite.
            self._written_entries = len(self._entries)
        journal.close()

    async def _end_leases(self) -> None:
        """End the leases that are not kept alive.

        All holders run in this event loop. So the remaining time counts ticks, in which the holders
        can run, instead of elapsed time: a blocked event loop does not end leases.
        """
        while True:
            await self._expiring.wait()
            await trio.sleep(self.TICK_SECONDS)
            await self._tick()

    async def _tick(self) -> None:
        expiring = [each for each in self._leases.values() if each.ttl_seconds < math.inf]
        if not expiring:
            self._expiring = trio.Event()
        for lease in expiring:
            lease.seconds_left -= self.TICK_SECONDS
            if lease.seconds_left <= 0:
                await self._expire(lease)

    async def _expire(self, lease: LocalLease) -> None:
        """End a lease, unless it is renewed while an earlier change is written."""
        try:
            async with self._exclusive():
                if lease.seconds_left <= 0:
                    await self._end(lease, f"lease of {lease.holder} ended")
        except StorageError:  # the error was logged; do not retry in every tick
            lease.seconds_left = lease.ttl_seconds

    async def aclose(self) -> None:
        journal, self._journal = self._journal, None
        if journal is None:
            return
        try:
            truncate_torn(journal)
            if not self._is_failed and self._files.durable:
                self._store_clean_end()
        except StorageError as error:
            logger.warning("the next start cannot detect a truncated journal: %s", error.message)
        finally:
            journal.close()


class LocalLease:
    """A lease of a `LocalStore`, and the keys attached to it."""

    def __init__(self, store: LocalStore, number: int, ttl_seconds: float, holder: str) -> None:
        self._store = store
        self.id = number
        self.ttl_seconds = ttl_seconds
        self.holder = holder
        self.seconds_left = ttl_seconds
        self.keys: dict[str, None] = {}

    def may_be_over(self) -> bool:
        return not self._store.has(self)

    async def keep_alive(self) -> bool:
        self.seconds_left = self.ttl_seconds
        return self._store.has(self)

    async def revoke(self) -> None:
        if self._store.has(self):
            await self._store.end(self, f"{self.holder} revoked its lease")


def clean_end_path(path: str) -> str:
    """Return the path of the file with the clean-stop state of the journal at `path`."""
    return path + CLEAN_END


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _change(revision: int, values: Mapping[str, Document | None], cause: str) -> Change:
    entries = {
        key: None if value is None else Entry(value, revision) for key, value in values.items()
    }
    return Change(revision, entries, cause)


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _to_json(record: Mapping[str, Any]) -> bytes:
    return _encode(record).encode()


def _format_line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse_line(line: bytes) -> Any | None:
    """Return the transaction of a journal line; None if the line is torn."""
    checksum, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    return json.loads(body)
