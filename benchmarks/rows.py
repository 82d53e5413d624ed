"""All measured rows, by name, in the order of the table."""

from __future__ import annotations

from typing import NamedTuple

SIZES = {"100 B": 100, "1 kB": 1000, "10 kB": 10_000}
# Bytes that a bulk row writes and reads.
BULK_BYTES = {"100 B": 100_000_000, "1 kB": 200_000_000, "10 kB": 300_000_000}
CODECS = ("gzip", "snappy", "lz4", "zstd")
# Uncompressed bytes that the row of a codec writes and reads.
COMPRESSED_BYTES = 60_000_000
# Number of members that join a group at once.
JOINING = 100
# Numbers of producers that commit transactions at the same time.
TRANSACTING = (1, 8)
CONNECTIONS = (1, 10, 100, 1000)
PARTITIONS = (1, 100, 1000, 10_000)
READERS = (1, 10, 100)
# Numbers of groups with one consumer each.
GROUPS = (1, 10, 100)
# Bytes that all consumers of a log read together; a single consumer reads a tenth.
FAN_OUT_BYTES = 1_000_000_000
# Record size of rows that count records and gigabytes.
BUSY_RECORD_BYTES = 100
# Rate of rows with a constant rate.
BUSY_RECORDS_PER_SECOND = 1000
COLD_BYTES = 5_000_000_000
SPARK_RECORDS = 5_000_000
# Bytes and partitions of the broker that is restarted.
RESTARTED_BYTES, RESTARTED_PARTITIONS = 1_000_000_000, 10_000


class Row(NamedTuple):
    """One line of the table. `cpu_unit` is the unit of the broker's CPU time."""

    title: str
    unit: str
    more_is_better: bool
    cpu_unit: str | None = None

    def busy(self, value: float, cpu: float) -> float | None:
        """Return the broker's CPU time as a share of one core, or None if unknown.

        Args:
            value: Result in the unit of the row.
            cpu: CPU time in `cpu_unit`.
        """
        match self.unit, self.cpu_unit:
            case "k records/s", "s/GB":
                return value * cpu * BUSY_RECORD_BYTES / 1e6
            case "MB/s" | "k records/s" | "k requests/s" | "/s", str():
                return value * cpu / 1e3
            case "µs", "µs/request":  # requests are sequential
                return cpu / value
            case "ms", "µs/record":
                return cpu * BUSY_RECORDS_PER_SECOND / 1e6
        return None


class Sample(NamedTuple):
    """One measured value. `cpu` is the broker's CPU time in the unit of the row."""

    row: str
    value: float
    cpu: float | None = None


def _rows() -> dict[str, Row]:
    rows = {
        "start": Row("start: exec to first Metadata response", "s", False),
        "idle memory": Row("resident memory, idle", "MB", False),
        "idle connections": Row("resident memory per idle connection (of 1,000)", "kB", False),
        "create topic": Row("create a topic", "ms", False),
        "join": Row("new group: subscribe to first record", "ms", False),
        "join many": Row(f"new group of {JOINING} members: until all have partitions", "s", False),
    }
    for client, name in (("", "confluent-kafka, linger 5 ms"), ("java ", "Kafka's perf tools")):
        for size in SIZES:
            unit = "k records/s" if size == "100 B" and not client else "MB/s"
            for verb in ("produce", "consume"):
                title = f"{verb} {size}, {name}"
                rows[f"{client}{verb} {size}"] = Row(title, unit, True, "s/GB")
    for codec in CODECS:
        for verb in ("produce", "consume"):
            title = f"{verb} 1 kB of text, {codec}, confluent-kafka"
            rows[f"{verb} {codec}"] = Row(title, "MB/s", True, "s/GB")
    rows["idempotent"] = Row("produce 1 kB, idempotent, confluent-kafka", "MB/s", True, "s/GB")
    for quantile in ("p50", "p99"):
        title = f"one record per request, sequential: {quantile}"
        rows[f"ping {quantile}"] = Row(title, "µs", False, "µs/request")
    rows["pipelined"] = Row("one record per request, pipelined", "k requests/s", True, "µs/request")
    title = "consume batches of one record"
    rows["tiny batches"] = Row(title, "k records/s", True, "µs/record")
    for kind, what in (("produce at", "send to ack"), ("receive at", "send to receive")):
        for quantile in ("avg", "p50", "p99", "p99.9"):
            title = f"1,000 records/s, {what}: {quantile}"
            rows[f"{kind} rate {quantile}"] = Row(title, "ms", False, "µs/record")
    for producers in TRANSACTING:
        title = f"transactions of 10 records, {_counted(producers, 'producer')}"
        rows[f"transactions {producers}"] = Row(title, "/s", True, "ms/transaction")
    for count in CONNECTIONS:
        title = f"one record per request, {_counted(count, 'connection')}"
        rows[f"connections {count}"] = Row(title, "k requests/s", True, "µs/request")
    for count in PARTITIONS:
        title = f"one record per request, 10 connections, {_counted(count, 'partition')}"
        rows[f"partitions {count}"] = Row(title, "k requests/s", True, "µs/request")
    for count in READERS:
        title = f"one log, {_counted(count, 'consumer')}"
        rows[f"readers {count}"] = Row(title, "MB/s", True, "s/GB")
    for count in GROUPS:
        title = f"one log, {_counted(count, 'group')}, a commit after each fetch"
        rows[f"groups {count}"] = Row(title, "MB/s", True, "s/GB")
    title = "1,000 records/s while 1,000 partitions are deleted, send to ack: p99"
    rows["deletion"] = Row(title, "ms", False)
    rows["cold read"] = Row("5 GB read from disk during 1,000 records/s", "MB/s", True)
    rows["cold"] = Row("1,000 records/s during that read, send to ack: p99", "ms", False)
    title = "Spark's Kafka source reads 5 M records of 100 B"
    rows["spark"] = Row(title, "k records/s", True, "s/GB")
    title = "restart with 1 GB and 10,000 partitions: until all have leaders"
    rows["restart"] = Row(title, "s", False)
    rows["handshakes"] = Row("TLS handshakes, one request each", "/s", True, "ms/handshake")
    rows |= _failover_rows()
    title = "one record per request, frames encoded in advance, pipelined"
    rows["cores"] = Row(title, "k requests/s", True, "µs/request")
    rows["memory"] = Row("resident memory after the run", "MB", False)
    return rows


def _failover_rows() -> dict[str, Row]:
    """Return the rows about failures of leaders."""
    gap = "longest gap between acks"
    titles = {
        "failover": "leader killed: until the first ack of the new leader",
        "failover short": "leader killed, session timeout 0.6 s: until that ack",
        "gap kill": f"{gap}: leader killed",
        "gap gone": f"{gap}: leader killed and marked dead",
        "gap pause": f"{gap}: leader paused for 5 s",
        "gap two": f"{gap}: two of three nodes killed, restarted after 5 s",
        "gap stop": f"{gap}: leader stopped gracefully",
    }
    return {name: Row(title, "s", False) for name, title in titles.items()}


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count > 1 else ''}"


ROWS = _rows()
