"""A store in another process: what its clients and it do when the connection ends."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from kbroker.cluster import LocalStore, store_server
from kbroker.cluster.remote_store import RemoteStore
from kbroker.cluster.store import ABSENT, OutcomeUnknown
from kbroker.cluster.store_link import Link
from kbroker.cluster.store_server import serve_client
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles

from ..refusing_files import RefusingFiles
from .contract import must_put, put


class Process:
    """A client, and its end of the connection."""

    def __init__(self) -> None:
        self.ours, self.theirs = memory_stream_pair()
        self.store = RemoteStore(Link(self.ours))
        self.error: StorageError | None = None
        self.ended = trio.Event()

    async def run(self) -> None:
        try:
            await self.store.run()
        except StorageError as error:
            self.error = error
        finally:
            self.ended.set()


def truth() -> LocalStore:
    files = MemFiles()
    files.mkdir("data")
    return LocalStore(files, "data/journal")


@asynccontextmanager
async def process_of(store: LocalStore) -> AsyncIterator[Process]:
    process = Process()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_client, store, process.theirs)
        nursery.start_soon(process.run)
        yield process
        nursery.cancel_scope.cancel()


async def test_the_leases_of_a_process_end_with_it() -> None:
    store = truth()
    async with process_of(store) as other:
        async with process_of(store) as process:
            lease = await process.store.grant(60, holder="node 1")
            again = await process.store.grant(60, holder="node 1")
            await again.revoke()
            await process.store.transact({"live/1": {}}, compares={}, cause="up", lease=lease)
            assert "live/1" in (await other.store.range("")).entries
            heard = trio.Event()
            other.store.watch(lambda _: heard.set(), after=other.store.revision)
            await process.ours.aclose()  # as the system does when it has ended
            await process.ended.wait()
            with trio.fail_after(5):
                await heard.wait()
        assert (await other.store.range("")).entries == {}


async def test_who_waits_for_an_answer_that_never_comes_is_told() -> None:
    store = truth()
    async with process_of(store) as process:
        await must_put(process.store, "a", 1)
        async with store._writing, trio.open_nursery() as nursery:  # nothing is written meanwhile
            nursery.start_soon(_fails_unknown, process.store)
            await trio.testing.wait_all_tasks_blocked()
            await process.theirs.aclose()
            await process.ended.wait()
        assert process.error is not None
        assert "is gone" in str(process.error.message)
        with pytest.raises(StorageError, match="is gone"):
            await process.store.range("")


async def _fails_unknown(store: RemoteStore) -> None:
    with pytest.raises(OutcomeUnknown):
        await put(store, "b", 2)


async def test_a_caller_that_is_cancelled_does_not_cut_a_message() -> None:
    store = truth()
    async with process_of(store) as process:
        for number in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await put(process.store, f"k/{number}", number)
        assert await put(process.store, "end", 1) is not None
        assert "end" in (await process.store.range("end")).entries


async def test_errors_of_the_store_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = truth()

    async def fails(*_: object, **__: object) -> int | None:
        raise StorageError("the disk is full")

    async with process_of(store) as process:
        monkeypatch.setattr(store, "transact", fails)
        with pytest.raises(StorageError, match="the disk is full"):
            await put(process.store, "a", 1)
        with pytest.raises(StorageError, match="without an end"):
            await process.store.grant(math.inf, holder="node 1")


async def test_trouble_of_the_store_comes_with_the_next_response() -> None:
    files = RefusingFiles()
    files.mkdir("data")
    store = LocalStore(files, "data/journal")
    async with process_of(store) as process, process_of(store) as other:
        lease = await other.store.grant(60, holder="node 2")
        files.refuse("data")
        with pytest.raises(StorageError, match="Read-only"):
            await put(process.store, "a", 1)
        assert process.store.trouble == store.trouble is not None
        await lease.keep_alive()
        assert other.store.trouble == store.trouble
        files.heal()
        await must_put(process.store, "a", 1)
        await lease.keep_alive()
        assert process.store.trouble is other.store.trouble is None


async def test_a_process_that_stands_still_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_server, "UNSENT_MAX", 10)
    store = truth()
    async with process_of(store) as sound:
        ours, theirs = memory_stream_pair()
        assert theirs.send_stream is not None
        blocked = trio.Event()
        theirs.send_stream.send_all_hook = blocked.wait
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve_client, store, theirs)
                await trio.testing.wait_all_tasks_blocked()
                for number in range(20):
                    await must_put(sound.store, f"k/{number}", number, ABSENT)
                blocked.set()
        await ours.aclose()
        assert len((await sound.store.range("")).entries) == 20


async def test_where_nobody_listens_is_one_sentence() -> None:
    with pytest.raises(StorageError, match="is gone"):
        await RemoteStore.open("/no/such/socket")
