"""Requests of one connection take effect in the order in which they came, and what was read is
finished, whether or not the client waits for its answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import pytest
import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.handlers.registry import load_apis
from kbroker.net.server import REAP_SECONDS
from kbroker.partitions.waiters import Pending, Waiting
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compile import Encoded
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.groups import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kbroker.protocol.messages.list_offsets import ListOffsetsRequest
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbroker.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
)
from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
)
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.share_state_log import SharePartitionKey
from kbroker.runtime import time_slices

from ..brokers import Start, hand_to, started
from ..sharing import ACCEPT, ShareMember
from ..wire import (
    EARLIEST,
    LATEST,
    NEVER,
    Topic,
    Wire,
    batch,
    connected,
    create_topic,
    fetch_request,
    produce,
    produce_request,
    request,
    sequenced,
    until,
    values_of,
)

TOPIC, BROKER = 2, 4
"""Types of resources."""
TIMES = 20
NAME = "tx"
SHARE_KEY = 2


class Ask(NamedTuple):
    """A request: its key, version and fields."""

    key: ApiKey
    version: int
    message: Any


class Pair(NamedTuple):
    """A request that changes something, and one whose answer shows it.

    `seen` says of the second answer whether it does.
    """

    change: Ask
    look: Ask
    seen: Callable[[Any], bool]


MakePair: TypeAlias = Callable[[Wire], Awaitable[Pair]]


async def answers(wire: Wire, *asks: Ask) -> list[Any]:
    """Send requests at once; their answers."""
    await wire.send_bytes(b"".join(wire.frame(*ask) for ask in asks))
    return [await wire.receive() for _ in asks]


# -- what changes something, and what shows it


def look_at_topics(*names: str) -> Ask:
    rows = [MetadataRequest.Topic(name=name) for name in names]
    return Ask(ApiKey.METADATA, 9, MetadataRequest(topics=rows, allow_auto_topic_creation=False))


def creation(*names: str) -> Ask:
    rows = [
        CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=-1)
        for name in names
    ]
    return Ask(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=rows))


def look_at_offset(topic: Topic, timestamp: int) -> Ask:
    row = ListOffsetsRequest.Partition(partition_index=0, timestamp=timestamp)
    asked = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.Topic(name=topic.name, partitions=[row])]
    )
    return Ask(ApiKey.LIST_OFFSETS, 7, asked)


def offset_in(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].offset)


async def topics_are_created(wire: Wire) -> Pair:
    return Pair(creation("t"), look_at_topics("t"), lambda answer: not answer.topics[0].error_code)


async def topics_are_deleted(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    change = Ask(ApiKey.DELETE_TOPICS, 5, request(ApiKey.DELETE_TOPICS, topic_names=["t"]))
    return Pair(change, look_at_topics("t"), lambda answer: answer.topics[0].error_code == 3)


async def partitions_are_created(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    row = CreatePartitionsRequest.Topic(name="t", count=5)
    change = Ask(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[row]))
    return Pair(change, look_at_topics("t"), lambda answer: len(answer.topics[0].partitions) == 5)


async def a_topic_is_created_by_metadata(wire: Wire) -> Pair:
    row = MetadataRequest.Topic(name="t")
    change = Ask(ApiKey.METADATA, 9, MetadataRequest(topics=[row], allow_auto_topic_creation=True))
    return Pair(change, look_at_topics("t"), lambda answer: not answer.topics[0].error_code)


def deletion_of_records(topic: Topic, offset: int) -> Ask:
    cls = DeleteRecordsRequest
    row = cls.Partition(partition_index=0, offset=offset)
    return Ask(
        ApiKey.DELETE_RECORDS,
        2,
        cls(topics=[cls.Topic(name=topic.name, partitions=[row])], timeout_ms=10_000),
    )


async def records_are_deleted(wire: Wire) -> Pair:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"x"] * 10))
    look = look_at_offset(topic, EARLIEST)
    return Pair(deletion_of_records(topic, 4), look, lambda answer: offset_in(answer) == 4)


async def records_are_produced(wire: Wire) -> Pair:
    topic = await create_topic(wire, "t")
    change = Ask(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
    return Pair(change, look_at_offset(topic, LATEST), lambda answer: offset_in(answer) == 1)


def setting(name: str, value: str) -> Ask:
    cls = IncrementalAlterConfigsRequest
    row = cls.Resource(
        resource_type=TOPIC, resource_name="t", configs=[cls.Config(name=name, value=value)]
    )
    return Ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, cls(resources=[row]))


def look_at_setting(name: str) -> Ask:
    cls = DescribeConfigsRequest
    row = cls.Resource(resource_type=TOPIC, resource_name="t", configuration_keys=[name])
    return Ask(ApiKey.DESCRIBE_CONFIGS, 4, cls(resources=[row]))


def value_in(answer: Any) -> str:
    return str(answer.results[0].configs[0].value)


async def settings_are_changed(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    name = "max.message.bytes"
    seen = lambda answer: value_in(answer) == "4321"
    return Pair(setting(name, "4321"), look_at_setting(name), seen)


async def settings_are_replaced(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    cls = AlterConfigsRequest
    row = cls.Resource(
        resource_type=TOPIC,
        resource_name="t",
        configs=[cls.Config(name="max.message.bytes", value="4321")],
    )
    change = Ask(ApiKey.ALTER_CONFIGS, 2, cls(resources=[row]))
    look = look_at_setting("max.message.bytes")
    return Pair(change, look, lambda answer: value_in(answer) == "4321")


async def a_user_is_made(wire: Wire) -> Pair:
    row = AlterUserScramCredentialsRequest.Upsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
    )
    change = Ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest(upsertions=[row])
    )
    look = Ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, DescribeUserScramCredentialsRequest(users=None)
    )
    return Pair(change, look, lambda answer: [each.user for each in answer.results] == ["alice"])


async def a_quota_is_set(wire: Wire) -> Pair:
    cls = AlterClientQuotasRequest
    row = cls.Entry(
        entity=[cls.Entity(entity_type="user", entity_name="alice")],
        ops=[cls.Op(key="producer_byte_rate", value=1e6)],
    )
    change = Ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, cls(entries=[row]))
    look = Ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest())
    return Pair(
        change, look, lambda answer: [each.values[0].value for each in answer.entries] == [1e6]
    )


async def a_feature_is_finalized(wire: Wire) -> Pair:
    row = UpdateFeaturesRequest.Feature(
        feature="transaction.version", max_version_level=1, upgrade_type=2
    )
    change = Ask(ApiKey.UPDATE_FEATURES, 1, UpdateFeaturesRequest(feature_updates=[row]))
    look = Ask(
        ApiKey.API_VERSIONS,
        3,
        request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1"),
    )

    def seen(answer: Any) -> bool:
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        return levels.get("transaction.version") == 1

    return Pair(change, look, seen)


# -- groups


def joining(member: str = "") -> Ask:
    """Version 1, which needs no member id of the broker's."""
    asked = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )
    return Ask(ApiKey.JOIN_GROUP, 1, asked)


