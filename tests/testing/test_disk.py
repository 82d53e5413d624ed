"""Crashes at named points and disk failures, with unmodified clients."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from kbroker.protocol.errors import KafkaError
from kbroker.protocol.records import Record, encode_batch
from kbroker.testing import LocalBroker, RunningBroker, UnfiredFault, WaitTimeout
from kbroker.testing.disk import POINTS, Disk

# Config with segments that hold a few records of `Writer`.
SMALL_SEGMENTS = {"internal.segment.bytes": "2000"}


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 1}, disk=True) as broker:
        yield broker


# Function that writes a value and a key, and returns when the record is acknowledged.
Send = Callable[[bytes, bytes | None], None]


@contextmanager
def kafka_python(address: str) -> Iterator[Send]:
    client = KafkaProducer(
        bootstrap_servers=address,
        reconnect_backoff_ms=10,
        retry_backoff_ms=10,
        enable_idempotence=True,
    )
    yield lambda value, key: client.send("orders", value, key).get(20)
    client.close()


@contextmanager
def librdkafka(address: str) -> Iterator[Send]:
    client = Producer(
        {
            "bootstrap.servers": address,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "enable.idempotence": True,
            "log_level": 0,
        }
    )

    def send(value: bytes, key: bytes | None) -> None:
        errors: list[Any] = []
        client.produce("orders", value, key, on_delivery=lambda error, _: errors.append(error))
        assert client.flush(20) == 0
        assert errors == [None]

    yield send


class Writer:
    """Unmodified producer that writes numbers in a thread until `stop`.

    Args:
        keys: Number of keys to use in turn; 0 for records without a key.
    """

    def __init__(
        self,
        broker: LocalBroker,
        client: Callable[[str], AbstractContextManager[Send]] = kafka_python,
        *,
        keys: int = 0,
    ) -> None:
        self.acknowledged: list[bytes] = []
        self._address = broker.bootstrap_servers
        self._client = client
        self._keys = keys
        self._is_running = True
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        with self._client(self._address) as send:
            while self._is_running:
                value = b"%d" % number
                send(value, b"%d" % (number % self._keys) if self._keys else None)
                self.acknowledged.append(value)
                number += 1

    def wait_for_more(self, count: int = 5) -> None:
        """Wait until `count` more records are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + 20
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, "the producer does not continue"
            time.sleep(0.01)

    def stop(self) -> list[bytes]:
        self._is_running = False
        self._thread.join()
        return self.acknowledged


def values(broker: LocalBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


def texts(broker: LocalBroker) -> list[str]:
    return [record.text for record in broker.records("orders")]


# -- crash points


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["drop", "torn", "lost-name", "mixed"])
@pytest.mark.parametrize("point", ["produce.received", "produce.appended", "produce.synced"])
def test_producer_survives_crash(broker: LocalBroker, point: str, mode: Any) -> None:
    writer = Writer(broker)
    writer.wait_for_more()
    address = broker.bootstrap_servers
    broker.crash_at(point, mode, seed=3)
    broker.wait_for_crash(timeout=10)
    assert broker.bootstrap_servers == address
    writer.wait_for_more()
    acknowledged = writer.stop()
    assert values(broker) == acknowledged, "no record is lost, duplicated or reordered"


@pytest.mark.parametrize("point", ["produce.received", "produce.appended", "produce.synced"])
def test_confluent_producer_survives_crash(broker: LocalBroker, point: str) -> None:
    writer = Writer(broker, librdkafka)
    writer.wait_for_more()
    broker.crash_at(point)
    broker.wait_for_crash(timeout=10)
    writer.wait_for_more()
    acknowledged = writer.stop()
    assert values(broker) == acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["drop", "mixed"])
