"""Benchmark of three kbroker processes over etcd and three Kafka nodes.

python -m benchmarks.processes --write

Replication factor 3, min.insync.replicas 2, acks=all; each node is a process. In addition to the
rows, it measures the longest gap between two acks of an idempotent producer while nodes are killed,
paused and stopped.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .__main__ import comparison_parser, render_section, run, write_section
from .brokers import BenchmarkFailed, cpu_seconds_of, resident_bytes_of
from .clusters import NODES, OnEtcd, Processes
from .replicated import REPLICATED, ROWS, WAIT_SECONDS, ThreeKafka, partition_led_by
from .rows import Sample
from .turns import Record, recorded, say

PROGRAM = "benchmarks.processes"
SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
PAUSE_SECONDS = 5.0
DOWN_SECONDS = 5.0
# Duration of steady acks before and after each event.
STEADY_SECONDS = 2.0
SEND_SECONDS = 0.005
TITLE = "## Three processes over etcd"
INTRODUCTION = f"""\
Written by `python -m benchmarks.processes`: replication factor 3, `min.insync.replicas=2`, acks=all. Each of three
kbroker nodes is a process; the metadata is on three etcd members. Each of three Kafka nodes is a process too, broker and
controller together, with a heap of 512 MB. All run on one machine. CPU and memory are sums over all processes, including etcd.

The gaps are the longest times between two acks of an idempotent librdkafka producer, which sends one record every
{SEND_SECONDS * 1e3:.0f} ms to a partition led by the affected node. Each node is affected once. The session timeout is 3 s and
the heartbeat interval 0.5 s for both. A paused leader stops for {PAUSE_SECONDS:.0f} s. Two killed nodes restart
{DOWN_SECONDS:.0f} s later. "Killed and marked dead" is what a systemd unit does after the process of a node has exited
(`kbroker cluster node mark-dead`); Kafka has no such command, so its result is that of the row above.
"""


class OverEtcd(OnEtcd):
    """Processes of kbroker; CPU and memory of etcd are included."""

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + sum(map(cpu_seconds_of, self.etcd.pids))

    def resident_bytes(self) -> int:
        return super().resident_bytes() + sum(map(resident_bytes_of, self.etcd.pids))


class KafkaProcesses(Processes, ThreeKafka):
    """Processes of Apache Kafka."""


Cluster = OverEtcd | KafkaProcesses
BROKERS: Mapping[str, type[Cluster]] = {"kbroker": OverEtcd, "kafka": KafkaProcesses}


# -- events of a leader


def kill(cluster: Cluster, node: int, *, marks_dead: bool = False) -> None:
    """Kill a node, and restart it long after other nodes have taken over.

    If `marks_dead`, also mark the node dead, provided that the broker has a command for this.
    """
    cluster.kill(node)
    if marks_dead and isinstance(cluster, OverEtcd):
        cluster.mark_dead(node).wait(WAIT_SECONDS)
    time.sleep(2 * DOWN_SECONDS)
    cluster.revive(node)


def pause(cluster: Cluster, node: int) -> None:
    """Suspend a node for longer than its session timeout."""
    cluster.pause(node)
    time.sleep(PAUSE_SECONDS)
    cluster.resume(node)


def kill_two(cluster: Cluster, node: int) -> None:
    """Kill a node and another one, and restart both after a while."""
    both = [node, node % len(NODES) + 1]
    for each in both:
        cluster.kill(each)
    time.sleep(DOWN_SECONDS)
    for each in both:
        cluster.revive(each)


def stop(cluster: Cluster, node: int) -> None:
    """Stop a node gracefully and restart it."""
    cluster.stop_node(node)
    cluster.revive(node)


# Events by row.
EVENTS: Mapping[str, Callable[[Cluster, int], None]] = {
    "gap kill": kill,
    "gap gone": partial(kill, marks_dead=True),
    "gap pause": pause,
    "gap two": kill_two,
    "gap stop": stop,
}


# -- gaps between acks


class Ack(NamedTuple):
    """Times at which a record was sent and acknowledged, in seconds of the same clock."""

    sent: float
    acked: float


class ContinuousProducer:
    """A producer that sends to one partition continuously, in a thread. Call `stop` at the end."""

    def __init__(self, address: str, topic: str, partition: int) -> None:
        self.acks: list[Ack] = []
        self._topic, self._partition = topic, partition
        self._errors: list[str] = []
        self._ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._send_all)
        self._thread.start()

    def wait_until_steady(self) -> None:
        """Wait until records sent from now on have been acknowledged for STEADY_SECONDS.

        Raises:
            BenchmarkFailed: A record failed, or no ack arrived within a minute.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        steady_at = time.perf_counter() + STEADY_SECONDS
        while not (self.acks and self.acks[-1].sent > steady_at):
            if self._errors or time.monotonic() > deadline:
                raise BenchmarkFailed(f"no acks: {self._errors[:1]}")
            time.sleep(SEND_SECONDS)

    def stop(self) -> None:
        """Stop sending."""
        self._ends.set()
        self._thread.join()

    def _send_all(self) -> None:
        while not self._ends.is_set():
            on_delivery = partial(self._on_delivery, time.perf_counter())
            self._producer.produce(
                self._topic, b"x" * 100, partition=self._partition, on_delivery=on_delivery
            )
            self._producer.poll(SEND_SECONDS)
        self._producer.flush(WAIT_SECONDS)

    def _on_delivery(self, sent: float, error: Any, _message: Any) -> None:
        if error:
            self._errors.append(str(error))
        else:
            self.acks.append(Ack(sent, time.perf_counter()))


