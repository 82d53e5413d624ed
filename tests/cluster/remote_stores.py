"""Client processes of a metadata store in another process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing
from trio.testing import memory_stream_pair

from kbroker.cluster import LocalStore
from kbroker.cluster.remote_store import RemoteStore
from kbroker.cluster.store_link import Link
from kbroker.cluster.store_server import serve_client
from kbroker.storage.errors import StorageError
from kbroker.storage.files import MemFiles


class Process:
    """A client and its end of the connection."""

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