@pytest.mark.parametrize("point", ["segment.created", "index.written", "checkpoint.written"])
def test_producer_survives_crash_between_segments(point: str, mode: Any) -> None:
    with LocalBroker(disk=True) as broker:
        broker.create_topic("orders", configs=SMALL_SEGMENTS)
        writer = Writer(broker)
        writer.wait_for_more()
        broker.crash_at(point, mode, seed=5)
        broker.wait_for_crash(timeout=10)
        writer.wait_for_more(40)
        acknowledged = writer.stop()
        assert values(broker) == acknowledged


@pytest.mark.parametrize("mode", ["drop", "mixed"])
def test_producer_survives_crash_during_stop(broker: LocalBroker, mode: Any) -> None:
    writer = Writer(broker)
    writer.wait_for_more()
    broker.crash_at("clean_marker.written", mode)
    broker.stop()
    broker.start()
    writer.wait_for_more()
    acknowledged = writer.stop()
    assert values(broker) == acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["drop", "lost-name", "mixed"])
def test_producer_survives_crash_during_compaction(mode: Any) -> None:
    """The newest value of each key is kept, whether or not the compaction was completed."""
    configs = SMALL_SEGMENTS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    with LocalBroker(disk=True) as broker:
        broker.create_topic("orders", configs=configs)
        writer = Writer(broker, keys=7)
        writer.wait_for_more(50)
        broker.crash_at("compaction.cleaned", mode)
        broker.clock.advance(hours=1)
        broker.wait_for_crash(timeout=10)
        writer.wait_for_more()
        acknowledged = writer.stop()
        broker.clock.advance(hours=1)
        records = broker.records("orders")
        assert len(records) < len(acknowledged), "the log was compacted"
        newest = {record.key: record.value for record in records}
        assert newest == {b"%d" % (int(value) % 7): value for value in acknowledged[-7:]}


def test_group_continues_after_crash_during_commit(broker: LocalBroker) -> None:
    for number in range(10):
        broker.produce("orders", f"{number}")
    client = KafkaConsumer(
        "orders",
        bootstrap_servers=broker.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        reconnect_backoff_ms=10,
        consumer_timeout_ms=10_000,
    )
    broker.crash_at("commit.appended")  # earlier group metadata records do not reach the point
    seen = [next(client).value for _ in range(10)]
    committing = threading.Thread(target=client.commit)
    committing.start()
    broker.wait_for_crash(timeout=10)
    committing.join()
    assert seen == [b"%d" % number for number in range(10)]
    assert broker.committed("g") == {("orders", 0): 10}
    broker.produce("orders", "10")
    assert next(client).value == b"10"
    client.close()


@pytest.mark.parametrize("commit", [True, False])
def test_transactional_offsets_survive_crash(broker: LocalBroker, commit: bool) -> None:
    """The crash loses or keeps the offsets. The client retries, and they take effect once."""
    client = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}
    )
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "tx", "log_level": 0}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    broker.crash_at("commit.appended", "mixed", seed=commit)
    metadata = client.consumer_group_metadata()
    offsets = [TopicPartition("orders", 0, 1)]
    sending = threading.Thread(
        target=producer.send_offsets_to_transaction, args=(offsets, metadata, 20)
    )
    sending.start()
    broker.wait_for_crash(timeout=10)
    sending.join()
    assert broker.committed("g") == {}
    (producer.commit_transaction if commit else producer.abort_transaction)(20)
    assert broker.committed("g") == ({("orders", 0): 1} if commit else {})
    client.close()


def test_transaction_marker_does_not_reach_commit_point(broker: LocalBroker) -> None:
    """A transaction marker is a write to the offsets topic, but not a commit."""
    address = {"bootstrap.servers": broker.bootstrap_servers}
    client = Consumer({**address, "group.id": "g"})
    producer = Producer({**address, "transactional.id": "tx"})
    producer.init_transactions(10)
    producer.begin_transaction()
    offsets = [TopicPartition("orders", 0, 1)]
    producer.send_offsets_to_transaction(offsets, client.consumer_group_metadata(), 10)
    broker.crash_at("commit.appended")
    producer.commit_transaction(10)
    assert broker.committed("g") == {("orders", 0): 1}
    with pytest.raises(UnfiredFault, match=r"commit\.appended"):
        broker.check_faults()
    broker.disarm_faults()
    client.close()


