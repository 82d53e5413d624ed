"""A client of a store in another process of the same machine: see `store_server`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count

import trio

from kbroker.storage.errors import StorageError

from .store import (
    Document,
    Entry,
    Lease,
    OutcomeUnknown,
    Snapshot,
    StoreTrouble,
    Unreachable,
    Watcher,
)
from .store_link import Link, LinkBroken, Message, change_of
from .timed_lease import TimedLease
from .watchers import Watchers

GONE = "the process that has the metadata is gone"


class RemoteLease(TimedLease):
    """A lease; it ends with the connection too."""

    def __init__(
        self, store: RemoteStore, number: int, ttl_seconds: float, granted_at: float
    ) -> None:
        super().__init__(number, ttl_seconds, granted_at)
        self._store = store

    async def _renew(self) -> bool:
        lives: bool = (await self._store.ask({"do": "keep_alive", "lease": self.id}))["lives"]
        return lives

    async def revoke(self) -> None:
        await self._store.ask({"do": "revoke", "lease": self.id})


class _Asked:
    """What waits for an answer; without one the connection is gone."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Message | None = None


class RemoteStore:
    """One process's view of the metadata; see `MetadataStore`. Make it with `open`."""

    HISTORY_ENTRIES = 10_000
    """Of the newest changes, kept for `watch`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._revision = 0
        self._watchers = Watchers()
        self._asked: dict[int, _Asked] = {}
        self._numbers = count()
        self._is_gone = False
        self._trouble: StoreTrouble | None = None
        """Problem in the newest response. Responses arrive regularly, because leases are kept alive."""

    @classmethod
    async def open(cls, path: str) -> RemoteStore:
        """Connect to the socket at `path`. Raises StorageError."""
        try:
            return cls(Link(await trio.open_unix_socket(path)))
        except OSError as error:
            raise StorageError(f"{GONE} ({path})") from error

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def trouble(self) -> StoreTrouble | None:
        return self._trouble

    async def run(self) -> None:
        """Hear what is told, until cancelled. Raises StorageError: nothing more will come."""
        try:
            while True:
                self._take(await self._link.receive())
        except LinkBroken:
            raise StorageError(GONE) from None
        finally:
            self._is_gone = True
            for asked in self._asked.values():
                asked.done.set()

    def _take(self, message: Message) -> None:
        if "begin" in message:
            self._revision = message["begin"]
            self._watchers.forget(self._revision)
            return
        if "change" not in message:
            trouble = message["trouble"]
            self._trouble = None if trouble is None else StoreTrouble(*trouble)
            asked = self._asked.get(message["id"])
            if asked is not None:
                asked.answer = message
                asked.done.set()
            return
        change = change_of(message)
        self._revision = change.revision
        self._watchers.tell(change, keep=self.HISTORY_ENTRIES)

    async def ask(self, message: Message) -> Message:
        """Ask for something, and return the answer.

        Raises OutcomeUnknown when the connection ends meanwhile, Unreachable, and StorageError.
        """
        if self._is_gone:
            raise Unreachable(GONE)
        number = next(self._numbers)
        asked = self._asked[number] = _Asked()
        try:
            await self._link.send({"id": number, **message})
            await asked.done.wait()
        except LinkBroken:
            raise OutcomeUnknown(GONE) from None
        finally:
            del self._asked[number]
        if asked.answer is None:
            raise OutcomeUnknown(GONE)
        if "error" in asked.answer:
            raise StorageError(asked.answer["error"])
        return asked.answer

    async def range(self, prefix: str) -> Snapshot:
        answer = await self.ask({"do": "range", "prefix": prefix})
        entries = {key: Entry(*entry) for key, entry in answer["entries"].items()}
        return Snapshot(answer["revision"], entries)

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        asked = {
            "do": "transact",
            "puts": dict(puts),
            "compares": dict(compares),
            "cause": cause,
            "lease": None if lease is None else lease.id,
        }
        revision: int | None = (await self.ask(asked))["revision"]
        return revision

    def watch(self, watcher: Watcher, *, after: int) -> None:
        self._watchers.add(watcher, after=after)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    async def grant(self, ttl_seconds: float, *, holder: str) -> RemoteLease:
        if not math.isfinite(ttl_seconds):
            raise StorageError("a store in another process grants no lease without an end")
        asked_at = trio.current_time()
        answer = await self.ask({"do": "grant", "seconds": ttl_seconds, "holder": holder})
        return RemoteLease(self, answer["lease"], answer["seconds"], asked_at)

    async def aclose(self) -> None:
        await self._link.aclose()
