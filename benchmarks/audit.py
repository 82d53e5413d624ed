"""Benchmark of `kbroker audit`, alone and against a lake: `python -m benchmarks.audit [RECORDS]`.

Requires confluent-kafka and pyarrow (`pip install 'kbroker[spark]'`). The broker stores 100-byte
records in four partitions on disk. pyarrow writes the lake in the archiver's raw format.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from kbroker.pipelines.lake.layout import DATE, HOUR, RECORD, file_name
from kbroker.testing import LocalBroker

RECORDS = 10_000_000
PARTITIONS = 4
FILE_ROWS = 250_000
TOPIC = "audited"
TIME = 1_700_000_000_000
KEYS = 1_000_000
VALUE = b"v" * 80 + b"%010d"


def main(records: int) -> int:
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalBroker(data_dir=f"{directory}/data", topics={TOPIC: PARTITIONS}) as broker,
    ):
        produce(broker.bootstrap_servers, records)
        write_lake(Path(directory) / "lake", records)
        status = 0
        for words in ([], ["--against-lake", f"{directory}/lake"]):
            status |= measure(broker.bootstrap_servers, words, records)
        return status


def produce(bootstrap: str, records: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    for number in range(records):
        while True:
            try:
                producer.produce(
                    TOPIC,
                    key=b"%07d" % (number % KEYS),
                    value=VALUE % number,
                    partition=number % PARTITIONS,
                    timestamp=TIME,
                )
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def write_lake(lake: Path, records: int) -> None:
    directory = lake / TOPIC / f"{DATE}=2023-11-14" / f"{HOUR}=22"
    directory.mkdir(parents=True)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    for partition in range(PARTITIONS):
        last = len(range(partition, records, PARTITIONS))
        for first in range(0, last, FILE_ROWS):
            offsets = range(first, min(first + FILE_ROWS, last))
            numbers = [offset * PARTITIONS + partition for offset in offsets]
            count = len(numbers)
            fields = {
                "topic": pa.array([TOPIC] * count),
                "partition": pa.array([partition] * count, pa.int32()),
                "offset": pa.array(offsets, pa.int64()),
                "timestamp": pa.array([TIME] * count, pa.int64()).cast(pa.timestamp("ms", "UTC")),
                "timestampType": pa.array([0] * count, pa.int32()),
                "key": pa.array([b"%07d" % (number % KEYS) for number in numbers]),
                "headers": pa.nulls(count, pa.list_(header)),
                "tombstone": pa.array([False] * count),
            }
            record = pa.StructArray.from_arrays(list(fields.values()), list(fields))
            values = pa.array([VALUE % number for number in numbers])
            path = directory / file_name(partition, offsets[0], offsets[-1])
            pq.write_table(pa.table({"value": values, RECORD: record}), path)


def measure(bootstrap: str, words: list[str], records: int) -> int:
    command = [sys.executable, "-m", "kbroker", "audit", TOPIC, "-b", bootstrap, *words]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, peak_of(process.pid))
            time.sleep(0.2)
        assert process.stdout is not None
        printed = process.stdout.read().splitlines()
    took = time.monotonic() - began
    against = " against a lake" if words else ""
    print(
        f"figures: {records:,} records{against} audited in {took:.0f} s, {records / took:,.0f}/s, "
        f"at most {peak} MB; {printed[-1] if printed else 'failed'}",
        flush=True,
    )
    return process.returncode


def peak_of(pid: int) -> int:
    """Return the peak memory of a process in MB, or 0 if it has exited."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) // 1024 if found else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS))