def crash_in_produce(broker: LocalBroker) -> None:
    broker.crash_at("produce.appended")
    with suppress(OSError):
        broker.produce("orders", "lost")


def crash_in_stop(broker: LocalBroker) -> None:
    broker.crash_at("clean_marker.written")
    broker.stop()


def crash_in_restart(broker: LocalBroker) -> None:
    broker.crash_at("clean_marker.written")
    broker.restart()


def crash_in_start(broker: LocalBroker) -> None:
    broker.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POINTS, "anything", lambda _kind, _path: True)
        broker.crash_at("anything")
    broker.start()


@pytest.mark.slow
@pytest.mark.parametrize("crash", [crash_in_produce, crash_in_stop, crash_in_start])
@pytest.mark.parametrize(
    "calls",
    [
        ["wait_for_crash"],
        ["start"],
        ["start", "wait_for_crash"],
        ["restart"],
        ["restart", "wait_for_crash"],
        ["stop", "start"],
        ["stop", "restart"],
        ["stop", "wait_for_crash"],
        ["stop", "start", "restart", "wait_for_crash"],
        ["power_cut", "wait_for_crash"],
    ],
    ids=", ".join,
)
def test_crash_is_handled_with_calls_in_any_order(
    broker: LocalBroker, crash: Callable[[LocalBroker], None], calls: list[str]
) -> None:
    record = broker.produce("orders", "kept")
    crash(broker)
    for call in calls:
        getattr(broker, call)()
    assert broker.records("orders") == [record]
    broker.crash_at("produce.appended")
    with pytest.raises(WaitTimeout, match="did not reach the point"):
        broker.wait_for_crash(timeout=0.01)
    broker.disarm_faults()


def test_crash_during_restart_is_handled(broker: LocalBroker) -> None:
    record = broker.produce("orders", "kept")
    crash_in_restart(broker)
    assert broker.records("orders") == [record]
    broker.wait_for_crash()
    assert broker.records("orders") == [record]


def test_crashed_broker_raises_runtime_error(broker: LocalBroker) -> None:
    crash_in_stop(broker)
    with pytest.raises(RuntimeError, match="has crashed; wait_for_crash"):
        broker.records("orders")
    broker.wait_for_crash()
    broker.stop()
    with pytest.raises(RuntimeError, match="call start"):
        broker.wait_for_crash()
    broker.power_cut()
    assert broker.topics() == {"orders": 1}


def image_after_cut(mode: Any) -> dict[str, bytes]:
    """Return the files after a power cut; one file was never synced."""
    disk = Disk()
    disk.open("/log", create=True).append([bytes(range(1, 251)) * 100])
    disk.sync_dir("/")
    disk.cut(mode, seed=1)
    assert disk.after_cut is not None
    return disk.after_cut.image()


def test_crash_mode_ignores_case() -> None:
    images = [image_after_cut(mode) for mode in ("drop", "torn", "Torn")]
    assert images[2] == images[1] != images[0]


def test_unknown_point_or_mode_is_rejected(broker: LocalBroker) -> None:
    with pytest.raises(ValueError, match=r"there is no point 'produce.apended'"):
        broker.crash_at("produce.apended")
    broker.crash_at("compaction.cleaned")
    with pytest.raises(WaitTimeout, match="did not reach the point"):
        broker.wait_for_crash(timeout=0.05)
    broker.disarm_faults()
    assert "produce.synced" in POINTS
    with LocalBroker() as other, pytest.raises(ValueError, match="disk=True"):
        other.power_cut()


def test_point_is_reached_when_many_logs_are_synced_together() -> None:
    """For many logs, one sync of the whole file system replaces single syncs."""
    with LocalBroker(topics={"orders": 20}, disk=True) as broker:
        client = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, linger_ms=50, reconnect_backoff_ms=10
        )
        broker.crash_at("produce.synced", "drop")
        sent = [client.send("orders", b"%d" % each, partition=each) for each in range(20)]
        broker.wait_for_crash(timeout=10)
        assert [each.get(10).offset for each in sent] == [0] * 20
        client.close()
        assert sorted(values(broker)) == sorted(b"%d" % each for each in range(20))  # type: ignore[type-var]


