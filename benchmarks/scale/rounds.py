"""One benchmark round with one cluster: start, create a topic, kill and restart nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.brokers import BenchmarkFailed, cpu_seconds_of, nodes_known
from benchmarks.clusters import NODES, Cluster, OnEtcd, Supervised
from kbroker.client.connection import open_connection
from kbroker.protocol.messages.cluster import ElectLeadersRequest

TOPIC = "scaled"
# Number of partitions of the killed node to which a producer writes.
SAMPLED_PARTITIONS = 20
# Interval between metadata requests, which limits the accuracy of times.
POLL_SECONDS = 0.2
WAIT_SECONDS = 600
# Duration of the idle measurement.
IDLE_SECONDS = 20
SETTLE_SECONDS = 10
ADMIN_SECONDS = 600
FACTOR = 3


class Figure(NamedTuple):
    """One measured value, with the name of its row."""

    row: str
    value: float


def on_etcd(directory: Path, members: int, partitions: int) -> Iterator[Figure]:
    """Yield the results of a cluster with its metadata on etcd.

    Raises:
        BenchmarkFailed: A step failed.
    """
    cluster = OnEtcd(directory, members)
    try:
        yield Figure("empty node memory", cluster.node_resident_bytes() / 1e6)
        yield Figure("empty other memory", cluster.store_resident_bytes() / 1e6)
        yield from _measure_creation(cluster, partitions)
        yield from _measure_idle(cluster)
        yield Figure("etcd database", cluster.database_bytes() / 1e6)
        yield from _measure_controller_failure(cluster, "lease")
        yield from _measure_preferred_election(cluster, partitions)
        yield from _measure_controller_failure(cluster, "gone", marks_dead=True)
        yield Figure("etcd database after", cluster.database_bytes() / 1e6)
        yield Figure("node memory after", cluster.node_resident_bytes() / 1e6)
        began = time.perf_counter()
        cluster.stop_node(1)
        yield Figure("stop", time.perf_counter() - began)
        _wait_until(
            lambda: not _partitions_led_by(cluster, 2, {1, -1}),
            "partitions of node 1 have no new leaders",
        )
        yield Figure("stop led", time.perf_counter() - began)
    finally:
        cluster.stop()


def supervised(directory: Path, partitions: int) -> Iterator[Figure]:
    """Yield the results of a cluster with a supervisor.

    Raises:
        BenchmarkFailed: A step failed.
    """
    cluster = Supervised(directory)
    try:
        yield Figure("empty node memory", cluster.node_resident_bytes() / 1e6)
        yield Figure("empty other memory", cluster.store_resident_bytes() / 1e6)
        yield from _measure_creation(cluster, partitions)
        yield from _measure_idle(cluster)
        victim = cluster.controller(1)
        began = time.perf_counter()
        yield from _measure_failover(cluster, victim, "gone", lambda: cluster.kill(victim))
        _wait_until(
            lambda: nodes_known(cluster.port_of(victim)) > 0, f"node {victim} did not restart"
        )
        yield Figure("supervised back", time.perf_counter() - began)
        _wait_until(lambda: _are_in_sync(cluster), "replicas are not in sync")
        yield Figure("supervised in sync", time.perf_counter() - began)
        began = time.perf_counter()
        cluster.shut_down()
        yield Figure("stop all", time.perf_counter() - began)
    finally:
        cluster.stop()


# -- steps


def _measure_creation(cluster: Cluster, partitions: int) -> Iterator[Figure]:
    """Measure the creation of the topic until all nodes know its leaders."""
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    used, began = cluster.node_cpu_seconds(), time.perf_counter()
    topic = NewTopic(TOPIC, partitions, FACTOR)
    admin.create_topics([topic], request_timeout=ADMIN_SECONDS)[TOPIC].result(ADMIN_SECONDS)
    yield Figure("create", time.perf_counter() - began)
    for node in NODES:
        _wait_until(partial(_is_created, cluster, node, partitions), "the topic was not created")
    yield Figure("create seen", time.perf_counter() - began)
    time.sleep(SETTLE_SECONDS)
    yield Figure("create processor", cluster.node_cpu_seconds() - used)


def _is_created(cluster: Cluster, node: int, partitions: int) -> bool:
    placements = cluster.placements(node, TOPIC)
    return len(placements) == partitions and all(each.leader > 0 for each in placements)


def _measure_idle(cluster: Cluster) -> Iterator[Figure]:
    """Measure an idle cluster."""
    revision = cluster.revision() if isinstance(cluster, OnEtcd) else 0
    node, other, began = (
        cluster.node_cpu_seconds(),
        cluster.store_cpu_seconds(),
        time.perf_counter(),
    )
    time.sleep(IDLE_SECONDS)
    seconds = time.perf_counter() - began
    yield Figure("node memory", cluster.node_resident_bytes() / 1e6)
    yield Figure("node rest", (cluster.node_cpu_seconds() - node) / seconds * 100)
    yield Figure("other memory", cluster.store_resident_bytes() / 1e6)
    yield Figure("other rest", (cluster.store_cpu_seconds() - other) / seconds * 100)
    if isinstance(cluster, OnEtcd):
        yield Figure("rest writes", (cluster.revision() - revision) / seconds)


def _measure_controller_failure(
    cluster: OnEtcd, row: str, *, marks_dead: bool = False
) -> Iterator[Figure]:
    """Measure a kill of the controller and its restart.

    If `marks_dead`, run the command that marks the node dead.
    """
    victim = cluster.controller(1)
    before = cluster.revision()

    def kill() -> None:
        cluster.kill(victim)
        if marks_dead:
            commands.append(cluster.mark_dead(victim))

    commands: list[Any] = []
    began = time.perf_counter()
    yield from _measure_failover(cluster, victim, row, kill)
    writes = cluster.revision() - before
    yield Figure(f"{row} writes", writes)
    yield Figure(f"{row} writes per second", writes / (time.perf_counter() - began))
    for each in commands:
        each.wait()
    yield from _measure_restart(cluster, victim, row)


def _measure_failover(
    cluster: Cluster, victim: int, row: str, kill: Callable[[], None]
) -> Iterator[Figure]:
    """Measure the time until other nodes lead all partitions of a killed node and accept records.

    `kill` kills the node `victim`; `row` is the prefix of the names of the results.
    """
    witness = _other_than(victim)
    led = _partitions_led_by(cluster, witness, {victim})
    if not led:
        raise BenchmarkFailed(f"node {victim} leads no partition")
    sample = led[:: max(len(led) // SAMPLED_PARTITIONS, 1)][:SAMPLED_PARTITIONS]
    acks = _Acks(cluster.address, sample)
    acks.send()
    _wait_until(lambda: acks.are_complete, "the producer gets no acks")
    used, began = cpu_seconds_of(cluster.pid_of(witness)), time.perf_counter()
    kill()
    acks.send()
    led_at = None
    while led_at is None or not acks.are_complete:
        if led_at is None and not _partitions_led_by(cluster, witness, {victim, -1}):
            led_at = time.perf_counter()
        acks.wait(POLL_SECONDS)
        if time.perf_counter() - began > WAIT_SECONDS:
            raise BenchmarkFailed(f"{row}: failover not complete after {WAIT_SECONDS} s")
    yield Figure(f"{row} led", led_at - began)
    yield Figure(f"{row} acks", acks.last_at - began)
    yield Figure(f"{row} processor", cpu_seconds_of(cluster.pid_of(witness)) - used)


def _measure_restart(cluster: OnEtcd, node: int, row: str) -> Iterator[Figure]:
    """Measure the time from exec until a node responds, and until all its replicas are in sync."""
    revision, began = cluster.revision(), time.perf_counter()
    cluster.revive(node)
    _wait_until(
        lambda: nodes_known(cluster.port_of(node)) > 0, f"node {node} did not restart", 0.01
    )
    yield Figure(f"{row} back", time.perf_counter() - began)
    _wait_until(lambda: _are_in_sync(cluster), "replicas are not in sync")
    yield Figure(f"{row} in sync", time.perf_counter() - began)
    yield Figure(f"{row} back processor", cpu_seconds_of(cluster.pid_of(node)))
    yield Figure(f"{row} back writes", cluster.revision() - revision)


def _measure_preferred_election(cluster: OnEtcd, partitions: int) -> Iterator[Figure]:
    """Measure a preferred leader election (ElectLeaders)."""
    began = time.perf_counter()
    trio.run(_elect_preferred, cluster.port_of(cluster.controller(1)))
    yield Figure("given back", time.perf_counter() - began)
    each = partitions // len(NODES)
    _wait_until(
        lambda: all(len(_partitions_led_by(cluster, 1, {node})) >= each for node in NODES),
        "preferred replicas did not become leaders",
    )


async def _elect_preferred(port: int) -> None:
    connection = await open_connection("127.0.0.1", port)
    async with aclosing(connection):
        await connection.negotiate()
        request = ElectLeadersRequest(topic_partitions=None)
        answer = await connection.ask(request, seconds=ADMIN_SECONDS)
        rows = [row for topic in answer.replica_election_results for row in topic.partition_result]
        if answer.error_code or any(row.error_code for row in rows):
            raise BenchmarkFailed("preferred leaders were not elected")


# -- state of the cluster


def _other_than(node: int) -> int:
    return next(each for each in NODES if each != node)


def _partitions_led_by(cluster: Cluster, witness: int, leaders: set[int]) -> list[int]:
    """Return the partitions with one of these leaders, as one node reports them."""
    placements = cluster.placements(witness, TOPIC)
    return [index for index, each in enumerate(placements) if each.leader in leaders]


def _are_in_sync(cluster: Cluster) -> bool:
    placements = cluster.placements(1, TOPIC)
    return bool(placements) and all(each.in_sync == FACTOR for each in placements)


def _wait_until(condition: Callable[[], bool], failure: str, pause: float = POLL_SECONDS) -> None:
    """Wait until a condition is true.

    Raises:
        BenchmarkFailed: The condition is not met in time.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkFailed(failure)
        time.sleep(pause)


class _Acks:
    """An idempotent producer with one record in flight to each of several partitions."""

    def __init__(self, address: str, partitions: list[int]) -> None:
        self._partitions = partitions
        self._missing: set[int] = set()
        self.last_at = 0.0
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 0,
                "delivery.timeout.ms": WAIT_SECONDS * 1000,
                "log_level": 0,
            }
        )

    @property
    def are_complete(self) -> bool:
        """True if all sent records are acknowledged."""
        self._producer.poll(0)
        return not self._missing

    def send(self) -> None:
        """Send a record to each partition."""
        for partition in self._partitions:
            self._missing.add(partition)
            self._producer.produce(
                TOPIC, b"x" * 100, partition=partition, on_delivery=self._on_delivery
            )

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error:
            raise BenchmarkFailed(str(error))
        self._missing.discard(message.partition())
        self.last_at = time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Process acks for a number of seconds."""
        ends_at = time.perf_counter() + seconds
        while (left := ends_at - time.perf_counter()) > 0:
            self._producer.poll(left)
