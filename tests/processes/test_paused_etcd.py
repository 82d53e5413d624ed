"""Idempotent producers of three libraries while etcd pauses longer than all leases."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer

from .. import repository
from ..cluster.etcd import Etcd
from ..kill.server import Server
from .commands import kbroker, wait_until, wait_until_healthy
from .test_etcd import nodes_of

pytestmark = pytest.mark.long

PARTITIONS = 3
SESSION_SECONDS = 2
BURST, UNACKED_MAX = 20, 300
# Divisor of `--rounds`, because rounds take three times as long as in other tests.
ROUNDS_PER_TEST = 3
TOPIC = "orders"
# Kafka's own client, if compat-tests has downloaded it.
JARS = repository.ROOT / ".work" / "compat" / "kafka-4.4" / "lib"
JAVA_PRODUCER = Path(__file__).with_name("IdempotentProducer.java")
GIVEN_UP = "lost its registration"


class Client(Protocol):
    """A producer of one library with several requests in flight and unlimited retries."""

    acked: Counter[bytes]

    def send(self, value: bytes, partition: int) -> None: ...

    def poll(self) -> None: ...

    def close(self) -> None: ...


class Librdkafka:
    """Producer of confluent-kafka."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: Counter[bytes] = Counter()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 5,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def send(self, value: bytes, partition: int) -> None:
        self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)

    def poll(self) -> None:
        self._producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        assert error is None, error
        self.acked[message.value()] += 1  # type: ignore[attr-defined]

    def close(self) -> None:
        self._producer.flush(60)


class KafkaPython:
    """Producer of kafka-python."""

    def __init__(self, bootstrap: str) -> None:
        self.acked: Counter[bytes] = Counter()
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            enable_idempotence=True,
            batch_size=64,
            retry_backoff_ms=20,
        )

    def send(self, value: bytes, partition: int) -> None:
        sent = self._producer.send(TOPIC, value, partition=partition)
        sent.add_callback(lambda _: self.acked.update([value]))

    def poll(self) -> None:
        """Do nothing: the library calls back in its own thread."""

    def close(self) -> None:
        self._producer.flush(60)
        self._producer.close()


class Java:
    """Java's producer, in a process of its own."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.acked: Counter[bytes] = Counter()
        self._log = (directory / "java.log").open("wb")
        self._process = subprocess.Popen(
            ["java", "-cp", f"{JARS}/*", str(JAVA_PRODUCER), bootstrap, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.acked[line.strip()] += 1

    def send(self, value: bytes, partition: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d %b\n" % (partition, value))

    def poll(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(60)
        self._reader.join()
        self._process.stdout.close()
        self._log.close()
        assert status == 0, f"Java's producer ended with {status}: {self._log.name}"


class Load:
    """A thread that sends numbered records until it is stopped."""

    def __init__(self, client: Client, name: str) -> None:
        self.sent = 0
        self._client = client
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(min(BURST, UNACKED_MAX - self.sent + self._client.acked.total())):
                value = f"{self._name}-{self.sent}".encode()
                self._client.send(value, self.sent % PARTITIONS)
                self.sent += 1
            self._client.poll()
            time.sleep(0.02)
        self._client.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def count_stored(bootstrap: str) -> Counter[bytes]:
    """Return the number of stored records by value."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checker", "log_level": 0})
    partitions = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(each, timeout=30)[1] for each in partitions]
    consumer.assign(partitions)
    found: Counter[bytes] = Counter()
    while found.total() < sum(ends):
        messages = consumer.consume(5000, timeout=30)
        assert messages, f"{found.total()} of {sum(ends)} records can be read"
        found.update(message.value() for message in messages)
    consumer.close()
    return found


def count_lost_registrations(nodes: Mapping[int, Server]) -> int:
    """Return how often nodes have logged a lost registration."""
    return sum(node.log_path.read_text().count(GIVEN_UP) for node in nodes.values())


def pause(etcd: Etcd, nodes: Mapping[int, Server], clients: Sequence[Client]) -> None:
    """Pause etcd until all leases have expired, then wait until every client works again."""
    before = count_lost_registrations(nodes)
    etcd.pause(0)
    time.sleep(2.5 * SESSION_SECONDS)
    etcd.resume(0)
    wait_until(lambda: count_lost_registrations(nodes) >= before + len(nodes))
    wait_until_healthy(nodes[1].bootstrap)
    for client in clients:
        acked = client.acked.total()
        wait_until(partial(is_served, client, acked))


def is_served(client: Client, acked: int) -> bool:
    return client.acked.total() > acked


def test_expiry_of_all_leases_duplicates_no_records(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = max(1, request.config.getoption("rounds") // ROUNDS_PER_TEST)
    (tmp_path / "etcd").mkdir()
    etcd = Etcd(tmp_path / "etcd")
    address = f"etcd://{etcd.endpoints[0].removeprefix('http://')}/pauses"
    try:
        with nodes_of(address, tmp_path) as nodes:
            bootstrap = ",".join(node.bootstrap for node in nodes.values())
            arguments = ("-p", f"{PARTITIONS}", "--replication-factor", "3")
            kbroker(nodes[1].bootstrap, "topic", "create", TOPIC, *arguments)
            wait_until_healthy(nodes[1].bootstrap)
            clients: list[Client] = [Librdkafka(bootstrap), KafkaPython(bootstrap)]
            if JARS.exists():
                clients.append(Java(bootstrap, tmp_path))
            loads = [Load(client, f"{number}") for number, client in enumerate(clients)]
            try:
                for _ in range(rounds):
                    pause(etcd, nodes, clients)
            finally:
                for load in loads:
                    load.stop()
            found, sent = count_stored(bootstrap), sum(load.sent for load in loads)
            names = ", ".join(type(client).__name__ for client in clients)
            print(f"figures: {rounds} pauses of etcd ended all leases, {sent} records of {names}")
            acked = sum((client.acked for client in clients), Counter[bytes]())
            assert acked.total() == sent
            lost, doubled = acked - found, found - acked
            assert not lost, f"{lost.total()} records are lost, such as {next(iter(lost))!r}"
            assert not doubled, f"{doubled.total()} are doubled, such as {next(iter(doubled))!r}"
    finally:
        etcd.stop()
