"""Snapshots of a broker: restore, fork, save and load."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import OutOfOrderSequenceNumberError
from kafka.structs import OffsetAndMetadata

from kbroker.coordinator_runtime.shards import Shards
from kbroker.protocol.errors import ErrorCode
from kbroker.security.scram import ScramMechanism, credential_from
from kbroker.storage.files import MemFiles
from kbroker.testing import LocalBroker, RunningBroker, Snapshot, open_test_broker

from ..handlers.test_transactions import NAME, Writer, begin_writer
from ..limits import PROCESS_SECONDS
from ..wire import Topic, Wire, connected
from .test_transactions import new_confluent_producer, topic_of

T = TypeVar("T")

SERVE = [
    sys.executable,
    *["-m", "kbroker", "serve", "--port", "0", "--idle-timeout", "100ms", "--json"],
]


def settings_of(kind: str, directory: Path) -> dict[str, Any]:
    """Return the settings of a broker with this kind of store."""
    places: dict[str, dict[str, Any]] = {
        "memory": {},
        "disk to break": {"disk": True},
        "directory": {"data_dir": str(directory / "data")},
        "directories": {"data_dir": [str(directory / "one"), str(directory / "two")]},
    }
    return places[kind]


@pytest.fixture(
    params=[
        "memory",
        pytest.param("disk to break", marks=pytest.mark.slow),
        pytest.param("directory", marks=pytest.mark.slow),
        pytest.param("directories", marks=pytest.mark.slow),
    ]
)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBroker]:
    """Create a broker for each kind of store."""
    with LocalBroker(topics={"orders": 2}, **settings_of(request.param, tmp_path)) as broker:
        yield broker


@pytest.fixture
def in_directory(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 1}, data_dir=str(tmp_path / "data")) as broker:
        yield broker


def values(broker: LocalBroker, topic: str = "orders") -> list[str]:
    return [record.text for record in broker.records(topic)]


def commit(broker: LocalBroker, offset: int) -> None:
    """Commit an offset without joining the group."""
    client = KafkaConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
    )
    client.assign([TopicPartition("orders", 0)])
    client.commit({TopicPartition("orders", 0): OffsetAndMetadata(offset, "", -1)})
    client.close()


def call_with_node(broker: LocalBroker, function: Any) -> Any:
    """Call a function with the broker's node, in its thread."""

    async def call(running: RunningBroker) -> Any:
        return function(running.broker.node)

    return broker.run_in_broker(call)


def leader_epoch(broker: LocalBroker) -> int:
    return int(
        call_with_node(broker, lambda node: node.cluster.partition("orders", 0).leader_epoch)
    )


def generation(broker: LocalBroker) -> int:
    """Return the generation of group g."""
    return int(call_with_node(broker, lambda node: node.groups.history.of("g")[-1].generation))


# -- transactions


async def new_writer(running: RunningBroker, wire: Wire, version: int) -> tuple[Writer, Topic]:
    """Return a producer with one committed transaction."""
    topic = topic_of(running)
    writer = await begin_writer(wire, version)
    await writer.write(topic, b"1")
    await writer.commit()
    return writer, topic


def run_with_wire(
    broker: LocalBroker, scenario: Callable[[RunningBroker, Wire], Awaitable[T]]
) -> T:
    async def run(running: RunningBroker) -> T:
        async with connected(running.broker.endpoint) as wire:
            return await scenario(running, wire)

    return broker.run_in_broker(run)


def test_transactions_continue_after_restore(broker: LocalBroker) -> None:
    producers = [
        new_confluent_producer(broker, "committed"),
        new_confluent_producer(broker, "aborted"),
    ]
    for number, producer in enumerate(producers):
        producer.begin_transaction()
        producer.produce("orders", f"{number}", partition=number)
        assert producer.flush(10) == 0
    broker.restore(broker.snapshot())
    assert values(broker) == []
    producers[0].commit_transaction(20)
    producers[1].abort_transaction(20)
    assert values(broker) == ["0"]
    broker.wait_until_idle()


