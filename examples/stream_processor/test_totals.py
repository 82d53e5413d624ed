import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from quixstreams.checkpointing.exceptions import CheckpointConsumerCommitError
from totals import create_app

STATE = "changelog__totals--orders--default"  # created empty, also on a reused Kafka cluster

pytestmark = pytest.mark.kbroker(topics={"orders": 2, "totals": 2, "orders.dead": 1, STATE: 2})


@pytest.fixture
def process(kbroker, tmp_path):
    """Return a function that runs the processor until it has processed `count` orders."""

    def run(count, **settings):
        app = create_app(kbroker.bootstrap_servers, tmp_path / "state", **settings)
        app.run(count=count, timeout=20)

    return run


@contextmanager
def running(directory):
    """Run the processor as a program, with the broker's address in its environment."""
    directory.mkdir()
    program = Path(__file__).with_name("totals.py")
    with subprocess.Popen([sys.executable, program], cwd=directory) as process:
        try:
            yield
        finally:
            process.terminate()
    assert process.returncode == 0


def order(kbroker, customer, *names):
    for name in names:
        kbroker.produce("orders", {"id": name, "cents": 1000}, key=customer)


def totals(kbroker, customer):
    return [each.json["cents"] for each in kbroker.records("totals") if each.key == customer]


def test_orders_are_added_up(kbroker, process):
    order(kbroker, "ann", "a", "b")
    order(kbroker, "bob", "c")
    process(3)
    assert totals(kbroker, b"ann") == [1000, 2000]
    assert totals(kbroker, b"bob") == [1000]


def test_broker_restart_changes_no_sum(kbroker, process):
    def restart(topic, partition, offset):
        if offset == 0:
            kbroker.restart()

    order(kbroker, "ann", "a", "b", "c")
    process(3, on_message_processed=restart)
    assert totals(kbroker, b"ann")[-1] == 3000


def test_lost_acknowledgement_produces_no_second_total(kbroker, process):
    """The total is written, but its acknowledgement is lost, so the producer sends it again."""
    kbroker.fault("Produce", topic="totals", at="after").disconnect()
    order(kbroker, "ann", "a")
    process(1)
    assert totals(kbroker, b"ann") == [1000]


def test_order_sent_twice_counts_once(kbroker, process):
    order(kbroker, "ann", "a", "a", "b")
    process(3)
    assert totals(kbroker, b"ann") == [1000, 1000, 2000]


def test_redelivered_order_counts_once(kbroker, process):
    """The processor fails when its commit is rejected, and restarts with the same order."""
    kbroker.fault("OffsetCommit", error="REBALANCE_IN_PROGRESS", group="totals")
    order(kbroker, "ann", "a")
    with pytest.raises(CheckpointConsumerCommitError):
        process(1)
    process(1)
    assert totals(kbroker, b"ann") == [1000, 1000]


def test_second_instance_takes_over_partitions_with_their_sums(kbroker, tmp_path):
    with running(tmp_path / "first"):
        order(kbroker, "ann", "a")
        order(kbroker, "bob", "b")
        kbroker.wait_for("totals", count=2, timeout=20)
        with running(tmp_path / "second"):
            kbroker.wait_for_group("totals", members=2, timeout=20)
            order(kbroker, "ann", "c")
            order(kbroker, "bob", "d")
            kbroker.wait_for_lag("totals", 0, timeout=20)
    assert totals(kbroker, b"ann")[-1] == totals(kbroker, b"bob")[-1] == 2000


def test_invalid_orders_are_rejected(kbroker, process):
    kbroker.produce("orders", "not JSON", key="ann")
    kbroker.produce("orders", {"id": "a"}, key="ann")
    order(kbroker, "ann", "b")
    process(3)
    assert [record.text for record in kbroker.records("orders.dead")] == ["not JSON", '{"id": "a"}']
    assert totals(kbroker, b"ann") == [1000]


@pytest.mark.kbroker(topics={"orders": 1}, config={"log.retention.hours": "24"})
def test_sums_outlive_expired_orders(kbroker, process):
    """Orders and totals expire after a day; the state does not: its changelog is compacted."""
    kbroker.delete_topic(STATE)  # the processor creates it with its own settings
    order(kbroker, "ann", "a")
    process(1)
    order(kbroker, "ann", "expires unread")
    kbroker.clock.advance(hours=25)
    order(kbroker, "ann", "b")
    process(1)
    assert totals(kbroker, b"ann") == [2000]
