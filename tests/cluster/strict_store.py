"""A store with the smallest transaction limit that every store must support."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.cluster import LocalStore
from kbroker.cluster.store import OPERATIONS_MAX, Document, Lease
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles


class Strict(LocalStore):
    """A store that records each transaction, and fails after `fails_after` of them."""

    def __init__(self, files: MemFiles | None = None) -> None:
        files = files or MemFiles()
        files.mkdir("data")
        super().__init__(files, "data/journal")
        self.operations: list[int] = []
        self.causes: list[str] = []
        self.fails_after = 10**9

    async def transact(
        self,
        puts: Mapping[str, Document | None],
        *,
        compares: Mapping[str, int],
        cause: str,
        lease: Lease | None = None,
    ) -> int | None:
        assert max(len(puts), len(compares)) <= OPERATIONS_MAX
        self.fails_after -= 1
        if self.fails_after < 0:
            raise StorageError("the network is gone")
        self.operations.append(len(puts))
        self.causes.append(cause)
        return await super().transact(puts, compares=compares, cause=cause, lease=lease)
