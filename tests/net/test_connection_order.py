"""Tests that requests of one connection take effect in order, even if the client disconnects."""

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

from ..brokers import Start, replace_handler, started
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

# Resource types of DescribeConfigs and AlterConfigs.
TOPIC, BROKER = 2, 4
TIMES = 20
NAME = "tx"
SHARE_KEY = 2


class ApiRequest(NamedTuple):
    """A request: its API key, version and message."""

    key: ApiKey
    version: int
    message: Any


class ChangeAndQuery(NamedTuple):
    """A request that changes state, and a query whose response shows the change.

    `is_visible` returns True if the query's response shows the change.
    """

    change: ApiRequest
    query: ApiRequest
    is_visible: Callable[[Any], bool]


MakeChange: TypeAlias = Callable[[Wire], Awaitable[ChangeAndQuery]]


async def exchange(wire: Wire, *requests: ApiRequest) -> list[Any]:
    """Send all requests at once and return their responses."""
    await wire.send_bytes(b"".join(wire.frame(*each) for each in requests))
    return [await wire.receive() for _ in requests]


# -- changes and the queries that show them


def metadata_request(*names: str) -> ApiRequest:
    rows = [MetadataRequest.Topic(name=name) for name in names]
    return ApiRequest(
        ApiKey.METADATA, 9, MetadataRequest(topics=rows, allow_auto_topic_creation=False)
    )


def create_topics_request(*names: str) -> ApiRequest:
    rows = [
        CreateTopicsRequest.Topic(name=name, num_partitions=1, replication_factor=-1)
        for name in names
    ]
    return ApiRequest(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=rows))


def list_offsets_request(topic: Topic, timestamp: int) -> ApiRequest:
    row = ListOffsetsRequest.Partition(partition_index=0, timestamp=timestamp)
    message = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequest.Topic(name=topic.name, partitions=[row])]
    )
    return ApiRequest(ApiKey.LIST_OFFSETS, 7, message)


def offset_in(response: Any) -> int:
    return int(response.topics[0].partitions[0].offset)


async def topics_are_created(wire: Wire) -> ChangeAndQuery:
    return ChangeAndQuery(
        create_topics_request("t"),
        metadata_request("t"),
        lambda response: not response.topics[0].error_code,
    )


async def topics_are_deleted(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    change = ApiRequest(ApiKey.DELETE_TOPICS, 5, request(ApiKey.DELETE_TOPICS, topic_names=["t"]))
    return ChangeAndQuery(
        change, metadata_request("t"), lambda response: response.topics[0].error_code == 3
    )


async def partitions_are_created(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    row = CreatePartitionsRequest.Topic(name="t", count=5)
    change = ApiRequest(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=[row]))
    return ChangeAndQuery(
        change, metadata_request("t"), lambda response: len(response.topics[0].partitions) == 5
    )


async def topic_is_auto_created_by_metadata(wire: Wire) -> ChangeAndQuery:
    row = MetadataRequest.Topic(name="t")
    change = ApiRequest(
        ApiKey.METADATA, 9, MetadataRequest(topics=[row], allow_auto_topic_creation=True)
    )
    return ChangeAndQuery(
        change, metadata_request("t"), lambda response: not response.topics[0].error_code
    )


def delete_records_request(topic: Topic, offset: int) -> ApiRequest:
    cls = DeleteRecordsRequest
    row = cls.Partition(partition_index=0, offset=offset)
    return ApiRequest(
        ApiKey.DELETE_RECORDS,
        2,
        cls(topics=[cls.Topic(name=topic.name, partitions=[row])], timeout_ms=10_000),
    )


async def records_are_deleted(wire: Wire) -> ChangeAndQuery:
    topic = await create_topic(wire, "t")
    await produce(wire, topic, batch([b"x"] * 10))
    query = list_offsets_request(topic, EARLIEST)
    return ChangeAndQuery(
        delete_records_request(topic, 4), query, lambda response: offset_in(response) == 4
    )


async def records_are_produced(wire: Wire) -> ChangeAndQuery:
    topic = await create_topic(wire, "t")
    change = ApiRequest(ApiKey.PRODUCE, 9, produce_request(topic, batch()))
    return ChangeAndQuery(
        change, list_offsets_request(topic, LATEST), lambda response: offset_in(response) == 1
    )


def alter_config_request(name: str, value: str) -> ApiRequest:
    cls = IncrementalAlterConfigsRequest
    row = cls.Resource(
        resource_type=TOPIC, resource_name="t", configs=[cls.Config(name=name, value=value)]
    )
    return ApiRequest(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, cls(resources=[row]))


def describe_config_request(name: str) -> ApiRequest:
    cls = DescribeConfigsRequest
    row = cls.Resource(resource_type=TOPIC, resource_name="t", configuration_keys=[name])
    return ApiRequest(ApiKey.DESCRIBE_CONFIGS, 4, cls(resources=[row]))


def value_in(response: Any) -> str:
    return str(response.results[0].configs[0].value)


async def settings_are_changed(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    name = "max.message.bytes"
    is_visible = lambda response: value_in(response) == "4321"
    return ChangeAndQuery(
        alter_config_request(name, "4321"), describe_config_request(name), is_visible
    )


async def settings_are_replaced(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    cls = AlterConfigsRequest
    row = cls.Resource(
        resource_type=TOPIC,
        resource_name="t",
        configs=[cls.Config(name="max.message.bytes", value="4321")],
    )
    change = ApiRequest(ApiKey.ALTER_CONFIGS, 2, cls(resources=[row]))
    query = describe_config_request("max.message.bytes")
    return ChangeAndQuery(change, query, lambda response: value_in(response) == "4321")


async def user_is_created(wire: Wire) -> ChangeAndQuery:
    row = AlterUserScramCredentialsRequest.Upsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
    )
    change = ApiRequest(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, AlterUserScramCredentialsRequest(upsertions=[row])
    )
    query = ApiRequest(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, DescribeUserScramCredentialsRequest(users=None)
    )
    return ChangeAndQuery(
        change, query, lambda response: [each.user for each in response.results] == ["alice"]
    )


async def quota_is_set(wire: Wire) -> ChangeAndQuery:
    cls = AlterClientQuotasRequest
    row = cls.Entry(
        entity=[cls.Entity(entity_type="user", entity_name="alice")],
        ops=[cls.Op(key="producer_byte_rate", value=1e6)],
    )
    change = ApiRequest(ApiKey.ALTER_CLIENT_QUOTAS, 1, cls(entries=[row]))
    query = ApiRequest(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, DescribeClientQuotasRequest())
    return ChangeAndQuery(
        change, query, lambda response: [each.values[0].value for each in response.entries] == [1e6]
    )


async def feature_is_finalized(wire: Wire) -> ChangeAndQuery:
    row = UpdateFeaturesRequest.Feature(
        feature="transaction.version", max_version_level=1, upgrade_type=2
    )
    change = ApiRequest(ApiKey.UPDATE_FEATURES, 1, UpdateFeaturesRequest(feature_updates=[row]))
    query = ApiRequest(
        ApiKey.API_VERSIONS,
        3,
        request(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1"),
    )

    def is_visible(response: Any) -> bool:
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        return levels.get("transaction.version") == 1

    return ChangeAndQuery(change, query, is_visible)


# -- groups


def join_group_request(member: str = "") -> ApiRequest:
    """Return a JoinGroup request of version 1, which needs no member ID from the broker."""
    message = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"")],
    )
    return ApiRequest(ApiKey.JOIN_GROUP, 1, message)