def test_open_transaction_is_open_in_fork(broker: LocalBroker) -> None:
    producer = new_confluent_producer(broker)
    producer.begin_transaction()
    producer.produce("orders", "1", partition=0)
    assert producer.flush(10) == 0
    with broker.fork() as fork:
        fork.produce("orders", "behind", partition=0)
        assert values(fork) == []
        new_confluent_producer(fork)
        assert values(fork) == ["behind"], "a new producer with the ID aborts the transaction"
    producer.commit_transaction(10)
    assert values(broker) == ["1"]


def test_prepared_transaction_of_snapshot_is_finished(broker: LocalBroker) -> None:
    """The decision was made before the snapshot, and the markers were not written yet."""

    async def prepare(running: RunningBroker, wire: Wire) -> None:
        writer, topic = await new_writer(running, wire, 11)
        await writer.write(topic, b"2")
        service = running.broker.node.transactions
        shard = service.shard(NAME)
        result = shard.coordinator.end(
            *(NAME, writer.id, writer.epoch, -1, service.now()), commit=True, second_protocol=False
        )
        Shards.store(service, shard, result)
        assert shard.coordinator.transactions[NAME].state.is_prepared

    run_with_wire(broker, prepare)
    assert values(broker) == ["1"]
    with broker.fork() as fork:
        assert values(fork) == ["1", "2"]
        fork.wait_until_idle()
    broker.restore(broker.snapshot())
    assert values(broker) == ["1", "2"]
    broker.wait_until_idle()


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "idle"])
def test_producer_epoch_is_not_reused_after_restore(broker: LocalBroker, is_open: bool) -> None:
    """A producer from after the snapshot still runs when another one starts after the restore."""

    async def start(running: RunningBroker, wire: Wire) -> Writer:
        writer, topic = await new_writer(running, wire, 13)
        if is_open:
            await writer.write(topic, b"open")
        return writer

    async def continue_transactions(running: RunningBroker, wire: Wire) -> list[tuple[int, int]]:
        writer = await begin_writer(wire, 13)
        newest = [(writer.id, writer.epoch)]
        for _ in range(3):
            await writer.write(topic_of(running), b"later")
            await writer.commit()
            newest.append((writer.id, writer.epoch))
        return newest

    async def use_restored(running: RunningBroker, wire: Wire) -> tuple[int, int]:
        topic = topic_of(running)
        zombie, new = Writer(wire, 13), await begin_writer(wire, 13)
        for zombie.id, zombie.epoch in known:
            assert await zombie.produce(topic, b"zombie") == ErrorCode.INVALID_PRODUCER_EPOCH
            assert await zombie.end(commit=False) == ErrorCode.PRODUCER_FENCED
        await new.write(topic, b"new")
        await new.commit()
        return new.id, new.epoch

    run_with_wire(broker, start)
    snapshot = broker.snapshot()
    known = run_with_wire(broker, continue_transactions)
    broker.restore(snapshot)
    for _ in range(2):
        assert run_with_wire(broker, use_restored) not in known
    assert values(broker) == ["1", "new", "new"]


# -- content


def test_restore_brings_back_records_and_offsets(broker: LocalBroker) -> None:
    broker.produce("orders", "1", partition=0)
    commit(broker, 1)
    snapshot = broker.snapshot()
    broker.produce("orders", "2", partition=0)
    commit(broker, 2)
    broker.create_topic("other")
    broker.restore(snapshot)
    assert values(broker) == ["1"]
    assert broker.committed("g") == {("orders", 0): 1}
    assert list(broker.topics()) == ["orders"]
    assert broker.produce("orders", "two", partition=0).offset == 1
    broker.restore(snapshot)
    assert values(broker) == ["1"], "a snapshot can be used again"


def test_later_changes_do_not_affect_snapshot(broker: LocalBroker) -> None:
    """Retention and compaction do not change the segments of the snapshot."""
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "3600000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    broker.create_topic("state", configs=compacted)
    broker.create_topic("old", configs={"retention.ms": "3600000"})
    for number in range(20):
        broker.produce("state", f"{number}", key="k")
        broker.produce("old", f"{number}")
    broker.clock.advance(minutes=50)
    before = broker.snapshot()
    broker.clock.advance(hours=2)
    broker.produce("state", "last", key="k")  # rolls a new segment
    broker.clock.advance(hours=2)
    assert values(broker, "old") == []
    assert len(values(broker, "state")) < 20, "the log was compacted"
    broker.restore(before)
    assert values(broker, "old") == [str(number) for number in range(20)]
    assert values(broker, "state") == [str(number) for number in range(20)]


