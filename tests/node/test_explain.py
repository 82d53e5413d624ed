"""Tests of the explanations of groups, partitions and transactions."""

from __future__ import annotations

import re

from kbroker.broker import Broker
from kbroker.cluster import Partition, PartitionChange
from kbroker.cluster.election import without_leader
from kbroker.coordinator import Event
from kbroker.node.explain import (
    Explanation,
    explain_group,
    explain_partition,
    explain_transaction,
    group_lines,
)
from kbroker.partitions.history import Line, clock_time, describe_change
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.groups import DeleteGroupsRequest, LeaveGroupRequest

from ..handlers.test_groups import Member
from ..handlers.test_transactions import NAME, SECOND, begin_writer
from ..wire import Wire, batch, create_topic, delete_topic, produce, until

AT = 1_700_000_000_000


def history_of(explanation: Explanation) -> list[str]:
    return [line.text for line in explanation.past]


def changes(*events: Event) -> list[str]:
    return [line.text for line in group_lines(events)]


def test_rebalance_is_explained_with_its_cause() -> None:
    texts = changes(
        Event(AT, "g", "leader B assigned 2 members", 6, "Stable"),
        Event(AT, "g", "member A missed heartbeats", 6, "PreparingRebalance", AT - 6_000),
        Event(AT, "g", "B did not rejoin in time", 6, "PreparingRebalance"),
    )
    span = f"{clock_time(AT - 6_000)}-{clock_time(AT)}"
    assert texts == [
        "leader B assigned 2 members; Stable, generation 6",
        f"rebalance 7 because member A missed heartbeats {span}",
        "B did not rejoin in time; PreparingRebalance, generation 6",
    ]


def test_explanation_lists_events_by_time() -> None:
    explanation = Explanation("it stands", [Line(AT + 5, "second")]).with_events(
        [Line(AT, "first")]
    )
    lines = str(explanation).splitlines()
    assert lines[0] == "it stands"
    assert lines[1] == f"  {clock_time(AT)}.000 first"
    assert lines[2] == f"  {clock_time(AT)}.005 second"


async def test_group_lifecycle_is_explained(broker: Broker, wire: Wire) -> None:
    member = Member(wire)
    joined = await member.join()
    await member.sync(joined)
    now, _ = explain_group(broker.node, "g")
    assert now == f"group g is Stable: generation 1 has member {member.id}"
    leaving = LeaveGroupRequest(
        group_id="g",
        members=[LeaveGroupRequest.Member(member_id=member.id, reason="the shop closes")],
    )
    await wire.ask(ApiKey.LEAVE_GROUP, 5, leaving)
    await wire.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["g"]))
    explanation = explain_group(broker.node, "g")
    assert explanation.now == "group g does not exist"
    assert history_of(explanation) == [
        f"rebalance 1 because member {member.id} joined",
        "1 member joined; CompletingRebalance, generation 1",
        f"leader {member.id} assigned partitions to 1 member; Stable, generation 1",
        f"rebalance 2 because member {member.id} (client reason: the shop closes) left",
        "the last member left; Empty, generation 2",
        "deleted on request; Dead, generation 2",
    ]


async def test_group_without_coordinator_is_explained(broker: Broker) -> None:
    status = explain_group(broker.node, "g").now
    assert status == "group g has no coordinator here: NOT_COORDINATOR"


async def test_partition_lifecycle_is_explained(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "orders", 2)
    explanation = explain_partition(broker.node, "orders", 1)
    assert explanation.now == "partition orders-1 is online: node 1 leads in epoch 0, in sync: 1"
    (created,) = history_of(explanation)
    assert re.fullmatch("topic orders created: CreateTopics by .+", created)
    beyond = explain_partition(broker.node, "orders", 2).now
    assert beyond == "partition orders-2 does not exist: topic orders has 2 partitions"
    await delete_topic(wire, "orders")
    explanation = explain_partition(broker.node, "orders", 1)
    assert explanation.now == "partition orders-1 does not exist: topic orders does not exist"
    assert history_of(explanation)[1].startswith("topic orders deleted: DeleteTopics by ")


async def test_offline_partition_is_explained(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "orders", 1)
    await produce(wire, topic, batch())
    log = broker.node.partitions.logs.get("orders", 0)
    assert log is not None
    log.fail("the disk is gone")
    log.fail("and once more")
    explanation = explain_partition(broker.node, "orders", 0)
    assert explanation.now == "partition orders-0 is offline on node 1: the disk is gone"
    assert history_of(explanation)[-1] == "offline because the disk is gone"


async def test_closed_log_is_not_explained_as_failure(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "orders", 1)
    await produce(wire, topic, batch())
    await delete_topic(wire, "orders")
    assert not [
        text for text in history_of(explain_partition(broker.node, "orders", 0)) if "off" in text
    ]


async def test_missing_leader_is_explained(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "orders", 1)
    topic = broker.node.cluster.topics["orders"]
    before = topic.partitions[0]
    await broker.node.membership.end(clean=False)
    lost = without_leader(before)
    await broker.node.cluster._put_changed(topic, before, lost, cause="node 1 stopped")
    explanation = explain_partition(broker.node, "orders", 0)
    assert explanation.now == (
        "partition orders-0 has no leader: none of its replicas [1] is running; start one"
    )
    assert "lost its leader, node 1: node 1 stopped" in history_of(explanation)


def test_leader_change_is_described() -> None:
    before = Partition(0, [1, 2], [1, 2], 1, 4)
    after = Partition(0, [1, 2], [2], 2, 5)
    assert describe_change(PartitionChange(None, before, after)) == (  # type: ignore[arg-type]
        "node 2 leads in epoch 5, in sync: 2"
    )


async def test_restart_and_config_change_are_explained(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "orders", 1)
    topic = broker.node.cluster.topics["orders"]
    await broker.node.cluster.alter_topic_configs(topic, {"retention.ms": "1"}, cause="an order")
    await broker.node.membership.register({})
    await broker.node.membership.become_ready()
    await broker.node.controller.process_changes()
    assert history_of(explain_partition(broker.node, "orders", 0))[1:] == [
        "topic orders changed: an order",
        "topic orders changed: node 1 started",
    ]


async def test_transaction_lifecycle_is_explained(broker: Broker, wire: Wire) -> None:
    topic = await create_topic(wire, "orders")
    ended = f"transactional id {NAME} is CompleteCommit: "
    nothing = f"transactional id {NAME} does not exist"
    assert explain_transaction(broker.node, NAME) == Explanation(nothing, [])
    writer = await begin_writer(wire, SECOND)
    idle = (
        f"transactional id {NAME} is Empty: producer {writer.id}, epoch 0, has no transaction open"
    )
    assert explain_transaction(broker.node, NAME).now == idle
    await writer.write(topic, b"x")
    now = explain_transaction(broker.node, NAME).now
    assert re.fullmatch(
        rf"transactional id {NAME} is Ongoing: producer {writer.id}, epoch 0, has a transaction open "
        r"since [\d:.]+ \(\d+\.\d s\) in orders-0; it is aborted in \d+\.\d s",
        now,
    )
    await writer.commit()
    await until(lambda: ended in explain_transaction(broker.node, NAME).now)
    assert history_of(explain_transaction(broker.node, NAME)) == [
        f"a producer was initialized; Empty, producer {writer.id}, epoch 0",
        f"a transaction began; Ongoing, producer {writer.id}, epoch 0",
        f"producer committed the transaction; PrepareCommit, producer {writer.id}, epoch 1",
        f"all markers were written; CompleteCommit, producer {writer.id}, epoch 1",
    ]
