"""Tests of reads outside the page cache: only the client that needs the data waits for the disk."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.cluster import OFFSETS_TOPIC
from kbroker.protocol.message_sets import read_messages
from kbroker.protocol.records import Record, read_records
from kbroker.runtime.disk_reads import DiskReads
from kbroker.storage import cached
from kbroker.storage.cached import Reading
from kbroker.storage.future import FutureLog

from ..brokers import started
from ..cold_disk import ColdDisk
from ..handlers.test_log_dirs import move, wait_until_moved
from ..net.test_server import commit, committed
from ..security.certificates import Authority
from ..security.clients import encrypted
from ..security.test_tls_listeners import secured
from ..sharing import ShareMember, initialize
from ..wire import (
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch,
    list_offset,
    produce,
    until,
    values_of,
)

FIRST_MS = 1_000_000
VALUE_BYTES = 3000
# Number of batches, and of records per batch. A small batch has about 3 KB, a large one 90 KB: the
# server sends ranges of up to 64 KiB from a buffer (`JOIN_BYTES`), and larger ones from the file.
BATCHES = {"small": (400, 1), "large": (40, 30)}
SEGMENT_BYTES = 1 << 20


def value(number: int) -> bytes:
    """Return a value that does not compress and identifies the record."""
    return b"%08d" % number + os.urandom(VALUE_BYTES)


async def fill(wire: Wire, kind: str) -> tuple[Topic, list[bytes]]:
    """Create a topic with several segments and timestamps 1 ms apart. Return it and its values."""
    topic = await create_topic(wire, "t", configs={"segment.bytes": str(SEGMENT_BYTES)})
    count, size = BATCHES[kind]
    values = [value(number) for number in range(count * size)]
    for first in range(0, len(values), size):
        records = [
            Record(None, values[number], FIRST_MS + number) for number in range(first, first + size)
        ]
        row = await produce(wire, topic, batch(records))
        assert row.error_code == 0
    return topic, values


async def read_all(wire: Wire, topic: Topic, count: int, **settings: Any) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < count:
        row = await fetch(wire, topic, len(found), **settings)
        found += [r.value for r in read_records(row.records) if r.offset >= len(found)]
    return found


Read: TypeAlias = Callable[[Broker, Wire, Topic, list[bytes]], Awaitable[None]]


async def fetch_from_the_beginning(
    _: Broker, wire: Wire, topic: Topic, values: list[bytes]
) -> None:
    assert await read_all(wire, topic, len(values)) == values


async def fetch_small_responses(_: Broker, wire: Wire, topic: Topic, values: list[bytes]) -> None:
    found = await read_all(wire, topic, 20, partition_max_bytes=10_000)
    assert found == values[: len(found)]


async def fetch_committed(_: Broker, wire: Wire, topic: Topic, values: list[bytes]) -> None:
    assert await read_all(wire, topic, len(values), isolation_level=1) == values


async def fetch_single_offsets(_: Broker, wire: Wire, topic: Topic, values: list[bytes]) -> None:
    for offset in (len(values) // 2, len(values) // 3, len(values) - 1, 7):
        row = await fetch(wire, topic, offset, partition_max_bytes=100_000)
        (found, *_rest) = [r.value for r in read_records(row.records) if r.offset == offset]
        assert found == values[offset]


async def fetch_as_old_consumer(_: Broker, wire: Wire, topic: Topic, values: list[bytes]) -> None:
    row = await fetch(wire, topic, 0, 2)
    assert [each.value for each in read_messages(row.records, 1)][:30] == values[:30]


async def list_offsets_by_timestamp(
    _: Broker, wire: Wire, topic: Topic, values: list[bytes]
) -> None:
    for offset in (len(values) // 2, len(values) - 3, 5):
        assert (await list_offset(wire, topic, FIRST_MS + offset)).offset == offset


async def list_offset_of_max_timestamp(
    _: Broker, wire: Wire, topic: Topic, values: list[bytes]
) -> None:
    assert (await list_offset(wire, topic, -3)).offset == len(values) - 1


async def fetch_as_share_member(
    broker: Broker, wire: Wire, topic: Topic, values: list[bytes]
) -> None:
    await initialize(broker.node, topic)
    member = ShareMember(wire, topic)
    await member.begin(0)
    with trio.fail_after(20):
        while not (taken := await member.acquire()):
            pass
    assert taken[0][0] == 0


READS: list[Read] = [
    fetch_from_the_beginning,
    fetch_small_responses,
    fetch_committed,
    fetch_single_offsets,
    fetch_as_old_consumer,
    list_offsets_by_timestamp,
    list_offset_of_max_timestamp,
    fetch_as_share_member,
]


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
async def test_cold_read_does_not_block_event_loop(
    read: Read, kind: str, restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, the broker reads indexes from the disk and validates batches."""
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic, values = await fill(wire, kind)
        if not restarted:
            disk = ColdDisk(monkeypatch, directory)
            await read(broker, wire, topic, values)
    if restarted:
        async with started(directory) as broker, connected(broker.endpoint) as wire:
            broker.node.partitions.named_hosted("t", 0)  # opens the log
            disk = ColdDisk(monkeypatch, directory)
            await read(broker, wire, topic, values)
    assert disk.waits == []
    assert disk.loads > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", BATCHES)
