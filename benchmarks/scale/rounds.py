"""One benchmark round with one cluster: start, create a topic, kill and restart nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
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
SAMPLED = 20
# Interval between metadata requests, which limits the accuracy of times.
LOOK_SECONDS = 0.2
WAIT_SECONDS = 600
# Duration of the idle measurement.
REST_SECONDS = 20
SETTLE_SECONDS = 10
CALLED_SECONDS = 600
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
        yield Figure("empty node memory", cluster.node_resident() / 1e6)
        yield Figure("empty other memory", cluster.other_resident() / 1e6)
        yield from _made(cluster, partitions)
        yield from _at_rest(cluster)
        yield Figure("etcd database", cluster.database_bytes() / 1e6)
        yield from _lost(cluster, "lease")
        yield from _given_back(cluster, partitions)
        yield from _lost(cluster, "gone", is_told=True)
        yield Figure("etcd database after", cluster.database_bytes() / 1e6)
        yield Figure("node memory after", cluster.node_resident() / 1e6)
        began = time.perf_counter()
        cluster.stop_node(1)
        yield Figure("stop", time.perf_counter() - began)
        _until(lambda: not _led_by(cluster, 2, {1, -1}), "partitions of node 1 have no new leaders")
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
        yield Figure("empty node memory", cluster.node_resident() / 1e6)
        yield Figure("empty other memory", cluster.other_resident() / 1e6)
        yield from _made(cluster, partitions)
        yield from _at_rest(cluster)
        victim = cluster.controller(1)
        began = time.perf_counter()
        yield from _failover(cluster, victim, "gone", lambda: cluster.kill(victim))
        _until(lambda: nodes_known(cluster.port_of(victim)) > 0, f"node {victim} did not restart")
        yield Figure("supervised back", time.perf_counter() - began)
        _until(lambda: _are_in_sync(cluster), "replicas are not in sync")
        yield Figure("supervised in sync", time.perf_counter() - began)
        began = time.perf_counter()
        cluster.end()
        yield Figure("stop all", time.perf_counter() - began)
    finally:
        cluster.stop()


# -- steps


def _made(cluster: Cluster, partitions: int) -> Iterator[Figure]:
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    used, began = cluster.node_cpu(), time.perf_counter()
    topic = NewTopic(TOPIC, partitions, FACTOR)
    admin.create_topics([topic], request_timeout=CALLED_SECONDS)[TOPIC].result(CALLED_SECONDS)
    yield Figure("create", time.perf_counter() - began)
    for node in NODES:
        _until(lambda node=node: _is_made(cluster, node, partitions), "the topic was not created")
    yield Figure("create seen", time.perf_counter() - began)
    time.sleep(SETTLE_SECONDS)
    yield Figure("create processor", cluster.node_cpu() - used)


def _is_made(cluster: Cluster, node: int, partitions: int) -> bool:
    places = cluster.places(node, TOPIC)
    return len(places) == partitions and all(each.leader > 0 for each in places)


def _at_rest(cluster: Cluster) -> Iterator[Figure]:
    """Measure an idle cluster."""
    revision = cluster.revision() if isinstance(cluster, OnEtcd) else 0
    node, other, began = cluster.node_cpu(), cluster.other_cpu(), time.perf_counter()
    time.sleep(REST_SECONDS)
    seconds = time.perf_counter() - began
    yield Figure("node memory", cluster.node_resident() / 1e6)
    yield Figure("node rest", (cluster.node_cpu() - node) / seconds * 100)
    yield Figure("other memory", cluster.other_resident() / 1e6)
    yield Figure("other rest", (cluster.other_cpu() - other) / seconds * 100)
    if isinstance(cluster, OnEtcd):
        yield Figure("rest writes", (cluster.revision() - revision) / seconds)


def _lost(cluster: OnEtcd, row: str, *, is_told: bool = False) -> Iterator[Figure]:
    """Kill the controller and restart it."""
    victim = cluster.controller(1)
    before = cluster.revision()

    def kill() -> None:
        cluster.kill(victim)
        if is_told:
            told.append(cluster.mark_dead(victim))

    told: list[Any] = []
    began = time.perf_counter()
    yield from _failover(cluster, victim, row, kill)
    writes = cluster.revision() - before
    yield Figure(f"{row} writes", writes)
    yield Figure(f"{row} writes per second", writes / (time.perf_counter() - began))
    for each in told:
        each.wait()
    yield from _came_back(cluster, victim, row)


def _failover(
    cluster: Cluster, victim: int, row: str, kill: Callable[[], None]
) -> Iterator[Figure]:
    """Seconds from the end of a node until others lead all that it led, and take records for it."""
    witness = _other_than(victim)
    led = _led_by(cluster, witness, {victim})
    if not led:
        raise BenchmarkFailed(f"node {victim} leads nothing")
    sample = led[:: max(len(led) // SAMPLED, 1)][:SAMPLED]
    acks = _Acks(cluster.address, sample)
    acks.send()
    _until(lambda: acks.have_come, "the producer gets no acks")
    used, began = cpu_seconds_of(cluster.pid_of(witness)), time.perf_counter()
    kill()
    acks.send()
    led_at = None
    while led_at is None or not acks.have_come:
        if led_at is None and not _led_by(cluster, witness, {victim, -1}):
            led_at = time.perf_counter()
        acks.wait(LOOK_SECONDS)
        if time.perf_counter() - began > WAIT_SECONDS:
            raise BenchmarkFailed(f"{row}: no end after {WAIT_SECONDS} s")
    yield Figure(f"{row} led", led_at - began)
    yield Figure(f"{row} acks", acks.last_at - began)
    yield Figure(f"{row} processor", cpu_seconds_of(cluster.pid_of(witness)) - used)


def _came_back(cluster: OnEtcd, node: int, row: str) -> Iterator[Figure]:
    """Measure the time from exec until a node responds, and until all its replicas are in sync."""
    revision, began = cluster.revision(), time.perf_counter()
    cluster.revive(node)
    _until(lambda: nodes_known(cluster.port_of(node)) > 0, f"node {node} did not restart", 0.01)
    yield Figure(f"{row} back", time.perf_counter() - began)
    _until(lambda: _are_in_sync(cluster), "replicas are not in sync")
    yield Figure(f"{row} in sync", time.perf_counter() - began)
    yield Figure(f"{row} back processor", cpu_seconds_of(cluster.pid_of(node)))
    yield Figure(f"{row} back writes", cluster.revision() - revision)


def _given_back(cluster: OnEtcd, partitions: int) -> Iterator[Figure]:
    """Measure a preferred leader election (ElectLeaders)."""
    began = time.perf_counter()
    trio.run(_elect_preferred, cluster.port_of(cluster.controller(1)))
    yield Figure("given back", time.perf_counter() - began)
    each = partitions // len(NODES)
    _until(
        lambda: all(len(_led_by(cluster, 1, {node})) >= each for node in NODES),
        "preferred replicas did not become leaders",
    )


async def _elect_preferred(port: int) -> None:
    connection = await open_connection("127.0.0.1", port)
    async with aclosing(connection):
        await connection.negotiate()
        asked = ElectLeadersRequest(topic_partitions=None)
        answer = await connection.ask(asked, seconds=CALLED_SECONDS)
        rows = [row for topic in answer.replica_election_results for row in topic.partition_result]
        if answer.error_code or any(row.error_code for row in rows):
            raise BenchmarkFailed("preferred leaders were not elected")


# -- what is looked at


def _other_than(node: int) -> int:
    return next(each for each in NODES if each != node)


def _led_by(cluster: Cluster, witness: int, leaders: set[int]) -> list[int]:
    """Return the partitions with one of these leaders, as one node reports them."""
    places = cluster.places(witness, TOPIC)
    return [index for index, each in enumerate(places) if each.leader in leaders]


def _are_in_sync(cluster: Cluster) -> bool:
    places = cluster.places(1, TOPIC)
    return bool(places) and all(each.in_sync == FACTOR for each in places)


def _until(condition: Callable[[], bool], failure: str, pause: float = LOOK_SECONDS) -> None:
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
    def have_come(self) -> bool:
        """True if all sent records are acknowledged."""
        self._producer.poll(0)
        return not self._missing

    def send(self) -> None:
        """Send a record to each partition."""
        for partition in self._partitions:
            self._missing.add(partition)
            self._producer.produce(TOPIC, b"x" * 100, partition=partition, on_delivery=self._done)

    def _done(self, error: Any, message: Any) -> None:
        if error:
            raise BenchmarkFailed(str(error))
        self._missing.discard(message.partition())
        self.last_at = time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Process acks for a number of seconds."""
        ends_at = time.perf_counter() + seconds
        while (left := ends_at - time.perf_counter()) > 0:
            self._producer.poll(left)