# -- power cuts


def test_power_cut_loses_only_unacknowledged_records(broker: LocalBroker) -> None:
    writer = Writer(broker)
    for seed in range(3):
        writer.wait_for_more(3)
        broker.power_cut("torn", seed)
    acknowledged = writer.stop()
    assert values(broker) == acknowledged


def read_synced_offset(broker: LocalBroker) -> int:
    async def observe(running: RunningBroker) -> int:
        log = running.broker.node.partitions.logs.get("orders", 0)
        return log.synced_offset if log else 0

    return broker.run_in_broker(observe)


def wait_until_synced(broker: LocalBroker, offset: int) -> None:
    deadline = time.monotonic() + 10
    while read_synced_offset(broker) < offset:
        assert time.monotonic() < deadline, "no file is synced"
        time.sleep(0.01)


def test_fsync_policy_loses_no_acknowledged_record(broker: LocalBroker) -> None:
    broker.produce("orders", "1")
    broker.produce("orders", "2")
    broker.power_cut("drop")
    assert texts(broker) == ["1", "2"]


def test_interval_policy_loses_at_most_one_interval() -> None:
    config = {"flush.policy": "interval", "flush.interval.ms": "2000"}
    with LocalBroker(topics={"orders": 1}, disk=True, config=config) as broker:
        broker.produce("orders", "older")
        wait_until_synced(broker, 1)
        broker.produce("orders", "younger")
        broker.power_cut("drop")
        assert texts(broker) == ["older"]


def test_os_policy_loses_only_data_not_written_back() -> None:
    with LocalBroker(topics={"orders": 1}, disk=True, config={"flush.policy": "os"}) as broker:
        broker.produce("orders", "before")
        broker.restart()  # a clean stop syncs everything
        broker.produce("orders", "after")
        broker.power_cut("drop")
        assert texts(broker) == ["before"]


@pytest.mark.parametrize("policy", ["interval", "os"])
def test_flush_messages_of_topic_limits_loss(policy: str) -> None:
    """When `flush.messages` records are unsynced, the next ack waits for a sync."""
    config = {"flush.policy": policy, "flush.interval.ms": "3600000"}
    with LocalBroker(disk=True, config=config) as broker:
        broker.create_topic("orders", configs={"flush.messages": "2"})
        for number in range(1, 6):
            broker.produce("orders", f"{number}")
        broker.power_cut("drop")
        assert texts(broker) == ["1", "2", "3", "4"]


def test_flush_ms_of_topic_limits_loss() -> None:
    with LocalBroker(disk=True, config={"flush.policy": "os"}) as broker:
        broker.create_topic("orders", configs={"flush.ms": "20"})
        broker.produce("orders", "1")
        wait_until_synced(broker, 1)
        broker.power_cut("drop")
        assert texts(broker) == ["1"]


def test_restart_loses_nothing_with_any_policy() -> None:
    for policy in ("fsync", "interval", "os"):
        with LocalBroker(disk=True, config={"flush.policy": policy}) as broker:
            broker.produce("orders", "1")
            broker.restart()
            assert texts(broker) == ["1"]


# -- failures of the disk


def test_failed_sync_prevents_acks(broker: LocalBroker) -> None:
    """After a failed sync, no record is acknowledged."""
    broker.produce("orders", "before")
    broker.disk.fail("fsync")
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    with pytest.raises(KafkaError):
        broker.produce("orders", "y")
    broker.power_cut()
    assert texts(broker) == ["before"]
    broker.produce("orders", "after")


def test_producer_continues_after_failed_disk_was_replaced(broker: LocalBroker) -> None:
    writer = Writer(broker)
    writer.wait_for_more()
    broker.disk.fail("fsync", errno.EIO)
    time.sleep(0.2)
    broker.power_cut()
    writer.wait_for_more()
    acknowledged = writer.stop()
    assert values(broker) == acknowledged