async def test_cold_read_over_tls_does_not_block_event_loop(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, directory = Authority(tmp_path), tmp_path / "data"
    async with (
        secured(authority, directory) as broker,
        encrypted(broker.endpoint, authority.context()) as wire,
    ):
        topic, values = await fill(wire, kind)
        disk = ColdDisk(monkeypatch, directory)
        assert await read_all(wire, topic, len(values)) == values
    assert disk.waits == []
    assert disk.loads > 0


async def test_coordinator_load_does_not_block_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        for offset in range(100):
            await commit(wire, "g", "t", offset)
        disk = ColdDisk(monkeypatch, directory)
        groups = broker.node.groups
        ((index, _),) = groups._shards.items()
        # Unload the group coordinator shard, and load it again.
        del groups._shards[index]
        groups._begin_if_led(broker.node.cluster.topics[OFFSETS_TOPIC], index)
        await until(lambda: index in groups._shards)
        assert await committed(wire, "g", "t") == 99
    assert disk.waits == []
    assert disk.loads > 0


async def test_replica_move_does_not_block_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        topic, values = await fill(wire, "large")
        disk = ColdDisk(monkeypatch, tmp_path)
        assert await move(wire, directories[1], ("t", [0])) == [0]
        await wait_until_moved(wire, ("t", 0), directories[1])
        assert await read_all(wire, topic, len(values)) == values
    assert disk.waits == []
    assert disk.loads > 0


async def test_cancelled_move_during_cold_read_copies_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = [tmp_path / "one", tmp_path / "two"]
    async with started(directories) as broker, connected(broker.endpoint) as wire:
        await fill(wire, "large")
        partitions = broker.node.partitions
        load, copied = DiskReads.load, []
        dropped = trio.Event()

        async def drop_future(self: DiskReads, absent: cached.NotCached) -> None:
            await load(self, absent)
            partitions.logs.drop_future(("t", 0))
            dropped.set()

        def copy(self: Any, bytes_max: int, reading: Reading, *, now_ms: int) -> bool:
            if dropped.is_set():
                copied.append(bytes_max)
            return bool(reading(self.source.read, 0, bytes_max, limit=1))

        monkeypatch.setattr(DiskReads, "load", drop_future)
        monkeypatch.setattr(FutureLog, "copy", copy)
        ColdDisk(monkeypatch, tmp_path)
        await move(wire, directories[1], ("t", [0]))
        with trio.fail_after(20):
            await dropped.wait()
        await trio.testing.wait_all_tasks_blocked()
    assert copied == []


async def test_read_waits_if_pages_are_evicted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without a cache behaves like this: requests are still answered."""
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic, values = await fill(wire, "large")

        def fail_to_read(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
            raise BlockingIOError

        # Any flag: it enables non-blocking reads on systems that lack RWF_NOWAIT.
        monkeypatch.setattr(cached, "_NO_WAIT", 1)
        monkeypatch.setattr(os, "preadv", fail_to_read, raising=False)
        for offset in (0, len(values) // 2):
            row = await fetch(wire, topic, offset)
            assert values[offset] in values_of(row)


async def test_read_succeeds_if_system_does_not_report_cached_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic, values = await fill(wire, "large")

        def report_unsupported(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
            raise OSError(errno.EOPNOTSUPP, "not on this file system")

        # Any flag: it enables non-blocking reads on systems that lack RWF_NOWAIT.
        monkeypatch.setattr(cached, "_NO_WAIT", 1)
        monkeypatch.setattr(os, "preadv", report_unsupported, raising=False)
        assert await read_all(wire, topic, len(values)) == values


async def test_cold_read_closes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open file that is deleted would occupy space until the garbage collector runs."""
    directory = tmp_path / "data"
    async with started(directory) as broker, connected(broker.endpoint) as wire:
        topic, values = await fill(wire, "large")
        disk = ColdDisk(monkeypatch, directory)
        gc.disable()
        try:
            for read in (fetch_from_the_beginning, fetch_single_offsets, list_offsets_by_timestamp):
                await read(broker, wire, topic, values)
            active = broker.node.partitions.named_replica("t", 0).log.segments[-1].log_path
            open_paths = open_files()
        finally:
            gc.enable()
    assert disk.loads > 0
    assert {each for each in open_paths if "/t-0/" in each} <= {active}


def open_files() -> list[str]:
    return [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]


async def test_fetch_of_few_old_records_does_not_probe_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads find the batch and its end; the third one returns its bytes."""
    reads = []
    preadv = os.preadv

    def count_read(fd: int, *args: Any) -> int:
        reads.append(args)
        return preadv(fd, *args)

    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        for size in (10, 8000):
            await produce(wire, topic, batch([bytes(size)]))
        await fetch(wire, topic, partition_max_bytes=1)
        monkeypatch.setattr(os, "preadv", count_read)
        row = await fetch(wire, topic, partition_max_bytes=1)
    assert values_of(row) == [bytes(10)]
    assert len(reads) == 3