def longest_gap(acks: Sequence[Ack], since: float) -> float:
    """Return the longest time between two acks in seconds, from the last one before `since` on."""
    before = [each.acked for each in acks if each.acked <= since]
    times = [*before[-1:], *(each.acked for each in acks if each.acked > since)]
    return max(later - earlier for earlier, later in pairwise(times))


def measure_gap(cluster: Cluster, node: int, row: str) -> float:
    """Return the longest gap of a producer to a partition that the affected node leads."""
    topic = f"{row.replace(' ', '-')}-{node}"
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    # Create a new topic each time, so that every node leads a partition of it.
    admin.create_topics([NewTopic(topic, len(NODES))])[topic].result(WAIT_SECONDS)
    sending = ContinuousProducer(cluster.address, topic, partition_led_by(admin, topic, node))
    try:
        sending.wait_until_steady()
        began = time.perf_counter()
        EVENTS[row](cluster, node)
        sending.wait_until_steady()
    finally:
        sending.stop()
    return longest_gap(sending.acks, began)


def gaps(options: argparse.Namespace, durable: bool) -> Iterator[Record]:
    """Yield the gaps of all events, once for each node; they do not depend on durability."""
    for name in options.brokers:
        for sample in _gaps_of(BROKERS[name], options.directory, durable):
            yield recorded(sample, BROKERS[name].name, durable, 0)


def _gaps_of(kind: type[Cluster], directory: Path, durable: bool) -> Iterator[Sample]:
    settings = {**REPLICATED, **SESSIONS}
    cluster = kind(directory / f"{kind.name}-gaps", durable=durable, settings=settings)
    try:
        for row in EVENTS:
            for node in NODES:
                seconds = measure_gap(cluster, node, row)
                say(f"{kind.name}, {row}, node {node}: {seconds:.2f} s")
                yield Sample(row, seconds)
    finally:
        cluster.stop()


def main() -> None:
    parser = comparison_parser(PROGRAM, __doc__, BROKERS)
    parser.set_defaults(rows=ROWS)
    parser.add_argument("--only-gaps", action="store_true", help="measure only the gaps")
    options = parser.parse_args()
    others = gaps(options, options.durable[0])
    if options.only_gaps:
        options.durable = []
    text = render_section(run(options, BROKERS, REPLICATED, others), TITLE, INTRODUCTION)
    print(text)
    if options.write:
        write_section(text, PROGRAM)


if __name__ == "__main__":
    main()
