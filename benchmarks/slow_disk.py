"""Benchmark of reads from a slow disk during writes at a constant rate.

python -m benchmarks.slow_disk [MB/s]

A control group limits the broker's disk reads to 50 MB/s, or the given rate, so root on Linux is
required. A client reads a log that is not in the page cache, while another one sends 1,000 records
per second to another topic.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .brokers import BenchmarkFailed, Broker, Kafka, Kbroker
from .python_client import PythonClient
from .wire_client import WireClient

MEGABYTES = 50
ROUNDS = 3
# Share of the 5 GB in the row "cold read": six seconds at 50 MB/s.
SCALE = 0.06
WARM_SECONDS = {"kbroker": 5, "Kafka": 40}
KINDS: dict[str, type[Broker]] = {"kbroker": Kbroker, "Kafka": Kafka}
# Directories of control groups of versions 1 and 2.
FIRST, SECOND = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
NAME = "kbroker-slow-disk"


@contextmanager
def slow_disk(process: int, directory: Path, megabytes: int) -> Iterator[None]:
    """Limit the reads of a process from the disk of a directory, in MB/s."""
    device = os.stat(directory).st_dev
    disk = f"{os.major(device)}:{os.minor(device)}"
    is_first = FIRST.is_dir()
    parent = FIRST if is_first else SECOND
    group = parent / NAME
    file = group / ("blkio.throttle.read_bps_device" if is_first else "io.max")
    some, none = ("{} {}", "{} 0") if is_first else ("{} rbps={}", "{} rbps=max")
    try:
        group.mkdir(exist_ok=True)
        file.write_text(some.format(disk, megabytes * 1_000_000))
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        raise BenchmarkFailed(f"cannot limit disk reads: {error}") from error
    try:
        yield
    finally:
        file.write_text(none.format(disk))
        (parent / "cgroup.procs").write_text(str(process))
        group.rmdir()


def measure(name: str, megabytes: int) -> dict[str, float]:
    """Return the read rate (MB/s) and the p99 of the writes (ms) with one broker."""
    with tempfile.TemporaryDirectory() as directory:
        broker = KINDS[name](Path(directory) / "broker", durable=False)
        try:
            PythonClient(broker, 1, "warm").warm_up(WARM_SECONDS[name])
            client = WireClient(PythonClient(broker, SCALE, "read"))
            (process,) = broker.process_ids
            with slow_disk(process, Path(directory), megabytes):
                return {sample.row: sample.value for sample in client.cold()}
        finally:
            broker.stop()


def main() -> None:
    """Print the result of each round, and the median of each broker."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else MEGABYTES
    for name in KINDS:
        found = []
        for _ in range(ROUNDS):
            rows = measure(name, megabytes)
            found.append(rows["cold"])
            print(
                f"{name}: read {rows['cold read']:.1f} MB/s, p99 {rows['cold']:.2f} ms", flush=True
            )
        print(f"{name}: median p99 {statistics.median(found):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
