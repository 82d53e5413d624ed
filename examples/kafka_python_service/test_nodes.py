"""Tests of the service on three nodes that stop, crash, or are added and removed while it works."""

import pytest
from test_invoices import invoiced, place_orders, running

pytestmark = pytest.mark.kbroker(
    topics={"orders": 2, "invoices": 1, "orders.dead": 1},
    nodes=3,
    config={
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "replica.lag.time.max.ms": 500,
    },
)


def leader(kbroker):
    return next(node.id for node in kbroker.nodes() if node.leads)


def crash(kbroker):
    kbroker.crash_node(leader(kbroker))


def stop(kbroker):
    kbroker.stop_node(leader(kbroker))


def roll(kbroker):
    for node in kbroker.nodes():
        kbroker.stop_node(node.id)
        kbroker.start_node(node.id)


def crash_and_start(kbroker):
    node = leader(kbroker)
    kbroker.crash_node(node)
    kbroker.start_node(node)


def move_leader(kbroker):
    kbroker.move_leader("orders")
    kbroker.move_leader("invoices")


def move_coordinator(kbroker):
    kbroker.move_coordinator("invoices")


def add_and_remove(kbroker):
    kbroker.add_node()
    kbroker.remove_node(leader(kbroker))


def cut(kbroker):
    kbroker.cut_link(1, 2)


@pytest.mark.parametrize(
    "disturb",
    [crash, stop, roll, crash_and_start, move_leader, move_coordinator, add_and_remove, cut],
)
def test_every_order_gets_an_invoice_despite_node_event(kbroker, disturb):
    with running(kbroker):
        place_orders(kbroker, "a", "b")
        kbroker.wait_for("invoices", count=2)
        disturb(kbroker)
        place_orders(kbroker, "c", "d")
        kbroker.wait_for("invoices", count=4, timeout=20)
    assert set(invoiced(kbroker)) == {"a", "b", "c", "d"}
