"""A client of a metadata store in another process of the machine; see `store_server`."""

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
    StoreProblem,
    Unreachable,
    Watcher,
)
from .store_link import Link, LinkBroken, Message, change_of
from .timed_lease import TimedLease, lease_time
from .watchers import Watchers

STORE_TERMINATED = "the process with the metadata store has terminated"


class RemoteLease(TimedLease):
    """A lease of a remote store; it also ends with the connection."""

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


class _PendingRequest:
    """A request that waits for its response; without a response the connection was closed."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.response: Message | None = None


class RemoteStore:
    """The metadata store as one client process sees it; see `MetadataStore`. Use `open`."""

    # Number of changed entries kept for `watch`.
    HISTORY_ENTRIES = 10_000

    def __init__(self, link: Link) -> None:
        self._link = link
        self._revision = 0
        self._watchers = Watchers()
        self._pending: dict[int, _PendingRequest] = {}
        self._numbers = count()
        self._is_disconnected = False
        # Problem in the newest response; keeping leases alive produces responses regularly.
        self._problem: StoreProblem | None = None

    @classmethod
    async def open(cls, path: str) -> RemoteStore:
        """Connect to the Unix socket at `path`. Raises StorageError."""
        try:
            return cls(Link(await trio.open_unix_socket(path)))
        except OSError as error:
            raise StorageError(f"{STORE_TERMINATED} ({path})") from error

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def problem(self) -> StoreProblem | None:
        return self._problem

    async def run(self) -> None:
        """Receive changes and responses until cancelled. Raises StorageError if the connection ends."""
        try:
            while True:
                self._receive(await self._link.receive())
        except LinkBroken:
            raise StorageError(STORE_TERMINATED) from None
        finally:
            self._is_disconnected = True
            for request in self._pending.values():
                request.done.set()

    def _receive(self, message: Message) -> None:
        if "begin" in message:
            self._revision = message["begin"]
            self._watchers.forget(self._revision)
            return
        if "change" not in message:
            problem = message["trouble"]
            self._problem = None if problem is None else StoreProblem(*problem)
            request = self._pending.get(message["id"])
            if request is not None:
                request.response = message
                request.done.set()
            return
        change = change_of(message)
        self._revision = change.revision
        self._watchers.notify(change, keep=self.HISTORY_ENTRIES)

    async def ask(self, message: Message) -> Message:
        """Send a request and return its response.

        Raises:
            Unreachable: The connection was closed before.
            OutcomeUnknown: The connection was closed during the request.
            StorageError: The store reported an error.
        """
        if self._is_disconnected:
            raise Unreachable(STORE_TERMINATED)
        number = next(self._numbers)
        request = self._pending[number] = _PendingRequest()
        try:
            await self._link.send({"id": number, **message})
            await request.done.wait()
        except LinkBroken:
            raise OutcomeUnknown(STORE_TERMINATED) from None
        finally:
            del self._pending[number]
        if request.response is None:
            raise OutcomeUnknown(STORE_TERMINATED)
        if "error" in request.response:
            raise StorageError(request.response["error"])
        return request.response

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
            raise StorageError("remote store: leases require a finite duration")
        asked_at = lease_time()
        answer = await self.ask({"do": "grant", "seconds": ttl_seconds, "holder": holder})
        return RemoteLease(self, answer["lease"], answer["seconds"], asked_at)

    async def aclose(self) -> None:
        await self._link.aclose()
