"""Operations of a test on the nodes of its broker, with unmodified clients."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kbroker.testing import LocalBroker
from kbroker.testing.async_broker import RunningBroker

CONFIG = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 500,
}


class Clients:
    """A producer and a group member that must continue."""

    def __init__(self, bootstrap: str) -> None:
        self.producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", retry_backoff_ms=20)
        self.consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=bootstrap,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            retry_backoff_ms=20,
        )
        self.sent = 0

    def process_one_record(self) -> None:
        """Produce a record, consume it, and commit its offset."""
        self.sent += 1
        self.producer.send("orders", b"%d" % self.sent).get(20)
        found: list[bytes] = []
        for _ in range(100):
            batches = self.consumer.poll(200)
            found += [record.value for rows in batches.values() for record in rows]
            if found:
                break
        assert found == [b"%d" % self.sent]
        self.consumer.commit()

    def close(self) -> None:
        self.producer.close()
        self.consumer.close()
        gc.collect()  # kafka-python leaves sockets open when a node refuses a connection


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(nodes=3, config=CONFIG, topics={"orders": 1}) as broker:
        yield broker


@pytest.fixture
def clients(broker: LocalBroker) -> Iterator[Clients]:
    clients = Clients(broker.bootstrap_servers)
    clients.process_one_record()
    yield clients
    clients.close()


def leader_id(broker: LocalBroker, topic: str = "orders") -> int:
    async def observe(running: RunningBroker) -> int:
        return running.broker.running().cluster.topics[topic].partitions[0].leader

    return broker.run_in_broker(observe)


@pytest.mark.slow
def test_clients_survive_all_node_operations(broker: LocalBroker, clients: Clients) -> None:
    first = leader_id(broker)
    broker.move_leader("orders")
    assert leader_id(broker) != first
    clients.process_one_record()
    coordinator = leader_id(broker, "__consumer_offsets")
    broker.move_coordinator("billing")
    assert leader_id(broker, "__consumer_offsets") != coordinator
    clients.process_one_record()
    crashed = leader_id(broker)
    broker.crash_node(crashed)
    clients.process_one_record()
    assert leader_id(broker) != crashed
    assert {each.id: each.state for each in broker.nodes()}[crashed] == "crashed"
    broker.start_node(crashed)
    stopped = leader_id(broker)
    broker.stop_node(stopped)
    assert leader_id(broker) != stopped
    clients.process_one_record()
    broker.start_node(stopped)
    assert broker.add_node() == 4
    removed = leader_id(broker)
    broker.remove_node(removed)
    assert removed not in [each.id for each in broker.nodes()]
    clients.process_one_record()
    assert [record.value for record in broker.records("orders")] == [
        b"%d" % (number + 1) for number in range(clients.sent)
    ]
    broker.wait_until_idle("billing")
    assert broker.lag("billing") == 0
    explained = broker.explain.partition("orders", 0)
    assert f"the test crashed node {crashed}" in explained
    assert f"node {leader_id(broker)} leads" in explained
    assert "topic orders: high watermarks 6" in broker.report()


def test_follower_falls_behind_while_link_is_cut(broker: LocalBroker, clients: Clients) -> None:
    leader = leader_id(broker)
    behind = next(each.id for each in broker.nodes() if each.id != leader)
    broker.cut_link(behind, leader, one_way=True)
    clients.process_one_record()
    assert {each.id: each.behind > 0 for each in broker.nodes()}[behind]
    broker.heal_links()

    async def wait_until_in_sync(running: RunningBroker) -> None:
        async def observe() -> tuple[bool, object]:
            nodes = running.nodes()
            return all(not each.behind for each in nodes), nodes

        await running.wait_until(observe, "all nodes to be in sync", 30)

    broker.run_in_broker(wait_until_in_sync)


def test_move_leader_moves_to_named_node(broker: LocalBroker) -> None:
    for node_id in (3, 1, 2, 2):
        broker.move_leader("orders", 0, to=node_id)
        assert leader_id(broker) == node_id
    broker.crash_node(3)
    broker.produce("orders", "x")
    with pytest.raises(ValueError, match="node 3 cannot lead orders-0: it is not in the ISR"):
        broker.move_leader("orders", 0, to=3)


def test_waits_continue_while_nodes_stop(broker: LocalBroker) -> None:
    broker.produce("orders", "1")
    broker.crash_node(leader_id(broker))
    assert len(broker.wait_for("orders")) == 1
    broker.produce("orders", "2")
    assert len(broker.wait_for("orders", count=2)) == 2


def test_restart_keeps_nodes_ports_and_records(broker: LocalBroker) -> None:
    broker.produce("orders", "x")
    broker.remove_node(2)
    before = [(each.id, each.address) for each in broker.nodes()]
    broker.restart()
    assert [(each.id, each.address) for each in broker.nodes()] == before
    assert [record.value for record in broker.records("orders")] == [b"x"]


def test_faults_hit_clients_but_not_nodes(broker: LocalBroker) -> None:
    broker.fault("Fetch", error="KAFKA_STORAGE_ERROR").always()
    broker.cap_versions({"Fetch": 11})
    broker.produce("orders", "x")  # followers have replicated the record
    assert all(not each.behind for each in broker.nodes())
    client_ids = {each.client_id for each in broker.faults.log}
    assert not client_ids & {"node-1", "node-2", "node-3"}
    broker.disarm_faults()


def test_invalid_node_operations_are_rejected(broker: LocalBroker) -> None:
    for operation in (broker.stop_node, broker.crash_node, broker.start_node, broker.remove_node):
        with pytest.raises(
            ValueError, match=r"there is no node 7 in this process \(valid: 1, 2, 3\)"
        ):
            operation(7)
    with pytest.raises(ValueError, match="there is no node 7"):
        broker.cut_link(1, 7)
    with pytest.raises(ValueError, match="cannot cut a link: both nodes are 1"):
        broker.cut_link(1, 1)
    with pytest.raises(ValueError, match="name both nodes, or none"):
        broker.heal_links(1)
    with pytest.raises(ValueError, match="cannot take a snapshot: the broker has several nodes"):
        broker.snapshot()


def test_add_node_adds_second_node() -> None:
    with LocalBroker(topics={"orders": 1}) as broker:
        assert broker.add_node(rack="b") == 2
        broker.restart()
        assert [each.id for each in broker.nodes()] == [1, 2]
        broker.produce("orders", "x")
        broker.remove_node(1)
        assert [each.id for each in broker.nodes()] == [2]
        assert [record.value for record in broker.records("orders")] == [b"x"]