def test_failed_write_rejects_only_its_batch(broker: LocalBroker) -> None:
    """The failed batch leaves nothing in the log, and the next one is accepted."""
    broker.disk.fail("write", errno.EIO)
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    broker.produce("orders", "y")
    assert texts(broker) == ["y"]
    with pytest.raises(ValueError, match="invalid operation 'read'"):
        broker.disk.fail("read")


def produce_with_retries(broker: LocalBroker, value: str) -> None:
    """Produce a record; retry until the broker has detected that the disk has space again."""
    deadline = time.monotonic() + 30
    while True:
        try:
            broker.produce("orders", value)
        except KafkaError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


def test_full_disk_rejects_records_until_it_has_space(broker: LocalBroker) -> None:
    broker.produce("orders", "before")
    broker.disk.full()
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    broker.disk.full(free=10_000)
    produce_with_retries(broker, "after")
    assert texts(broker) == ["before", "after"]


def test_full_disk_accepts_metadata_and_serves_records(broker: LocalBroker) -> None:
    """The broker reserves space that clients cannot use, so that topics can be deleted."""
    broker.produce("orders", "before")
    broker.disk.full()
    for _ in range(3):
        with pytest.raises(KafkaError):
            broker.produce("orders", "x")
    broker.create_topic("other")
    broker.delete_topic("other")
    assert texts(broker) == ["before"]


def test_full_partition_does_not_affect_other_partitions(broker: LocalBroker) -> None:
    """The producer retries until the partition has space."""
    broker.produce("orders", "before")
    broker.create_topic("other")
    broker.disk.full("orders", 0)
    writer = Writer(broker)
    broker.wait_for_request("Produce", timeout=10)
    assert broker.produce("other", "x").offset == 0
    time.sleep(0.1)
    assert writer.acknowledged == []
    broker.disk.free_space()
    writer.wait_for_more()
    acknowledged = writer.stop()
    assert values(broker) == [b"before", *acknowledged]


@pytest.mark.slow
def test_flipped_bit_is_detected(broker: LocalBroker) -> None:
    broker.produce("orders", "0")
    broker.produce("orders", "1")
    broker.restart()
    broker.disk.flip("orders", 0, offset=1)
    with pytest.raises(ValueError, match="does not have offset 7"):
        broker.disk.flip("orders", 0, offset=7)
    broker.power_cut()
    with pytest.raises(Exception, match="cannot be read"):
        broker.records("orders")


def test_corrupt_record_raises_error_in_reader(broker: LocalBroker) -> None:
    broker.produce("orders", "0")
    broker.disk.flip("orders", 0, offset=0)
    for call in (broker.records, broker.wait_for, broker.expect_nothing):
        with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
            call("orders")


def test_torn_write_is_truncated(broker: LocalBroker) -> None:
    """The disk has reported a sync, but stored only half of the write."""
    with pytest.raises(ValueError, match="nothing was written"):
        broker.disk.tear_last_write()
    broker.produce("orders", "whole")
    broker.produce("orders", "torn")
    broker.disk.tear_last_write()
    broker.power_cut()
    assert texts(broker) == ["whole"]
    assert broker.produce("orders", "another").offset == 1
    client = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    client.subscribe(["orders"])
    seen = [message.value() for message in client.consume(2, timeout=10)]
    client.close()
    assert seen == [b"whole", b"another"]


@pytest.mark.parametrize("stop", ["restart", "power_cut"])
def test_five_unanswered_batches_are_written_once(broker: LocalBroker, stop: str) -> None:
    """librdkafka sends the batches again after the restart, and gets their offsets."""
    offsets: list[int] = []
    errors: list[Any] = []

    def record_delivery(error: Any, message: Any) -> None:
        errors.append(error)
        offsets.append(message.offset())

    unanswered = broker.fault("Produce", at="after").blackhole().times(5)
    client = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "log_level": 0,
        }
    )
    for number in range(5):
        client.produce("orders", b"%d" % number, on_delivery=record_delivery)
    client.poll(0)
    unanswered.wait(5)
    getattr(broker, stop)()
    assert client.flush(20) == 0
    assert errors == [None] * 5
    assert offsets == [0, 1, 2, 3, 4]
    assert [record.value for record in broker.records("orders")] == [b"%d" % n for n in range(5)]