def test_snapshot_has_log_start_offset(broker: LocalBroker) -> None:
    """DeleteRecords moves the log start offset at once; the next checkpoint stores it on disk."""
    for number in range(5):
        broker.produce("orders", f"{number}", partition=0)
    call_with_node(
        broker, lambda node: node.partitions.logs.get("orders", 0).delete_records_before(3)
    )
    with broker.fork() as fork:
        assert values(fork) == ["3", "4"]


def test_restore_resets_clocks(broker: LocalBroker) -> None:
    began = broker.clock.now_ms()
    broker.clock.advance(hours=5)
    snapshot = broker.snapshot()
    broker.clock.advance(days=1)
    broker.restore(snapshot)
    hours = (broker.clock.now_ms() - began) / 3_600_000
    assert 5 <= hours < 6


def test_snapshot_has_topic_configs(broker: LocalBroker) -> None:
    broker.create_topic("kept", configs={"retention.ms": "4711"})
    snapshot = broker.snapshot()
    broker.delete_topic("kept")
    broker.restore(snapshot)
    configs = call_with_node(broker, lambda node: dict(node.cluster.topics["kept"].configs))
    assert configs == {"retention.ms": "4711"}


def test_snapshot_has_users(broker: LocalBroker) -> None:
    def create_user(name: str) -> None:
        async def scenario(running: RunningBroker, wire: Wire) -> None:
            credential = credential_from(ScramMechanism.SHA_256, b"hash", b"salt", 4096)
            credentials = {name: {ScramMechanism.SHA_256: credential}}
            assert await running.broker.node.cluster.put_scram_users(credentials, cause="test")

        run_with_wire(broker, scenario)

    create_user("bob")
    snapshot = broker.snapshot()
    create_user("carol")
    broker.restore(snapshot)
    assert call_with_node(broker, lambda node: list(node.cluster.scram_users.names)) == ["bob"]
    with broker.fork() as fork:
        assert call_with_node(fork, lambda node: list(node.cluster.scram_users.names)) == ["bob"]


# -- clients


def test_idempotent_producer_continues_after_restore(broker: LocalBroker) -> None:
    """The sequence numbers follow those in the snapshot: no batch is rejected or duplicated."""
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        enable_idempotence=True,
        reconnect_backoff_ms=10,
        retry_backoff_ms=10,
    )
    for number in range(3):
        producer.send("orders", b"%d" % number, partition=0).get(10)
    snapshot = broker.snapshot()
    address = broker.bootstrap_servers
    broker.restore(snapshot)
    assert broker.bootstrap_servers == address
    assert producer.send("orders", b"3", partition=0).get(10).offset == 3
    producer.close()
    assert values(broker) == ["0", "1", "2", "3"]


def test_producer_id_is_not_reused_after_restore(broker: LocalBroker) -> None:
    """A client may still use a producer ID from after the snapshot."""

    async def producer_id(running: RunningBroker) -> int:
        return await running.broker.node.transactions.producer_ids.next()

    snapshot = broker.snapshot()
    first_id = broker.run_in_broker(producer_id)
    broker.restore(snapshot)
    assert broker.run_in_broker(producer_id) > first_id


def test_leader_epochs_increase_with_each_restore(broker: LocalBroker) -> None:
    """Otherwise a client could confuse new records with those it has consumed (KIP-320)."""
    snapshot = broker.snapshot()
    seen = [leader_epoch(broker)]
    for _ in range(3):
        broker.restore(snapshot)
        seen.append(leader_epoch(broker))
    assert seen == sorted(set(seen))


