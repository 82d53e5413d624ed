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
    """The service, at work in a thread. What it fails with fails the test."""
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
def test_a_broker_that_dies_in_mid_work_changes_no_count(kbroker, database):
    """The power fails when the commit is written and not yet synced: it is lost."""
    kbroker.crash_at("commit.appended")
    with running(kbroker, database):
        ship(kbroker, 1, 2)
        kbroker.wait_for_crash()
        ship(kbroker, 3)
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 3}


def test_a_shipment_that_is_sent_twice_counts_once(kbroker, database):
    """The answer to its producer is lost, and that one, not idempotent, sends it again."""
    kbroker.fault("Produce", topic="shipments", at="after").disconnect()
    producer = Producer({"bootstrap.servers": kbroker.bootstrap_servers, "retry.backoff.ms": 20})
    producer.produce("shipments", '{"id": 1, "item": "pear", "amount": 1}')
    producer.flush()
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert len(kbroker.records("shipments")) == 2
    assert stock_of(database) == {"pear": 1}


def test_a_shipment_that_is_delivered_twice_counts_once(kbroker, database):
    refused = kbroker.fault("OffsetCommit", error="REBALANCE_IN_PROGRESS", group="stock")
    ship(kbroker, 1)
    with running(kbroker, database):
        refused.wait()
    assert kbroker.committed("stock") == {}
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 1}


def test_a_second_instance_takes_half_of_the_work(kbroker, database):
    with running(kbroker, database):
        ship(kbroker, *range(10))
        kbroker.wait_for_group("stock", members=1)
        with running(kbroker, database):
            group = kbroker.wait_for_group("stock", members=2)
            ship(kbroker, *range(10, 20))
            kbroker.wait_for_lag("stock", 0)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert stock_of(database) == {"pear": 20}


def test_what_is_no_shipment_is_put_aside(kbroker, database):
    kbroker.produce("shipments", "not JSON", key="a", partition=0)
    kbroker.produce("shipments", {"id": 1, "item": "pear"}, key="b", partition=0)
    ship(kbroker, 2)
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert [record.key for record in kbroker.records("shipments.dead")] == [b"a", b"b"]
    assert stock_of(database) == {"pear": 1}


@pytest.mark.kbroker(topics={"shipments": 1}, config={"log.retention.hours": "24"})
def test_shipments_that_expired_unread_do_not_stop_the_service(kbroker, database):
    """Where the group wants to go on there is nothing any more: it goes on with what is left."""
    ship(kbroker, 1)
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    ship(kbroker, 2)
    kbroker.clock.advance(hours=25)
    ship(kbroker, 3, 4)
    with running(kbroker, database):
        kbroker.wait_for_lag("stock", 0)
    assert stock_of(database) == {"pear": 3}