def look_at_group() -> Ask:
    return Ask(ApiKey.DESCRIBE_GROUPS, 4, request(ApiKey.DESCRIBE_GROUPS, groups=["g"]))


async def find_coordinator(wire: Wire) -> None:
    asked = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, asked)


async def joined(wire: Wire) -> Any:
    await find_coordinator(wire)
    answer = await wire.ask(*joining())
    assert not answer.error_code
    return answer


def synchronizing(member: Any) -> Ask:
    row = SyncGroupRequest.Assignment(member_id=member.member_id, assignment=b"all")
    asked = SyncGroupRequest(
        group_id="g",
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=[row],
    )
    return Ask(ApiKey.SYNC_GROUP, 3, asked)


async def a_coordinator_is_found(wire: Wire) -> Pair:
    """The first time, which makes the topic in which it keeps its state."""
    change = Ask(
        ApiKey.FIND_COORDINATOR, 4, request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    )
    look = look_at_topics("__consumer_offsets")
    return Pair(change, look, lambda answer: not answer.topics[0].error_code)


async def a_member_joins(wire: Wire) -> Pair:
    await find_coordinator(wire)
    return Pair(joining(), look_at_group(), lambda answer: len(answer.groups[0].members) == 1)


async def a_consumer_joins(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    asked = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    look = Ask(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=["g"])
    )
    change = Ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, asked)
    return Pair(change, look, lambda answer: len(answer.groups[0].members) == 1)


