"""The interface of metadata stores: keys with revisions, changed by compare-and-set.

A single process, a simulator and etcd can all implement it. A transaction compares the revisions of
keys, then puts or deletes other keys atomically, and returns its revision. Revisions are never
reused, so a compare is safe even if an equal value was written later (ABA problem).

Each node is a client of the store. A read returns the state at one revision, and a watch delivers all
later changes, so a client misses none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode
from kbroker.storage.errors import StorageError

# A JSON value. Stored values must not be modified, because clients share them.
Document = dict[str, Any]

# Revision of a key that does not exist.
ABSENT = 0

# Maximum number of puts, and of compares, per transaction: etcd's default limit minus one put for
# the cause. Every store accepts it.
OPERATIONS_MAX = 127


class Entry(NamedTuple):
    """A stored value and the revision of the transaction that wrote it."""

    value: Document
    revision: int


class Snapshot(NamedTuple):
    """All requested entries at one revision."""

    revision: int
    entries: dict[str, Entry]


class Change(NamedTuple):
    """The changes of one transaction, or of several combined; None is a deleted key."""

    revision: int
    entries: Mapping[str, Entry | None]
    cause: str


Watcher = Callable[[Change], None]


class Unreachable(StorageError):
    """The store cannot be reached. Clients get REQUEST_TIMED_OUT and may retry."""

    code = ErrorCode.REQUEST_TIMED_OUT


class OutcomeUnknown(Unreachable):
    """No response confirmed the transaction: it was applied, will be applied later, or never.

    Only a later successful transaction on the same keys proves that this transaction can no longer
    be applied. A read is no proof.
    """


class Compacted(StorageError):
    """The changes after a revision are no longer available: read all entries and watch again."""


class Lease(Protocol):
    """A lease; when it expires or is revoked, its entries are deleted."""

    @property
    def id(self) -> int: ...

    @property
    def ttl_seconds(self) -> float:
        """Duration after the grant or the last renewal; at least the requested one."""
        ...

    def may_be_over(self) -> bool:
        """Return True if the lease may have expired without the holder knowing.

        The holder measures the duration from before the call that granted or renewed it.
        """
        ...

    async def keep_alive(self) -> bool:
        """Renew the lease for another `ttl_seconds`; return False if it has expired.

        Raises:
            StorageError: The store cannot be reached.
        """
        ...

    async def revoke(self) -> None:
        """End the lease now; does nothing if it has expired. Raises StorageError."""
        ...


class StoreProblem(NamedTuple):
    """A problem that prevents changes of the metadata, and what the operator can do."""

    description: str
    action: str

    def __str__(self) -> str:
        return f"{self.description}; {self.action}"


class MetadataStore(Protocol):
    """One client's view of the cluster metadata.

    The owner of a store must start `run` in a task before using it, and close it when all users
    are done.
    """

    @property
    def revision(self) -> int:
        """Revision of the newest transaction that this client knows; revisions increase."""
        ...

    @property
    def problem(self) -> StoreProblem | None:
        """The problem that prevents changes of the metadata; None if this client knows none."""
        ...

    async def range(self, prefix: str) -> Snapshot:
        """Return all entries whose key starts with `prefix`.

        The result may be older than the newest state, but not older than `revision` at the call.

        Raises:
            StorageError: The entries cannot be read.
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
        """Write all of `puts` if every compare succeeds, otherwise nothing.

        Args:
            puts: New values by key; None deletes a key.
            compares: Required current revisions by key; `ABSENT` if the key must not exist.
            cause: Reason for logs and watchers.
            lease: Lease of the new values. Without a lease, the values stay until they are deleted.

        Returns:
            The new revision, or None if a compare failed or the lease has expired. In both cases the
            watchers of this client have received all changes up to this revision, or up to the one
            that made the compare fail.

        Raises:
            OutcomeUnknown: The transaction may or may not have been applied.
            StorageError: The transaction was certainly not applied.
        """
        ...

    def watch(self, watcher: Watcher, *, after: int) -> None:
        """Call `watcher` once, in order, for every change with a revision above `after`.

        A store that missed changes that are no longer available delivers two combined changes instead:
        first the deletions, including those of keys that exist again, then the new entries.

        Raises:
            Compacted: The changes after `after` are no longer available.
        """
        ...

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling `watcher`."""
        ...

    async def grant(self, ttl_seconds: float, *, holder: str) -> Lease:
        """Grant a lease; the store may round its duration up (etcd to seconds).

        Args:
            ttl_seconds: Duration. With `math.inf` the lease ends with the process, which only an
                in-process store supports.
            holder: Name of the holder, for the cause of the change when the lease ends.

        Raises:
            StorageError: The lease cannot be granted.
        """
        ...

    async def run(self) -> None:
        """Run background work until cancelled."""
        ...

    async def aclose(self) -> None:
        """Release the resources of the store."""
        ...


async def entry_at(store: MetadataStore, key: str) -> Entry | None:
    """Return one entry, or None if it does not exist. Raises StorageError."""
    return (await store.range(key)).entries.get(key)
