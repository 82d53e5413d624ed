"""Several nodes in one process: ports, directories, stops and starts."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker, open_broker
from kbroker.broker.local_node import LocalNode
from kbroker.cluster import Cluster
from kbroker.cluster.controller import Controller
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.config import BrokerConfig
from kbroker.net.server import CannotListen, Listener
from kbroker.storage.errors import StorageError
from kbroker.storage.naming import CLEAN_SHUTDOWN
from tests.brokers import LOOPBACK, started
from tests.ports import free_ports
from tests.wire import Topic, batch, connected, fetch, produce, until, values_of

pytestmark = pytest.mark.trio
VALUES = [b"a", b"b", b"c"]


async def test_each_node_has_its_own_port_and_directory(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        assert [each.id for each in broker.nodes] == [1, 2, 3]
        assert len({each.endpoint.port for each in broker.nodes}) == 3
        assert broker.bootstrap_servers == ",".join(str(each.endpoint) for each in broker.nodes)
        for each in broker.nodes:
            await (await trio.open_tcp_stream(*each.endpoint)).aclose()
    names = {f"cluster.journal{kind}" for kind in ("", ".clean", ".reserve")}
    assert set(os.listdir(tmp_path)) == {*names, "node-1", "node-2", "node-3"}


async def test_further_nodes_use_next_ports() -> None:
    port = free_ports(3)
    listeners = [Listener("PLAINTEXT", "127.0.0.1", port)]
    async with open_broker(BrokerConfig(), data_dir=None, listeners=listeners, nodes=3) as broker:
        assert [each.endpoint.port for each in broker.nodes] == [port, port + 1, port + 2]


async def test_listeners_with_overlapping_ports_are_rejected() -> None:
    port = free_ports(4)
    listeners = [Listener("IN", "127.0.0.1", port), Listener("OUT", "127.0.0.1", port + 1)]
    with pytest.raises(CannotListen, match="set listeners at least 2 ports apart"):
        async with open_broker(BrokerConfig(), data_dir=None, listeners=listeners, nodes=2):
            pass


async def test_data_directory_stores_number_of_nodes(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        await broker.create_topic("orders")
        topic = broker.node.cluster.topics["orders"].id
    async with started(tmp_path) as broker:
        assert [each.id for each in broker.nodes] == [1, 2, 3]
        assert all(each.node.cluster.topics["orders"].id == topic for each in broker.nodes)


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_node_with_replaced_disk_restarts_with_same_id(tmp_path: Path, lost: int) -> None:
    async with started(tmp_path, nodes=3) as broker:
        (directory,) = broker.local_node(lost).node.partitions.logs.managers
        removed = directory.meta.directory_id
    shutil.rmtree(tmp_path / f"node-{lost}")
    async with started(tmp_path, nodes=3, **{"log.dirs.discarded.ids": removed}) as broker:
        assert [each.id for each in broker.nodes] == [1, 2, 3]


async def test_fewer_nodes_than_in_data_directory_are_rejected(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3):
        pass
    with pytest.raises(StorageError, match="found nodes 1, 2, 3; start with --nodes 3"):
        await _start(tmp_path, 2)


async def test_directory_of_single_node_rejects_several_nodes(tmp_path: Path) -> None:
    async with started(tmp_path):
        pass
    with pytest.raises(StorageError, match="kbroker cluster resize --nodes 3"):
        await _start(tmp_path, 3)


async def _start(directory: Path, nodes: int) -> None:
    async with open_broker(
        BrokerConfig(), data_dir=str(directory), listeners=[LOOPBACK], nodes=nodes
    ):
        pass


async def test_clean_shutdown_marker_is_written_on_stop_but_not_on_crash(
    tmp_path: Path,
) -> None:
    async with started(tmp_path, nodes=3) as broker:
        first, second, third = broker.nodes
        ports = [each.endpoint for each in broker.nodes]
        await second.stop()
        await third.crash()
        assert [each.state.value for each in broker.nodes] == ["running", "stopped", "crashed"]
        assert (tmp_path / "node-2" / CLEAN_SHUTDOWN).exists()
        assert not (tmp_path / "node-3" / CLEAN_SHUTDOWN).exists()
        for each in (second, third):
            with pytest.raises(OSError, match="all attempts to connect"):
                await trio.open_tcp_stream(*each.endpoint)
        await second.start()
        await third.start()
        assert second.node.partitions.logs.clean
        assert not third.node.partitions.logs.clean
        assert [each.endpoint for each in broker.nodes] == ports
        for each in broker.nodes:
            await (await trio.open_tcp_stream(*each.endpoint)).aclose()
        assert first.is_running


async def test_crash_resets_client_connections() -> None:
    async with started(nodes=2) as broker, contextlib.AsyncExitStack() as opened:
        ends, resets = [
            await opened.enter_async_context(await trio.open_tcp_stream(*each.endpoint))
            for each in broker.nodes
        ]
        await until(lambda: all(each.server.connections for each in broker.nodes))
        await broker.nodes[0].stop()
        await broker.nodes[1].crash()
        assert await ends.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await resets.receive_some()


async def test_stopped_node_gets_no_metadata_updates() -> None:
    async with started(nodes=2) as broker:
        crashed = broker.nodes[1].node
        await broker.nodes[1].crash()
        await broker.create_topic("orders")
        assert "orders" not in crashed.cluster.topics
        await broker.nodes[1].start()
        assert broker.nodes[1].node is not crashed
        assert "orders" in broker.nodes[1].node.cluster.topics


async def test_node_does_not_start_if_its_port_is_in_use() -> None:
    async with started(nodes=2) as broker:
        second = broker.nodes[1]
        await second.stop()
        async with started():  # an independent broker is not affected
            (occupant,) = await trio.open_tcp_listeners(second.endpoint.port, host="127.0.0.1")
            with pytest.raises(Exception, match="in use"):
                await second.start()
            await occupant.aclose()
        await second.start()
        assert second.is_running


class RecordingService:
    """A service that records whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Do nothing."""

    async def run(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("starts", [True, False])
async def test_node_that_fails_to_stop_does_not_keep_others_running(
    monkeypatch: pytest.MonkeyPatch, *, starts: bool
) -> None:
    """The HTTP services run until they are closed, so the broker would never end."""
    original, closed = LocalNode.close, []

    async def close(node: LocalNode) -> None:
        if node.id > 1:
            await trio.sleep(0.01)
        await original(node)
        closed.append(node.id)
        if node.id == 1:
            raise RuntimeError("cannot stop")

    async def reject(_: LocalNode, __: object) -> None:
        raise ValueError("cannot start")

    monkeypatch.setattr(LocalNode, "close", close)
    if not starts:
        monkeypatch.setattr(LocalNode, "create_node", reject)
    service = RecordingService()
    with pytest.raises((RuntimeError, ExceptionGroup)):
        async with open_broker(
            BrokerConfig(), data_dir=None, listeners=[LOOPBACK], nodes=3, service=service
        ):
            pass
    assert sorted(closed) == [1, 2, 3]
    assert service.is_closed


async def test_broker_stops_while_nodes_are_down(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=3) as broker:
        await broker.nodes[0].crash()
        await broker.nodes[2].stop()
    async with started(tmp_path) as broker:
        assert [each.node.partitions.logs.clean for each in broker.nodes] == [False, True, True]


# -- adding and removing nodes


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_leaders_are_balanced_if_enabled(
    monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    balancing: list[Controller] = []

    async def balance(controller: Controller) -> None:
        balancing.append(controller)

    monkeypatch.setattr(Controller, "balance_regularly", balance)
    async with started(nodes=2, auto_leader_rebalance_enable=is_wanted) as broker:
        wanted = [each.node.controller for each in broker.nodes] if is_wanted else []
        assert {*balancing} == {*wanted}


@pytest.mark.parametrize("nodes", [1, 2])
async def test_node_can_be_added_in_memory(nodes: int) -> None:
    async with started(nodes=nodes) as broker:
        added = await broker.add_node(rack="b")
        assert [each.id for each in broker.nodes] == [*range(1, nodes + 2)]
        for each in broker.nodes:
            registration = each.node.cluster.registration(added.id)
            assert registration is not None
            assert (registration.ready, registration.rack) == (True, "b")
        await added.crash()
        await added.start()
        await broker.nodes[0].crash()
        await broker.nodes[0].start()
        assert all(each.is_running for each in broker.nodes)


async def test_added_node_starts_after_restart(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=2) as broker:
        await broker.add_node()
    async with started(tmp_path) as broker:
        assert [each.id for each in broker.nodes] == [1, 2, 3]


async def test_add_node_to_directory_of_single_node_is_rejected(tmp_path: Path) -> None:
    async with started(tmp_path) as broker:
        with pytest.raises(StorageError, match="kbroker cluster resize --nodes 2"):
            await broker.add_node()
        assert len(broker.nodes) == 1


async def _write(broker: Broker, name: str, index: int) -> None:
    topic = broker.node.cluster.topics[name]
    leader = broker.local_node(topic.partitions[index].leader)
    async with connected(leader.endpoint) as wire:
        row = await produce(wire, Topic(name, topic.id), batch(VALUES), partition=index)
    assert row.error_code == 0


async def _read(broker: Broker, name: str, index: int) -> list[bytes | None]:
    topic = broker.node.cluster.topics[name]
    leader = broker.local_node(topic.partitions[index].leader)
    async with connected(leader.endpoint) as wire:
        return values_of(await fetch(wire, Topic(name, topic.id), partitions=[index]))


@pytest.mark.parametrize("removed", [1, 2])
async def test_removed_node_hands_over_its_partitions(tmp_path: Path, removed: int) -> None:
    placed = {"two": {0: [1, 2], 1: [2, 3], 2: [3, 1]}, "one": {0: [1], 1: [2], 2: [3]}}
    async with started(tmp_path, nodes=3) as broker:
        node = broker.node
        for name, assignments in placed.items():
            new = NewTopic(name, assignments=assignments)
            await create_topic(node.cluster, node.config, new, cause="test")
            for index in assignments:
                await _write(broker, name, index)
        await broker.remove_node(removed)
        left = [each for each in (1, 2, 3) if each != removed]
        assert [each.id for each in broker.nodes] == broker.node.cluster.node_ids == left
        assert f"node-{removed}" not in os.listdir(tmp_path)
        for name, assignments in placed.items():
            for index, replicas in assignments.items():
                actual = broker.node.cluster.topics[name].partitions[index].replicas
                assert len(actual) == len(replicas)
                assert set(actual) <= set(left)
                assert await _read(broker, name, index) == VALUES
    async with started(tmp_path) as broker:
        assert [each.id for each in broker.nodes] == left


async def test_remove_of_stopped_node_with_only_replica_is_rejected() -> None:
    async with started(nodes=2) as broker:
        node = broker.node
        new = NewTopic("orders", assignments={0: [2]})
        await create_topic(node.cluster, node.config, new, cause="test")
        await broker.nodes[1].stop()
        with pytest.raises(
            ValueError, match="node 2: it is down and has the only in-sync replica of orders-0"
        ):
            await broker.remove_node(2)
        assert len(broker.nodes) == 2


async def test_node_gets_new_partitions_after_its_removal_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started(nodes=2) as broker:
        cluster = broker.node.cluster
        new = NewTopic("orders", assignments={0: [2]})
        await create_topic(cluster, broker.node.config, new, cause="test")

        async def fail(*_: object, **__: object) -> None:
            await until(lambda: 2 not in cluster.open_ids)
            raise StorageError("the disk is full")

        monkeypatch.setattr(Cluster, "reassign", fail)
        with pytest.raises(StorageError, match="the disk is full"):
            await broker.remove_node(2)
        await until(lambda: 2 in cluster.open_ids)


async def test_remaining_node_runs_after_others_were_removed(tmp_path: Path) -> None:
    async with started(tmp_path, nodes=2) as broker:
        await create_topic(
            broker.node.cluster, broker.node.config, NewTopic("orders", 1), cause="test"
        )
        await _write(broker, "orders", 0)
        await broker.remove_node(1)
    async with started(tmp_path) as broker:
        assert [each.id for each in broker.nodes] == [2]
        assert await _read(broker, "orders", 0) == VALUES


async def test_crashed_node_can_be_removed() -> None:
    async with started(nodes=2) as broker:
        await broker.nodes[1].crash()
        await broker.remove_node(2)
        assert broker.node.cluster.node_ids == [1]


async def test_remove_of_last_node_is_rejected() -> None:
    async with started(nodes=2) as broker:
        await broker.nodes[1].stop()
        with pytest.raises(ValueError, match="all nodes except 1 are down"):
            await broker.remove_node(1)
        with pytest.raises(ValueError, match="there is no node 7"):
            await broker.remove_node(7)