def test_reader_without_group_detects_truncation_after_restore(in_directory: LocalBroker) -> None:
    """The position of the consumer is 100, and the log end offset is 50.

    With the new leader epoch the consumer finds the diverging offset (KIP-320), and continues there.
    """
    for number in range(50):
        in_directory.produce("orders", f"{number}")
    snapshot = in_directory.snapshot()
    for number in range(50, 100):
        in_directory.produce("orders", f"{number}")
    client = KafkaConsumer(
        bootstrap_servers=in_directory.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
        reconnect_backoff_ms=10,
        retry_backoff_ms=10,
    )
    client.assign([TopicPartition("orders", 0)])
    assert [next(client).offset for _ in range(100)] == list(range(100))
    in_directory.restore(snapshot)
    assert in_directory.produce("orders", "another 50").offset == 50
    found = next(client)
    client.close()
    assert (found.offset, found.value) == (50, b"another 50")


def test_producer_ahead_of_snapshot_gets_error_and_continues(in_directory: LocalBroker) -> None:
    """The first batch is rejected, and the producer continues with a new epoch, as with Kafka."""
    client = KafkaProducer(
        bootstrap_servers=in_directory.bootstrap_servers,
        enable_idempotence=True,
        reconnect_backoff_ms=10,
        retry_backoff_ms=10,
    )
    client.send("orders", b"0").get(10)
    snapshot = in_directory.snapshot()
    client.send("orders", b"gone").get(10)
    in_directory.restore(snapshot)
    with pytest.raises(OutOfOrderSequenceNumberError):
        client.send("orders", b"refused").get(10)
    assert client.send("orders", b"1").get(10).offset == 1
    client.close()
    assert values(in_directory) == ["0", "1"]


