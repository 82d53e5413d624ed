import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from quixstreams.checkpointing.exceptions import CheckpointConsumerCommitError
from totals import create_app

STATE = "changelog__totals--orders--default"  # empty too on a Kafka that was used before

pytestmark = pytest.mark.kbroker(topics={"orders": 2, "totals": 2, "orders.dead": 1, STATE: 2})


@pytest.fixture
def process(kbroker, tmp_path):
    """Runs the processor until it has processed so many orders."""

    def run(count, **settings):
        app = create_app(kbroker.bootstrap_servers, tmp_path / "state", **settings)
        app.run(count=count, timeout=20)

    return run


@contextmanager
def running(directory):
    """The processor as a program, with the broker that pytest.ini puts into the environment."""
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


def test_a_broker_that_restarts_in_mid_work_changes_no_sum(kbroker, process):
    def restart(topic, partition, offset):
        if offset == 0:
            kbroker.restart()

    order(kbroker, "ann", "a", "b", "c")
    process(3, on_message_processed=restart)
    assert totals(kbroker, b"ann")[-1] == 3000


def test_an_acknowledgement_that_is_lost_makes_no_second_total(kbroker, process):
    """The total is written, but the producer cannot know that: it sends it again."""
    kbroker.fault("Produce", topic="totals", at="after").disconnect()
    order(kbroker, "ann", "a")
    process(1)
    assert totals(kbroker, b"ann") == [1000]


def test_an_order_that_is_sent_twice_counts_once(kbroker, process):
    order(kbroker, "ann", "a", "a", "b")
    process(3)
    assert totals(kbroker, b"ann") == [1000, 1000, 2000]


def test_an_order_that_is_delivered_twice_counts_once(kbroker, process):
    """The processor dies when its commit is refused, and starts again with the same order."""
    kbroker.fault("OffsetCommit", error="REBALANCE_IN_PROGRESS", group="totals")
    order(kbroker, "ann", "a")
    with pytest.raises(CheckpointConsumerCommitError):
        process(1)
    process(1)
    assert totals(kbroker, b"ann") == [1000, 1000]


def test_a_second_instance_takes_over_sums_and_work(kbroker, tmp_path):
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


def test_what_is_no_order_is_put_aside(kbroker, process):
    kbroker.produce("orders", "not JSON", key="ann")
    kbroker.produce("orders", {"id": "a"}, key="ann")
    order(kbroker, "ann", "b")
    process(3)
    assert [record.text for record in kbroker.records("orders.dead")] == ["not JSON", '{"id": "a"}']
    assert totals(kbroker, b"ann") == [1000]


@pytest.mark.kbroker(topics={"orders": 1}, config={"log.retention.hours": "24"})
def test_sums_outlive_orders_that_expired(kbroker, process):
    """Orders and totals are gone after a day. The state is not: its changelog is compacted."""
    kbroker.delete_topic(STATE)  # the processor makes it as it should be
    order(kbroker, "ann", "a")
    process(1)
    order(kbroker, "ann", "expires unread")
    kbroker.clock.advance(hours=25)
    order(kbroker, "ann", "b")
    process(1)
    assert totals(kbroker, b"ann") == [2000]
