"""Background scrubbing of stored records."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from kbroker.protocol.errors import ErrorCode

from ..brokers import started
from ..wire import Topic, Wire, batch, connected, create_topic, fetch, produce, until

SMALL = {"internal.segment.bytes": "1000"}


async def fill(wire: Wire, name: str) -> None:
    topic = await create_topic(wire, name, configs=SMALL)
    for _ in range(10):
        assert (await produce(wire, topic, batch([bytes(300)]))).error_code == 0


def rot(path: Path) -> None:
    """Change one byte of a stored record."""
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)


async def test_bit_rot_takes_only_its_partition_offline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fast = 1 << 40
    async with (
        started(tmp_path, log_scrub_bytes_per_second=fast) as broker,
        connected(broker.endpoint) as wire,
    ):
        for name in ("rotten", "sound"):
            await fill(wire, name)
        log = broker.node.partitions.named_replica("rotten", 0).log
        assert len(log.segments) > 2
        closed = sum(
            segment.size
            for name in ("rotten", "sound")
            for segment, _ in broker.node.partitions.named_replica(
                name, 0
            ).log.segments.closed_segments()
        )
        for _ in range(2):  # each round reads everything
            assert await broker.node.maintenance.scrubber.scrub_all() == closed
        rot(Path(log.segments[1].log_path))
        assert await broker.node.maintenance.scrubber.scrub_all() < closed
        topics = {name: (await fetch(wire, Topic(name))).error_code for name in ("rotten", "sound")}
        assert topics == {"rotten": ErrorCode.KAFKA_STORAGE_ERROR, "sound": 0}
        assert await broker.node.maintenance.scrubber.scrub_all() > 0
    assert caplog.text.count("kbroker log repair") == 1


async def test_unopened_logs_are_scrubbed(tmp_path: Path) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await fill(wire, "t")
        path = Path(broker.node.partitions.named_replica("t", 0).log.segments[0].log_path)
    rot(path)
    async with started(tmp_path, log_scrub_interval_ms=100) as broker:
        await until(lambda: broker.node.partitions.opened())
        await until(lambda: broker.node.partitions.opened()[0].log.offline)


async def test_segment_deleted_during_scrubbing_is_skipped(tmp_path: Path) -> None:
    async with (
        started(tmp_path, log_scrub_bytes_per_second=5000) as broker,
        connected(broker.endpoint) as wire,
    ):
        await fill(wire, "t")
        log = broker.node.partitions.named_replica("t", 0).log
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.node.maintenance.scrubber.scrub_all)
            await trio.sleep(0.05)
            log.delete_records_before(log.high_watermark)
            await broker.node.maintenance.log_manager_tasks.checkpoint()
        assert log.offline is None
