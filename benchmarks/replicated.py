"""Benchmark of three kbroker nodes and three Kafka nodes.

python -m benchmarks.replicated --write

Replication factor 3, min.insync.replicas 2, acks=all. kbroker's nodes share one process and one
event loop; each Kafka node is a process in combined mode.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbroker.cli.control import Control, ask
from tests.ports import free_ports

from .__main__ import comparison_parser, render_section, run, write_section
from .brokers import HERE, BenchmarkFailed, Broker, Kafka, Kbroker, free_port
from .clusters import Processes
from .rows import Sample
from .turns import Record, recorded, say

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
SHORT_SESSIONS = {"broker.session.timeout.ms": "600", "broker.heartbeat.interval.ms": "200"}
ROWS = ["create topic", "produce at rate", "bulk", "java"]
TOPIC = "failover"
SEND_SECONDS = 0.005
WAIT_SECONDS = 60.0
PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
group.initial.rebalance.delay.ms=0
"""
TITLE = "## Three nodes"
INTRODUCTION = """\
Written by `python -m benchmarks.replicated`: replication factor 3, `min.insync.replicas=2`, acks=all. The three kbroker
nodes share one process. Each Kafka node is a process, broker and controller together, with a heap of 512 MB. CPU and
memory are sums over processes.

The Kafka leader is killed with SIGKILL, the kbroker leader with `kbroker cluster node crash`. A producer sends one record
every 5 ms; the result is the time until the first ack of a record that was sent after the kill. The default session
timeout is 9 s in Kafka and 0.6 s in kbroker; the next row uses 0.6 s for both.

Three JVMs on two cores cannot keep up with 1,000 single records per second right after their start, so their latencies of
seconds come from a backlog.
"""


class ThreeKbroker(Kbroker):
    """`kbroker serve --nodes 3`."""

    nodes = 3

    def _commands(self) -> list[list[str]]:
        return [self._command(*HERE, "--nodes", "3", "--port", str(self.ports[0]))]


class ThreeKafka(Kafka):
    """Three processes, each a broker and a voter of the metadata quorum."""

    nodes = 3
    heap = "512M"

    def _formats(self) -> list[tuple[Path, list[str]]]:
        first = free_ports(self.nodes)
        controllers = range(first, first + self.nodes)
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        return [
            (
                self._write_properties(
                    f"server-{node}",
                    PROPERTIES.format(
                        node=node,
                        voters=voters,
                        port=port,
                        controller=controller,
                        data=self.directory / f"data-{node}",
                    ),
                ),
                [],
            )
            for node, (port, controller) in enumerate(zip(self.ports, controllers, strict=True), 1)
        ]


# -- failover


class CrashingKbroker(ThreeKbroker):
    """Three nodes that can be crashed and restarted over the control port."""

    def _commands(self) -> list[list[str]]:
        port, token = free_port(), str(self.directory / "control.token")
        self._control = Control(f"127.0.0.1:{port}", token)
        ports = ("--port", str(self.ports[0]), "--control-port", str(port))
        return [self._command(*HERE, "--nodes", "3", *ports, "--control-token-file", token)]

    def crash(self, node: int) -> None:
        self._command_node("crash_node", node)

    def revive(self, node: int) -> None:
        self._command_node("start_node", node)

    def _command_node(self, verb: str, node: int) -> None:
        ask(self._control, do=verb, node=node)


class CrashingKafka(Processes, ThreeKafka):
    """Three processes that can be killed and restarted."""

    def crash(self, node: int) -> None:
        self.kill(node)


CRASHING: Mapping[str, type[CrashingKbroker | CrashingKafka]] = {
    ThreeKbroker.name: CrashingKbroker,
    ThreeKafka.name: CrashingKafka,
}


def failovers(cluster: CrashingKbroker | CrashingKafka) -> Iterator[float]:
    """Crash each node once while it leads a partition; yield the seconds until the next ack."""
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(WAIT_SECONDS)
    for node in range(1, cluster.nodes + 1):
        partition = partition_led_by(admin, TOPIC, node)
        yield _seconds_to_first_ack(cluster, partition, node)
        cluster.revive(node)


def partition_led_by(admin: AdminClient, topic: str, node: int) -> int:
    """Return a partition of a topic that a node leads, once all replicas are in sync.

    Raises:
        BenchmarkFailed: The condition is not met in time.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        rows = admin.list_topics(topic, WAIT_SECONDS).topics[topic].partitions
        if all(len(row.isrs) == 3 and row.leader > 0 for row in rows.values()):
            led = [number for number, row in rows.items() if row.leader == node]
            if led:
                return int(led[0])
        time.sleep(0.1)
    raise BenchmarkFailed(f"node {node} leads nothing, or not all replicas are in sync")


def _seconds_to_first_ack(
    cluster: CrashingKbroker | CrashingKafka, partition: int, node: int
) -> float:
    """Return the seconds from the crash of a node to the first ack of a record sent after it."""
    acked_at: list[tuple[float, float]] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "log_level": 0,
        }
    )

    def send() -> None:
        sent_at = time.perf_counter()

        def done(error: Any, message: Any) -> None:
            if error:
                raise BenchmarkFailed(str(error))
            acked_at.append((sent_at, time.perf_counter()))

        producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=done)
        producer.poll(SEND_SECONDS)

    def send_until(is_done: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not is_done():
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{cluster.name}: no acks without node {node}")
            send()

    send_until(lambda: len(acked_at) > 200)
    crashed_at = time.perf_counter()
    cluster.crash(node)
    send_until(lambda: any(sent > crashed_at for sent, _ in acked_at))
    producer.flush(WAIT_SECONDS)
    return min(acked for sent, acked in acked_at if sent > crashed_at) - crashed_at


# -- all rows


def failover_records(options: argparse.Namespace, durable: bool) -> Iterator[Record]:
    """Yield the failover times, measured in turns; they do not depend on durability."""
    for repeat in range(options.repeat):
        for name in options.brokers:
            kind = CRASHING[BROKERS[name].name]
            for sample in _failovers_of(kind, options.directory, durable):
                yield recorded(sample, kind.name, durable, repeat)


def _failovers_of(
    kind: type[CrashingKbroker | CrashingKafka], directory: Path, durable: bool
) -> Iterator[Sample]:
    for row, settings in (("failover", {}), ("failover short", SHORT_SESSIONS)):
        cluster = kind(
            directory / f"{kind.name}-failover",
            durable=durable,
            settings={**REPLICATED, **settings},
        )
        try:
            seconds = [*failovers(cluster)]
        finally:
            cluster.stop()
        say(f"{kind.name}, {row}: {seconds}")
        yield Sample(row, statistics.median(seconds))


BROKERS: Mapping[str, type[Broker]] = {"kbroker": ThreeKbroker, "kafka": ThreeKafka}


def main() -> None:
    parser = comparison_parser("benchmarks.replicated", __doc__, BROKERS)
    parser.set_defaults(rows=ROWS)
    parser.add_argument(
        "--only-failover", action="store_true", help="measure only the failover times"
    )
    options = parser.parse_args()
    others = failover_records(options, options.durable[0])
    if options.only_failover:
        options.durable = []
    report = run(options, BROKERS, REPLICATED, others)
    text = render_section(report, TITLE, INTRODUCTION)
    print(text)
    if options.write:
        write_section(text, "benchmarks.replicated")


if __name__ == "__main__":
    main()
