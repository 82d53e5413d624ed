from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from stock import StockService, stock_of

pytestmark = pytest.mark.kbroker(topics={"shipments": 2, "shipments.dead": 1})


@pytest.fixture
def database(tmp_path):
    return tmp_path / "stock.db"


@contextmanager
def running(kbroker, database):
    """Run the service in a thread; an exception of the service fails the test."""
    service = StockService(kbroker.bootstrap_servers, database)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(service.run)
        try:
            yield
        finally:
            service.stop()
        work.result()


def ship(kbroker, *numbers):
    for number in numbers:
        kbroker.produce("shipments", {"id": number, "item": "pear", "amount": 1}, key=str(number))


def test_shipments_are_counted(kbroker, database):
    ship(kbroker, 1, 2)
    kbroker.produce("shipments", {"id": 3, "item": "fig", "amount": -5})
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 2, "fig": -5}


@pytest.mark.kbroker(disk=True)
def test_broker_crash_changes_no_count(kbroker, database):
    """The power fails after a commit is written and before it is synced, so the commit is lost."""
    kbroker.crash_at("commit.appended")
    with running(kbroker, database):
        ship(kbroker, 1, 2)
        kbroker.wait_for_crash()
        ship(kbroker, 3)
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 3}


def test_shipment_sent_twice_counts_once(kbroker, database):
    """The response to a non-idempotent producer is lost, so it sends the shipment again."""
    kbroker.fault("Produce", topic="shipments", at="after").disconnect()
    producer = Producer({"bootstrap.servers": kbroker.bootstrap_servers, "retry.backoff.ms": 20})
    producer.produce("shipments", '{"id": 1, "item": "pear", "amount": 1}')
    producer.flush()
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert len(kbroker.records("shipments")) == 2
    assert stock_of(database) == {"pear": 1}


def test_redelivered_shipment_counts_once(kbroker, database):
    rejected = kbroker.fault("OffsetCommit", error="REBALANCE_IN_PROGRESS", group="stock")
    ship(kbroker, 1)
    with running(kbroker, database):
        rejected.wait()
    assert kbroker.committed("stock") == {}
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 1}


def test_second_instance_takes_half_of_the_partitions(kbroker, database):
    with running(kbroker, database):
        ship(kbroker, *range(10))
        kbroker.wait_for_group("stock", members=1)
        with running(kbroker, database):
            group = kbroker.wait_for_group("stock", members=2)
            ship(kbroker, *range(10, 20))
            kbroker.wait_for_lag("stock", 0)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert stock_of(database) == {"pear": 20}


def test_invalid_shipments_are_rejected(kbroker, database):
    kbroker.produce("shipments", "not JSON", key="a", partition=0)
    kbroker.produce("shipments", {"id": 1, "item": "pear"}, key="b", partition=0)
    ship(kbroker, 2)
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert [record.key for record in kbroker.records("shipments.dead")] == [b"a", b"b"]
    assert stock_of(database) == {"pear": 1}


@pytest.mark.kbroker(topics={"shipments": 1}, config={"log.retention.hours": "24"})
def test_service_continues_after_shipments_expired_unread(kbroker, database):
    """The committed offset no longer exists: the service continues with the remaining shipments."""
    ship(kbroker, 1)
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    ship(kbroker, 2)
    kbroker.clock.advance(hours=25)
    ship(kbroker, 3, 4)
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 3}
