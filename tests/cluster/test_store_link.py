"""Messages between a process and its store of metadata."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from kbroker.storage.errors import StorageError

from .contract import put
from .remote_stores import process_of, truth


async def test_cancelled_send_completes_message() -> None:
    store = truth()
    async with process_of(store) as process:
        for number in range(20):
            with trio.CancelScope() as scope:
                scope.cancel()
                await put(process.store, f"k/{number}", number)
        assert await put(process.store, "end", 1) is not None
        assert "end" in (await process.store.range("end")).entries


async def test_store_errors_reach_client(monkeypatch: pytest.MonkeyPatch) -> None:
    store = truth()

    async def fails(*_: object, **__: object) -> int | None:
        raise StorageError("the disk is full")

    async with process_of(store) as process:
        monkeypatch.setattr(store, "transact", fails)
        with pytest.raises(StorageError, match="the disk is full"):
            await put(process.store, "a", 1)
        with pytest.raises(StorageError, match="finite duration"):
            await process.store.grant(math.inf, holder="node 1")
