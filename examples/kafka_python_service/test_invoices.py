from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from invoices import InvoiceService

pytestmark = pytest.mark.kbroker(topics={"orders": 2, "invoices": 1, "orders.dead": 1})


@contextmanager
def running(kbroker):
    """Run the service in a thread; an exception of the service fails the test."""
    service = InvoiceService(kbroker.bootstrap_servers)
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(service.run)
        try:
            yield
        finally:
            service.stop()
        work.result()


def place_orders(kbroker, *names):
    for name in names:
        kbroker.produce("orders", {"id": name, "cents": 1000}, key=name)


def invoiced(kbroker):
    return [invoice.json["order"] for invoice in kbroker.records("invoices")]


def test_order_gets_invoice(kbroker):
    place_orders(kbroker, "a")
    with running(kbroker):
        invoice = kbroker.expect("invoices").key("a").within("10s")
    assert invoice.json == {"order": "a", "cents": 1190}


def test_broker_restart_loses_no_order(kbroker):
    with running(kbroker):
        place_orders(kbroker, "a", "b")
        kbroker.wait_for("invoices")
        kbroker.restart()
        place_orders(kbroker, "c", "d")
        kbroker.wait_for_lag("invoices", 0)
    assert set(invoiced(kbroker)) == {"a", "b", "c", "d"}


def test_lost_acknowledgement_produces_no_second_invoice(kbroker):
    """The invoice is written, but its acknowledgement is lost, so the producer sends it again."""
    kbroker.fault("Produce", topic="invoices", at="after").disconnect()
    place_orders(kbroker, "a")
    with running(kbroker):
        kbroker.wait_for_lag("invoices", 0)
    assert invoiced(kbroker) == ["a"]


def test_redelivered_order_produces_same_invoice(kbroker):
    kbroker.fault("OffsetCommit", error="ILLEGAL_GENERATION", group="invoices")
    place_orders(kbroker, "a")
    with running(kbroker):
        first, second = kbroker.wait_for("invoices", count=2)
        kbroker.wait_for_lag("invoices", 0)
    assert (first.key, first.value) == (second.key, second.value)


def test_second_instance_takes_half_of_the_partitions(kbroker):
    with running(kbroker):
        place_orders(kbroker, "a", "b", "c")
        kbroker.wait_for("invoices")
        with running(kbroker):
            group = kbroker.wait_for_group("invoices", members=2)
            place_orders(kbroker, "d", "e", "f")
            kbroker.wait_for_lag("invoices", 0)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert set(invoiced(kbroker)) == {"a", "b", "c", "d", "e", "f"}


def test_expelled_instance_rejoins_group(kbroker):
    """The session expires while the instance works: its commit is rejected, and it joins again."""
    with running(kbroker):
        place_orders(kbroker, "a")
        kbroker.wait_for_lag("invoices", 0)
        kbroker.clock.coordinator.advance(minutes=1)
        place_orders(kbroker, "b")
        kbroker.wait_for_lag("invoices", 0)
    assert set(invoiced(kbroker)) == {"a", "b"}


def test_invalid_orders_are_rejected(kbroker):
    kbroker.produce("orders", "not JSON", key="a", partition=0)
    kbroker.produce("orders", {"id": "b"}, key="b", partition=0)
    kbroker.produce("orders", {"id": "c", "cents": 1}, key="c", partition=0)
    with running(kbroker):
        kbroker.expect("invoices").json(order="c").within("10s")
    assert [record.key for record in kbroker.records("orders.dead")] == [b"a", b"b"]
    assert invoiced(kbroker) == ["c"]


@pytest.mark.kbroker(topics={"orders": 1}, config={"log.retention.hours": "24"})
def test_service_continues_after_orders_expired_unread(kbroker):
    """The committed offset no longer exists: the service continues with the remaining orders."""
    place_orders(kbroker, "a")
    with running(kbroker):
        kbroker.wait_for_lag("invoices", 0)
    place_orders(kbroker, "b")
    kbroker.clock.advance(hours=25)
    place_orders(kbroker, "c")
    with running(kbroker):
        kbroker.expect("invoices").key("c").within("10s")
    assert "b" not in invoiced(kbroker)