def test_slow_disk_delays_ack(broker: LocalBroker) -> None:
    broker.disk.slow(100)
    started = time.monotonic()
    broker.produce("orders", "x")
    assert time.monotonic() - started >= 0.1
    broker.disk.slow(0)


def test_kit_produce_reaches_crash_point(broker: LocalBroker) -> None:
    broker.crash_at("produce.appended")
    with pytest.raises(OSError, match="closed"):
        broker.produce("orders", "x")
    broker.wait_for_crash()
    assert broker.records("orders") == []


# -- faults that never happen


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (
            lambda broker: broker.crash_at("compaction.cleaned"),
            "the broker never reached the point",
        ),
        (lambda broker: broker.disk.fail("write"), "there was no write of records"),
        (lambda broker: broker.disk.full("orders", 0), r"disk.full\('orders', 0\) hit nothing"),
        (lambda broker: broker.disk.full(free=1_000_000), r"full\(free=1000000\) hit nothing"),
    ],
)
def test_armed_disk_fault_that_never_happens_fails_test(
    broker: LocalBroker, arm: Callable[[LocalBroker], None], message: str
) -> None:
    """Restarts, power cuts and restores do not disarm the fault."""
    snapshot = broker.snapshot()
    arm(broker)
    broker.restart()
    broker.power_cut()
    broker.restore(snapshot)
    with pytest.raises(UnfiredFault, match=message):
        broker.check_faults()
    broker.disarm_faults()
    broker.check_faults()


def test_slow_disk_without_sync_fails_test(broker: LocalBroker) -> None:
    broker.disk.slow(5)
    with pytest.raises(UnfiredFault, match=r"disk.slow\(5\) hit nothing"):
        broker.check_faults()
    broker.produce("orders", "x")
    broker.check_faults()


def test_full_disk_that_rejected_a_write_passes(broker: LocalBroker) -> None:
    for _ in range(2):
        broker.disk.full("orders", 0)
        with pytest.raises(KafkaError):
            broker.produce("orders", "x")
        broker.power_cut()
    broker.disk.full("orders", 0)  # the disk is already full
    broker.check_faults()
    broker.disk.full()
    with pytest.raises(UnfiredFault, match=r"disk.full\(free=0\) hit nothing"):
        broker.check_faults()
    broker.disk.free_space()
    broker.check_faults()
    broker.disk.full()
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    broker.disk.free_space()


def test_armed_disk_faults_survive_power_cut(broker: LocalBroker) -> None:
    broker.disk.fail("write")
    broker.power_cut()
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    broker.check_faults()


@pytest.mark.parametrize("damage", ["flip", "tear_last_write"])
def test_damage_does_not_lose_concurrent_writes(
    monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """The test damages a log in its thread while the broker appends in another one."""
    disk = Disk()
    path = "/disk/orders-0/0.log"
    disk.mkdir("/disk/orders-0")
    file = disk.open(path, create=True)
    first, second = (encode_batch([Record(None, b"x" * 99, 0)], base_offset=i) for i in (0, 1))
    file.append([first])
    writer = threading.Thread(target=file.append, args=([second],))

    def read_slowly(path: str) -> bytes:
        data = Disk.read_bytes(disk, path)
        writer.start()
        writer.join(0.2)
        return data

    monkeypatch.setattr(disk, "read_bytes", read_slowly)
    if damage == "flip":
        disk.flip("orders", 0, 0)
    else:
        disk.tear_last_write()
    writer.join()
    assert Disk.read_bytes(disk, path).endswith(second)
