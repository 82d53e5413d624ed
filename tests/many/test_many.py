"""A node with many partitions, groups and connections.

The test uses a tenth of the full size, unless `--partitions` is larger (`make soak PART=many`).
Time limits apply only to the full size: a test run shares its CPU cores.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from kbroker.runtime.descriptors import RESERVE, divide

from ..wire import Topic, batch, connected, create_topic, fetch, produce, values_of
from .crowd import HOT, VALUE, Crowd, all_metadata, idle_connections, p99_ms, ping_alternately
from .server import Server

pytestmark = pytest.mark.long

FULL = 10_000
CLEAN_START_SECONDS_MAX = 5.0
CRASH_START_SECONDS_MAX = 15.0
P99_RATIO_MAX = 2.0
CONNECTION_BYTES_MAX = 5_000
COLD = "cold"
COLD_PARTITIONS = 10
RECOVERED = "opened all"


class Run:
    """A server with many partitions, and for comparison one with a single partition."""

    def __init__(self, directory: Path, partitions: int) -> None:
        self.crowd = Crowd(partitions, partitions // 5)
        self.is_full = partitions >= FULL
        descriptors_max = 20_000 if self.is_full else 700
        self._descriptors_max = divide(descriptors_max).logs + RESERVE
        self.full = Server(directory / "full", descriptors_max=descriptors_max)
        self.empty = Server(directory / "empty", descriptors_max=descriptors_max)
        self.idle_seconds = 8 if self.is_full else 1
        self.pings = 2000 if self.is_full else 100  # the p99 of few values is their maximum
        self.ratios: list[float] = []
        self._figures: list[str] = []
        self._cold = iter(range(COLD_PARTITIONS))

    def add(self, text: str) -> None:
        """Record and print a result."""
        self._figures.append(text)
        print(f"\n  {text}", end="", flush=True)

    def figures(self) -> str:
        return "figures: " + ", ".join(self._figures)

    # -- steps

    async def fill(self) -> None:
        """Create all topics, records and groups."""
        async with connected(self.empty.endpoint) as wire:
            await create_topic(wire, HOT)
        async with connected(self.full.endpoint) as wire:
            cold = await create_topic(wire, COLD, COLD_PARTITIONS)
            for index in range(COLD_PARTITIONS):
                assert (await produce(wire, cold, batch([VALUE]), partition=index)).error_code == 0
            for label, step in (
                (f"{self.crowd.partitions} partitions created in", self.crowd.create),
                ("first record for each in", self.crowd.produce),
                (f"{self.crowd.groups} groups committed in", self.crowd.commit),
            ):
                began = time.perf_counter()
                await step(wire)
                self.add(f"{label} {time.perf_counter() - began:.1f} s")

    async def idle(self, label: str) -> None:
        """Measure memory, descriptors and CPU of the idle server."""
        before = self.full.cpu_seconds()
        await trio.sleep(self.idle_seconds)
        cpu = (self.full.cpu_seconds() - before) / self.idle_seconds
        descriptors = self.full.descriptors()
        self.add(
            f"{label}: {self.full.resident_bytes() / 1e6:.0f} MB, {descriptors} descriptors, "
            f"{cpu:.1%} of a CPU core"
        )
        assert descriptors <= self._descriptors_max

    async def ping(self, label: str) -> None:
        """Measure the p99 of a hot partition on both servers."""
        async with connected(self.empty.endpoint) as one, connected(self.full.endpoint) as other:
            alone, among_many = await ping_alternately(one, other, self.pings)
        ratio = p99_ms(among_many) / p99_ms(alone)
        self.add(
            f"hot p99 {label} {p99_ms(among_many):.2f} ms, alone {p99_ms(alone):.2f} ms, "
            f"worst {max(among_many) * 1000:.0f} and {max(alone) * 1000:.0f} ms"
        )
        self.ratios.append(ratio)

    async def use_cold(self) -> None:
        """Measure the first fetch from one cold partition, and the first produce to another."""
        topic = Topic(COLD)
        async with connected(self.full.endpoint) as wire:
            await wire.works()
            began = time.perf_counter()
            row = await fetch(wire, topic, partitions=[next(self._cold)])
            fetched = time.perf_counter()
            assert values_of(row) == [VALUE]
            response = await produce(wire, topic, batch([VALUE]), partition=next(self._cold))
            produced = time.perf_counter()
            assert response.error_code == 0
        self.add(
            f"cold fetch {(fetched - began) * 1000:.1f} ms, "
            f"cold produce {(produced - fetched) * 1000:.1f} ms"
        )

    async def ask_metadata(self) -> None:
        async with connected(self.full.endpoint) as wire:
            took = []
            for _ in range(3):
                seconds, response = await all_metadata(wire)
                took.append(seconds)
            known = sum(len(topic.partitions) for topic in response.topics)
            assert known > self.crowd.partitions
        self.add(f"metadata of all {min(took) * 1000:.0f} ms")

    async def follow(self) -> None:
        async with connected(self.full.endpoint) as wire:
            count = min(1000, self.crowd.partitions)
            seconds = await self.crowd.follow(wire, count)
        self.add(f"fetch of {count} idle partitions {seconds * 1000:.1f} ms")

    async def delete(self) -> None:
        async with connected(self.full.endpoint) as wire:
            began = time.perf_counter()
            await self.crowd.delete(wire)
        self.add(f"all deleted in {time.perf_counter() - began:.1f} s")

    async def connect(self, count: int) -> None:
        """Measure the memory of idle connections."""
        before = self.full.resident_bytes()
        async with idle_connections(self.full.endpoint, count):
            await trio.sleep(1)
            each = (self.full.resident_bytes() - before) / count
        self.add(f"{count} idle connections {each / 1000:.1f} kB each")
        assert each <= CONNECTION_BYTES_MAX

    async def check(self) -> None:
        async with connected(self.full.endpoint) as wire:
            began = time.perf_counter()
            await self.crowd.check(wire)
        self.add(f"all checked in {time.perf_counter() - began:.1f} s")

    async def recovered(self) -> None:
        """Wait until the server has recovered every log after a crash."""
        began = time.perf_counter()
        while RECOVERED not in self.full.log_text():  # noqa: ASYNC110  # another process
            await trio.sleep(0.05)
        self.add(f"all recovered {time.perf_counter() - began:.1f} s later")


@asynccontextmanager
async def running(directory: Path, partitions: int) -> AsyncIterator[Run]:
    run = Run(directory, partitions)
    try:
        yield run
    finally:
        run.full.kill_if_running()
        run.empty.kill_if_running()
    shutil.rmtree(directory)  # ten thousand directories are not worth keeping


async def test_node_with_many_partitions_groups_and_connections_keeps_limits(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with running(tmp_path, request.config.getoption("--partitions")) as run:
        await run.empty.start()
        run.add(f"new: {await run.full.start():.2f} s to the first response")
        await run.fill()
        await run.idle("in use")
        await run.ping("among many")
        await run.ask_metadata()
        await run.follow()
        run.add(f"clean stop {await run.full.stop():.1f} s")

        clean = await run.full.start()
        run.add(f"start after it {clean:.2f} s")
        await run.use_cold()
        await run.idle("idle")
        await run.connect(1000 if run.is_full else 100)
        await run.ping("after the start")
        await run.check()
        async with connected(run.full.endpoint) as wire:
            await run.crowd.produce(wire)
        await run.full.stop(signal.SIGKILL)

        killed = await run.full.start()
        run.add(f"start after kill -9 {killed:.2f} s")
        await run.use_cold()
        await run.ping("while logs are recovered")
        await run.recovered()
        await run.check()
        await run.idle("all opened")
        await run.delete()
        print("\n" + run.figures())
        if run.is_full:
            assert clean < CLEAN_START_SECONDS_MAX
            assert killed < CRASH_START_SECONDS_MAX
            assert max(run.ratios) < P99_RATIO_MAX
