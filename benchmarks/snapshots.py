"""Benchmark of the test kit's brokers: `python -m benchmarks.snapshots`.

* Virtual clusters are created and dropped in one thread, one after the other.
* Snapshots are taken of a broker that is nearly empty, and of one with 1 GB. Both are measured in
  memory and in a data directory. A fork and a restore follow.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import trio

from kbroker.protocol.records import Record, encode_batch, read_header
from kbroker.testing import BrokerThread, LocalBroker, RunningBroker

CLUSTERS = 200
CLUSTER_MS_MAX = 5
SNAPSHOTS = 20
SNAPSHOT_MS_MAX = 5  # CPU time, like CLUSTER_MS_MAX
GIGABYTE = 10**9
RECORD_BYTES = 1000
BATCH_RECORDS = 16
BATCHES_AT_ONCE = 100


def main() -> None:
    thread = BrokerThread()
    slow = [measure_clusters(thread)]
    for size in (10_000, GIGABYTE):
        slow.append(measure_snapshots(thread, size, "memory", {}))
        with tempfile.TemporaryDirectory() as directory:
            slow.append(
                measure_snapshots(thread, size, "directory", {"data_dir": f"{directory}/data"})
            )
    thread.close()
    sys.exit(1 if any(slow) else 0)


def measure_clusters(thread: BrokerThread) -> bool:
    """Measure virtual clusters; return True if they exceed CLUSTER_MS_MAX of CPU time."""
    created, dropped = [], []
    for _ in range(CLUSTERS):
        broker, took = timed(lambda: LocalBroker(thread=thread))
        created.append(took)
        dropped.append(timed(broker.close)[1])
    print(
        f"figures: a virtual cluster is created in {median(created)} and dropped in {median(dropped)} "
        f"(medians of {CLUSTERS})",
        flush=True,
    )
    return median(created).cpu_ms + median(dropped).cpu_ms > CLUSTER_MS_MAX


def measure_snapshots(thread: BrokerThread, size: int, kind: str, settings: dict[str, Any]) -> bool:
    """Measure snapshots; return True if they exceed SNAPSHOT_MS_MAX of CPU time."""
    config = {"memory.limit.bytes": str(4 * GIGABYTE)}
    with LocalBroker(topics={"t": 1}, config=config, thread=thread, **settings) as broker:

        async def write(running: RunningBroker) -> None:
            await fill(running, size)

        broker.run_in_broker(write)
        durations = []
        for _ in range(SNAPSHOTS):
            broker.produce("t", "one more")  # so that the snapshot has new data
            snapshot, took = timed(broker.snapshot)
            durations.append(took)
        fork, fork_took = timed(lambda: broker.fork(snapshot))
        fork.close()
        _, restore_took = timed(lambda: broker.restore(snapshot))
    print(
        f"figures: {size / 1e6:,.2f} MB in {kind}: first snapshot {durations[0]}, then "
        f"{median(durations[1:])}; fork {fork_took}, restore {restore_took}",
        flush=True,
    )
    return median(durations).cpu_ms > SNAPSHOT_MS_MAX


async def fill(running: RunningBroker, size: int) -> None:
    """Write `size` bytes into t-0."""
    records = [Record(None, b"x" * RECORD_BYTES, 0) for _ in range(BATCH_RECORDS)]
    replica = running.broker.node.partitions.named_replica("t", 0)
    for number in range(size // (RECORD_BYTES * BATCH_RECORDS) + 1):
        batch = encode_batch(records)
        replica.append(memoryview(batch), read_header(batch), running.clock.log_ms())
        if number % BATCHES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    await running.broker.node.partitions.flusher.sync_now()
    await running.broker.node.maintenance.log_manager_tasks.checkpoint()


class Duration(NamedTuple):
    """Wall time and CPU time in ms; CPU time does not depend on other load."""

    wall_ms: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.wall_ms:.2f} ms ({self.cpu_ms:.2f} ms of CPU)"


def median(many: Sequence[Duration]) -> Duration:
    """Return the median wall time and the median CPU time."""
    return Duration(*(statistics.median(each) for each in zip(*many, strict=True)))


def timed(call: Callable[[], Any]) -> tuple[Any, Duration]:
    """Call a function; return its result and its duration."""
    began, used = time.perf_counter(), time.process_time()
    result = call()
    took = Duration((time.perf_counter() - began) * 1000, (time.process_time() - used) * 1000)
    return result, took


if __name__ == "__main__":
    main()
