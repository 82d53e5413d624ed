"""A store of metadata that serves other processes."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from kbroker.cluster import store_server
from kbroker.cluster.store import ABSENT
from kbroker.cluster.store_server import serve_client

from .contract import must_put
from .remote_stores import process_of, truth


async def test_leases_end_when_client_disconnects() -> None:
    store = truth()
    async with process_of(store) as other:
        async with process_of(store) as process:
            lease = await process.store.grant(60, holder="node 1")
            second_lease = await process.store.grant(60, holder="node 1")
            await second_lease.revoke()
            await process.store.transact({"live/1": {}}, compares={}, cause="up", lease=lease)
            assert "live/1" in (await other.store.range("")).entries
            deleted = trio.Event()
            other.store.watch(lambda _: deleted.set(), after=other.store.revision)
            await process.ours.aclose()  # as the operating system does when the process terminates
            await process.ended.wait()
            with trio.fail_after(5):
                await deleted.wait()
        assert (await other.store.range("")).entries == {}


async def test_stalled_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
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
