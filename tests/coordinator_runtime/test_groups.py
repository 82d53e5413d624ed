"""Long-running work over groups, offsets, transactional IDs and topics does not block clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from kbroker.broker import Broker
from kbroker.cluster import OFFSETS_TOPIC
from kbroker.coordinator import CoordinatorRecord, Result
from kbroker.coordinator.common.records import offset_record
from kbroker.coordinator.state import OFFSETS_AT_ONCE
from kbroker.coordinator.transactions.transaction import TransactionMetadata, to_value
from kbroker.coordinator_runtime.groups import GroupCoordinatorService, GroupShard
from kbroker.coordinator_runtime.loading import _stored_batches
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.group_metadata import OffsetCommitValue
from kbroker.protocol.messages.configs import ListConfigResourcesRequest
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest
from kbroker.protocol.messages.metadata import DescribeTopicPartitionsRequest
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kbroker.protocol.records import Marker, end_transaction_marker, read_header, read_records
from kbroker.protocol.transaction_log import TransactionLogKey
from kbroker.runtime.time_slices import TimeSlice
from kbroker.storage.cached import waiting

from ..brokers import started
from ..loop_latency import STEP_SECONDS_MAX, longest_step
from ..wire import Wire, connected, create_topic, delete_topic, until

GROUPS = 5000
OFFSETS = 20_000
TOPICS = 200_000
LONG_AGO = OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)
PRODUCER_ID = 7
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with started() as broker:
        await broker.node.groups.create_topic()
        yield broker


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    async with connected(broker.endpoint) as wire:
        yield wire


def shard_of(broker: Broker) -> GroupShard:
    """Return the only shard of an in-memory broker."""
    return broker.node.groups.shard("g")


def offsets_of(broker: Broker) -> dict[str, Any]:
    return shard_of(broker).coordinator._state.offsets


def fill(broker: Broker, records: Iterable[CoordinatorRecord]) -> None:
    """Replay records that a test has no time to commit."""
    coordinator = shard_of(broker).coordinator
    for record in records:
        coordinator.replay(record)


def offsets_of_many_groups(topic: str = "gone", count: int = GROUPS) -> Iterable[CoordinatorRecord]:
    return (offset_record(f"g{index}", topic, 0, LONG_AGO) for index in range(count))


def offsets_of_one_group(group: str = "wide", count: int = OFFSETS) -> Iterable[CoordinatorRecord]:
    return (offset_record(group, "t", index, LONG_AGO) for index in range(count))


def batch_sizes(broker: Broker) -> list[int]:
    log = shard_of(broker).replica.log
    offset, sizes = log.log_start_offset, []
    while offset < log.log_end_offset:
        offset, batches = _stored_batches(log, offset, waiting)
        sizes += [header.size for header, _ in batches]
    return sizes


# -- topics that are deleted


@pytest.mark.slow
async def test_offsets_of_deleted_topic_are_deleted_in_background(
    broker: Broker, wire: Wire
) -> None:
    await create_topic(wire, "gone")
    fill(broker, offsets_of_many_groups())
    async with connected(broker.endpoint) as bystander:
        with longest_step() as step:
            await delete_topic(wire, "gone")
            while offsets_of(broker):
                assert await bystander.works()
    assert step.seconds < STEP_SECONDS_MAX, str(step)


async def test_few_offsets_are_deleted_before_delete_topics_responds(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least a few offsets are processed immediately, however slow the machine is."""
    await create_topic(wire, "gone")
    fill(broker, offsets_of_many_groups(count=50))
    monkeypatch.setattr(TimeSlice, "is_over", property(lambda time_slice: True))
    await delete_topic(wire, "gone")
    assert not offsets_of(broker)


async def commit(wire: Wire, group: str, topic: str, offsets: Iterable[int]) -> set[int]:
    """Commit with a retention time, so that the offsets contain no topic ID."""
    rows = [
        OffsetCommitRequest.Partition(partition_index=index, committed_offset=7)
        for index in offsets
    ]
    ask = OffsetCommitRequest(
        group_id=group,
        retention_time_ms=1_000_000,
        topics=[OffsetCommitRequest.Topic(name=topic, partitions=rows)],
    )
    (response,) = (await wire.ask(ApiKey.OFFSET_COMMIT, 4, ask)).topics
    return {row.error_code for row in response.partitions}


@pytest.mark.slow
async def test_recreated_topic_keeps_new_commits(broker: Broker, wire: Wire) -> None:
    await create_topic(wire, "gone")
    fill(broker, offsets_of_many_groups())
    await delete_topic(wire, "gone")
    await create_topic(wire, "gone")
    last = f"g{GROUPS - 1}"
    assert last in offsets_of(broker), "the deletion is still in progress"
    assert await commit(wire, last, "gone", [0]) == {0}
    await until(lambda: len(offsets_of(broker)) == 1)
    assert shard_of(broker).coordinator.committed(last) == {("gone", 0): 7}


