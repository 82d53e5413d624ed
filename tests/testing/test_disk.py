"""Crashes at named points and disks that fail: real clients go on, promises are kept."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kbroker.protocol.errors import KafkaError
from kbroker.testing import LocalBroker, WaitTimeout
from kbroker.testing.disk import POINTS

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"orders": 1}, disk=True) as broker:
        yield broker


class Writer:
    """An unmodified producer that writes numbers in a thread until it is stopped."""

    def __init__(self, broker: LocalBroker) -> None:
        self.acknowledged: list[bytes] = []
        self._client = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            reconnect_backoff_ms=10,
            retry_backoff_ms=10,
            enable_idempotence=True,
        )
        self._going = True
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while self._going:
            value = b"%d" % number
            self._client.send("orders", value).get(20)
            self.acknowledged.append(value)
            number += 1

    def stop(self) -> list[bytes]:
        self._going = False
        self._thread.join()
        self._client.close()
        return self.acknowledged


def values(broker: LocalBroker) -> list[bytes | None]:
    return [record.value for record in broker.records("orders")]


@pytest.mark.parametrize("mode", ["drop", "torn", "lost-name", "mixed"])
@pytest.mark.parametrize("point", ["produce.received", "produce.appended", "produce.synced"])
def test_a_producer_lives_through_a_crash(broker: LocalBroker, point: str, mode: str) -> None:
    writer = Writer(broker)
    broker.wait_for("orders", count=5, timeout=10)
    address = broker.bootstrap_servers
    broker.crash_at(point, mode, seed=3)  # type: ignore[arg-type]
    broker.wait_for_crash(timeout=10)
    assert broker.bootstrap_servers == address
    seen = len(writer.acknowledged)
    broker.wait_for("orders", count=seen + 5, timeout=20)
    acknowledged = writer.stop()
    assert values(broker) == acknowledged, "none lost, none doubled, none moved"


def test_what_a_power_cut_loses_is_what_was_not_acknowledged(broker: LocalBroker) -> None:
    writer = Writer(broker)
    for seed in range(3):
        broker.wait_for("orders", count=len(writer.acknowledged) + 3, timeout=20)
        broker.power_cut("torn", seed)
    acknowledged = writer.stop()
    assert values(broker) == acknowledged


@pytest.mark.parametrize(("policy", "kept"), [("fsync", ["before", "after"]), ("os", ["before"])])
def test_each_flush_policy_keeps_what_it_promises(policy: str, kept: list[str]) -> None:
    """With `os` an ack does not wait for the disk, so a power cut may take what was acknowledged."""
    with LocalBroker(disk=True, config={"flush.policy": policy}) as broker:
        broker.produce("orders", "before")
        broker.restart()  # a clean stop syncs everything
        broker.produce("orders", "after")
        broker.power_cut("drop")
        assert [record.text for record in broker.records("orders")] == kept


def test_a_group_goes_on_after_a_crash_in_a_commit(broker: LocalBroker) -> None:
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
    seen = [next(client).value for _ in range(10)]
    broker.crash_at("commit.appended")
    committing = threading.Thread(target=client.commit)
    committing.start()
    broker.wait_for_crash(timeout=10)
    committing.join()
    assert seen == [b"%d" % number for number in range(10)]
    assert broker.committed("g") == {("orders", 0): 10}
    client.close()


@pytest.mark.parametrize("point", ["segment.created", "checkpoint.written", "clean_marker.written"])
def test_other_points(point: str) -> None:
    with LocalBroker(disk=True) as broker:
        broker.produce("first", "kept")
        broker.crash_at(point)
        if point == "clean_marker.written":
            broker.stop()
            assert broker.disk.after_cut is not None
            broker.start_after_crash()
        else:
            writing = threading.Thread(target=write_something, args=(broker,))
            writing.start()
            broker.wait_for_crash(timeout=10)
            writing.join()
        assert [record.text for record in broker.records("first")] == ["kept"]


def write_something(broker: LocalBroker) -> None:
    """What a crash may interrupt."""
    with contextlib.suppress(OSError, KafkaError):
        broker.produce("second", "lost")


def test_points_and_modes_that_do_not_exist(broker: LocalBroker) -> None:
    with pytest.raises(ValueError, match=r"there is no point 'produce.apended'"):
        broker.crash_at("produce.apended")
    broker.crash_at("compaction.cleaned")
    with pytest.raises(WaitTimeout, match="did not come there"):
        broker.wait_for_crash(timeout=0.05)
    assert "produce.synced" in POINTS
    with LocalBroker() as other, pytest.raises(ValueError, match="disk=True"):
        other.power_cut()


def test_a_sync_that_fails(broker: LocalBroker) -> None:
    """No ack is given on the word of a disk that failed, and none after it."""
    broker.produce("orders", "before")
    broker.disk.fail("sync")
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    with pytest.raises(KafkaError):
        broker.produce("orders", "y")
    broker.power_cut()
    assert [record.text for record in broker.records("orders")] == ["before"]
    broker.produce("orders", "after")


def test_a_disk_that_is_full(broker: LocalBroker) -> None:
    broker.produce("orders", "before")
    broker.disk.full()
    with pytest.raises(KafkaError):
        broker.produce("orders", "x")
    broker.disk.full(free=10_000)
    broker.produce("orders", "after")
    assert [record.text for record in broker.records("orders")] == ["before", "after"]


def test_a_flipped_bit_is_noticed(broker: LocalBroker) -> None:
    broker.produce("orders", "0")
    broker.produce("orders", "1")
    broker.restart()
    broker.disk.flip("orders", 0, offset=1)
    with pytest.raises(ValueError, match="does not hold offset 7"):
        broker.disk.flip("orders", 0, offset=7)
    broker.power_cut()
    with pytest.raises(Exception, match="cannot be read"):
        broker.records("orders")


def test_a_slow_disk_delays_the_ack(broker: LocalBroker) -> None:
    import time

    broker.disk.slow(100)
    began = time.monotonic()
    broker.produce("orders", "x")
    assert time.monotonic() - began >= 0.1
    broker.disk.slow(0)
