"""Where sync passes run; what they promise is tested by those who wait for them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kbroker.storage.log import Log

from ..brokers import started
from ..wire import batch, connected, create_topic, produce


async def test_a_pass_beside_another_sync_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())
        flusher = broker.node.flusher
        sync = flusher._sync
        threads: list[bool] = []

        def noted(logs: list[Log]) -> list[tuple[Log, int]]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return sync(logs)

        monkeypatch.setattr(flusher, "_sync", noted)
        monkeypatch.setattr("kbroker.flusher.INLINE_SECONDS_MAX", 1000)
        await produce(wire, topic, batch())
        with flusher.beside_another(), flusher.beside_another():
            await produce(wire, topic, batch())
        await produce(wire, topic, batch())
        assert threads == [False, True, False]
