"""Group members and transactional producers during failures of their coordinators.

The node of a coordinator stops or crashes, restarts, and leads its partitions again. The clients
continue without errors, and no committed offset decreases.
"""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import kafka
import kafka.errors
import pytest
import trio
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kbroker.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode

from ..kill.server import Address
from ..wire import connected, request
from .cluster import NODES, Cluster, wait_until

pytestmark = pytest.mark.slow

INPUT, OUTPUT, PARTITIONS = "in", "out", 3
SETTINGS = (
    "flush.policy=fsync",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "auto.leader.rebalance.enable=false",
)
TOPICS = (f"{INPUT}:{PARTITIONS}", f"{OUTPUT}:{PARTITIONS}")
GROUP, TRANSACTION = 0, 1
# Number of steps that each application must complete after each change.
STEPS = 3
# Errors that applications may get while a coordinator moves, as with Apache Kafka.
ASK_AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("clients")
    names = (INPUT, OUTPUT, OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
    cluster = Cluster(directory, SETTINGS, TOPICS, names)
    try:
        cluster.start()
        for kind in (GROUP, TRANSACTION):
            coordinator(cluster, kind, "first")
        await_in_sync(cluster)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(started: Cluster) -> Cluster:
    """Return three running nodes, after restarting those that another test stopped."""
    for node in NODES:
        started.revive(node)
    await_in_sync(started)
    return started


@pytest.fixture(autouse=True)
def _without_kafka_python_s_log() -> Iterator[None]:
    """Disable kafka-python's log: its records keep sockets of failed connections open."""
    logger = logging.getLogger("kafka")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
    gc.collect()


def await_in_sync(cluster: Cluster) -> None:
    cluster.await_in_sync(list(cluster.partition_states()))


def coordinator(cluster: Cluster, kind: int, key: str) -> int:
    """Wait until a coordinator is known, and return its node."""
    found: list[int] = []

    async def find(address: Address) -> int:
        async with connected(address) as wire:
            ask = request(ApiKey.FIND_COORDINATOR, key=key, key_type=kind)
            return int((await wire.ask(ApiKey.FIND_COORDINATOR, 3, ask)).node_id)

    def is_known() -> bool:
        for address in cluster.addresses:
            try:
                found[:] = [trio.run(find, address)]
            except OSError:
                continue
            return found[0] in NODES
        return False

    wait_until(is_known, lambda: f"no coordinator of {key}")
    return found[0]


class Application:
    """A step that runs repeatedly in a thread. `check` raises its error."""

    def __init__(self, step: Callable[[], None], close: Callable[[], None]) -> None:
        self.steps = 0
        self._step, self._close = step, close
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
                self.steps += 1
            self._close()
        except BaseException as error:  # noqa: BLE001  # `check` raises it again
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise AssertionError("an error reached the application") from self._error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.check()


class Positions:
    """Committed offsets of a group, which must not decrease."""

    def __init__(self) -> None:
        self.committed = dict.fromkeys(range(PARTITIONS), -1)
        self._lock = threading.Lock()

    def record_commit(self, partition: int, offset: int) -> None:
        """Record an acknowledged commit."""
        with self._lock:
            self.committed[partition] = max(self.committed[partition], offset)

    def check_read(self, partition: int, offset: int, known: int) -> None:
        """Check that a fetched offset is not lower than `known`, the offset committed before it."""
        assert offset >= known, f"{INPUT}-{partition}: {offset} after {known} was committed"


class Progress:
    """Progress of all applications and of the group in every partition."""

    def __init__(self, positions: Positions | None = None) -> None:
        self.applications: list[Application] = []
        self._positions = positions

    def _counts(self) -> list[int]:
        committed = self._positions.committed.values() if self._positions else ()
        return [*(each.steps for each in self.applications), *committed]

    def all_go_on(self) -> None:
        before = self._counts()

        def has_progressed() -> bool:
            for each in self.applications:
                each.check()
            counts = zip(self._counts(), before, strict=True)
            return all(now >= earlier + STEPS for now, earlier in counts)

        wait_until(has_progressed, lambda: f"{before}, then {self._counts()}")

    def stop(self) -> None:
        for each in self.applications:
            each.stop()


class Member(Protocol):
    """Common interface of the members of both libraries."""

    def poll(self) -> dict[int, int]:
        """Return the next position of each partition with new records."""
        ...

    def commit(self, positions: dict[int, int]) -> None: ...

    def committed(self, partition: int) -> int: ...

    def close(self) -> None: ...


class KafkaPython:
    """A member with kafka-python."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._consumer = kafka.KafkaConsumer(
            INPUT,
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=20_000,
            heartbeat_interval_ms=300,
        )

    def poll(self) -> dict[int, int]:
        try:
            found = self._consumer.poll(timeout_ms=300)
        except kafka.errors.KafkaConnectionError:
            # Heartbeats raise this if they look for the coordinator on a stopped node.
            return {}
        return {place.partition: rows[-1].offset + 1 for place, rows in found.items()}

    def commit(self, positions: dict[int, int]) -> None:
        row = kafka.structs.OffsetAndMetadata
        rows = {kafka.TopicPartition(INPUT, n): row(at, "", -1) for n, at in positions.items()}
        retry_until_coordinator(lambda: self._consumer.commit(rows))

    def committed(self, partition: int) -> int:
        found = retry_until_coordinator(
            lambda: self._consumer.committed(kafka.TopicPartition(INPUT, partition))
        )
        return -1 if found is None else int(found)

    def close(self) -> None:
        self._consumer.close()


class Confluent:
    """A member with confluent-kafka."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 20_000,
                "heartbeat.interval.ms": 300,
                "reconnect.backoff.max.ms": 300,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([INPUT])

    def poll(self) -> dict[int, int]:
        found = self._consumer.consume(100, 0.3)
        return {row.partition(): row.offset() + 1 for row in found if row.error() is None}

    def commit(self, positions: dict[int, int]) -> None:
        rows = [TopicPartition(INPUT, n, at) for n, at in positions.items()]
        retry_until_coordinator(lambda: self._consumer.commit(offsets=rows, asynchronous=False))

    def committed(self, partition: int) -> int:
        partitions = [TopicPartition(INPUT, partition)]
        (row,) = retry_until_coordinator(lambda: self._consumer.committed(partitions, 30))
        return max(int(row.offset), -1)

    def close(self) -> None:
        self._consumer.close()


def retry_until_coordinator(ask: Callable[[], Any]) -> Any:
    """Repeat a call until it reaches the coordinator."""
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in ASK_AGAIN and not error.args[0].retriable():
                raise
        except kafka.errors.KafkaConnectionError:
            pass  # looked for the coordinator on a stopped node
        time.sleep(0.05)


LIBRARIES: dict[str, Callable[[str, str], Member]] = {
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
}


def member(cluster: Cluster, library: str, group: str, positions: Positions) -> Application:
    """Start a member that commits what it reads and checks the committed offsets."""
    client = LIBRARIES[library](cluster.bootstrap, group)

    def step() -> None:
        found = client.poll()
        if found:
            client.commit(found)
            for partition, offset in found.items():
                positions.record_commit(partition, offset)
        for partition, known in list(positions.committed.items()):
            positions.check_read(partition, client.committed(partition), known)

    return Application(step, client.close)


def producer(cluster: Cluster) -> Application:
    client = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 300,
            "log_level": 0,
        }
    )
    errors: list[Any] = []
    numbers = itertools.count()

    def on_delivery(error: Any, _: object) -> None:
        if error is not None:
            errors.append(error)

    def step() -> None:
        for number in range(PARTITIONS):
            client.produce(INPUT, b"%d" % next(numbers), partition=number, on_delivery=on_delivery)
        assert client.flush(30) == 0
        assert errors == []
        time.sleep(0.02)

    return Application(step, lambda: None)