def describe_group_request() -> ApiRequest:
    return ApiRequest(ApiKey.DESCRIBE_GROUPS, 4, request(ApiKey.DESCRIBE_GROUPS, groups=["g"]))


async def find_coordinator(wire: Wire) -> None:
    message = request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, message)


async def join_group(wire: Wire) -> Any:
    await find_coordinator(wire)
    response = await wire.ask(*join_group_request())
    assert not response.error_code
    return response


def sync_group_request(member: Any) -> ApiRequest:
    row = SyncGroupRequest.Assignment(member_id=member.member_id, assignment=b"all")
    message = SyncGroupRequest(
        group_id="g",
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=[row],
    )
    return ApiRequest(ApiKey.SYNC_GROUP, 3, message)


async def first_coordinator_is_found(wire: Wire) -> ChangeAndQuery:
    """The first FindCoordinator request creates the offsets topic."""
    change = ApiRequest(
        ApiKey.FIND_COORDINATOR, 4, request(ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    )
    query = metadata_request("__consumer_offsets")
    return ChangeAndQuery(change, query, lambda response: not response.topics[0].error_code)


async def classic_member_joins(wire: Wire) -> ChangeAndQuery:
    await find_coordinator(wire)
    return ChangeAndQuery(
        join_group_request(),
        describe_group_request(),
        lambda response: len(response.groups[0].members) == 1,
    )


async def consumer_group_member_joins(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    message = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    query = ApiRequest(
        ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=["g"])
    )
    change = ApiRequest(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
    return ChangeAndQuery(change, query, lambda response: len(response.groups[0].members) == 1)


async def streams_group_member_joins(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    cls = StreamsGroupHeartbeatRequest
    message = cls(
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
    query = ApiRequest(
        ApiKey.STREAMS_GROUP_DESCRIBE, 0, request(ApiKey.STREAMS_GROUP_DESCRIBE, group_ids=["g"])
    )
    change = ApiRequest(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, message)
    return ChangeAndQuery(change, query, lambda response: len(response.groups[0].members) == 1)


async def topology_is_described(wire: Wire) -> ChangeAndQuery:
    joined = await streams_group_member_joins(wire)
    await wire.ask(*joined.change)
    key = ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    change = ApiRequest(key, 0, request(key, group_id="g", member_id="m"))
    message = request(
        ApiKey.STREAMS_GROUP_DESCRIBE, group_ids=["g"], include_topology_description=True
    )
    return ChangeAndQuery(
        change,
        ApiRequest(ApiKey.STREAMS_GROUP_DESCRIBE, 1, message),
        lambda response: response.groups[0].topology_description is not None,
    )


async def share_group_member_joins(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    message = request(
        ApiKey.SHARE_GROUP_HEARTBEAT, group_id="g", member_id="m", subscribed_topic_names=["t"]
    )
    query = ApiRequest(
        ApiKey.SHARE_GROUP_DESCRIBE, 1, request(ApiKey.SHARE_GROUP_DESCRIBE, group_ids=["g"])
    )
    change = ApiRequest(ApiKey.SHARE_GROUP_HEARTBEAT, 1, message)
    return ChangeAndQuery(change, query, lambda response: len(response.groups[0].members) == 1)


async def group_becomes_stable(wire: Wire) -> ChangeAndQuery:
    change = sync_group_request(await join_group(wire))
    return ChangeAndQuery(
        change,
        describe_group_request(),
        lambda response: response.groups[0].group_state == "Stable",
    )


async def member_leaves(wire: Wire) -> ChangeAndQuery:
    member = await join_group(wire)
    row = LeaveGroupRequest.Member(member_id=member.member_id)
    change = ApiRequest(ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest(group_id="g", members=[row]))
    return ChangeAndQuery(
        change, describe_group_request(), lambda response: not response.groups[0].members
    )


def commit_request(offset: int) -> ApiRequest:
    cls = OffsetCommitRequest
    row = cls.Topic(
        name="t", partitions=[cls.Partition(partition_index=0, committed_offset=offset)]
    )
    return ApiRequest(ApiKey.OFFSET_COMMIT, 7, cls(group_id="g", topics=[row]))


def fetch_commit_request() -> ApiRequest:
    row = OffsetFetchRequest.Topic(name="t", partition_indexes=[0])
    message = OffsetFetchRequest(group_id="g", topics=[row], require_stable=True)
    return ApiRequest(ApiKey.OFFSET_FETCH, 7, message)


def commit_in(response: Any) -> Any:
    return response.topics[0].partitions[0]


async def offsets_are_committed(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    return ChangeAndQuery(
        commit_request(7),
        fetch_commit_request(),
        lambda response: commit_in(response).committed_offset == 7,
    )


async def offsets_are_deleted(wire: Wire) -> ChangeAndQuery:
    await offsets_are_committed(wire)
    await wire.ask(*commit_request(7))
    cls = OffsetDeleteRequest
    row = cls.Topic(name="t", partitions=[cls.Partition(partition_index=0)])
    change = ApiRequest(ApiKey.OFFSET_DELETE, 0, cls(group_id="g", topics=[row]))
    return ChangeAndQuery(
        change, fetch_commit_request(), lambda response: commit_in(response).committed_offset == -1
    )


async def groups_are_deleted(wire: Wire) -> ChangeAndQuery:
    await offsets_are_committed(wire)
    await wire.ask(*commit_request(7))
    change = ApiRequest(ApiKey.DELETE_GROUPS, 2, request(ApiKey.DELETE_GROUPS, groups_names=["g"]))
    query = ApiRequest(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
    return ChangeAndQuery(change, query, lambda response: not response.groups)


# -- transactions


def describe_transaction_request() -> ApiRequest:
    message = request(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[NAME])
    return ApiRequest(ApiKey.DESCRIBE_TRANSACTIONS, 0, message)


def partitions_in(response: Any) -> set[str]:
    return {each.topic for each in response.transaction_states[0].topics}


def init_producer_id_request(name: str = NAME) -> ApiRequest:
    message = request(ApiKey.INIT_PRODUCER_ID, transactional_id=name, transaction_timeout_ms=60_000)
    return ApiRequest(ApiKey.INIT_PRODUCER_ID, 4, message)


async def init_producer_id(wire: Wire, name: str = NAME) -> Any:
    """Initialize a transactional producer and return the response with its ID and epoch."""
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[name], key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    response = await wire.ask(*init_producer_id_request(name))
    assert not response.error_code
    return response


def add_partition_request(producer: Any, topic: str, name: str = NAME) -> ApiRequest:
    cls = AddPartitionsToTxnRequest
    message = cls(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[cls.Topic(name=topic, partitions=[0])],
    )
    return ApiRequest(ApiKey.ADD_PARTITIONS_TO_TXN, 3, message)


def end_txn_request(producer: Any, name: str = NAME) -> ApiRequest:
    message = request(
        ApiKey.END_TXN,
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    return ApiRequest(ApiKey.END_TXN, 4, message)


def add_offsets_request(producer: Any) -> ApiRequest:
    message = request(
        ApiKey.ADD_OFFSETS_TO_TXN,
        transactional_id=NAME,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        group_id="g",
    )
    return ApiRequest(ApiKey.ADD_OFFSETS_TO_TXN, 3, message)


async def transactional_id_is_initialized(wire: Wire) -> ChangeAndQuery:
    await init_producer_id(wire, "another")
    return ChangeAndQuery(
        init_producer_id_request(),
        describe_transaction_request(),
        lambda response: response.transaction_states[0].transaction_state == "Empty",
    )


async def partitions_are_added_to_transaction(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    change = add_partition_request(await init_producer_id(wire), "t")
    return ChangeAndQuery(
        change, describe_transaction_request(), lambda response: partitions_in(response) == {"t"}
    )


async def group_is_added_to_transaction(wire: Wire) -> ChangeAndQuery:
    await find_coordinator(wire)
    change = add_offsets_request(await init_producer_id(wire))
    is_visible = lambda response: partitions_in(response) == {"__consumer_offsets"}
    return ChangeAndQuery(change, describe_transaction_request(), is_visible)


async def offsets_are_committed_in_transaction(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    producer = await init_producer_id(wire)
    await wire.ask(*add_offsets_request(producer))
    cls = TxnOffsetCommitRequest
    row = cls.Topic(name="t", partitions=[cls.Partition(partition_index=0, committed_offset=7)])
    message = cls(
        transactional_id=NAME,
        group_id="g",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[row],
    )
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return ChangeAndQuery(
        ApiRequest(ApiKey.TXN_OFFSET_COMMIT, 3, message),
        fetch_commit_request(),
        lambda response: commit_in(response).error_code == unstable,
    )


async def transaction_is_ended(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    producer = await init_producer_id(wire)
    await wire.ask(*add_partition_request(producer, "t"))
    ended = ("PrepareCommit", "CompleteCommit")
    return ChangeAndQuery(
        end_txn_request(producer),
        describe_transaction_request(),
        lambda response: response.transaction_states[0].transaction_state in ended,
    )


async def marker_is_written(wire: Wire) -> ChangeAndQuery:
    """Send WriteTxnMarkers as a transaction coordinator does."""
    topic = await create_topic(wire, "t")
    producer = await init_producer_id(wire)
    await wire.ask(*add_partition_request(producer, "t"))
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
    message = DescribeProducersRequest(
        topics=[DescribeProducersRequest.Topic(name="t", partition_indexes=[0])]
    )

    def is_visible(response: Any) -> bool:
        (row,) = response.topics[0].partitions[0].active_producers
        return bool(row.current_txn_start_offset == -1)

    change = ApiRequest(ApiKey.WRITE_TXN_MARKERS, 1, cls(markers=[marker]))
    return ChangeAndQuery(change, ApiRequest(ApiKey.DESCRIBE_PRODUCERS, 0, message), is_visible)


async def create_shared_topic(wire: Wire) -> Topic:
    """Create a topic whose share partitions have a coordinator."""
    topic = await create_topic(wire, "t")
    name = SharePartitionKey("g", topic.id, 0).name
    found = request(ApiKey.FIND_COORDINATOR, key_type=SHARE_KEY, coordinator_keys=[name])
    response = await wire.ask(ApiKey.FIND_COORDINATOR, 6, found)
    assert not response.coordinators[0].error_code, response
    return topic


def share_state_request(key: ApiKey, topic: Topic, **fields: Any) -> ApiRequest:
    cls: Any = messages.request_class(key)
    rows = [cls.Topic(topic_id=topic.id, partitions=[cls.Partition(partition=0, **fields)])]
    version = load_apis()[key].versions[-1]
    return ApiRequest(key, version, request(key, group_id="g", topics=rows))


def share_summary_request(topic: Topic) -> ApiRequest:
    return share_state_request(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, topic)


async def share_partition_is_initialized(wire: Wire) -> ChangeAndQuery:
    topic = await create_shared_topic(wire)
    change = share_state_request(ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic, start_offset=7)
    return ChangeAndQuery(
        change, share_summary_request(topic), lambda response: share_in(response).start_offset == 7
    )


def share_in(response: Any) -> Any:
    return response.results[0].partitions[0]


async def init_share_partition(wire: Wire) -> Topic:
    topic = await create_shared_topic(wire)
    await wire.ask(*share_state_request(ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic, start_offset=7))
    return topic


async def leader_reads_share_partition(wire: Wire) -> ChangeAndQuery:
    topic = await init_share_partition(wire)
    change = share_state_request(ApiKey.READ_SHARE_GROUP_STATE, topic, leader_epoch=5)
    return ChangeAndQuery(
        change, share_summary_request(topic), lambda response: share_in(response).leader_epoch == 5
    )


async def share_partition_state_is_written(wire: Wire) -> ChangeAndQuery:
    topic = await init_share_partition(wire)
    change = share_state_request(ApiKey.WRITE_SHARE_GROUP_STATE, topic, start_offset=9)
    return ChangeAndQuery(
        change, share_summary_request(topic), lambda response: share_in(response).start_offset == 9
    )


async def share_partition_state_is_deleted(wire: Wire) -> ChangeAndQuery:
    topic = await init_share_partition(wire)
    change = share_state_request(ApiKey.DELETE_SHARE_GROUP_STATE, topic)
    return ChangeAndQuery(
        change, share_summary_request(topic), lambda response: share_in(response).start_offset == -1
    )


async def acquire_record(wire: Wire) -> ShareMember:
    """Return a share group member that has acquired a record."""
    topic = await create_shared_topic(wire)
    await wire.ask(*share_state_request(ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic, start_offset=0))
    await produce(wire, topic, batch())
    member = ShareMember(wire, topic, group="g")
    assert await member.acquire() == [(0, 0, 1)]
    return member


def has_delivered(count: int) -> Callable[[Any], bool]:
    return lambda response: share_in(response).delivery_complete_count == count


async def record_is_acknowledged_by_share_fetch(wire: Wire) -> ChangeAndQuery:
    member = await acquire_record(wire)
    message = member.fetch_request((), {0: [(0, 0, ACCEPT)]}, max_records=0)
    return ChangeAndQuery(
        ApiRequest(ApiKey.SHARE_FETCH, 2, message),
        share_summary_request(member.topic),
        has_delivered(1),
    )


async def record_is_acknowledged(wire: Wire) -> ChangeAndQuery:
    member = await acquire_record(wire)
    change = ApiRequest(ApiKey.SHARE_ACKNOWLEDGE, 2, member.acknowledgement({0: [(0, 0, ACCEPT)]}))
    return ChangeAndQuery(change, share_summary_request(member.topic), has_delivered(1))


def share_offsets_request() -> ApiRequest:
    key = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS
    cls: Any = messages.request_class(key)
    return ApiRequest(key, 1, cls(groups=[cls.Group(group_id="g", topics=None)]))


async def share_group_offsets_are_altered(wire: Wire) -> ChangeAndQuery:
    await create_topic(wire, "t")
    await find_coordinator(wire)
    cls: Any = messages.request_class(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    topic = cls.Topic(topic_name="t", partitions=[cls.Partition(start_offset=7)])
    change = ApiRequest(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, cls(group_id="g", topics=[topic]))
    return ChangeAndQuery(
        change,
        share_offsets_request(),
        lambda response: any(
            topic.partitions[0].start_offset == 7 for topic in response.groups[0].topics
        ),
    )


async def share_group_offsets_are_deleted(wire: Wire) -> ChangeAndQuery:
    altered = await share_group_offsets_are_altered(wire)
    await wire.ask(*altered.change)
    cls: Any = messages.request_class(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
    message = cls(group_id="g", topics=[cls.Topic(topic_name="t")])
    change = ApiRequest(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, message)
    return ChangeAndQuery(
        change, share_offsets_request(), lambda response: not response.groups[0].topics
    )


CHANGES: dict[ApiKey, MakeChange] = {
    ApiKey.PRODUCE: records_are_produced,
    ApiKey.METADATA: topic_is_auto_created_by_metadata,
    ApiKey.OFFSET_COMMIT: offsets_are_committed,
    ApiKey.FIND_COORDINATOR: first_coordinator_is_found,
    ApiKey.JOIN_GROUP: classic_member_joins,
    ApiKey.LEAVE_GROUP: member_leaves,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_member_joins,
    ApiKey.STREAMS_GROUP_HEARTBEAT: streams_group_member_joins,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: topology_is_described,
    ApiKey.SHARE_GROUP_HEARTBEAT: share_group_member_joins,
    ApiKey.SHARE_FETCH: record_is_acknowledged_by_share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: record_is_acknowledged,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_group_offsets_are_altered,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_group_offsets_are_deleted,
    ApiKey.SYNC_GROUP: group_becomes_stable,
    ApiKey.CREATE_TOPICS: topics_are_created,
    ApiKey.DELETE_TOPICS: topics_are_deleted,
    ApiKey.DELETE_RECORDS: records_are_deleted,
    ApiKey.INIT_PRODUCER_ID: transactional_id_is_initialized,
    ApiKey.ADD_PARTITIONS_TO_TXN: partitions_are_added_to_transaction,
    ApiKey.ADD_OFFSETS_TO_TXN: group_is_added_to_transaction,
    ApiKey.END_TXN: transaction_is_ended,
    ApiKey.WRITE_TXN_MARKERS: marker_is_written,
    ApiKey.TXN_OFFSET_COMMIT: offsets_are_committed_in_transaction,
    ApiKey.ALTER_CONFIGS: settings_are_replaced,
    ApiKey.CREATE_PARTITIONS: partitions_are_created,
    ApiKey.DELETE_GROUPS: groups_are_deleted,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: settings_are_changed,
    ApiKey.OFFSET_DELETE: offsets_are_deleted,
    ApiKey.UPDATE_FEATURES: feature_is_finalized,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: user_is_created,
    ApiKey.ALTER_CLIENT_QUOTAS: quota_is_set,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: share_partition_is_initialized,
    ApiKey.READ_SHARE_GROUP_STATE: leader_reads_share_partition,
    ApiKey.WRITE_SHARE_GROUP_STATE: share_partition_state_is_written,
    ApiKey.DELETE_SHARE_GROUP_STATE: share_partition_state_is_deleted,
}


# -- changes that need several nodes


async def create_assigned_topic(wire: Wire, *replicas: int) -> None:
    """Create a topic with one partition on these nodes, of which the first one leads."""
    cls = CreateTopicsRequest
    row = cls.Topic(
        name="t",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[cls.Assignment(partition_index=0, broker_ids=list(replicas))],
    )
    response = await wire.ask(ApiKey.CREATE_TOPICS, 7, cls(topics=[row]))
    assert not response.topics[0].error_code, response


def partition_in(response: Any) -> Any:
    return response.topics[0].partitions[0]


def reassignment(*replicas: int) -> ApiRequest:
    cls = AlterPartitionReassignmentsRequest
    row = cls.Topic(name="t", partitions=[cls.Partition(replicas=list(replicas))])
    return ApiRequest(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, cls(topics=[row]))


async def partition_is_reassigned(broker: Broker, wire: Wire) -> ChangeAndQuery:
    await create_assigned_topic(wire, 1)
    is_visible = lambda response: 2 in partition_in(response).replica_nodes
    return ChangeAndQuery(reassignment(2), metadata_request("t"), is_visible)


async def leader_is_elected(broker: Broker, wire: Wire) -> ChangeAndQuery:
    await create_assigned_topic(wire, 1, 2)
    await wire.ask(*reassignment(2, 1))
    message = request(ApiKey.ELECT_LEADERS, topic_partitions=None)
    query = metadata_request("t")
    await until(lambda: len(broker.node.cluster.topics["t"].partitions[0].isr) == 2)
    return ChangeAndQuery(
        ApiRequest(ApiKey.ELECT_LEADERS, 2, message),
        query,
        lambda response: partition_in(response).leader_id == 2,
    )


CLUSTER_CHANGES: dict[ApiKey, Callable[[Broker, Wire], Awaitable[ChangeAndQuery]]] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: partition_is_reassigned,
    ApiKey.ELECT_LEADERS: leader_is_elected,
}

# APIs that change no state.
READ_ONLY = {
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

# APIs whose effect no query of this test shows, with the reason.
WITHOUT_QUERY = {
    ApiKey.HEARTBEAT: "extends a timeout",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "starts a background move, and is a plain function",
    ApiKey.UNREGISTER_BROKER: "concerns a node that no query shows",
    ApiKey.ADD_RAFT_VOTER: "is always rejected",
    ApiKey.REMOVE_RAFT_VOTER: "is always rejected",
    ApiKey.UNREGISTER_CONTROLLER: "is always rejected",
    ApiKey.CREATE_ACLS: "is rejected without an authorizer: tests/security/test_access.py",
    ApiKey.DELETE_ACLS: "is rejected without an authorizer: tests/security/test_access.py",
    ApiKey.CREATE_DELEGATION_TOKEN: "requires authentication: tests/handlers/test_delegation_tokens.py",
    ApiKey.RENEW_DELEGATION_TOKEN: "requires authentication: tests/handlers/test_delegation_tokens.py",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "requires authentication: tests/handlers/test_delegation_tokens.py",
    ApiKey.PUSH_TELEMETRY: "pushes data that no request returns: tests/node/test_client_metrics.py",
    ApiKey.SASL_HANDSHAKE: "changes only the connection",
    ApiKey.SASL_AUTHENTICATE: "changes only the connection",
}


def test_every_api_is_classified() -> None:
    """A new API must declare which query shows its effect."""
    assert not READ_ONLY & {*CHANGES, *CLUSTER_CHANGES, *WITHOUT_QUERY}
    assert READ_ONLY | {*CHANGES, *CLUSTER_CHANGES, *WITHOUT_QUERY} == set(load_apis())
    read_only = {key for key, api in load_apis().items() if api.read_only}
    assert {ApiKey.METADATA} == read_only - READ_ONLY


def test_only_long_polls_defer_their_work() -> None:
    """A handler's return type tells when its work is done.

    The work is done immediately or before the next request is handled. Only read-only work may
    be deferred until the response is due.
    """
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


async def check_visible_to_next_request(wire: Wire, pair: ChangeAndQuery) -> None:
    assert not pair.is_visible(await wire.ask(*pair.query)), "visible before the change"
    changed, described = await exchange(wire, pair.change, pair.query)
    assert pair.is_visible(described), f"{changed}\n{described}"


@pytest.mark.slow
@pytest.mark.parametrize("key", CHANGES, ids=lambda key: key.name)
async def test_change_is_visible_to_next_request(start: Start, key: ApiKey) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await check_visible_to_next_request(wire, await CHANGES[key](wire))


@pytest.mark.parametrize("key", CLUSTER_CHANGES, ids=lambda key: key.name)
async def test_change_in_cluster_is_visible_to_next_request(key: ApiKey) -> None:
    async with started(nodes=3) as broker, connected(broker.endpoint) as wire:
        await check_visible_to_next_request(wire, await CLUSTER_CHANGES[key](broker, wire))


async def test_deleted_records_are_invisible_to_next_request(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await produce(wire, topic, batch([b"x"] * TIMES))
        query = list_offsets_request(topic, EARLIEST)
        requests = [
            each for i in range(TIMES) for each in (delete_records_request(topic, i + 1), query)
        ]
        answered = await exchange(wire, *requests)
        assert [offset_in(each) for each in answered[1::2]] == list(range(1, TIMES + 1))


async def test_altered_config_is_visible_to_next_request(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        name, values = "retention.ms", [str(100_000 + i) for i in range(TIMES)]
        requests = [
            each
            for value in values
            for each in (alter_config_request(name, value), describe_config_request(name))
        ]
        assert [value_in(each) for each in (await exchange(wire, *requests))[1::2]] == values


async def test_produced_records_are_visible_to_next_request(start: Start) -> None:
    """The order must also hold if the append to the last of several partitions completes early."""
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t", 3)
        requests = []
        for i in range(TIMES):
            for index in (0, 1, 2):
                message = produce_request(topic, batch([str(i).encode()]), partition=index)
                requests.append(ApiRequest(ApiKey.PRODUCE, 9, message))
            requests.append(
                ApiRequest(ApiKey.FETCH, 12, fetch_request(topic, i, partitions=(0, 1, 2)))
            )
        for i, response in enumerate((await exchange(wire, *requests))[3::4]):
            assert [values_of(row) for row in response.responses[0].partitions] == [
                [str(i).encode()]
            ] * 3


async def test_long_poll_does_not_delay_next_request(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        topic = await create_topic(wire, "t")
        await wire.send(ApiKey.FETCH, 12, fetch_request(topic, max_wait_ms=NEVER))
        await wire.send(*create_topics_request("other"))
        await until(lambda: "other" in broker.node.cluster.topics)


# -- clients that disconnect early


def names(count: int) -> list[str]:
    return [f"t{i:02}" for i in range(count)]


def created_topics(broker: Broker) -> list[str]:
    return sorted(each for each in broker.node.cluster.topics if each.startswith("t"))


async def clients_are_gone(broker: Broker) -> None:
    """Wait until the broker has removed all connections."""
    await until(lambda: not broker.server.connections)


async def test_long_request_of_closing_client_is_finished(start: Start) -> None:
    async with start() as broker:
        async with connected(broker.endpoint) as wire:
            await wire.send(*create_topics_request(*names(50)))
        await clients_are_gone(broker)
        assert created_topics(broker) == names(50)


@pytest.mark.parametrize("resets", [False, True], ids=["FIN", "RST"])
async def test_pipelined_requests_of_closing_client_are_finished(
    start: Start, resets: bool
) -> None:
    async with start() as broker:
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(
                b"".join(wire.frame(*create_topics_request(name)) for name in names(50))
            )
            if resets:  # unread data is lost, as in Kafka
                (connection,) = broker.server.connections
                await until(lambda: connection.requests)
                await wire.reset()
        await clients_are_gone(broker)
        assert created_topics(broker) == names(50)


async def test_read_only_requests_of_disconnected_client_are_skipped() -> None:
    """A client that reads no responses must not cause much work with few bytes."""
    async with started() as broker:
        queries = 0

        def query(ctx: Any, message: Any) -> MetadataResponse:
            nonlocal queries
            queries += 1
            return MetadataResponse(cluster_id="x" * 20_000)

        replace_handler(broker, ApiKey.METADATA, query)
        async with connected(broker.endpoint) as wire:
            frame = wire.frame(*metadata_request("t"), answered=False)
            await wire.send_bytes(frame * 1000 + wire.frame(*create_topics_request("t")))
            await until(lambda: broker.server.connections)
            (connection,) = broker.server.connections
            await until(lambda: connection.replies.is_full)
            await trio.testing.wait_all_tasks_blocked(0.05)
            before = queries
            await wire.reset()
        await clients_are_gone(broker)
        assert (queries, created_topics(broker)) == (before, ["t"])


@pytest.mark.parametrize("ends", ["close", "reset"])
async def test_requests_read_before_handler_closes_connection_are_finished(
    ends: str,
) -> None:
    """A reset drops them, as if the process were killed."""
    async with started() as broker:

        def query(ctx: Any, message: Any) -> MetadataResponse:
            (connection,) = broker.server.connections
            getattr(connection, ends)()
            return MetadataResponse()

        replace_handler(broker, ApiKey.METADATA, query)
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(
                wire.frame(*metadata_request("t")) + wire.frame(*create_topics_request(*names(2)))
            )
            await clients_are_gone(broker)
        assert created_topics(broker) == ([] if ends == "reset" else names(2))


async def test_half_closed_client_gets_all_responses(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await wire.send_bytes(
            b"".join(wire.frame(*create_topics_request(name)) for name in names(50))
        )
        await wire.stream.send_eof()
        for name in names(50):
            assert [each.name for each in (await wire.receive()).topics] == [name]
        await wire.wait_closed()
        assert created_topics(broker) == names(50)


@pytest.mark.slow
@pytest.mark.parametrize("resets", [False, True], ids=["FIN", "RST"])
async def test_transaction_ended_by_disconnected_client_does_not_stay_open(
    start: Start, resets: bool
) -> None:
    async with start() as broker:
        async with connected(broker.endpoint) as wire:
            await create_topic(wire, "t")
        for i in range(30):
            async with connected(broker.endpoint) as wire:
                producer = await init_producer_id(wire, f"tx{i}")
                await wire.ask(*add_partition_request(producer, "t", f"tx{i}"))
                (connection,) = broker.server.connections
                before = connection.requests.count
                await wire.send(*end_txn_request(producer, f"tx{i}"))
                if resets:
                    await until(lambda: connection.requests.count > before)  # noqa: B023
                    await wire.reset()
            await clients_are_gone(broker)
        states = [each.state.label for _, _, each in broker.node.transactions.known()]
        assert len(states) == 30
        assert set(states) <= {"PrepareCommit", "CompleteCommit"}


# -- slow handlers


class SlowWork:
    """A replacement of the CreateTopics handler that waits until `release` is set."""

    def __init__(self, broker: Broker) -> None:
        self.started = self.done = 0
        self.release = trio.Event()
        replace_handler(broker, ApiKey.CREATE_TOPICS, self._handle)

    async def _handle(self, ctx: Any, request: Any) -> CreateTopicsResponse:
        self.started += 1
        await self.release.wait()
        self.done += 1
        return CreateTopicsResponse()


@asynccontextmanager
async def slow_broker(**settings: Any) -> AsyncIterator[tuple[Broker, SlowWork]]:
    """Start a broker whose later connections use a slow CreateTopics handler."""
    async with started(**settings) as broker:
        yield broker, SlowWork(broker)


async def test_started_requests_of_disconnected_client_are_finished() -> None:
    async with slow_broker() as (broker, work):
        async with connected(broker.endpoint) as wire:
            await wire.send_bytes(
                b"".join(wire.frame(*create_topics_request("t")) for _ in range(3))
            )
            await until(lambda: work.started)
            await wire.reset()
        work.release.set()
        await clients_are_gone(broker)
        assert work.done == 3


async def test_stopping_node_finishes_its_requests() -> None:
    async with slow_broker(nodes=1) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*create_topics_request("t")) for _ in range(3)))
        await until(lambda: work.started)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.nodes[0].stop)
            await wire.is_silent()
            work.release.set()
        assert work.done == 3
        for _ in range(3):
            await wire.receive()


async def test_stopping_node_limits_its_wait_for_requests() -> None:
    async with slow_broker(nodes=1) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*create_topics_request("t")) for _ in range(3)))
        await until(lambda: work.started)
        with trio.fail_after(20):
            await broker.nodes[0].stop(grace_seconds=0.1)
        assert (work.started, work.done) == (1, 0)


async def test_crashed_node_abandons_its_requests() -> None:
    """A crash neither finishes the running request nor starts another."""
    async with slow_broker(nodes=1) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send_bytes(b"".join(wire.frame(*create_topics_request("t")) for _ in range(3)))
        await until(lambda: work.started)
        with trio.fail_after(20):
            await broker.nodes[0].crash()
        work.release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert (work.started, work.done) == (1, 0)
        await wire.wait_closed()


async def test_node_crashing_during_append_starts_no_request() -> None:
    async with started(nodes=1) as broker:
        appended: list[Pending[Any]] = []

        def append(ctx: Any, message: Any) -> Pending[Any]:
            appended.append(Pending())
            return appended[-1]

        replace_handler(broker, ApiKey.PRODUCE, append)
        work = SlowWork(broker)
        async with connected(broker.endpoint) as wire:
            await wire.send(ApiKey.PRODUCE, 9, produce_request(Topic("t"), batch()))
            await wire.send(*create_topics_request("t"))
            await until(lambda: appended)
            await trio.testing.wait_all_tasks_blocked()
            await broker.nodes[0].crash()
            assert not work.started


async def test_node_crashing_between_requests_starts_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests have been read, and their handler never waits."""
    monkeypatch.setattr(time_slices, "TIME_SLICE_SECONDS", 0)  # yield after each request
    async with started(nodes=1) as broker:
        handled = 0

        def handle(ctx: Any, message: Any) -> None:
            nonlocal handled
            handled += 1
            if handled == 2:
                nursery.start_soon(broker.nodes[0].crash)

        replace_handler(broker, ApiKey.API_VERSIONS, handle)
        async with trio.open_nursery() as nursery, connected(broker.endpoint) as wire:
            message = request(ApiKey.API_VERSIONS)
            frame = wire.frame(ApiKey.API_VERSIONS, 0, message, answered=False)
            await wire.send_bytes(frame * 100)
            await wire.wait_closed()
        assert handled < 5


async def test_failing_handler_closes_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        slow_broker() as (broker, work),
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
    ):
        work.release = None  # type: ignore[assignment]
        await wire.send(*create_topics_request("t"))
        assert await wire.wait_closed() == b""
        assert broker.node.context.error_log.unhandled_errors == 1
        assert "unexpected error" in caplog.text
        broker.node.context.error_log.unhandled_errors = 0
        assert await other.works()


async def test_connection_with_running_request_is_not_idle() -> None:
    settings = {"connections_max_idle_ms": 100}
    async with slow_broker(**settings) as (broker, work), connected(broker.endpoint) as wire:
        await wire.send(*create_topics_request("t"))
        assert await wire.is_silent(3 * REAP_SECONDS)
        work.release.set()
        await wire.receive()
        assert await wire.wait_closed() == b""  # then the connection is idle
