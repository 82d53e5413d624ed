from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from invoices import InvoiceService

pytestmark = pytest.mark.kbroker(topics={"orders": 2, "invoices": 1, "orders.dead": 1})


@contextmanager
def running(kbroker):
    """The service, at work in a thread. What it fails with fails the test."""
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


def test_an_order_gets_an_invoice(kbroker):
    place_orders(kbroker, "a")
    with running(kbroker):
        invoice = kbroker.expect("invoices").key("a").within("10s")
    assert invoice.json == {"order": "a", "cents": 1190}


def test_no_order_is_lost_when_the_broker_restarts_in_mid_work(kbroker):
    with running(kbroker):
        place_orders(kbroker, "a", "b")
        kbroker.wait_for("invoices")
        kbroker.restart()
        place_orders(kbroker, "c", "d")
        kbroker.wait_for_lag("invoices", 0)
    assert set(invoiced(kbroker)) == {"a", "b", "c", "d"}


def test_an_acknowledgement_that_is_lost_makes_no_second_invoice(kbroker):
    """The invoice is written, but the producer cannot know that: it sends it again."""
    kbroker.fault("Produce", topic="invoices", at="after").disconnect()
    place_orders(kbroker, "a")
    with running(kbroker):
        kbroker.wait_for_lag("invoices", 0)
    assert invoiced(kbroker) == ["a"]


def test_an_order_that_is_delivered_twice_gets_the_same_invoice_again(kbroker):
    kbroker.fault("OffsetCommit", error="ILLEGAL_GENERATION", group="invoices")
    place_orders(kbroker, "a")
    with running(kbroker):
        first, second = kbroker.wait_for("invoices", count=2)
        kbroker.wait_for_lag("invoices", 0)
    assert (first.key, first.value) == (second.key, second.value)


def test_a_second_instance_takes_half_of_the_work(kbroker):
    with running(kbroker):
        place_orders(kbroker, "a", "b", "c")
        kbroker.wait_for("invoices")
        with running(kbroker):
            group = kbroker.wait_for_group("invoices", members=2)
            place_orders(kbroker, "d", "e", "f")
            kbroker.wait_for_lag("invoices", 0)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert set(invoiced(kbroker)) == {"a", "b", "c", "d", "e", "f"}


def test_an_instance_that_the_group_gave_up_comes_back(kbroker):
    """Its session ends while it works: its commit is refused, and it joins again."""
    with running(kbroker):
        place_orders(kbroker, "a")
        kbroker.wait_for_lag("invoices", 0)
        kbroker.clock.coordinator.advance(minutes=1)
        place_orders(kbroker, "b")
        kbroker.wait_for_lag("invoices", 0)
    assert set(invoiced(kbroker)) == {"a", "b"}


def test_what_is_no_order_is_put_aside(kbroker):
    kbroker.produce("orders", "not JSON", key="a", partition=0)
    kbroker.produce("orders", {"id": "b"}, key="b", partition=0)
    kbroker.produce("orders", {"id": "c", "cents": 1}, key="c", partition=0)
    with running(kbroker):
        kbroker.expect("invoices").json(order="c").within("10s")
    assert [record.key for record in kbroker.records("orders.dead")] == [b"a", b"b"]
    assert invoiced(kbroker) == ["c"]


@pytest.mark.kbroker(topics={"orders": 1}, config={"log.retention.hours": "24"})
def test_orders_that_expired_unread_do_not_stop_the_service(kbroker):
    """Where the group wants to go on there is nothing any more: it goes on with what is left."""
    place_orders(kbroker, "a")
    with running(kbroker):
        kbroker.wait_for_lag("invoices", 0)
    place_orders(kbroker, "b")
    kbroker.clock.advance(hours=25)
    place_orders(kbroker, "c")
    with running(kbroker):
        kbroker.expect("invoices").key("c").within("10s")
    assert "b" not in invoiced(kbroker)