def transactional(cluster: Cluster, name: str, written: list[bytes]) -> Application:
    """Start a producer with one transaction per step. Every third one is aborted."""
    client = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 300,
            "log_level": 0,
        }
    )
    client.init_transactions(30)
    numbers = itertools.count()

    def step() -> None:
        number = next(numbers)
        value = b"%s %d" % (name.encode(), number)
        client.begin_transaction()
        for partition in range(PARTITIONS):
            client.produce(OUTPUT, value, partition=partition)
        assert client.flush(30) == 0
        if number % 3 == 2:
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)
            written.append(value)
        time.sleep(0.02)

    return Application(step, lambda: None)


def take_coordinator(cluster: Cluster, node: int, how: str, progress: Progress) -> None:
    """Stop a coordinator's node, revive it, and move leaders back. Clients progress each time."""
    end = cluster.stop if how == "stop" else cluster.crash
    end(node)
    progress.all_go_on()
    cluster.revive(node)
    await_in_sync(cluster)
    progress.all_go_on()
    cluster.move_leaders_back()
    progress.all_go_on()


@pytest.mark.parametrize("library", LIBRARIES)
def test_group_members_continue_after_coordinator_failures(cluster: Cluster, library: str) -> None:
    group, positions = f"group-{library}", Positions()
    progress = Progress(positions)
    try:
        progress.applications.append(producer(cluster))
        for _ in range(2):
            progress.applications.append(member(cluster, library, group, positions))
        progress.all_go_on()
        for how in ("stop", "crash"):
            take_coordinator(cluster, coordinator(cluster, GROUP, group), how, progress)
    finally:
        progress.stop()


def test_transactions_continue_after_coordinator_failures(cluster: Cluster) -> None:
    """All records of committed transactions are read, and no others."""
    written: dict[str, list[bytes]] = {f"tx-{number}": [] for number in range(3)}
    progress = Progress()
    try:
        for name, values in written.items():
            progress.applications.append(transactional(cluster, name, values))
        progress.all_go_on()
        for how in ("stop", "crash"):
            node = coordinator(cluster, TRANSACTION, "tx-0")
            take_coordinator(cluster, node, how, progress)
    finally:
        progress.stop()
    expected = sorted(itertools.chain(*written.values()))
    assert [sorted(values) for values in read_all(cluster)] == [expected] * PARTITIONS


def read_all(cluster: Cluster) -> list[list[bytes]]:
    """Return the committed records of each partition of the output."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reads all",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(OUTPUT, number, 0) for number in range(PARTITIONS)])
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            values[message.partition()].append(message.value())
        else:
            at_end.add(message.partition())
    consumer.close()
    return values
