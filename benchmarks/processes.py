"""Three processes of kbroker over etcd beside three of Apache Kafka: `python -m benchmarks.processes --write`.

Replication factor 3, min.insync.replicas 2, acks=all; each node of both is a process. After the rows come
the longest gaps between two acks of an idempotent producer, when nodes are killed, paused and stopped.
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

from .__main__ import arguments, document, run, write_section
from .brokers import BenchmarkFailed, cpu_seconds_of, resident_bytes_of
from .clusters import NODES, OnEtcd, Processes
from .replicated import REPLICATED, ROWS, WAIT_SECONDS, ThreeKafka, led_by
from .rows import Sample
from .turns import Record, recorded, say

PROGRAM = "benchmarks.processes"
SESSIONS = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
PAUSE_SECONDS = 5.0
DOWN_SECONDS = 5.0
STEADY_SECONDS = 2.0
"""For how long there are acks before and after what happens."""
SEND_SECONDS = 0.005
TITLE = "## Three processes over etcd"
INTRODUCTION = f"""\
Made by `python -m benchmarks.processes`: replication factor 3, `min.insync.replicas=2`, acks=all. Each of three nodes
of kbroker is a process, over three members of etcd; each of Kafka's is one, controller and broker together, with a heap
of 512 MB. All run on one machine. CPU and memory are sums over processes, etcd's too.

The gaps are the longest ones between two acks of an idempotent librdkafka producer that sends one record each
{SEND_SECONDS * 1e3:.0f} ms to a partition of the node in question: each node once. Sessions are of 3 s, heartbeats
come each 0.5 s, for both. A leader is paused for {PAUSE_SECONDS:.0f} s; of three, two are killed and come back
{DOWN_SECONDS:.0f} s later. "And said to be gone" is what a unit of systemd does when the process of a node has ended
(`kbroker cluster node mark-dead`); Kafka has nothing like it, so its figure is that of the row above.
"""


class OverEtcd(OnEtcd):
    """Processes of kbroker; what etcd takes is counted with what they take."""

    def cpu_seconds(self) -> float:
        return super().cpu_seconds() + sum(map(cpu_seconds_of, self.etcd.pids))

    def resident_bytes(self) -> int:
        return super().resident_bytes() + sum(map(resident_bytes_of, self.etcd.pids))


class KafkaProcesses(Processes, ThreeKafka):
    """Processes of Apache Kafka."""


Cluster = OverEtcd | KafkaProcesses
BROKERS: Mapping[str, type[Cluster]] = {"kbroker": OverEtcd, "kafka": KafkaProcesses}


# -- what happens to a leader


def kill(cluster: Cluster, node: int, *, is_told: bool = False) -> None:
    """It ends at once, and comes back when others have led for long.

    `is_told`: whoever has started it tells the others, if there is a way.
    """
    cluster.kill(node)
    if is_told and isinstance(cluster, OverEtcd):
        cluster.say_gone(node).wait(WAIT_SECONDS)
    time.sleep(2 * DOWN_SECONDS)
    cluster.revive(node)


def pause(cluster: Cluster, node: int) -> None:
    """It stands still for longer than its session."""
    cluster.pause(node)
    time.sleep(PAUSE_SECONDS)
    cluster.resume(node)


def kill_two(cluster: Cluster, node: int) -> None:
    """It and another one end at once, and come back after a while."""
    both = [node, node % len(NODES) + 1]
    for each in both:
        cluster.kill(each)
    time.sleep(DOWN_SECONDS)
    for each in both:
        cluster.revive(each)


def stop(cluster: Cluster, node: int) -> None:
    """It is stopped in order."""
    cluster.stop_node(node)
    cluster.revive(node)


EVENTS: Mapping[str, Callable[[Cluster, int], None]] = {
    "gap kill": kill,
    "gap gone": partial(kill, is_told=True),
    "gap pause": pause,
    "gap two": kill_two,
    "gap stop": stop,
}
"""By row."""


# -- what a producer notices


class Ack(NamedTuple):
    """When a record was sent, and when it was acknowledged (seconds of one clock)."""

    sent: float
    acked: float


class Sending:
    """A producer that sends all the time, in a thread, to one partition. Call `stop` at the end."""

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

    def until_steady(self) -> None:
        """Wait until what is sent from now on has been acknowledged for a while.

        Raises BenchmarkFailed when a record is not, or none is within a minute.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        steady_at = time.perf_counter() + STEADY_SECONDS
        while not (self.acks and self.acks[-1].sent > steady_at):
            if self._errors or time.monotonic() > deadline:
                raise BenchmarkFailed(f"no acks: {self._errors[:1]}")
            time.sleep(SEND_SECONDS)

    def stop(self) -> None:
        """Send nothing more."""
        self._ends.set()
        self._thread.join()

    def _send_all(self) -> None:
        while not self._ends.is_set():
            told = partial(self._told, time.perf_counter())
            self._producer.produce(
                self._topic, b"x" * 100, partition=self._partition, on_delivery=told
            )
            self._producer.poll(SEND_SECONDS)
        self._producer.flush(WAIT_SECONDS)

    def _told(self, sent: float, error: Any, _message: Any) -> None:
        if error:
            self._errors.append(str(error))
        else:
            self.acks.append(Ack(sent, time.perf_counter()))


def longest_gap(acks: Sequence[Ack], since: float) -> float:
    """The longest time between two acks, from the last one before `since` on (seconds)."""
    before = [each.acked for each in acks if each.acked <= since]
    times = [*before[-1:], *(each.acked for each in acks if each.acked > since)]
    return max(later - earlier for earlier, later in pairwise(times))


def gap_of(cluster: Cluster, node: int, row: str) -> float:
    """The longest gap when something happens to a node, for who writes to what that leads."""
    topic = f"{row.replace(' ', '-')}-{node}"
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    # A new one each time: its partitions are led by all nodes.
    admin.create_topics([NewTopic(topic, len(NODES))])[topic].result(WAIT_SECONDS)
    sending = Sending(cluster.address, topic, led_by(admin, topic, node))
    try:
        sending.until_steady()
        began = time.perf_counter()
        EVENTS[row](cluster, node)
        sending.until_steady()
    finally:
        sending.stop()
    return longest_gap(sending.acks, began)


def gaps(options: argparse.Namespace, durable: bool) -> Iterator[Record]:
    """All events, for each node once; they do not depend on durability."""
    for name in options.brokers:
        for sample in _gaps_of(BROKERS[name], options.directory, durable):
            yield recorded(sample, BROKERS[name].name, durable, 0)


def _gaps_of(kind: type[Cluster], directory: Path, durable: bool) -> Iterator[Sample]:
    settings = {**REPLICATED, **SESSIONS}
    cluster = kind(directory / f"{kind.name}-gaps", durable=durable, settings=settings)
    try:
        for row in EVENTS:
            for node in NODES:
                seconds = gap_of(cluster, node, row)
                say(f"{kind.name}, {row}, node {node}: {seconds:.2f} s")
                yield Sample(row, seconds)
    finally:
        cluster.stop()


def main() -> None:
    parser = arguments(PROGRAM, __doc__, BROKERS)
    parser.set_defaults(rows=ROWS)
    parser.add_argument("--only-gaps", action="store_true", help="nothing but what is killed")
    options = parser.parse_args()
    others = gaps(options, options.durable[0])
    if options.only_gaps:
        options.durable = []
    text = document(run(options, BROKERS, REPLICATED, others), TITLE, INTRODUCTION)
    print(text)
    if options.write:
        write_section(text, PROGRAM)


if __name__ == "__main__":
    main()