async def a_member_of_a_streams_group_joins(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    cls = StreamsGroupHeartbeatRequest
    asked = cls(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=60_000,
        topology=cls.Topology(
            subtopologies=[cls.Subtopology(subtopology_id="0", source_topics=["t"])]
        ),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    look = Ask(
        ApiKey.STREAMS_GROUP_DESCRIBE, 0, request(ApiKey.STREAMS_GROUP_DESCRIBE, group_ids=["g"])
    )
    change = Ask(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, asked)
    return Pair(change, look, lambda answer: len(answer.groups[0].members) == 1)


async def a_share_consumer_joins(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    asked = request(
        ApiKey.SHARE_GROUP_HEARTBEAT, group_id="g", member_id="m", subscribed_topic_names=["t"]
    )
    look = Ask(
        ApiKey.SHARE_GROUP_DESCRIBE, 1, request(ApiKey.SHARE_GROUP_DESCRIBE, group_ids=["g"])
    )
    change = Ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, asked)
    return Pair(change, look, lambda answer: len(answer.groups[0].members) == 1)


async def a_group_becomes_stable(wire: Wire) -> Pair:
    change = synchronizing(await joined(wire))
    return Pair(change, look_at_group(), lambda answer: answer.groups[0].group_state == "Stable")


async def a_member_leaves(wire: Wire) -> Pair:
    member = await joined(wire)
    row = LeaveGroupRequest.Member(member_id=member.member_id)
    change = Ask(ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest(group_id="g", members=[row]))
    return Pair(change, look_at_group(), lambda answer: not answer.groups[0].members)


def commit_of(offset: int) -> Ask:
    cls = OffsetCommitRequest
    row = cls.Topic(
        name="t", partitions=[cls.Partition(partition_index=0, committed_offset=offset)]
    )
    return Ask(ApiKey.OFFSET_COMMIT, 7, cls(group_id="g", topics=[row]))


def look_at_commit() -> Ask:
    row = OffsetFetchRequest.Topic(name="t", partition_indexes=[0])
    asked = OffsetFetchRequest(group_id="g", topics=[row], require_stable=True)
    return Ask(ApiKey.OFFSET_FETCH, 7, asked)


def commit_in(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


async def offsets_are_committed(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    return Pair(
        commit_of(7), look_at_commit(), lambda answer: commit_in(answer).committed_offset == 7
    )


async def offsets_are_deleted(wire: Wire) -> Pair:
    await offsets_are_committed(wire)
    await wire.ask(*commit_of(7))
    cls = OffsetDeleteRequest
    row = cls.Topic(name="t", partitions=[cls.Partition(partition_index=0)])
    change = Ask(ApiKey.OFFSET_DELETE, 0, cls(group_id="g", topics=[row]))
    return Pair(change, look_at_commit(), lambda answer: commit_in(answer).committed_offset == -1)


async def groups_are_deleted(wire: Wire) -> Pair:
    await offsets_are_committed(wire)
    await wire.ask(*commit_of(7))
    change = Ask(ApiKey.DELETE_GROUPS, 2, request(ApiKey.DELETE_GROUPS, groups_names=["g"]))
    look = Ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
    return Pair(change, look, lambda answer: not answer.groups)


# -- transactions


def look_at_transaction() -> Ask:
    asked = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[NAME])
    return Ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, asked)


def partitions_in(answer: Any) -> set[str]:
    return {each.topic for each in answer.transaction_states[0].topics}


def starting(name: str = NAME) -> Ask:
    asked = request(ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
    return Ask(ApiKey.INIT_PRODUCER_ID, 4, asked)


async def begin(wire: Wire, name: str = NAME) -> Any:
    """The producer id and epoch of a transactional id."""
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[name], key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    answer = await wire.ask(*starting(name))
    assert not answer.error_code
    return answer


def adding(producer: Any, topic: str, name: str = NAME) -> Ask:
    cls = AddPartitionsToTxnRequest
    asked = cls(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[cls.Topic(name=topic, partitions=[0])],
    )
    return Ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, asked)


def ending(producer: Any, name: str = NAME) -> Ask:
    asked = request(
        ApiKey.END_TXN,
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    return Ask(ApiKey.END_TXN, 4, asked)


def adding_offsets(producer: Any) -> Ask:
    asked = request(
        ApiKey.ADD_OFFSETS_TO_TXN,
        transactional_id=NAME,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id="g",
    )
    return Ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, asked)


async def a_transactional_id_is_made(wire: Wire) -> Pair:
    await begin(wire, "another")
    return Pair(
        starting(),
        look_at_transaction(),
        lambda answer: answer.transaction_states[0].transaction_state == "Empty",
    )


async def partitions_join_a_transaction(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    change = adding(await begin(wire), "t")
    return Pair(change, look_at_transaction(), lambda answer: partitions_in(answer) == {"t"})


async def a_group_joins_a_transaction(wire: Wire) -> Pair:
    await find_coordinator(wire)
    change = adding_offsets(await begin(wire))
    seen = lambda answer: partitions_in(answer) == {"__consumer_offsets"}
    return Pair(change, look_at_transaction(), seen)


async def offsets_are_committed_in_a_transaction(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    producer = await begin(wire)
    await wire.ask(*adding_offsets(producer))
    cls = TxnOffsetCommitRequest
    row = cls.Topic(name="t", partitions=[cls.Partition(partition_index=0, committed_offset=7)])
    asked = cls(
        transactional_id=NAME,
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[row],
    )
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return Pair(
        Ask(ApiKey.TXN_OFFSET_COMMIT, 3, asked),
        look_at_commit(),
        lambda answer: commit_in(answer).error_code == unstable,
    )


async def a_transaction_is_ended(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    producer = await begin(wire)
    await wire.ask(*adding(producer, "t"))
    ended = ("PrepareCommit", "CompleteCommit")
    return Pair(
        ending(producer),
        look_at_transaction(),
        lambda answer: answer.transaction_states[0].transaction_state in ended,
    )


async def a_marker_is_written(wire: Wire) -> Pair:
    """As a coordinator asks for it."""
    topic = await create_topic(wire, "t")
    producer = await begin(wire)
    await wire.ask(*adding(producer, "t"))
    records = sequenced(producer.producer_id, 0, epoch=producer.producer_epoch, transactional=True)
    await produce(wire, topic, records, transactional_id=NAME)
    cls = WriteTxnMarkersRequest
    marker = cls.Marker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=True,
        topics=[cls.Topic(name="t", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    asked = DescribeProducersRequest(
        topics=[DescribeProducersRequest.Topic(name="t", partition_indexes=[0])]
    )

    def seen(answer: Any) -> bool:
        (row,) = answer.topics[0].partitions[0].active_producers
        return bool(row.current_txn_start_offset == -1)

    change = Ask(ApiKey.WRITE_TXN_MARKERS, 1, cls(markers=[marker]))
    return Pair(change, Ask(ApiKey.DESCRIBE_PRODUCERS, 0, asked), seen)


async def shared_topic(wire: Wire) -> Topic:
    """A topic whose share partitions have a coordinator."""
    topic = await create_topic(wire, "t")
    name = SharePartitionKey("g", topic.id, 0).name
    found = request(ApiKey.FIND_COORDINATOR, key_type=SHARE_KEY, coordinator_keys=[name])
    answer = await wire.ask(ApiKey.FIND_COORDINATOR, 6, found)
    assert not answer.coordinators[0].error_code, answer
    return topic


def share_state(key: ApiKey, topic: Topic, **fields: Any) -> Ask:
    cls: Any = messages.request_class(key)
    rows = [cls.Topic(topic_id=topic.id, partitions=[cls.Partition(partition=0, **fields)])]
    version = load_apis()[key].versions[-1]
    return Ask(key, version, request(key, group_id="g", topics=rows))


def summary(topic: Topic) -> Ask:
    return share_state(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, topic)


async def a_share_partition_begins(wire: Wire) -> Pair:
    topic = await shared_topic(wire)
    change = share_state(ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic, start_offset=7)
    return Pair(change, summary(topic), lambda answer: share_in(answer).start_offset == 7)


def share_in(answer: Any) -> Any:
    return answer.results[0].partitions[0]


async def begun_share_partition(wire: Wire) -> Topic:
    topic = await shared_topic(wire)
    await wire.ask(*share_state(ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic, start_offset=7))
    return topic


async def a_leader_reads_a_share_partition(wire: Wire) -> Pair:
    topic = await begun_share_partition(wire)
    change = share_state(ApiKey.READ_SHARE_GROUP_STATE, topic, leader_epoch=5)
    return Pair(change, summary(topic), lambda answer: share_in(answer).leader_epoch == 5)


async def a_share_partition_changes(wire: Wire) -> Pair:
    topic = await begun_share_partition(wire)
    change = share_state(ApiKey.WRITE_SHARE_GROUP_STATE, topic, start_offset=9)
    return Pair(change, summary(topic), lambda answer: share_in(answer).start_offset == 9)


async def a_share_partition_goes(wire: Wire) -> Pair:
    topic = await begun_share_partition(wire)
    change = share_state(ApiKey.DELETE_SHARE_GROUP_STATE, topic)
    return Pair(change, summary(topic), lambda answer: share_in(answer).start_offset == -1)


async def given_record(wire: Wire) -> ShareMember:
    """A member that has a record."""
    topic = await shared_topic(wire)
    await wire.ask(*share_state(ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic, start_offset=0))
    await produce(wire, topic, batch())
    member = ShareMember(wire, topic, group="g")
    assert await member.take() == [(0, 0, 1)]
    return member


def is_done_with(count: int) -> Callable[[Any], bool]:
    return lambda answer: share_in(answer).delivery_complete_count == count


async def a_record_is_acknowledged_with_a_fetch(wire: Wire) -> Pair:
    member = await given_record(wire)
    asked = member.fetch_request((), {0: [(0, 0, ACCEPT)]}, max_records=0)
    return Pair(Ask(ApiKey.SHARE_FETCH, 2, asked), summary(member.topic), is_done_with(1))


async def a_record_is_acknowledged(wire: Wire) -> Pair:
    member = await given_record(wire)
    change = Ask(ApiKey.SHARE_ACKNOWLEDGE, 2, member.acknowledgement({0: [(0, 0, ACCEPT)]}))
    return Pair(change, summary(member.topic), is_done_with(1))


def share_offsets() -> Ask:
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    cls: Any = messages.request_class(key)
    return Ask(key, 1, cls(groups=[cls.Group(group_id="g", topics=None)]))


async def a_share_group_begins_elsewhere(wire: Wire) -> Pair:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    cls: Any = messages.request_class(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    topic = cls.Topic(topic_name="t", partitions=[cls.Partition(start_offset=7)])
    change = Ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, cls(group_id="g", topics=[topic]))
    return Pair(
        change,
        share_offsets(),
        lambda answer: any(
            topic.partitions[0].start_offset == 7 for topic in answer.groups[0].topics
        ),
    )


async def a_share_group_forgets_a_topic(wire: Wire) -> Pair:
    begun = await a_share_group_begins_elsewhere(wire)
    await wire.ask(*begun.change)
    cls: Any = messages.request_class(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
    asked = cls(group_id="g", topics=[cls.Topic(topic_name="t")])
    change = Ask(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, asked)
    return Pair(change, share_offsets(), lambda answer: not answer.groups[0].topics)


PAIRS: dict[ApiKey, MakePair] = {
    ApiKey.PRODUCE: records_are_produced,
    ApiKey.METADATA: a_topic_is_created_by_metadata,
    ApiKey.OFFSET_COMMIT: offsets_are_committed,
    ApiKey.FIND_COORDINATOR: a_coordinator_is_found,
    ApiKey.JOIN_GROUP: a_member_joins,
    ApiKey.LEAVE_GROUP: a_member_leaves,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: a_consumer_joins,
    ApiKey.STREAMS_GROUP_HEARTBEAT: a_member_of_a_streams_group_joins,
    ApiKey.SHARE_GROUP_HEARTBEAT: a_share_consumer_joins,
    ApiKey.SHARE_FETCH: a_record_is_acknowledged_with_a_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: a_record_is_acknowledged,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: a_share_group_begins_elsewhere,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: a_share_group_forgets_a_topic,
    ApiKey.SYNC_GROUP: a_group_becomes_stable,
    ApiKey.CREATE_TOPICS: topics_are_created,
    ApiKey.DELETE_TOPICS: topics_are_deleted,
    ApiKey.DELETE_RECORDS: records_are_deleted,
    ApiKey.INIT_PRODUCER_ID: a_transactional_id_is_made,
    ApiKey.ADD_PARTITIONS_TO_TXN: partitions_join_a_transaction,
    ApiKey.ADD_OFFSETS_TO_TXN: a_group_joins_a_transaction,
    ApiKey.END_TXN: a_transaction_is_ended,
    ApiKey.WRITE_TXN_MARKERS: a_marker_is_written,
    ApiKey.TXN_OFFSET_COMMIT: offsets_are_committed_in_a_transaction,
    ApiKey.ALTER_CONFIGS: settings_are_replaced,
    ApiKey.CREATE_PARTITIONS: partitions_are_created,
    ApiKey.DELETE_GROUPS: groups_are_deleted,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: settings_are_changed,
    ApiKey.OFFSET_DELETE: offsets_are_deleted,
    ApiKey.UPDATE_FEATURES: a_feature_is_finalized,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: a_user_is_made,
    ApiKey.ALTER_CLIENT_QUOTAS: a_quota_is_set,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: a_share_partition_begins,
    ApiKey.READ_SHARE_GROUP_STATE: a_leader_reads_a_share_partition,
    ApiKey.WRITE_SHARE_GROUP_STATE: a_share_partition_changes,
    ApiKey.DELETE_SHARE_GROUP_STATE: a_share_partition_goes,
}


# -- what needs several nodes


async def spread_topic(wire: Wire, *replicas: int) -> None:
    """A topic with one partition on these nodes; the first one leads."""
    cls = CreateTopicsRequest
    row = cls.Topic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[cls.Assignment(partition_index=0, broker_ids=list(replicas))],
    )
    answer = await wire.ask(ApiKey.CREATE_TOPICS, 7, cls(topics=[row]))
    assert not answer.topics[0].error_code, answer


def partition_in(answer: Any) -> Any:
    return answer.topics[0].partitions[0]


def reassignment(*replicas: int) -> Ask:
    cls = AlterPartitionReassignmentsRequest
    row = cls.Topic(name="t", partitions=[cls.Partition(replicas=list(replicas))])
    return Ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, cls(topics=[row]))


async def a_partition_moves(broker: Broker, wire: Wire) -> Pair:
    await spread_topic(wire, 1)
    seen = lambda answer: 2 in partition_in(answer).replica_nodes
    return Pair(reassignment(2), look_at_topics("t"), seen)


async def a_leader_is_elected(broker: Broker, wire: Wire) -> Pair:
    await spread_topic(wire, 1, 2)
    await wire.ask(*reassignment(2, 1))
    asked = request(ApiKey.ELECT_LEADERS, topic_partitions=None)
    look = look_at_topics("t")
    await until(lambda: len(broker.node.cluster.topics["t"].partitions[0].isr) == 2)
    return Pair(
        Ask(ApiKey.ELECT_LEADERS, 2, asked),
        look,
        lambda answer: partition_in(answer).leader_id == 2,
    )


PAIRS_OF_NODES: dict[ApiKey, Callable[[Broker, Wire], Awaitable[Pair]]] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: a_partition_moves,
    ApiKey.ELECT_LEADERS: a_leader_is_elected,
}

LOOKS = {
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FETCH,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    ApiKey.API_VERSIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
}
"""What changes nothing."""

NOT_SEEN = {
    ApiKey.HEARTBEAT: "moves a time-out",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "begins what goes on by itself, and is a plain function",
    ApiKey.UNREGISTER_BROKER: "is about a node of which nothing tells",
    ApiKey.ADD_RAFT_VOTER: "is always refused",
    ApiKey.REMOVE_RAFT_VOTER: "is always refused",
    ApiKey.CREATE_ACLS: "is refused where everybody may do everything: tests/security/test_access.py",
    ApiKey.DELETE_ACLS: "is refused where everybody may do everything: tests/security/test_access.py",
    ApiKey.CREATE_DELEGATION_TOKEN: "is refused where nobody logs in: tests/handlers/test_delegation_tokens.py",
    ApiKey.RENEW_DELEGATION_TOKEN: "is refused where nobody logs in: tests/handlers/test_delegation_tokens.py",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "is refused where nobody logs in: tests/handlers/test_delegation_tokens.py",
    ApiKey.PUSH_TELEMETRY: "gives what no request asks for: tests/node/test_client_metrics.py",
    ApiKey.SASL_HANDSHAKE: "changes the connection alone",
    ApiKey.SASL_AUTHENTICATE: "changes the connection alone",
}


def test_every_api_is_looked_at() -> None:
    """Who adds one says what shows its effect."""
    assert not LOOKS & {*PAIRS, *PAIRS_OF_NODES, *NOT_SEEN}
    assert LOOKS | {*PAIRS, *PAIRS_OF_NODES, *NOT_SEEN} == set(load_apis())
    read_only = {key for key, api in load_apis().items() if api.read_only}
    assert {ApiKey.METADATA} == read_only - LOOKS


def test_only_a_long_poll_is_begun_when_its_turn_comes() -> None:
    """What handlers return says when their work is done: at once, or before the next request is
    looked at. Only what changes nothing may be left until its answer is due."""
    polls = set()
    for key, api in load_apis().items():
        returned = get_type_hints(api.handler)["return"]
        kinds = get_args(returned) if get_origin(returned) in (UnionType, Union) else (returned,)
        names = {get_origin(each) or each for each in kinds} - {type(None)}
        if Waiting in names:
            polls.add(key)
        for kind in names - {Waiting, messages.response_class(ApiKey(key))}:
            assert issubclass(kind, (Pending, Coroutine, Encoded)), f"{api.key.name}: {returned}"
    assert polls == {ApiKey.FETCH, ApiKey.SHARE_FETCH}


async def takes_effect_before_the_next(wire: Wire, pair: Pair) -> None:
    assert not pair.seen(await wire.ask(*pair.look)), "it is there already"
    changed, looked = await answers(wire, pair.change, pair.look)
    assert pair.seen(looked), f"{changed}\n{looked}"


@pytest.mark.parametrize("key", PAIRS, ids=lambda key: key.name)
async def test_what_is_asked_next_sees_what_was_asked_before(start: Start, key: ApiKey) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await takes_effect_before_the_next(wire, await PAIRS[key](wire))


@pytest.mark.parametrize("key", PAIRS_OF_NODES, ids=lambda key: key.name)
async def test_what_is_asked_next_of_several_nodes_sees_it_too(key: ApiKey) -> None:
    async with started(nodes=3) as broker, connected(broker.endpoint) as wire:
        await takes_effect_before_the_next(wire, await PAIRS_OF_NODES[key](broker, wire))


async def test_records_are_gone_before_the_next_request_asks_for_them(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"x"] * TIMES))
        look = look_at_offset(topic, EARLIEST)
        asks = [each for i in range(TIMES) for each in (deletion_of_records(topic, i + 1), look)]
        answered = await answers(wire, *asks)
        assert [offset_in(each) for each in answered[1::2]] == list(range(1, TIMES + 1))


async def test_a_setting_is_there_before_the_next_request_asks_for_it(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        name, values = "retention.ms", [str(100_000 + i) for i in range(TIMES)]
        asks = [each for value in values for each in (setting(name, value), look_at_setting(name))]
        assert [value_in(each) for each in (await answers(wire, *asks))[1::2]] == values


async def test_what_was_produced_is_there_before_the_next_request_reads(start: Start) -> None:
    """Also where it is several partitions, of which the last is not the last to be in place."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 3)
        asks = []
        for i in range(TIMES):
            for index in (0, 1, 2):
                asked = produce_request(topic, batch([str(i).encode()]), partition=index)
                asks.append(Ask(ApiKey.PRODUCE, 9, asked))
            asks.append(Ask(ApiKey.FETCH, 12, fetch_request(topic, i, partitions=(0, 1, 2))))
        for i, answer in enumerate((await answers(wire, *asks))[3::4]):
            assert [values_of(row) for row in answer.responses[0].partitions] == [
                [str(i).encode()]
            ] * 3


async def test_a_long_poll_does_not_hold_up_what_is_asked_next(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
        await wire.send(*creation("other"))
        await until(lambda: "other" in broker.node.cluster.topics)


# -- clients that do not wait


def names(count: int) -> list[str]:
    return [f"t{i:02}" for i in range(count)]


def made(broker: Broker) -> list[str]:
    return sorted(each for each in broker.node.cluster.topics if each.startswith("t"))


async def is_left(broker: Broker) -> None:
    """Wait until the broker is done with its clients."""
    await until(lambda: not broker.server.connections)


async def test_one_long_request_of_a_client_that_closes(start: Start) -> None:
    async with start() as broker:
        async with connected(broker.endpoint) as wire:
            await wire.send(*creation(*names(50)))
        await is_left(broker)
        assert made(broker) == names(50)


@pytest.mark.parametrize("resets", [False, True], ids=["FIN", "RST"])
async def test_many_requests_of_a_client_that_closes(start: Start, resets: bool) -> None:
    async with start() as broker:
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(b"".join(wire.frame(*creation(name)) for name in names(50)))
            if resets:  # what was not read by then is lost, in Kafka too
                (connection,) = broker.server.connections
                await until(lambda: connection.requests)
                await wire.reset()
        await is_left(broker)
        assert made(broker) == names(50)


async def test_what_only_looks_is_not_done_for_a_client_that_has_gone() -> None:
    """Or a few bytes of who takes no answers keep the broker at work for long."""
    async with started() as broker:
        looks = 0

        def look(ctx: Any, asked: Any) -> MetadataResponse:
            nonlocal looks
            looks += 1
            return MetadataResponse(cluster_id="x" * 20_000)

        hand_to(broker, ApiKey.METADATA, look)
        async with connected(broker.endpoint) as wire:
            frame = wire.frame(*look_at_topics("t"), answered=False)
            await wire.send_bytes(frame * 1000 + wire.frame(*creation("t")))
            await until(lambda: broker.server.connections)
            (connection,) = broker.server.connections
            await until(lambda: connection.replies.is_full)
            await trio.testing.wait_all_tasks_blocked(0.05)
            before = looks
            await wire.reset()
        await is_left(broker)
        assert (looks, made(broker)) == (before, ["t"])


@pytest.mark.parametrize("ends", ["close", "reset"])
async def test_a_request_that_ends_its_own_connection_leaves_what_was_read_behind_it_to_be_done(
    ends: str,
) -> None:
    """Unless whoever ends it does so as if the process were killed."""
    async with started() as broker:

        def look(ctx: Any, asked: Any) -> MetadataResponse:
            (connection,) = broker.server.connections
            getattr(connection, ends)()
            return MetadataResponse()

        hand_to(broker, ApiKey.METADATA, look)
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(
                wire.frame(*look_at_topics("t")) + wire.frame(*creation(*names(2)))
            )
            await is_left(broker)
        assert made(broker) == ([] if ends == "reset" else names(2))


async def test_a_client_that_half_closes_gets_all_its_answers(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*creation(name)) for name in names(50)))
        await wire.stream.send_eof()
        for name in names(50):
            assert [each.name for each in (await wire.receive()).topics] == [name]
        await wire.wait_closed()
        assert made(broker) == names(50)


@pytest.mark.parametrize("resets", [False, True], ids=["FIN", "RST"])
async def test_no_transaction_stays_open_that_its_client_has_ended(
    start: Start, resets: bool
) -> None:
    async with start() as broker:
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "t")
        for i in range(30):
            async with connected(broker.endpoint) as wire:
                producer = await begin(wire, f"tx{i}")
                await wire.ask(*adding(producer, "t", f"tx{i}"))
                (connection,) = broker.server.connections
                before = connection.requests.count
                await wire.send(*ending(producer, f"tx{i}"))
                if resets:
                    await until(lambda: connection.requests.count > before)  # noqa: B023
                    await wire.reset()
            await is_left(broker)
        states = [each.state.label for _, _, each in broker.node.transactions.known()]
        assert len(states) == 30
        assert set(states) <= {"PrepareCommit", "CompleteCommit"}


# -- work that takes its time


class SlowWork:
    """Stands for CreateTopics: each request waits until it is let go."""

    def __init__(self, broker: Broker) -> None:
        self.begun = self.done = 0
        self.release = trio.Event()
        hand_to(broker, ApiKey.CREATE_TOPICS, self._handle)

    async def _handle(self, ctx: Any, request: Any) -> CreateTopicsResponse:
        self.begun += 1
        await self.release.wait()
        self.done += 1
        return CreateTopicsResponse()


@asynccontextmanager
async def slow_broker(**settings: Any) -> AsyncIterator[tuple[Broker, SlowWork]]:
    """Connections that are opened from here on meet slow work."""
    async with started(**settings) as broker:
        yield broker, SlowWork(broker)


async def test_work_is_finished_for_a_client_that_has_gone() -> None:
    async with slow_broker() as (broker, work):
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(b"".join(wire.frame(*creation("t")) for _ in range(3)))
            await until(lambda: work.begun)
            await wire.reset()
        work.release.set()
        await is_left(broker)
        assert work.done == 3


async def test_a_node_that_stops_finishes_its_work() -> None:
    async with slow_broker(nodes=1) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*creation("t")) for _ in range(3)))
        await until(lambda: work.begun)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.nodes[0].stop)
            await wire.is_silent()
            work.release.set()
        assert work.done == 3
        for _ in range(3):
            await wire.receive()


async def test_a_node_that_stops_does_not_wait_for_ever() -> None:
    async with slow_broker(nodes=1) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*creation("t")) for _ in range(3)))
        await until(lambda: work.begun)
        with trio.fail_after(20):
            await broker.nodes[0].stop(grace_seconds=0.1)
        assert (work.begun, work.done) == (1, 0)


async def test_a_node_that_crashes_does_nothing_more() -> None:
    """Neither is its work finished nor is any begun."""
    async with slow_broker(nodes=1) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*creation("t")) for _ in range(3)))
        await until(lambda: work.begun)
        with trio.fail_after(20):
            await broker.nodes[0].crash()
        work.release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (work.begun, work.done) == (1, 0)
        await wire.wait_closed()


async def test_a_node_that_crashes_while_records_are_not_in_place_begins_nothing() -> None:
    async with started(nodes=1) as broker:
        appended: list[Pending[Any]] = []

        def append(ctx: Any, asked: Any) -> Pending[Any]:
            appended.append(Pending())
            return appended[-1]

        hand_to(broker, ApiKey.PRODUCE, append)
        work = SlowWork(broker)
        async with connected(broker.endpoint) as wire:
            await wire.send(ApiKey.PRODUCE, 9, produce_request(Topic("t"), batch()))
            await wire.send(*creation("t"))
            await until(lambda: appended)
            await trio.testing.wait_all_tasks_blocked()
            await broker.nodes[0].crash()
            assert not work.begun


async def test_a_node_that_crashes_between_two_requests_begins_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have been read, and handling one takes no wait."""
    monkeypatch.setattr(time_slices, "TIME_SLICE_SECONDS", 0)  # others have their turn after each
    async with started(nodes=1) as broker:
        handled = 0

        def handle(ctx: Any, asked: Any) -> None:
            nonlocal handled
            handled += 1
            if handled == 2:
                nursery.start_soon(broker.nodes[0].crash)

        hand_to(broker, ApiKey.API_VERSIONS, handle)
        async with trio.open_nursery() as nursery, connected(broker.endpoint) as wire:
            asked = request(ApiKey.API_VERSIONS)
            frame = wire.frame(ApiKey.API_VERSIONS, 0, asked, answered=False)
            await wire.send_bytes(frame * 100)
            await wire.wait_closed()
        assert handled < 5


async def test_work_that_fails_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        slow_broker() as (broker, work),
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        work.release = None  # type: ignore[assignment]
        await wire.send(*creation("t"))
        assert await wire.wait_closed() == b""
        assert broker.node.context.error_log.unhandled_errors == 1
        assert "unexpected error" in caplog.text
        broker.node.context.error_log.unhandled_errors = 0
        assert await other.works()


async def test_who_waits_for_its_work_is_not_idle() -> None:
    settings = {"connections_max_idle_ms": 100}
    async with slow_broker(**settings) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send(*creation("t"))
        assert await wire.is_silent(3 * REAP_SECONDS)
        work.release.set()
        await wire.receive()
        assert await wire.wait_closed() == b""  # and then it is
