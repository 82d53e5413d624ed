"""What is measured: every row of the table, by name, in the order of the table."""

from __future__ import annotations

from typing import NamedTuple

SIZES = {"100 B": 100, "1 kB": 1000, "10 kB": 10_000}
BULK_BYTES = {"100 B": 100_000_000, "1 kB": 200_000_000, "10 kB": 300_000_000}
"""How much one bulk row writes and reads."""
CODECS = ("gzip", "snappy", "lz4", "zstd")
COMPRESSED_BYTES = 60_000_000
"""How much the row of a codec writes and reads, before it is compressed."""
JOINING = 100
"""How many members a group gets at once."""
TRANSACTING = (1, 8)
"""How many producers commit transactions at the same time."""
CONNECTIONS = (1, 10, 100, 1000)
PARTITIONS = (1, 100, 1000, 10_000)
READERS = (1, 10, 100)
GROUPS = (1, 10, 100)
"""Of one reader each."""
FAN_OUT_BYTES = 1_000_000_000
"""How much all readers of a log get together; one alone gets a tenth."""
BUSY_RECORD_BYTES = 100
"""Of rows that count records and gigabytes."""
BUSY_RECORDS_PER_SECOND = 1000
"""Of rows with a steady rate."""
COLD_BYTES = 5_000_000_000
SPARK_RECORDS = 5_000_000
RESTARTED_BYTES, RESTARTED_PARTITIONS = 1_000_000_000, 10_000
"""What a broker has that is started again."""


class Row(NamedTuple):
    """One line of the table. `cpu_unit` says what the broker's processor time is divided by."""

    title: str
    unit: str
    more_is_better: bool
    cpu_unit: str | None = None

    def busy(self, value: float, cpu: float) -> float | None:
        """The part of the time in which a broker computes, of one processor; None where unknown.

        Parameters: `value` in the unit of the row, `cpu` in its `cpu_unit`.
        """
        match self.unit, self.cpu_unit:
            case "k records/s", "s/GB":
                return value * cpu * BUSY_RECORD_BYTES / 1e6
            case "MB/s" | "k records/s" | "k requests/s" | "/s", str():
                return value * cpu / 1e3
            case "µs", "µs/request":  # one after the other
                return cpu / value
            case "ms", "µs/record":
                return cpu * BUSY_RECORDS_PER_SECOND / 1e6
        return None


class Sample(NamedTuple):
    """One measured value. `cpu` is the broker's processor time in the unit of the row."""

    row: str
    value: float
    cpu: float | None = None


def _rows() -> dict[str, Row]:
    rows = {
        "start": Row("start: exec to first Metadata", "s", False),
        "idle memory": Row("resident memory, idle", "MB", False),
        "idle connections": Row("the same for each of 1,000 connections", "kB", False),
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
        title = f"one record per request, one by one: {quantile}"
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
        title = f"the same, 10 connections, {_counted(count, 'partition')}"
        rows[f"partitions {count}"] = Row(title, "k requests/s", True, "µs/request")
    for count in READERS:
        title = f"one log, {_counted(count, 'reader')}"
        rows[f"readers {count}"] = Row(title, "MB/s", True, "s/GB")
    for count in GROUPS:
        title = f"one log, {_counted(count, 'group')}, a commit after each fetch"
        rows[f"groups {count}"] = Row(title, "MB/s", True, "s/GB")
    title = "1,000 records/s while 1,000 partitions are deleted, send to ack: p99"
    rows["deletion"] = Row(title, "ms", False)
    rows["cold read"] = Row("5 GB read from the disk, beside 1,000 records/s", "MB/s", True)
    rows["cold"] = Row("1,000 records/s beside it, send to ack: p99", "ms", False)
    title = "Spark's Kafka source reads 5 M records of 100 B"
    rows["spark"] = Row(title, "k records/s", True, "s/GB")
    title = "start with 1 GB and 10,000 partitions: to a leader of each"
    rows["restart"] = Row(title, "s", False)
    rows["handshakes"] = Row("TLS handshakes, one request each", "/s", True, "ms/handshake")
    rows |= _failover_rows()
    title = "one record per request, frames encoded beforehand, pipelined"
    rows["cores"] = Row(title, "k requests/s", True, "µs/request")
    rows["memory"] = Row("resident memory after the run", "MB", False)
    return rows


def _failover_rows() -> dict[str, Row]:
    """Return the rows about leaders that go."""
    gap = "longest gap between acks"
    titles = {
        "failover": "leader killed: to the first ack of the next one",
        "failover short": "the same with a session timeout of 0.6 s",
        "gap kill": f"{gap}: leader killed",
        "gap gone": f"{gap}: leader killed, and said to be gone",
        "gap pause": f"{gap}: leader paused for 5 s",
        "gap two": f"{gap}: two of three killed, back after 5 s",
        "gap stop": f"{gap}: leader stopped in order",
    }
    return {name: Row(title, "s", False) for name, title in titles.items()}


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count > 1 else ''}"


ROWS = _rows()
