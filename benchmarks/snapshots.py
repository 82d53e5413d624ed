"""What the test kit's brokers cost: `python -m benchmarks.snapshots`

* Virtual clusters: made in one thread and dropped, one after the other.
* Snapshots: of 1 GB in memory and in a data folder, then a fork and a restore; beside them those of a
  broker that holds next to nothing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import trio

from kbroker.protocol.records import Record, encode_batch, read_header
from kbroker.testing import BrokerThread, LocalBroker, RunningBroker

CLUSTERS = 200
CLUSTER_MS_MAX = 5
MARKS = 20
MARK_MS_MAX = 5
GIGABYTE = 10**9
RECORD_BYTES = 1000
BATCH_RECORDS = 100
BATCHES_AT_ONCE = 100


def main() -> None:
    thread = BrokerThread()
    slow = [measure_clusters(thread)]
    for size in (10_000, GIGABYTE):
        slow.append(measure_snapshots(thread, size, "memory", {}))
        with tempfile.TemporaryDirectory() as folder:
            slow.append(measure_snapshots(thread, size, "folder", {"data_dir": f"{folder}/data"}))
    thread.close()
    sys.exit(1 if any(slow) else 0)


def measure_clusters(thread: BrokerThread) -> bool:
    """Returns whether one costs too much."""
    made, dropped = [], []
    for _ in range(CLUSTERS):
        broker, milliseconds = timed(lambda: LocalBroker(thread=thread))
        made.append(milliseconds)
        dropped.append(timed(broker.close)[1])
    print(
        f"figures: a virtual cluster is made in {statistics.median(made):.2f} ms and dropped in "
        f"{statistics.median(dropped):.2f} ms (medians of {CLUSTERS})",
        flush=True,
    )
    return statistics.median(made) + statistics.median(dropped) > CLUSTER_MS_MAX


def measure_snapshots(thread: BrokerThread, size: int, kind: str, settings: dict[str, Any]) -> bool:
    """Returns whether one takes too long."""
    config = {"flush.policy": "os", "memory.limit.bytes": str(4 * GIGABYTE)}
    with LocalBroker(topics={"t": 1}, config=config, thread=thread, **settings) as broker:

        async def write(running: RunningBroker) -> None:
            await fill(running, size)

        broker.run_in_broker(write)
        marks = []
        for _ in range(MARKS):
            broker.produce("t", "one more")  # so that there is something to close
            snapshot, milliseconds = timed(broker.snapshot)
            marks.append(milliseconds)
        fork, fork_ms = timed(lambda: broker.fork(snapshot))
        fork.close()
        _, restore_ms = timed(lambda: broker.restore(snapshot))
    print(
        f"figures: snapshot of {size / 1e6:,.2f} MB, {kind}: first {marks[0]:.2f} ms, then "
        f"{statistics.median(marks):.2f} ms, worst {max(marks):.2f} ms; fork {fork_ms:.1f} ms, "
        f"restore {restore_ms:.1f} ms",
        flush=True,
    )
    return statistics.median(marks) > MARK_MS_MAX


async def fill(running: RunningBroker, size: int) -> None:
    """Write so many bytes into t-0."""
    records = [Record(None, b"x" * RECORD_BYTES, 0) for _ in range(BATCH_RECORDS)]
    replica = running.broker.node.named_replica("t", 0)
    for number in range(size // (RECORD_BYTES * BATCH_RECORDS) + 1):
        batch = encode_batch(records)
        replica.append(memoryview(batch), read_header(batch), running.clock.log_ms())
        if number % BATCHES_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and how many ms it took."""
    began = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
