"""Where sync passes run; what they promise is tested by those who wait for them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.storage import files
from kbroker.storage.log import Log

from ..brokers import started
from ..wire import batch, connected, create_topic, produce, produce_request


async def test_a_pass_beside_another_sync_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch())
        flusher = broker.node.partitions.flusher
        sync = flusher._sync
        threads: list[bool] = []

        def noted(logs: list[Log]) -> list[tuple[Log, int]]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return sync(logs)

        monkeypatch.setattr(flusher, "_sync", noted)
        monkeypatch.setattr("kbroker.partitions.flusher.INLINE_SECONDS_MAX", 1000)
        await produce(wire, topic, batch())
        with flusher.beside_another(), flusher.beside_another():
            await produce(wire, topic, batch())
        await produce(wire, topic, batch())
        assert threads == [False, True, False]


async def test_acks_of_many_partitions_rest_on_a_sync_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sync of the file system would not do: not every one keeps what that promises."""
    count = 24
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", count)
        fsync = files._fsync
        synced: set[str] = set()

        def noted(fd: int) -> None:
            synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")).parent.name)
            fsync(fd)

        monkeypatch.setattr(files, "_fsync", noted)
        rows = [ProduceRequest.Partition(index=n, records=batch()) for n in range(count)]
        asked = produce_request(topic, None)
        asked.topic_data[0].partition_data = rows
        answer = await wire.ask(ApiKey.PRODUCE, 9, asked)
        assert [row.error_code for row in answer.responses[0].partition_responses] == [0] * count
        assert synced == {f"t-{number}" for number in range(count)}
