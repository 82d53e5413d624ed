"""Benchmark of `kbroker replay`: from a topic, by key, and from NDJSON.

Broker and replay run in a process each, so they use two cores. For each source, it prints the rate
and the CPU time per record, including the start of the program.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDS = int(os.environ.get("RECORDS", "1000000"))
VALUE_BYTES = 90
KBROKER = [sys.executable, "-m", "kbroker"]
TOPICS = ("orders:4", "kept:4", "by-key:3", "lines:4", "rated:4")
RUNS = {
    "topic, partitions kept": ["orders", "--to-topic", "kept"],
    "topic, by key": ["orders", "--to-topic", "by-key"],
    "topic, in order of time": ["orders", "--to-topic", "rated", "--rate", "1000000000"],
    "lines of JSON": ["--ndjson", "orders.ndjson", "--to-topic", "lines"],
}


def write_lines(path: Path) -> None:
    """Write records of 100 bytes in four partitions, a millisecond apart."""
    with path.open("w") as file:
        for at in range(RECORDS):
            row = {
                "partition": at % 4,
                "timestamp": 1_767_261_600_000 + at,
                "key": f"key-{at % 1000:06}",
                "value": "x" * VALUE_BYTES,
            }
            file.write(json.dumps(row) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write_lines(directory / "orders.ndjson")
        topics = [word for topic in TOPICS for word in ("--topic", topic)]
        serve = [*KBROKER, "serve", "--memory", "--port", "0", "--port-file", "port", *topics]
        with subprocess.Popen(serve, cwd=directory, stdout=subprocess.PIPE, text=True) as broker:
            try:
                assert broker.stdout is not None
                while not broker.stdout.readline().startswith("ready"):
                    assert broker.poll() is None, "the broker did not start"
                environ = os.environ | {
                    "KBROKER_BOOTSTRAP": (directory / "port").read_text().strip()
                }
                run(directory, environ, ["--ndjson", "orders.ndjson", "--to-topic", "orders"])
                for source, words in RUNS.items():
                    rate, micros = run(directory, environ, words)
                    print(f"{source:24} {rate:>10} records/s {micros:>6.1f} us each", flush=True)
            finally:
                broker.terminate()


def run(directory: Path, environ: dict[str, str], words: list[str]) -> tuple[str, float]:
    """Run a replay; return the printed rate, and the CPU time per record in µs."""
    before = used()
    done = subprocess.run(
        [*KBROKER, "replay", *words],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"([\d,]+) records/s", done.stderr)
    assert found, done.stderr
    return found[1], (used() - before) / RECORDS * 1e6


def used() -> float:
    """Return the CPU seconds of all child processes that have exited."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
