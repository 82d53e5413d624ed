"""Where cluster metadata lives: keys with revisions, changed by compare-and-set.

The interface is what a single process, a simulator and etcd can all give: a transaction compares
the revision of keys and then puts or deletes others, all or nothing, and returns the revision that
it made. A revision is never used twice, so a compare on it cannot be fooled by an equal value that
was written later (the ABA problem of comparing values).

Each node is a client of the store. What it reads is the state at one revision, and what it hears
after that begins with the next one, so nothing falls between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode
from kbroker.storage.errors import StorageError

Document = dict[str, Any]
"""A value: what JSON can say. Nobody changes one that is stored: all clients may share it."""

ABSENT = 0
"""The revision of a key that does not exist."""

OPERATIONS_MAX = 127
"""Puts of one transaction, and compares of one, that every store takes: etcd's default, but for the
put that says why."""


class Entry(NamedTuple):
    """One stored value and the revision of the transaction that wrote it."""

    value: Document
    revision: int


class Snapshot(NamedTuple):
    """Entries as they were right after the transaction `revision`."""

    revision: int
    entries: dict[str, Entry]


class Change(NamedTuple):
    """What one transaction did, or several of them. None stands for a deleted key."""

    revision: int
    entries: Mapping[str, Entry | None]
    cause: str


Watcher = Callable[[Change], None]


class Unreachable(StorageError):
    """The store cannot be asked now; a client is answered REQUEST_TIMED_OUT, and may try again."""

    code = ErrorCode.REQUEST_TIMED_OUT


class OutcomeUnknown(Unreachable):
    """No answer came: what was asked for may have been done, or may be done later, or never.

    Only a later transaction that succeeds on the same keys shows that this one can no longer be
    applied; a read does not.
    """


class Compacted(StorageError):
    """What happened after a revision is forgotten: read everything, and watch from there."""


class Lease(Protocol):
    """What keeps entries alive. When it ends, by itself or by `revoke`, they are deleted."""

    @property
    def id(self) -> int: ...

    @property
    def ttl_seconds(self) -> float:
        """How long it lives after it was granted or last kept alive; at least what was wanted."""
        ...

    def may_be_over(self) -> bool:
        """Whether it may have ended by itself without the holder having heard of it.

        The holder counts its time from before the calls that began it and let it live.
        """
        ...

    async def keep_alive(self) -> bool:
        """Let it live for another `ttl_seconds`. Returns False when it is over.

        Raises StorageError.
        """
        ...

    async def revoke(self) -> None:
        """End it now; one that is over stays so. Raises StorageError."""
        ...


class StoreTrouble(NamedTuple):
    """Why the metadata cannot be changed, and what the operator can do about it."""

    problem: str
    action: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.action}"


class MetadataStore(Protocol):
    """One client's view of the shared truth of a cluster.

    Resource handling: whoever opens a store starts `run` in a task before it is used, and closes it
    when all that use it are done.
    """

    @property
    def revision(self) -> int:
        """That of the newest transaction that this client has heard of. Each one has a higher."""
        ...

    @property
    def trouble(self) -> StoreTrouble | None:
        """Problem that prevents changes of the metadata, None if this client knows none."""
        ...

    async def range(self, prefix: str) -> Snapshot:
        """Return all entries whose key starts with `prefix`.

        They may be older than the truth, but not than `revision` was when this was called. Raises
        StorageError.
        """
        ...

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        """Write all of `puts` if every compare holds, else nothing.

        Parameters: `puts` maps keys to new values, None deletes; `compares` maps keys to the
        revision that they must have now (`ABSENT`: must not exist); `cause` says why, for logs
        and watchers; `lease` is what the new values hang on, without one they stay.

        Returns the new revision, or None when a compare failed or the lease is over. In both cases
        this client's watchers have heard of everything up to that revision, or to the one that the
        compare failed on. Raises OutcomeUnknown, and StorageError when it was surely not stored.
        """
        ...

    def watch(self, watcher: Watcher, *, after: int) -> None:
        """Call `watcher` with every change of a revision above `after`, once and in order.

        A store that could not follow until changes were forgotten gives two instead of them: first
        what is gone, also where it is there anew, then what is new. Raises Compacted when what
        follows `after` is forgotten already.
        """
        ...

    def unwatch(self, watcher: Watcher) -> None:
        """Call `watcher` no more."""
        ...

    async def grant(self, ttl_seconds: float, *, holder: str) -> Lease:
        """Begin a lease; a store may let it live longer, etcd counts whole seconds.

        `holder` says whose it is, for the cause of the change that its end makes. With `math.inf`
        it lives as long as the process, which only a store within that process can tell. Raises
        StorageError.
        """
        ...

    async def run(self) -> None:
        """Background work, until cancelled."""
        ...

    async def aclose(self) -> None:
        """Release what the store holds open."""
        ...


async def entry_at(store: MetadataStore, key: str) -> Entry | None:
    """One entry; None when there is none. Raises StorageError."""
    return (await store.range(key)).entries.get(key)
