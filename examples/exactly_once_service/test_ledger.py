from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaException
from ledger import LedgerService

pytestmark = pytest.mark.kbroker(topics={"payments": 2, "bookings": 2, "payments.dead": 1})

CRASHES = ["txn.prepared", "txn.marker(1)", "txn.marker(2)", "txn.marker(3)", "txn.completed"]
"""Markers are written to two partitions of `bookings` and to the group's offsets."""


@contextmanager
def started(kbroker, name="ledger-1"):
    """The service, at work in a thread."""
    service = LedgerService(kbroker.bootstrap_servers, name)
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(service.run)
        finally:
            service.stop()


@contextmanager
def running(kbroker, name="ledger-1"):
    """The same; what it fails with fails the test."""
    with started(kbroker, name) as work:
        yield
    work.result()


def pay(kbroker, *numbers):
    for number in numbers:
        payment = {"id": number, "from": "ann", "to": "bob", "cents": 100}
        kbroker.produce("payments", payment, key=str(number))


def booked(kbroker):
    """The payments and what they moved, as readers of committed records see them."""
    bookings = [booking.json for booking in kbroker.records("bookings")]
    return sorted((booking["payment"], booking["cents"]) for booking in bookings)


def once(*numbers):
    """What is booked when each of these payments is booked once."""
    return sorted((number, cents) for number in numbers for cents in (-100, 100))


def test_a_payment_is_booked_in_both_accounts(kbroker):
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)
    assert {booking.key for booking in kbroker.records("bookings")} == {b"ann", b"bob"}


@pytest.mark.parametrize("point", CRASHES)
@pytest.mark.kbroker(disk=True)
def test_a_broker_that_dies_at_the_end_of_a_transaction_books_nothing_twice(kbroker, point):
    with running(kbroker):
        pay(kbroker, 1)
        kbroker.wait_for_lag("ledger", 0)
        kbroker.crash_at(point)
        pay(kbroker, 2)
        kbroker.wait_for_crash(timeout=20)
        pay(kbroker, 3)
        kbroker.wait_for_lag("ledger", 0, timeout=30)
    assert booked(kbroker) == once(1, 2, 3)


def test_a_broker_that_restarts_in_mid_work_books_nothing_twice(kbroker):
    with running(kbroker):
        pay(kbroker, 1, 2, 3)
        kbroker.wait_for("bookings")
        kbroker.restart()
        pay(kbroker, 4)
        kbroker.wait_for_lag("ledger", 0, timeout=30)
    assert booked(kbroker) == once(1, 2, 3, 4)


def test_an_answer_that_is_lost_books_nothing_twice(kbroker):
    """The transaction is committed, but its producer cannot know that: it asks again."""
    kbroker.fault("EndTxn", at="after").disconnect()
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)


def test_a_payment_that_is_delivered_twice_is_booked_once(kbroker):
    """The group has moved on meanwhile: the transaction is aborted, and the payment comes again."""
    kbroker.fault("TxnOffsetCommit", error="ILLEGAL_GENERATION", group="ledger")
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_request("TxnOffsetCommit", count=2, timeout=20)
        kbroker.wait_for_lag("ledger", 0)
    assert booked(kbroker) == once(1)


def test_a_second_instance_takes_half_of_the_work(kbroker):
    with running(kbroker):
        pay(kbroker, *range(5))
        kbroker.wait_for_group("ledger", members=1, timeout=20)
        with running(kbroker, "ledger-2"):
            group = kbroker.wait_for_group("ledger", members=2, timeout=20)
            pay(kbroker, *range(5, 10))
            kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert booked(kbroker) == once(*range(10))


def test_an_instance_in_whose_place_another_was_started_books_nothing(kbroker):
    """It hangs just before it commits; when it goes on, it is too late."""
    hangs = kbroker.fault("TxnOffsetCommit").delay(1000)
    pay(kbroker, 1)
    with started(kbroker) as work:
        hangs.wait(timeout=20)
        kbroker.fence_producer(transactional_id="ledger-1")
        refused = work.exception(20)
    assert refused.args[0].fatal()
    assert booked(kbroker) == []
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)


def test_a_transaction_that_takes_too_long_books_nothing(kbroker):
    """The broker aborts it, so that readers can go on; the instance ends, and the next one books."""
    hangs = kbroker.fault("TxnOffsetCommit").delay(1000)
    pay(kbroker, 1)
    with started(kbroker) as work:
        hangs.wait(timeout=20)
        kbroker.clock.coordinator.advance(seconds=61, keep_members=True)
        refused = work.exception(20)
    assert isinstance(refused, KafkaException)
    assert booked(kbroker) == []
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)


def test_what_is_no_payment_is_put_aside(kbroker):
    """Of the second one half could be booked: that half is aborted."""
    kbroker.produce("payments", "not JSON", key="a", partition=0)
    kbroker.produce("payments", {"id": 1, "from": "ann", "cents": 1}, key="b", partition=0)
    pay(kbroker, 2)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert [record.key for record in kbroker.records("payments.dead")] == [b"a", b"b"]
    assert booked(kbroker) == once(2)


@pytest.mark.kbroker(topics={"payments": 1}, config={"log.retention.hours": "24"})
def test_payments_that_expired_unread_do_not_stop_the_service(kbroker):
    """Where the group wants to go on there is nothing any more: it goes on with what is left."""
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    pay(kbroker, 2)
    kbroker.clock.advance(hours=25)
    pay(kbroker, 3)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(3)