async def test_coordinator_stops_deleting_offsets_after_losing_partition(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(wire, "gone")
    fill(broker, offsets_of_many_groups())
    ran: list[object] = []
    run = GroupCoordinatorService.run

    def watched(service: Any, shard: Any, result: Any) -> Any:
        ran.append(shard)
        return run(service, shard, result)

    groups, shard = broker.node.groups, shard_of(broker)
    await delete_topic(wire, "gone")
    assert offsets_of(broker), "the deletion is still in progress"
    groups.stop()
    monkeypatch.setattr(GroupCoordinatorService, "run", watched)
    groups.apply_leadership()
    await until(lambda: not groups.is_loading)
    await wait_all_tasks_blocked()
    assert shard not in ran


@pytest.mark.slow
async def test_offsets_of_missed_topic_deletions_are_deleted_in_background_after_load(
    broker: Broker, wire: Wire
) -> None:
    groups = broker.node.groups
    result = Result[None]()
    result.records = list(offsets_of_many_groups("missing"))
    groups.run(shard_of(broker), result)
    groups.stop()
    groups.apply_leadership()
    (load,) = groups._loader
    load.missed_topics = True
    with longest_step() as step:
        await until(lambda: not groups.is_loading)
        await until(lambda: not offsets_of(broker))
    assert step.seconds < STEP_SECONDS_MAX, str(step)


# -- expiration


@pytest.mark.slow
async def test_groups_expire_in_background() -> None:
    async with started(offsets_retention_check_interval_ms=100) as broker:
        await broker.node.groups.create_topic()
        fill(broker, offsets_of_many_groups(count=2000))
        fill(broker, offsets_of_one_group(count=OFFSETS // 2))
        with longest_step() as step:
            await until(lambda: not offsets_of(broker))
        assert step.seconds < STEP_SECONDS_MAX, str(step)


@pytest.mark.slow
async def test_transactional_ids_expire_in_background() -> None:
    async with started(transaction_remove_expired_transaction_cleanup_interval_ms=100) as broker:
        transactions = broker.node.transactions
        await transactions.create_topic()
        coordinator = transactions.shard("x").coordinator
        value = to_value(TransactionMetadata(1, 1000, 1))
        for index in range(GROUPS):
            key = TransactionLogKey(transactional_id=f"x{index}")
            coordinator.replay(CoordinatorRecord(key, value))
        with longest_step() as step:
            await until(lambda: not coordinator.transactions)
        assert step.seconds < STEP_SECONDS_MAX, str(step)


# -- a group with many offsets


async def delete_group(wire: Wire, group: str = "wide") -> int:
    ask = DeleteGroupsRequest(groups_names=[group])
    return int((await wire.ask(ApiKey.DELETE_GROUPS, 2, ask)).results[0].error_code)


async def test_deleting_group_with_many_offsets_does_not_block_clients(
    broker: Broker, wire: Wire
) -> None:
    fill(broker, offsets_of_one_group())
    described = DescribeGroupsRequest(groups=["wide"])
    async with connected(broker.endpoint) as bystander:
        with longest_step() as step:
            await wire.send(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=["wide"]))
            await until(lambda: len(offsets_of(broker)["wide"]) < OFFSETS)
            response = await bystander.ask(ApiKey.DESCRIBE_GROUPS, 5, described)
            assert (await wire.receive()).results[0].error_code == 0
        assert response.groups[0].error_code == LOADING, "no client sees a partly deleted group"
        assert step.seconds < STEP_SECONDS_MAX, str(step)
        assert not offsets_of(broker)
        assert max(batch_sizes(broker)) < 100 * OFFSETS_AT_ONCE
        assert await delete_group(bystander) == ErrorCode.GROUP_ID_NOT_FOUND


def run_before_appends(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Call `act` before each append of a coordinator, with the number of earlier appends."""
    append = GroupCoordinatorService._append
    counted: list[object] = []

    def watched(service: Any, shard: Any, result: Any) -> None:
        counted.append(result)
        act(len(counted) - 1)
        append(service, shard, result)

    monkeypatch.setattr(GroupCoordinatorService, "_append", watched)


async def test_group_remains_if_part_of_its_deletion_fails(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, offsets_of_one_group())

    def fail(count: int) -> None:
        if count == 3:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    run_before_appends(monkeypatch, fail)
    assert await delete_group(wire) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(offsets_of(broker)["wide"]) == OFFSETS - 3 * OFFSETS_AT_ONCE
    assert await delete_group(wire) == 0, "the group accepts requests again"
    assert not offsets_of(broker)


async def test_delete_group_fails_if_coordinator_is_lost(
    broker: Broker, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, offsets_of_one_group())
    groups, shard = broker.node.groups, shard_of(broker)
    log = shard.replica.log

    def lose(count: int) -> None:
        if count == 3:
            groups._drop_lost(shard)

    run_before_appends(monkeypatch, lose)
    assert await delete_group(wire) == ErrorCode.NOT_COORDINATOR
    assert log.log_end_offset == 4 * OFFSETS_AT_ONCE


# -- a transaction with many offsets


def pending(broker: Broker, group: str = "wide") -> None:
    for record in offsets_of_one_group(group):
        shard_of(broker).coordinator.replay(record, PRODUCER_ID)


@pytest.mark.slow
async def test_ending_transaction_with_many_offsets_does_not_block_clients(
    broker: Broker, wire: Wire
) -> None:
    pending(broker)
    rows = OffsetFetchRequest.Topic(name="t", partition_indexes=[0, OFFSETS - 1])
    look = OffsetFetchRequest(groups=[OffsetFetchRequest.Group(group_id="wide", topics=[rows])])
    turns = 0
    with longest_step() as step:
        broker.node.groups.end_transaction(0, PRODUCER_ID, commit=True)
        while 0 < len(offsets_of(broker).get("wide", ())) < OFFSETS:
            turns += 1
            (group,) = (await wire.ask(ApiKey.OFFSET_FETCH, 8, look)).groups
            if group.error_code != LOADING:
                seen = [row.committed_offset for row in group.topics[0].partitions]
                assert seen == [1, 1], "no client sees a partly committed transaction"
    assert turns > 1
    await until(lambda: not broker.node.groups._closed)
    (group,) = (await wire.ask(ApiKey.OFFSET_FETCH, 8, look)).groups
    assert [row.committed_offset for row in group.topics[0].partitions] == [1, 1]
    assert step.seconds < STEP_SECONDS_MAX, str(step)


async def test_losing_coordinator_reopens_groups_of_ending_transaction(broker: Broker) -> None:
    pending(broker)
    groups = broker.node.groups
    groups.end_transaction(0, PRODUCER_ID, commit=True)
    assert groups._closed == {"wide": 1}
    groups._drop_lost(groups._shards[0])
    await until(lambda: not groups._closed)


async def test_marker_with_many_offsets_is_loaded_in_pieces(broker: Broker) -> None:
    pending(broker)
    batch = end_transaction_marker(
        Marker(commit=True, coordinator_epoch=0),
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        timestamp=1,
    )
    header, records = read_header(batch), read_records(batch)
    coordinator = shard_of(broker).coordinator
    pieces = [*broker.node.groups._load_records(coordinator, header, records)]
    assert max(pieces) <= OFFSETS_AT_ONCE
    assert sum(pieces) == len(offsets_of(broker)["wide"]) == OFFSETS


# -- batches


@pytest.mark.parametrize("setting", ["max_message_bytes", "segment_bytes"])
async def test_batch_size_respects_topic_limits(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t", 150)
        await broker.node.groups.create_topic()
        log = shard_of(broker).replica.log
        limited = log.config.produce_rules if setting == "max_message_bytes" else log.config
        monkeypatch.setattr(type(limited), "__setattr__", object.__setattr__)
        monkeypatch.setattr(limited, setting, 2000)
        assert await commit(wire, "g", "t", range(150)) == {0}
        sizes = batch_sizes(broker)
        assert len(sizes) > 2
        assert max(sizes) <= 2000
        assert len(offsets_of(broker)["g"]) == 150


# -- all topics in order


@pytest.fixture
async def crowded(broker: Broker, wire: Wire) -> list[str]:
    """Return the names of many topics in the order of DescribeTopicPartitions."""
    (topic,) = broker.node.cluster.topics.values()
    names = [f"t{index * 7919 % TOPICS:06}" for index in range(TOPICS)]
    broker.node.cluster.topics.update(dict.fromkeys(names, topic))
    return sorted([*names, OFFSETS_TOPIC])


@pytest.mark.slow
async def test_describing_page_of_many_topics_does_not_block_loop(
    broker: Broker, wire: Wire, crowded: list[str]
) -> None:
    limit = 100
    ask = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=limit)
    with longest_step() as step:
        first = await wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, ask)
        ask.cursor = first.next_cursor
        await wire.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, ask)
    assert first.next_cursor.topic_name in crowded[1 : limit + 1]
    assert step.seconds < STEP_SECONDS_MAX, str(step)


@pytest.mark.slow
async def test_listing_many_config_resources_does_not_block_loop(
    broker: Broker, wire: Wire, crowded: list[str]
) -> None:
    ask = ListConfigResourcesRequest(resource_types=[2])
    with longest_step() as step:
        response = await wire.ask(ApiKey.LIST_CONFIG_RESOURCES, 1, ask)
    assert [row.resource_name for row in response.config_resources] == crowded
    assert step.seconds < STEP_SECONDS_MAX, str(step)
