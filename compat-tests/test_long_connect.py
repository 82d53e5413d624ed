"""Soak tests of Kafka Connect, standalone and distributed, with file source and sink."""

from __future__ import annotations

import threading
from pathlib import Path

from harness.brokers import Broker
from harness.clients import eventually
from harness.connect import Worker, write_properties
from harness.secure import secure_server
from harness.traffic import Reader, topic_configs

CLIENT = "connect"
WAIT_SECONDS = 60.0
LINES = 2_000
INTERNAL = ("connect-configs", "connect-offsets", "connect-status")
COMPACTED_SOON = {"segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
CLUSTER = {
    **{f"offset.storage.{key}": value for key, value in COMPACTED_SOON.items()},
    "group.id": "connect",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "exactly.once.source.support": "enabled",
    "scheduled.rebalance.max.delay.ms": "0",
    "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "500",
    "consumer.isolation.level": "read_committed",
    "consumer.session.timeout.ms": "3000",
    "consumer.heartbeat.interval.ms": "500",
}


def source(file: Path, topic: str) -> dict[str, str]:
    """Return the settings of a connector that copies a file's lines to a topic."""
    return {
        "name": "source",
        "connector.class": "FileStreamSource",
        "tasks.max": "1",
        "file": str(file),
        "topic": topic,
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }


def sink(file: Path, topic: str) -> dict[str, str]:
    """Return the settings of a connector that copies a topic's values to a file."""
    return {
        "name": "sink",
        "connector.class": "FileStreamSink",
        "tasks.max": "1",
        "file": str(file),
        "topics": topic,
    }


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


class Author(threading.Thread):
    """A thread that writes numbered lines to a file, some every few milliseconds, until stopped."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._file = file
        self._over = threading.Event()

    def run(self) -> None:
        with self._file.open("a") as file:
            while not self._over.wait(0.02):
                file.write("".join(f"line {self.count + i}\n" for i in range(10)))
                file.flush()
                self.count += 10

    def finish(self) -> list[str]:
        self._over.set()
        self.join()
        return [f"line {number}" for number in range(self.count)]


def test_standalone_worker_copies_file(own_broker: Broker, tmp_path: Path) -> None:
    origin, copy = tmp_path / "origin.txt", tmp_path / "copy.txt"
    lines = [f"line {number}" for number in range(LINES)]
    origin.write_text("".join(f"{line}\n" for line in lines))
    worker = Worker(
        "ConnectStandalone",
        tmp_path,
        {
            "bootstrap.servers": own_broker.address,
            "offset.storage.file.filename": str(tmp_path / "offsets"),
            "consumer.auto.offset.reset": "earliest",
        },
        write_properties(tmp_path / "source.properties", source(origin, "copied")),
        write_properties(tmp_path / "sink.properties", sink(copy, "copied")),
    )
    worker.start()
    try:
        eventually(lambda: len(lines_of(copy)), lambda n: n >= LINES, "all lines", WAIT_SECONDS)
        worker.check()
    finally:
        worker.kill()
    assert lines_of(copy) == lines
    assert [record.value for record in Reader(own_broker.address).read("copied")] == lines


def test_worker_copies_file_through_secure_broker(tmp_path: Path) -> None:
    """The worker, its internal topics, both connectors and transactions use TLS and SASL."""
    origin, copy = tmp_path / "origin.txt", tmp_path / "copy.txt"
    lines = [f"line {number}" for number in range(LINES)]
    origin.write_text("".join(f"{line}\n" for line in lines))
    soon = ("-o", f"group.min.session.timeout.ms={CLUSTER['session.timeout.ms']}")
    with secure_server(tmp_path / "broker", *soon) as broker:
        login = broker.java("producer.", "consumer.", "admin.")
        more = {"consumer.auto.offset.reset": "earliest"}
        worker = Worker("ConnectDistributed", tmp_path, {**login, **CLUSTER, **more})
        worker.start()
        try:
            worker.configure("source", source(origin, "copied"))
            worker.configure("sink", sink(copy, "copied"))
            eventually(lambda: len(lines_of(copy)), lambda n: n >= LINES, "lines", WAIT_SECONDS)
            worker.check()
        finally:
            worker.kill()
    assert lines_of(copy) == lines


def test_distributed_worker_copies_exactly_once_despite_kills(
    own_broker: Broker, tmp_path: Path
) -> None:
    """Worker and broker are killed within a transaction. The topic has each line once, in order.

    Meanwhile the worker's offset topic is compacted.
    """
    address = own_broker.address
    origin, copy = tmp_path / "origin.txt", tmp_path / "copy.txt"
    committed, everything = Reader(address), Reader(address, "read_uncommitted")
    worker = Worker("ConnectDistributed", tmp_path, {"bootstrap.servers": address, **CLUSTER})
    author = Author(origin)
    author.start()
    exactly_once = {
        "exactly.once.support": "required",
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": "1000",
    }

    def done() -> int:
        return len(committed.read("copied"))

    def in_a_transaction() -> bool:
        return everything.end("copied") > committed.end("copied") > 0

    worker.start()
    try:
        worker.configure("source", {**source(origin, "copied"), **exactly_once})
        worker.configure("sink", sink(copy, "copied"))
        for broker_too in (False, True):
            eventually(in_a_transaction, bool, "an open transaction", WAIT_SECONDS)
            worker.kill()
            if broker_too:
                own_broker.kill()
                own_broker.start()
            before = done()
            worker.start()
            eventually(done, lambda n, before=before: n > before, "more lines", WAIT_SECONDS)
        lines = author.finish()
        eventually(
            lambda: len(set(lines_of(copy))), lambda n: n >= len(lines), "all lines", WAIT_SECONDS
        )
    finally:
        author.finish()
        worker.kill()
    values = [record.value for record in committed.read("copied")]
    aborted = len(everything.read("copied")) - len(values)
    assert values == lines
    assert set(lines_of(copy)) == set(lines)
    assert aborted > 0
    for topic in INTERNAL:
        assert topic_configs(address, topic)["cleanup.policy"] == "compact"
    written, kept = committed.end("connect-offsets"), len(committed.read("connect-offsets"))
    assert kept < written // 2  # every second record is a transaction marker
    print(
        f"\nfigures: {len(lines)} lines through 2 kills, each once; {aborted} aborted; "
        f"{kept} of {written} records of their offsets are left"
    )
