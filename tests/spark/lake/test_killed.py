"""Kills of the driver and the JVM under load: the lake is exact after the archiver resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.pipelines.lake import reading
from kbroker.pipelines.lake.checking import check
from kbroker.pipelines.lake.commits import Counts
from kbroker.testing import LocalBroker

from .lakes import HOUR_MS, START_MS, produce

# RECORDS is the number of records per hour and partition.
HOURS, PARTITIONS, RECORDS = 3, 2, 300
BAD = [number for number in range(RECORDS) if number % 100 == 7]
WAIT_SECONDS = 300


def start(broker: LocalBroker, lake: Path, *more: str) -> subprocess.Popen[str]:
    words = ["-b", broker.bootstrap_servers, "--batch", "400", "--every", "0", "--merge-every", "3"]
    return subprocess.Popen(
        [sys.executable, "-m", "kbroker", "lake", "archive", str(lake), "t", *words, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_archiver_killed_under_load_loses_and_duplicates_nothing(
    broker: LocalBroker, tmp_path: Path
) -> None:
    broker.create_topic("t", partitions=PARTITIONS, configs={"retention.ms": "-1"})
    values = [b"bad" if number in BAD else {"n": number} for number in range(RECORDS)]
    for hour in range(HOURS):
        for partition in range(PARTITIONS):
            at = START_MS + hour * HOUR_MS
            produce(broker, "t", values, partition=partition, timestamp=at)
    ends = [sum(1 for one in broker.records("t") if one.partition == number) for number in (0, 1)]
    archiving = start(broker, tmp_path)
    give_up_at = time.monotonic() + WAIT_SECONDS
    while len(reading.files(tmp_path, "t")) < 3:
        assert archiving.poll() is None, archiving.stderr and archiving.stderr.read()
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    os.killpg(archiving.pid, signal.SIGKILL)
    archiving.communicate()
    archived = sum(file.last - file.first + 1 for file in reading.files(tmp_path, "t"))
    assert archived < sum(ends)

    output, errors = start(broker, tmp_path, "--once").communicate(timeout=WAIT_SECONDS)

    assert "records of t in" in output, errors
    checked = check(tmp_path, "t")
    assert checked.problems == []
    bad = HOURS * len(BAD)
    assert checked.counts == Counts(sum(ends) - PARTITIONS * bad, PARTITIONS * bad)
    for number, end in enumerate(ends):
        offsets = [
            row["record"]["offset"]
            for batch in reading.records(tmp_path, "t", number)
            for row in batch.to_pylist()
        ]
        assert len(set(offsets)) == len(offsets) == end - bad


def java_of(pid: int) -> int | None:
    """Return the PID of the JVM that a process has started, or None."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = path.read_text().rpartition(")")
            if name.endswith("(java") and int(fields.split()[1]) == pid:
                return int(path.parent.name)
    return None


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["alone", "with its JVM"])
def test_signal_during_spark_start_ends_archiver_silently(
    broker: LocalBroker, tmp_path: Path, kill: Callable[[int, int], None]
) -> None:
    """The archiver writes nothing and prints nothing about Java."""
    broker.create_topic("t")
    archiving = start(broker, tmp_path)
    give_up_at = time.monotonic() + WAIT_SECONDS
    while (java := java_of(archiving.pid)) is None:
        assert archiving.poll() is None, archiving.stderr and archiving.stderr.read()
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    kill(archiving.pid, signal.SIGTERM)
    output, errors = archiving.communicate(timeout=WAIT_SECONDS)
    assert (archiving.returncode, output, errors) == (0, "", "")
    while Path(f"/proc/{java}").exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
