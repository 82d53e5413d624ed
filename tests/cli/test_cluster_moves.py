"""`kbroker cluster drain`, `rebalance`, `unregister`, and `health` while nodes are down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from kbroker.broker import Broker
from kbroker.client import moves
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.cluster import Partition
from kbroker.cluster.topics import NewTopic, create_topic
from kbroker.protocol.errors import ErrorCode, KafkaError

from ..brokers import started
from ..commands import Cli, ReadJson
from ..wire import until


async def make(broker: Broker, name: str, partitions: int, factor: int, **configs: str) -> None:
    node = broker.running()
    named = {key.replace("_", "."): value for key, value in configs.items()}
    await create_topic(
        node.cluster, node.config, NewTopic(name, partitions, factor, configs=named), cause="test"
    )


def replica_lists(broker: Broker) -> Iterator[list[int]]:
    for topic in broker.running().cluster.topics.values():
        for partition in topic.partitions:
            yield partition.replicas


def leaders(broker: Broker) -> list[int]:
    topics = broker.running().cluster.topics.values()
    return [partition.leader for topic in topics for partition in topic.partitions]


def partitions(broker: Broker) -> Iterator[Partition]:
    for topic in broker.running().cluster.topics.values():
        yield from topic.partitions


async def test_node_can_be_drained_rebalanced_and_unregistered(cli: Cli) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 6, 2)
        await cli("topic", "produce", "orders", "x", *bootstrap)
        shown = await cli("cluster", "drain", "3", "--dry-run", *bootstrap)
        assert "orders-" in shown.stdout
        assert any(3 in nodes for nodes in replica_lists(broker)), "nothing moved"
        await cli("cluster", "drain", "--yes", "3", *bootstrap)
        assert all(sorted(nodes) == [1, 2] for nodes in replica_lists(broker))
        assert sorted(leaders(broker)) == [1, 1, 1, 2, 2, 2]
        await make(broker, "later", 3, 2)
        assert all(sorted(nodes) == [1, 2] for nodes in replica_lists(broker))
        await cli("cluster", "drain", "--yes", "3", "--undo", *bootstrap)
        await cli("cluster", "rebalance", *bootstrap)
        held = [each for nodes in replica_lists(broker) for each in nodes]
        assert [held.count(each) for each in (1, 2, 3)] == [6, 6, 6]
        assert (await cli("cluster", "rebalance", *bootstrap)).stdout == "no moves needed\n"
        output = await cli("cluster", "unregister", "--yes", "3", *bootstrap, status=1)
        assert "broker 3 is running; stop it first" in output.stderr
        await broker.local_node(3).stop()
        output = await cli("cluster", "unregister", "--yes", "3", *bootstrap, status=1)
        assert "kbroker cluster drain 3" in output.stderr
        for gone in ("3", "9"):
            undo = ("cluster", "drain", "--yes", gone, "--undo")
            output = await cli(*undo, *bootstrap, status=1)
            assert f"broker {gone} is not running, so it stays as it is" in output.stderr
            assert "(running: 1, 2)" in output.stderr
        drained = await cli("cluster", "drain", "--yes", "3", *bootstrap)
        assert "broker 3 is down and cannot be marked as drained" in drained.stderr
        await cli("cluster", "unregister", "--yes", "3", *bootstrap)
        assert broker.running().cluster.node_ids == [1, 2]


async def test_rebalance_skips_drained_node(cli: Cli) -> None:
    async with started(nodes=4) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 6, 2)
        await make(broker, "alone", 3, 1)
        await cli("cluster", "drain", "--yes", "4", *bootstrap)
        output = await cli("cluster", "rebalance", "--replicas", "2", *bootstrap)
        assert "broker 4 is drained and gets no partitions" in output.stderr
        assert "`kbroker cluster drain 4 --undo`" in output.stderr
        assert not any(4 in nodes for nodes in replica_lists(broker))
        await cli("cluster", "drain", "--yes", "3", *bootstrap)
        assert all(sorted(nodes) == [1, 2] for nodes in replica_lists(broker)), "nothing went to 4"
        await cli("cluster", "drain", "--yes", "4", "--undo", *bootstrap)
        await cli("cluster", "rebalance", *bootstrap)
        assert {each for nodes in replica_lists(broker) for each in nodes} == {1, 2, 4}
        await broker.remove_node(1)
        assert {each for nodes in replica_lists(broker) for each in nodes} == {2, 4}


async def test_drain_keeps_replica_count_unless_fewer_are_allowed(cli: Cli) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 2, 3)
        await make(broker, "users", 3, 2)
        before = list(replica_lists(broker))
        output = await cli("cluster", "drain", "--yes", "3", *bootstrap, status=1)
        assert (
            "too few other brokers for all replicas of orders; start one more, or" in output.stderr
        )
        assert list(replica_lists(broker)) == before
        await make(broker, "later", 3, 1)
        assert any(nodes == [3] for nodes in replica_lists(broker)), "it takes partitions as before"
        shown = await cli("cluster", "drain", "3", "--dry-run", *bootstrap)
        assert "2 partitions lose one replica: orders" in shown.stderr
        output = await cli("cluster", "drain", "--yes", "3", "--allow-fewer-replicas", *bootstrap)
        assert "2 partitions lose one replica: orders\n" in output.stderr
        assert {each for nodes in replica_lists(broker) for each in nodes} == {1, 2}
        await cli("cluster", "drain", "--yes", "2", "--allow-fewer-replicas", *bootstrap)
        output = await cli(
            "cluster", "drain", "--yes", "1", "--allow-fewer-replicas", *bootstrap, status=1
        )
        assert "no other broker can take the partitions of later, orders, users" in output.stderr
        assert list(replica_lists(broker)) == [[1]] * 8


async def test_drain_names_commands_that_restore_replicas(cli: Cli) -> None:
    async with started(nodes=3, default_replication_factor=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 2, 3)
        await make(broker, "users", 2, 2)
        refused = await cli("cluster", "drain", "--yes", "3", *bootstrap, status=1)
        assert "a restart for maintenance needs no drain" in refused.stderr
        done = await cli("cluster", "drain", "--yes", "3", "--allow-fewer-replicas", *bootstrap)
        lines = [line.strip() for line in done.stderr.splitlines()]
        assert lines[-3:] == [
            "these topics lost replicas; the commands restore them:",
            "kbroker cluster drain 3 --undo",
            "kbroker cluster rebalance --topic orders --replicas 3",
        ]
        undone = await cli("cluster", "drain", "--yes", "3", "--undo", *bootstrap)
        assert "`--topic NAME --replicas N` restores replicas" in undone.stderr
        few = "topics with fewer replicas than default.replication.factor (3): orders, users\n"
        assert few in undone.stderr
        unknown = ("cluster", "rebalance", "--topic", "ordres", "--replicas", "3")
        assert "'ordres'" in (await cli(*unknown, *bootstrap, status=1)).stderr
        await cli("cluster", "rebalance", "--topic", "ord*", "--replicas", "3", *bootstrap)
        topics = broker.running().cluster.topics.values()
        assert {each.name: each.replication_factor for each in topics} == {"orders": 3, "users": 2}


async def test_rebalance_adds_replicas_on_new_nodes(cli: Cli) -> None:
    async with started(nodes=1) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 3, 1)
        await make(broker, "__consumer_offsets", 2, 1)
        for _ in range(2):
            await broker.add_node()
        shown = await cli("cluster", "rebalance", "--dry-run", *bootstrap)
        assert "__consumer_offsets-0     1  2, 1, 3" in shown.stdout
        await cli("cluster", "rebalance", "--replicas", "2", *bootstrap)
        topics = broker.running().cluster.topics.values()
        factors = {topic.name: topic.replication_factor for topic in topics}
        assert factors == {"orders": 2, "__consumer_offsets": 3}
        assert sorted(leaders(broker)) in ([1, 1, 2, 2, 3], [1, 1, 2, 3, 3], [1, 2, 2, 3, 3])
        assert (await cli("cluster", "rebalance", *bootstrap)).stdout == "no moves needed\n"


async def test_cluster_health_reports_missing_replicas(cli: Cli) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 1, 3, min_insync_replicas="3")
        await make(broker, "alone", 1, 1)
        ((lone,),) = (nodes for nodes in replica_lists(broker) if len(nodes) == 1)
        assert (await cli("cluster", "health", *bootstrap)).stdout == "healthy\n"
        await broker.local_node(lone).crash()
        cluster = broker.running().cluster
        await until(lambda: lone not in cluster.nodes and -1 in leaders(broker))
        output = (await cli("cluster", "health", *bootstrap, status=1)).stdout
        down, offline, under_replicated = output.splitlines()[1:]
        assert re.match(rf"broker +{lone} +down: not running", down)
        assert "alone-0" in offline
        assert f"start broker {lone}; no other broker has a replica" in offline
        problem = f"under-replicated: broker {lone} is down; ISR below min.insync.replicas"
        assert problem in under_replicated


async def test_cluster_health_reports_stopped_broker_without_partitions(
    cli: Cli, read_json: ReadJson
) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 3, 3)
        await cli("cluster", "drain", "2", "--allow-fewer-replicas", "-y", *bootstrap)
        port = broker.local_node(2).endpoint.port
        (_, drained, _) = (await read_json("cluster", "info", *bootstrap))["brokers"]
        assert drained["state"] == "drained"
        await broker.local_node(2).stop()
        (row,) = json.loads(
            (await cli("cluster", "health", "-o", "json", *bootstrap, status=1)).stdout
        )
        assert (row["what"], row["where"], row["severity"]) == ("broker", "2", "error")
        brokers = (await read_json("cluster", "info", *bootstrap))["brokers"]
        states = [(each["broker"], each["port"], each["state"]) for each in brokers]
        assert states[1] == (2, port, "down")
        assert [state for _, _, state in states] == ["running", "down", "running"]


async def test_cluster_health_summarizes_partitions_with_same_cause(
    cli: Cli, read_json: ReadJson
) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 6, 3)
        await broker.local_node(3).stop()
        await until(lambda: all(3 not in part.isr for part in partitions(broker)))
        rows = (await cli("cluster", "health", *bootstrap, status=1)).stdout.splitlines()
        assert len(rows) == 3
        assert "orders-0, orders-1, orders-2 and 3 more" in rows[2]
        assert "6 partitions under-replicated: broker 3 is down" in rows[2]
        wide = (await cli("cluster", "health", "-o", "wide", *bootstrap, status=1)).stdout
        assert len(wide.splitlines()) == 8


async def test_topic_can_be_moved_to_named_brokers_and_back(cli: Cli, read_json: ReadJson) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 4, 2)
        await make(broker, "users", 3, 1)
        await cli("topic", "move", "*", "--to", "1,2", *bootstrap)
        assert {each for nodes in replica_lists(broker) for each in nodes} == {1, 2}
        before = list(replica_lists(broker))
        move = ("topic", "move", "orders", "--to", "2,3")
        planned = await read_json(*move, "--dry-run", *bootstrap)
        assert [row["partition"] for row in planned] == [f"orders-{index}" for index in range(4)]
        assert list(replica_lists(broker)) == before, "nothing moved"
        await cli(*move, *bootstrap)
        orders = broker.running().cluster.topics["orders"].partitions
        assert all(sorted(each.replicas) == [2, 3] for each in orders)
        assert sorted(each.leader for each in orders) == [2, 2, 3, 3]
        users = broker.running().cluster.topics["users"].partitions
        assert {each.leader for each in users} == {1, 2}, "other topics stay"
        assert (await cli(*move, *bootstrap)).stdout == "no moves needed\n"
        await cli("topic", "move", "orders", "--to", "1,2", *bootstrap)
        assert all(sorted(each.replicas) == [1, 2] for each in orders)


async def test_topic_move_rejects_brokers_that_cannot_take_all_replicas(cli: Cli) -> None:
    async with started(nodes=3) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 2, 2)
        await cli("cluster", "drain", "3", "--yes", *bootstrap)
        held = list(replica_lists(broker))
        for to, status, text in (
            ("1", 1, "orders: its partitions have 2 replicas; name at least 2 brokers with --to"),
            ("1,9", 1, "broker 9 is not running (valid: 1, 2); `kbroker cluster info` shows all"),
            ("1,3", 1, "broker 3 is drained (valid: 1, 2); `kbroker cluster drain 3 --undo`"),
            ("one", 2, "'one' is not a broker ID; write IDs such as 2,3"),
            ("1,,2", 2, "'' is not a broker ID; write IDs such as 2,3"),
        ):
            move = ("topic", "move", "orders", "--to", to, *bootstrap)
            assert text in " ".join((await cli(*move, status=status)).stderr.split())
        missing = await cli("topic", "move", "nothing", "--to", "1", *bootstrap, status=1)
        assert "'nothing' does not exist" in missing.stderr
        assert list(replica_lists(broker)) == held


async def test_rebalance_elects_preferred_leaders_without_moves(cli: Cli) -> None:
    async with started(nodes=2) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await make(broker, "orders", 2, 2)
        await broker.local_node(2).stop()
        assert leaders(broker) == [1, 1]
        await broker.local_node(2).start()
        await until(lambda: all(len(each.isr) == 2 for each in partitions(broker)))
        done = await cli("cluster", "rebalance", *bootstrap)
        assert done.stdout == "no moves needed\n"
        assert done.stderr == "elected the preferred leader of 1 partition\n"
        assert sorted(leaders(broker)) == [1, 2]


async def test_command_that_ends_while_it_waits_says_that_moves_continue(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def elect(_: ClusterClient) -> int:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)

    async with started(nodes=2) as broker:
        await make(broker, "orders", 2, 1)
        monkeypatch.setattr(moves, "elect_preferred", elect)
        bootstrap = ("-b", broker.bootstrap_servers)
        output = await cli("topic", "move", "orders", "--to", "1", *bootstrap, status=1)
        assert "the move of 1 partition was started, and the brokers complete it" in output.stderr
        assert all(nodes == [1] for nodes in replica_lists(broker))
        output = await cli("topic", "move", "orders", "--to", "1", *bootstrap)
        assert output.stderr == ""


async def test_rejected_reassignment_says_how_many_were_accepted() -> None:
    async with started(nodes=2) as broker:
        await make(broker, "orders", 3, 1)
        wanted = {("orders", 0): [1], ("orders", 1): [9], ("orders", 2): [2]}
        async with open_cluster(
            Endpoint.parse_bootstrap(broker.bootstrap_servers), "test"
        ) as cluster:
            with pytest.raises(
                KafkaError, match=r"orders-1: .* \(1 of 3 partitions .*, 2 accepted"
            ):
                await moves.reassign_partitions(cluster, wanted)
            with pytest.raises(KafkaError) as caught:
                await moves.reassign_partitions(cluster, {("orders", 1): [9]})
        assert "accepted" not in str(caught.value)
        assert 2 in [*replica_lists(broker)][2]
