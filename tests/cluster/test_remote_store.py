"""A metadata store in another process, and the end of its connections."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kbroker.cluster import LocalStore
from kbroker.cluster.remote_store import RemoteStore
from kbroker.cluster.store import OutcomeUnknown
from kbroker.storage.errors import StorageError

from ..refusing_files import RefusingFiles
from .contract import must_put, put
from .remote_stores import process_of, truth


async def test_pending_request_fails_when_connection_closes() -> None:
    store = truth()
    async with process_of(store) as process:
        await must_put(process.store, "a", 1)
        async with store._writing, trio.open_nursery() as nursery:  # blocks all writes
            nursery.start_soon(_fails_unknown, process.store)
            await trio.testing.wait_all_tasks_blocked()
            await process.theirs.aclose()
            await process.ended.wait()
        assert process.error is not None
        assert "has terminated" in str(process.error.message)
        with pytest.raises(StorageError, match="has terminated"):
            await process.store.range("")


async def _fails_unknown(store: RemoteStore) -> None:
    with pytest.raises(OutcomeUnknown):
        await put(store, "b", 2)


async def test_problem_of_the_store_comes_with_the_next_response() -> None:
    files = RefusingFiles()
    files.mkdir("data")
    store = LocalStore(files, "data/journal")
    async with process_of(store) as process, process_of(store) as other:
        lease = await other.store.grant(60, holder="node 2")
        files.refuse("data")
        with pytest.raises(StorageError, match="Read-only"):
            await put(process.store, "a", 1)
        assert process.store.problem == store.problem is not None
        await lease.keep_alive()
        assert other.store.problem == store.problem
        files.heal()
        await must_put(process.store, "a", 1)
        await lease.keep_alive()
        assert process.store.problem is other.store.problem is None


async def test_missing_socket_gives_clear_error() -> None:
    with pytest.raises(StorageError, match="has terminated"):
        await RemoteStore.open("/no/such/socket")
