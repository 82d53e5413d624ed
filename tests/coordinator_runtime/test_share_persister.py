"""Client of the share coordinators on all nodes (KIP-932)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from kbroker.broker import Broker
from kbroker.coordinator_runtime import share_persister
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from kbroker.protocol.share_state_log import SharePartitionKey

from ..brokers import started
from ..replication.routed import all_in_sync
from ..wire import connected, create_topic

PARTITIONS = 6


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started(
        nodes=3,
        default_replication_factor=3,
        auto_leader_rebalance_enable=False,
        share_coordinator_state_topic_num_partitions=6,
    ) as broker:
        yield broker


async def shared(broker: Broker) -> list[SharePartitionKey]:
    async with connected(broker.local_node(1).endpoint) as wire:
        topic = await create_topic(wire, "t", PARTITIONS)
    return [SharePartitionKey("queue", topic.id, index) for index in range(PARTITIONS)]


async def test_each_node_reaches_all_share_coordinators(broker: Broker) -> None:
    shares = await shared(broker)
    first, second, third = (local.node.share.persister for local in broker.nodes)
    initialize = InitializeShareGroupStateRequest.Partition
    made = await first.initialize({each: initialize(start_offset=5) for each in shares})
    assert {share: row.error_code for share, row in made.items()} == dict.fromkeys(shares, 0)
    node = broker.running()
    assert len({node.share.states.coordinator_id(each.name) for each in shares}) > 1
    read = ReadShareGroupStateRequest.Partition
    states = await second.read({each: read(leader_epoch=3) for each in shares})
    assert {row.start_offset for row in states.values()} == {5}
    write = WriteShareGroupStateRequest.Partition
    changes = {
        each: write(leader_epoch=each.partition, start_offset=9, delivery_complete_count=1)
        for each in shares
    }
    written = await third.write(changes)
    codes = [row.error_code for row in written.values()]
    fenced = ErrorCode.FENCED_LEADER_EPOCH
    assert codes == [0 if share.partition >= 3 else fenced for share in written]
    summary = ReadShareGroupStateSummaryRequest.Partition
    summaries = await first.summary({each: summary() for each in shares})
    assert {share.partition for share, row in summaries.items() if row.start_offset == 9} == {
        3,
        4,
        5,
    }
    delete = DeleteShareGroupStateRequest.Partition
    await second.delete({each: delete() for each in shares})
    summaries = await first.summary({each: summary() for each in shares})
    assert {row.start_offset for row in summaries.values()} == {-1}


async def test_persister_retries_while_coordinators_move(broker: Broker) -> None:
    shares = await shared(broker)
    await broker.running().share.states.create_topic()
    await all_in_sync(broker)
    initialize = InitializeShareGroupStateRequest.Partition
    asks = broker.local_node(1).node.share.persister
    await asks.initialize({each: initialize(start_offset=0) for each in shares})
    write = WriteShareGroupStateRequest.Partition
    for offset, local in enumerate((broker.local_node(2), broker.local_node(3)), 1):
        await local.crash()
        written = await asks.write({each: write(start_offset=offset) for each in shares})
        assert {row.error_code for row in written.values()} == {0}
        await local.start()
        await all_in_sync(broker)
    summary = ReadShareGroupStateSummaryRequest.Partition
    summaries = await asks.summary({each: summary() for each in shares})
    assert {row.start_offset for row in summaries.values()} == {2}


async def test_errors_are_returned_per_share_partition(broker: Broker) -> None:
    shares = [*await shared(broker), SharePartitionKey("queue", uuid4(), 0)]
    initialize = InitializeShareGroupStateRequest.Partition
    asks = broker.local_node(2).node.share.persister
    made = await asks.initialize({each: initialize(start_offset=0) for each in shares})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [made[each].error_code for each in shares] == [0] * PARTITIONS + [unknown]


async def test_persister_gives_up_without_coordinator(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_persister, "ANSWER_SECONDS", 0.1)
    shares = await shared(broker)
    node = broker.local_node(1).node
    monkeypatch.setattr(node.share.states, "coordinator_id", lambda name: -1)
    initialize = InitializeShareGroupStateRequest.Partition
    made = await node.share.persister.initialize({each: initialize() for each in shares})
    assert {row.error_code for row in made.values()} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
