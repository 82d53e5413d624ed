"""Old records that are read from a slow disk, beside records that others send at a steady rate.

    python -m benchmarks.slow_disk [MB/s]

Each broker reads from the disk at 50 MB/s, or as many as are named, by a control group; so this is for an
administrator of a Linux system. A client reads a log that is on the disk only, while another one sends 1,000
records a second to another topic.
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
SCALE = 0.06
"""Of the 5 GB of the table's row: six seconds."""
WARM_SECONDS = {"kbroker": 5, "Kafka": 40}
KINDS: dict[str, type[Broker]] = {"kbroker": Kbroker, "Kafka": Kafka}
FIRST, SECOND = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")
"""Where control groups of the two versions are."""
NAME = "kbroker-slow-disk"


@contextmanager
def slow_disk(process: int, directory: Path, megabytes: int) -> Iterator[None]:
    """Let a process read at so many MB/s at most from the disk on which a directory is."""
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
        raise BenchmarkFailed(f"the disk cannot be made slow here: {error}") from error
    try:
        yield
    finally:
        file.write_text(none.format(disk))
        (parent / "cgroup.procs").write_text(str(process))
        group.rmdir()


def measure(name: str, megabytes: int) -> dict[str, float]:
    """The rows of one broker: what the reader gets (MB/s), and the p99 of the others (ms)."""
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
    """Print a line for each round, and one for their medians."""
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
