from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaException
from ledger import LedgerService

pytestmark = pytest.mark.kbroker(topics={"payments": 2, "bookings": 2, "payments.dead": 1})

# Crash points of a transaction. Markers are written to two partitions of `bookings` and to the
# group's offsets partition.
CRASHES = ["txn.prepared", "txn.marker(1)", "txn.marker(2)", "txn.marker(3)", "txn.completed"]


@contextmanager
def started(kbroker, name="ledger-1"):
    """Run the service in a thread."""
    service = LedgerService(kbroker.bootstrap_servers, name)
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(service.run)
        finally:
            service.stop()


@contextmanager
def running(kbroker, name="ledger-1"):
    """Run the service in a thread; an exception of the service fails the test."""
    with started(kbroker, name) as work:
        yield
    work.result()


def pay(kbroker, *numbers):
    for number in numbers:
        payment = {"id": number, "from": "ann", "to": "bob", "cents": 100}
        kbroker.produce("payments", payment, key=str(number))


def booked(kbroker):
    """Return the committed bookings as (payment, cents)."""
    bookings = [booking.json for booking in kbroker.records("bookings")]
    return sorted((booking["payment"], booking["cents"]) for booking in bookings)


def once(*numbers):
    """Return the bookings that are expected if each payment is booked once."""
    return sorted((number, cents) for number in numbers for cents in (-100, 100))


def test_payment_is_booked_in_both_accounts(kbroker):
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)
    assert {booking.key for booking in kbroker.records("bookings")} == {b"ann", b"bob"}


@pytest.mark.parametrize("point", CRASHES)
@pytest.mark.kbroker(disk=True)
def test_broker_crash_during_commit_books_nothing_twice(kbroker, point):
    with running(kbroker):
        pay(kbroker, 1)
        kbroker.wait_for_lag("ledger", 0)
        kbroker.crash_at(point)
        pay(kbroker, 2)
        kbroker.wait_for_crash(timeout=20)
        pay(kbroker, 3)
        kbroker.wait_for_lag("ledger", 0, timeout=30)
    assert booked(kbroker) == once(1, 2, 3)


def test_broker_restart_books_nothing_twice(kbroker):
    with running(kbroker):
        pay(kbroker, 1, 2, 3)
        kbroker.wait_for("bookings")
        kbroker.restart()
        pay(kbroker, 4)
        kbroker.wait_for_lag("ledger", 0, timeout=30)
    assert booked(kbroker) == once(1, 2, 3, 4)


def test_lost_response_books_nothing_twice(kbroker):
    """The transaction is committed, but the response is lost: the producer repeats the request."""
    kbroker.fault("EndTxn", at="after").disconnect()
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)


def test_redelivered_payment_is_booked_once(kbroker):
    """The group has rebalanced: the transaction is aborted, and the payment is delivered again."""
    kbroker.fault("TxnOffsetCommit", error="ILLEGAL_GENERATION", group="ledger")
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_request("TxnOffsetCommit", count=2, timeout=20)
        kbroker.wait_for_lag("ledger", 0)
    assert booked(kbroker) == once(1)


def test_second_instance_takes_half_of_the_partitions(kbroker):
    with running(kbroker):
        pay(kbroker, *range(5))
        kbroker.wait_for_group("ledger", members=1, timeout=20)
        with running(kbroker, "ledger-2"):
            group = kbroker.wait_for_group("ledger", members=2, timeout=20)
            pay(kbroker, *range(5, 10))
            kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert [len(member.partitions) for member in group.members] == [1, 1]
    assert booked(kbroker) == once(*range(10))


def test_fenced_instance_books_nothing(kbroker):
    """The instance hangs before it commits. Another instance fences it in the meantime."""
    delayed = kbroker.fault("TxnOffsetCommit").delay(1000)
    pay(kbroker, 1)
    with started(kbroker) as work:
        delayed.wait(timeout=20)
        kbroker.fence_producer(transactional_id="ledger-1")
        failure = work.exception(20)
    assert failure.args[0].fatal()
    assert booked(kbroker) == []
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)


def test_transaction_that_times_out_books_nothing(kbroker):
    """The broker aborts the transaction so that readers can continue; the next instance books."""
    delayed = kbroker.fault("TxnOffsetCommit").delay(1000)
    pay(kbroker, 1)
    with started(kbroker) as work:
        delayed.wait(timeout=20)
        kbroker.clock.coordinator.advance(seconds=61, keep_members=True)
        failure = work.exception(20)
    assert isinstance(failure, KafkaException)
    assert booked(kbroker) == []
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(1)


def test_invalid_payments_are_rejected(kbroker):
    """The first half of the second payment could be booked, but is aborted."""
    kbroker.produce("payments", "not JSON", key="a", partition=0)
    kbroker.produce("payments", {"id": 1, "from": "ann", "cents": 1}, key="b", partition=0)
    pay(kbroker, 2)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert [record.key for record in kbroker.records("payments.dead")] == [b"a", b"b"]
    assert booked(kbroker) == once(2)


@pytest.mark.kbroker(topics={"payments": 1}, config={"log.retention.hours": "24"})
def test_service_continues_after_payments_expired_unread(kbroker):
    """The committed offset no longer exists: the service continues with the remaining payments."""
    pay(kbroker, 1)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    pay(kbroker, 2)
    kbroker.clock.advance(hours=25)
    pay(kbroker, 3)
    with running(kbroker):
        kbroker.wait_for_lag("ledger", 0, timeout=20)
    assert booked(kbroker) == once(3)
