"""One way to read and write Kafka with Spark, in its own process, started by `benchmarks.spark`.

It prints a JSON object per line for each run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZES = {"100 B": 100, "1 kB": 1000}
PARTITIONS = 4
WAYS = ("connector", "wire", "files")
# Number of batches of a stream.
BATCHES = 4
# Expressions that use every column, so that no way can skip one.
EVERYTHING = (
    "count(*) rows",
    "sum(length(key))",
    "sum(length(value))",
    "sum(length(topic))",
    "max(partition)",
    "max(offset)",
    "max(timestamp)",
    "max(timestampType)",
)


class WrongCount(Exception):
    """A way read more or fewer records than were written."""


class Stage(NamedTuple):
    """Parameters of a run: the address of the broker and its data directory.

    Attributes:
        directory: Directory for checkpoints of streams.
    """

    way: str
    address: str
    data: str
    records: int
    directory: str


def topic_of(size: int) -> str:
    return f"records-of-{size}"


class Way:
    """One of `WAYS` in a new session."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.format = "kafka" if stage.way == "connector" else "kbroker"
        self.spark = session("benchmark", settings={"spark.driver.memory": "2g"})
        self._place = {"kafka.bootstrap.servers": stage.address}

    def runs(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the measurements in their order."""
        for label, size in SIZES.items():
            yield f"batch {label}, first read", partial(self.read, size)
            yield f"batch {label}, second read", partial(self.read, size)
            yield f"stream {label}, {BATCHES} batches", partial(self.stream, size)
        if self.stage.way != "files":
            for label, size in SIZES.items():
                yield f"write {label}", partial(self.write, size)

    def read(self, size: int) -> None:
        """Read all records in one batch."""
        frame = self.spark.read.format(self.format).options(**self._source(size)).load()
        self._check(_rows(frame))

    def stream(self, size: int) -> None:
        """Read all records in a few batches of a stream."""
        limit = {"maxOffsetsPerTrigger": str(-(-self.stage.records // BATCHES))}
        options = {**self._source(size), **limit}
        frame = self.spark.readStream.format(self.format).options(**options).load()
        rows: list[int] = []
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: rows.append(_rows(batch)))
            .option("checkpointLocation", f"{self.stage.directory}/checkpoint-{size}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self._check(sum(rows))

    def write(self, size: int) -> None:
        """Write as many records as are read into another topic."""
        frame = self.spark.range(0, self.stage.records, 1, PARTITIONS).selectExpr(
            "cast(cast(id as string) as binary) key",
            f"cast(rpad(cast(id as string), {size}, 'x') as binary) value",
        )
        options = {**self._place, "topic": f"written-of-{size}"}
        frame.write.format(self.format).mode("append").options(**options).save()

    def _source(self, size: int) -> dict[str, str]:
        place = {"path": self.stage.data} if self.stage.way == "files" else self._place
        return {"subscribe": topic_of(size), "startingOffsets": "earliest", **place}

    def _check(self, rows: int) -> None:
        if rows != self.stage.records:
            raise WrongCount(f"{self.stage.way} read {rows} of {self.stage.records} records")


def _rows(frame: DataFrame) -> int:
    rows: int = frame.selectExpr(*EVERYTHING).collect()[0].rows
    return rows


def cpu_seconds() -> float:
    """Return the CPU time of this process and its descendants: the JVM and its workers."""
    total = 0
    family = {os.getpid()}
    for pid, parent, ticks in sorted(_processes()):
        if parent in family:
            family.add(pid)
        if pid in family:
            total += ticks
    return total / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield PID, parent and CPU time (ticks, including ended children) of each process."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(directory.name), int(fields[1]), sum(map(int, fields[11:15]))


def main() -> None:
    stage = Stage(*json.loads(sys.argv[1]))
    way = Way(stage)
    for row, run in way.runs():
        cpu, began = cpu_seconds(), time.perf_counter()
        run()
        sample: dict[str, Any] = {"row": row, "way": stage.way}
        sample["seconds"] = time.perf_counter() - began
        sample["cpu"] = cpu_seconds() - cpu
        print(json.dumps(sample), flush=True)
    way.spark.stop()


if __name__ == "__main__":
    main()