def test_group_continues_from_committed_offset_after_restore(broker: LocalBroker) -> None:
    """The member gets UNKNOWN_MEMBER_ID, joins again, and fetches the committed offsets."""
    for number in range(5):
        broker.produce("orders", f"{number}", partition=0)
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,
        }
    )
    client.subscribe(["orders"])
    assert consume(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
    client.commit(asynchronous=False)
    snapshot = broker.snapshot()
    before = generation(broker)
    for number in range(5, 9):
        broker.produce("orders", f"{number}", partition=0)
    assert consume(client, 4) == [b"5", b"6", b"7", b"8"]
    client.commit(asynchronous=False)
    broker.restore(snapshot)
    broker.produce("orders", "another 5", partition=0)
    assert consume(client, 1) == [b"another 5"]
    assert generation(broker) > before
    client.close()


def consume(client: Consumer, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    for _ in range(400):
        message = client.poll(0.05)
        if message is not None and not message.error():
            found.append(message.value())
        if len(found) == count:
            break
    return found


# -- forks


def test_fork_is_independent_of_original(broker: LocalBroker) -> None:
    broker.produce("orders", "1", partition=0)
    with broker.fork() as fork:
        fork.produce("orders", "theirs", partition=0)
        broker.produce("orders", "ours", partition=0)
        assert values(fork) == ["1", "theirs"]
        assert values(broker) == ["1", "ours"]
        fork.restart()
        broker.restart()
        assert values(fork) == ["1", "theirs"]
        assert values(broker) == ["1", "ours"]


def test_fork_has_its_own_cluster_id(broker: LocalBroker) -> None:
    def cluster_id(of: LocalBroker) -> str:
        return str(call_with_node(of, lambda node: node.cluster.id))

    mine = cluster_id(broker)
    snapshot = broker.snapshot()
    with broker.fork(snapshot) as one, broker.fork(snapshot) as two:
        assert len({mine, cluster_id(one), cluster_id(two)}) == 3
        assert len({each.bootstrap_servers for each in (broker, one, two)}) == 3
    broker.restore(snapshot)
    assert cluster_id(broker) == mine


# -- save and load


def test_saved_snapshot_can_be_loaded(broker: LocalBroker, tmp_path: Path) -> None:
    broker.clock.advance(hours=3)
    broker.produce("orders", "kept", partition=0)
    broker.snapshot().save(tmp_path / "saved")
    broker.produce("orders", "not kept", partition=0)
    with pytest.raises(FileExistsError):
        broker.snapshot().save(tmp_path / "saved")
    several = (tmp_path / "saved" / "1").is_dir()
    for name in ("a", "b"):  # any number of times
        data_dir = [str(tmp_path / name / each) for each in ("0", "1")] if several else None
        with LocalBroker(load=tmp_path / "saved", data_dir=data_dir) as other:
            assert values(other) == ["kept"]
            assert abs(other.clock.now_ms() - broker.clock.now_ms()) < 60_000
            other.produce("orders", "more")


@pytest.mark.slow
def test_saved_snapshot_can_be_served(tmp_path: Path) -> None:
    with LocalBroker() as broker:
        broker.produce("orders", "kept")
        broker.snapshot().save(tmp_path / "saved")
    dump = subprocess.run(
        [*SERVE, "--data-dir", str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=True,
        timeout=PROCESS_SECONDS,
    )
    assert '"event": "ready"' in dump.stdout


def test_snapshot_can_be_loaded_into_other_kind_of_store(tmp_path: Path) -> None:
    with LocalBroker() as broker:
        broker.produce("orders", "kept")
        snapshot = broker.snapshot()
    for kind in ("disk to break", "directory", "memory"):
        with LocalBroker(load=snapshot, **settings_of(kind, tmp_path)) as other:
            assert values(other) == ["kept"]
            other.restart()
            assert values(other) == ["kept"]
    with pytest.raises(ValueError, match="as many with data_dir"):
        LocalBroker(load=snapshot, **settings_of("directories", tmp_path))
    with pytest.raises(ValueError, match="it has data; use an empty directory"):
        LocalBroker(load=snapshot, **settings_of("directory", tmp_path))
    with pytest.raises(FileNotFoundError, match="no saved snapshot"):
        Snapshot.load(tmp_path)


def test_loaded_snapshot_survives_power_cut() -> None:
    with LocalBroker(disk=True, config={"flush.policy": "os"}) as broker:
        broker.produce("orders", "1")
        snapshot = broker.snapshot()
        broker.restore(snapshot)
        broker.produce("orders", "2")
        broker.power_cut("drop")
        assert values(broker) == ["1"]


# -- in real directories


def test_closed_segments_are_linked_not_copied(in_directory: LocalBroker, tmp_path: Path) -> None:
    in_directory.produce("orders", "x")
    snapshot = in_directory.snapshot()
    (copy,) = tmp_path.glob("data.copy-*")
    name = "orders-0/00000000000000000000.log"
    assert (copy / name).samefile(tmp_path / "data" / name)
    in_directory.produce("orders", "y")  # to a segment that the copy does not share
    assert values(in_directory) == ["x", "y"]
    in_directory.restore(snapshot)
    assert values(in_directory) == ["x"]


def test_unused_snapshot_leaves_no_files(in_directory: LocalBroker, tmp_path: Path) -> None:
    snapshot = in_directory.snapshot()
    with in_directory.fork(snapshot):
        assert len(list(tmp_path.iterdir())) == 3
    del snapshot
    gc.collect()
    assert [each.name for each in tmp_path.iterdir()] == ["data"]


# -- in memory


def test_forked_memory_files_share_bytes() -> None:
    files = MemFiles()
    files.mkdir("d")
    file = files.open("d/f", create=True)
    file.append([b"abc"])
    other = files.fork()
    file.append([b"ours"])
    other.open("d/f").append([b"theirs"])
    files.write_atomic("d/g", b"new")
    assert files.read_bytes("d/f") == b"abcours"
    assert other.read_bytes("d/f") == b"abctheirs"
    assert (other.exists("d/g"), other.used, files.used) == (False, 9, 10)
    other.open("d/f").truncate(2)
    other.open("d/f").append([b"-"])
    assert (files.read_bytes("d/f"), other.read_bytes("d/f")) == (b"abcours", b"ab-")


async def test_snapshot_has_the_clocks_of_its_moment() -> None:
    async with open_test_broker() as broker:
        snapshots: list[Snapshot] = []

        async def take() -> None:
            snapshots.append(await broker.snapshot())

        lock = broker.broker.node.partitions.checkpoint_lock
        async with trio.open_nursery() as nursery, lock:
            nursery.start_soon(take)
            await trio.testing.wait_all_tasks_blocked(0.05)
            broker.clock.log.add(3_600_000)
        assert snapshots[0].clocks == broker.clock.states()
