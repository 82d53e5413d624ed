"""Tests of the explanations why a share group gets records of a partition, or gets none."""

from __future__ import annotations

import pytest

from kbroker.broker import Broker
from kbroker.cluster import ResourceType
from kbroker.coordinator import Acknowledgement, DeliverySettings, ShareDelivery
from kbroker.coordinator.share.in_flight import ACQUIRED, Run
from kbroker.coordinator.share.partition_status import describe_share_partition_status
from kbroker.node.explain_shares import explain_share
from kbroker.protocol.share_state_log import SharePartitionKey

from ..brokers import started
from ..handlers.test_consumer_groups import set_config
from ..sharing import ACCEPT, GROUP, REJECT, RELEASE, ShareMember, shared_topic, wait_until_stored
from ..wire import batch, connected, create_topic, produce, until


def status_of(broker: Broker, index: int = 0, group: str = GROUP) -> str:
    return explain_share(broker.node, group, "t", index).now


async def test_share_partition_lifecycle_is_explained() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        assert status_of(broker).startswith(
            f"group {GROUP} in t-0: no connected member has fetched records"
        )
        member = ShareMember(wire, topic)
        await member.begin()
        await until(lambda: "start offset" in status_of(broker))
        assert status_of(broker) == (
            f"group {GROUP} in t-0 has share-partition start offset 0; no records are available "
            "up to the high watermark 0; no pending fetch"
        )
        await produce(wire, topic, batch([b"a"] * 6))
        assert "the next fetch acquires records from offset 0 on; no pending fetch" in status_of(
            broker
        )
        await member.acquire()
        text = status_of(broker)
        assert f"6 records with member {member.name}, the first lock expires in " in text
        assert "no records are available up to the high watermark 6" in text
        await member.acknowledge_partition((1, 1, REJECT), (2, 3, ACCEPT), (4, 5, RELEASE))
        await wait_until_stored(broker.node)
        text = status_of(broker)
        assert f"1 records with member {member.name}" in text
        assert "1 were archived; 2 were accepted" in text
        assert "from offset 4 on, 2 of which were released (deliveries: up to 1)" in text
        await member.acknowledge_partition((0, 0, ACCEPT))
        assert "has share-partition start offset 4;" in status_of(broker)


async def test_record_lock_limit_is_explained() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        topic = await shared_topic(broker, wire)
        name = "share.partition.max.record.locks"
        await set_config(wire, ResourceType.GROUP, GROUP, name, "100")
        for _ in range(2):
            await produce(wire, topic, batch([b"a"] * 100))
        member = ShareMember(wire, topic)
        await member.acquire()
        text = status_of(broker)
        assert "no more records can be acquired: 100 records from that offset on" in text
        assert f"{name} is 100" in text


async def test_missing_state_and_pending_fetches_are_explained() -> None:
    async with (
        started() as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        topic = await shared_topic(broker, wire)
        member = ShareMember(other, topic)
        await member.begin()
        await member.send_fetch(())
        known = broker.node.cluster.topic("t")
        assert known is not None
        share_partition = broker.node.share.partitions.known(SharePartitionKey(GROUP, known.id, 0))
        assert share_partition is not None
        await until(lambda: share_partition.waits)
        assert status_of(broker).endswith("; 1 pending fetches")
        share_partition.delivery = None
        assert "waits for its state from the share coordinator; 1 pending fetches" in status_of(
            broker
        )


async def test_missing_partition_is_explained() -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 1)
        assert status_of(broker, 7) == "partition t-7 does not exist: topic t has 1 partitions"


def delivery_of(name: str) -> ShareDelivery:
    """Return a delivery with three records that a member has locked until 5 s."""
    shared = ShareDelivery(0, [], DeliverySettings)
    shared.add(Run(0, 2, ACQUIRED, 1, name, 5_000))
    shared.end_offset = 2
    return shared


def test_open_transactions_and_unpersisted_changes_are_explained() -> None:
    shared = delivery_of("a")
    shared.acknowledge("a", [Acknowledgement(0, 0, [ACCEPT])], 0)
    text = describe_share_partition_status(shared, 3, 9, 1_000)
    assert "2 records with member a, the first lock expires in 4.0 s" in text
    assert "1 wait for the share coordinator to persist their state" in text
    assert text.endswith("records from offset 3 on belong to open transactions")


@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb"])
def test_control_characters_in_member_name_are_escaped(name: str) -> None:
    assert name not in describe_share_partition_status(delivery_of(name), 3, 3, 0)
