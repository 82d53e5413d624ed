"""Test data in a broker, and valid requests for every API and version that it serves."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.compression import Codec, compress
from kbroker.protocol.messages import request_class
from kbroker.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    UpdateFeaturesRequest,
)
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.groups import (
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kbroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
)
from kbroker.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.quorum import AddRaftVoterRequest, DescribeQuorumRequest
from kbroker.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
)
from kbroker.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
)
from kbroker.protocol.messages.share_state import WriteShareGroupStateRequest
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from kbroker.protocol.records import Record, encode_batch
from kbroker.protocol.schema import ZERO_UUID
from kbroker.protocol.share_state_log import SharePartitionKey

from ..message_sets import messages, wrapper
from ..wire import Topic, Wire, batch, create_topic, fetch_request, produce, request, sequenced

TOPICS = ("plain", "compact", "stamped")
GROUPS = ("stable", "empty", "fresh")
# A consumer group (KIP-848) and its member.
CONSUMER_GROUP, CONSUMER = "modern", "consumer"
# Share groups (KIP-932) with and without a member.
SHARE_GROUP, EMPTY_SHARE_GROUP = "shares", "begun"
# A streams group (KIP-1071) and its member.
STREAMS_GROUP, STREAMS_MEMBER = "streaming", "instance"
TRANSACTIONAL_ID = "t"


@dataclass(slots=True)
class World:
    """The test data that requests can refer to."""

    topics: list[Topic]
    member_id: str
    generation: int
    session_id: int
    producer_id: int
    transactional_producer_id: int

    def topic(self, rng: random.Random) -> Topic:
        return rng.choice(self.topics)


async def make_world(wire: Wire) -> World:
    """Create topics with records, groups with members and offsets, and a fetch session."""
    plain = await create_topic(wire, "plain", 3)
    compact = await create_topic(wire, "compact", 1, {"cleanup.policy": "compact"})
    stamped = await create_topic(
        wire, "stamped", 2, {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "9999"}
    )
    for codec in range(5):
        await produce(wire, plain, batch([b"a" * 100, b"b"], codec=codec))
    await produce(wire, compact, batch([Record(b"key", b"value", 1000)]))
    await produce(wire, stamped, batch())
    ask = request(ApiKey.INIT_PRODUCER_ID, transaction_timeout_ms=1000)
    producer_id = (await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, ask)).producer_id
    mine = sequenced(producer_id, 0)
    await produce(wire, plain, mine)
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[TRANSACTIONAL_ID], key_type=1)
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    find = request(ApiKey.FIND_COORDINATOR, coordinator_keys=[_share_name(plain)], key_type=2)
    await wire.ask(ApiKey.FIND_COORDINATOR, 6, find)
    ask = request(
        ApiKey.INIT_PRODUCER_ID, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000
    )
    transactional_producer_id = (await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, ask)).producer_id
    member_id, generation = await _make_groups(wire)
    opened = await wire.ask(ApiKey.FETCH, 12, fetch_request(plain, session_epoch=0))
    quiet = await create_topic(wire, "quiet")
    topics = [plain, compact, stamped, quiet, Topic("missing", uuid.uuid4())]
    return World(
        topics, member_id, generation, opened.session_id, producer_id, transactional_producer_id
    )


async def _make_groups(wire: Wire) -> tuple[str, int]:
    find = request(
        ApiKey.FIND_COORDINATOR, coordinator_keys=[*GROUPS, CONSUMER_GROUP, STREAMS_GROUP]
    )
    await wire.ask(ApiKey.FIND_COORDINATOR, 4, find)
    beat = ConsumerGroupHeartbeatRequest(
        group_id=CONSUMER_GROUP,
        member_id=CONSUMER,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["plain"],
        topic_partitions=[],
    )
    await wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, beat)
    streams = _streams_join(STREAMS_GROUP, STREAMS_MEMBER, ["plain"])
    await wire.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, streams)
    cls: Any = request_class(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    topics = [cls.Topic(topic_name="plain", partitions=[cls.Partition()])]
    for group in (SHARE_GROUP, EMPTY_SHARE_GROUP):  # they have share state now
        ask = cls(group_id=group, topics=topics)
        await wire.ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, ask)
    shares = request(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        group_id=SHARE_GROUP,
        member_id=CONSUMER,
        subscribed_topic_names=["plain"],
    )
    await wire.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, shares)
    session = request(ApiKey.SHARE_FETCH, group_id=SHARE_GROUP, member_id=CONSUMER)
    await wire.ask(ApiKey.SHARE_FETCH, 2, session)
    join = JoinGroupRequest(
        group_id="stable",
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"m")],
    )
    joined = await wire.ask(ApiKey.JOIN_GROUP, 1, join)
    member_id, generation = joined.member_id, joined.generation_id
    sync = SyncGroupRequest(
        group_id="stable",
        generation_id=generation,
        member_id=member_id,
        assignments=[SyncGroupRequest.Assignment(member_id=member_id, assignment=b"a")],
    )
    await wire.ask(ApiKey.SYNC_GROUP, 1, sync)
    rows = [OffsetCommitRequest.Partition(partition_index=0, committed_offset=1)]
    commit = OffsetCommitRequest(
        group_id="empty",
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequest.Topic(name="plain", partitions=rows)],
    )
    await wire.ask(ApiKey.OFFSET_COMMIT, 7, commit)
    return member_id, generation


# -- valid requests, one function per API; fields that a version lacks are not encoded


def some_batch(world: World, rng: random.Random) -> bytes:
    """Return a batch, sometimes with a sequence or in an older format."""
    now_ms = int(time.time() * 1000)
    if rng.random() < 0.2:
        magic, codec = rng.randrange(2), rng.randrange(4)
        data = messages([b"a", None, b"c"], magic, first_timestamp=now_ms)
        return wrapper(data, codec, magic) if codec else data
    records = [
        Record(rng.choice((None, b"k")), rng.randbytes(rng.randrange(60)), now_ms, [("h", b"v")])
        for _ in range(rng.randint(1, 5))
    ]
    codec = rng.randrange(5)
    if rng.random() < 0.6:
        return encode_batch(records, codec=codec)
    return encode_batch(
        records,
        codec=codec,
        producer_id=world.producer_id,
        producer_epoch=0,
        base_sequence=rng.randrange(4),
    )


def _produce(world: World, rng: random.Random) -> Any:
    rows = [
        ProduceRequest.Topic(
            name=topic.name,
            topic_id=topic.id,
            partition_data=[
                ProduceRequest.Partition(index=index, records=some_batch(world, rng))
                for index in range(rng.randint(1, 2))
            ],
        )
        for topic in rng.sample(world.topics, rng.randint(1, 2))
    ]
    return ProduceRequest(acks=rng.choice((-1, 1, 1, 0)), timeout_ms=1000, topic_data=rows)


def _fetch(world: World, rng: random.Random) -> Any:
    rows = [
        FetchRequest.Topic(
            topic=topic.name,
            topic_id=topic.id,
            partitions=[
                FetchRequest.Partition(
                    partition=index,
                    fetch_offset=0 if topic.name == "quiet" else rng.randrange(3),
                    partition_max_bytes=1 << 20,
                    current_leader_epoch=rng.choice((-1, 0)),
                    last_fetched_epoch=rng.choice((-1, 0)),
                )
                for index in range(rng.randint(1, 3))
            ],
        )
        for topic in rng.sample(world.topics[: rng.choice((4, 5))], rng.randint(1, 3))
    ]
    session, epoch = rng.choice(((0, -1), (0, 0), (world.session_id, 1), (world.session_id, 2)))
    return FetchRequest(
        max_wait_ms=rng.choice((0, 0, 500)),
        min_bytes=1,
        isolation_level=rng.randrange(2),
        session_id=session,
        session_epoch=epoch,
        topics=rows,
        forgotten_topics_data=[FetchRequest.ForgottenTopic(topic="plain", partitions=[0])],
    )


def _list_offsets(world: World, rng: random.Random) -> Any:
    rows = [
        ListOffsetsRequest.Partition(
            partition_index=index, timestamp=rng.choice((-1, -2, -3, -4, -5, -6, 1000, 10**13))
        )
        for index in range(2)
    ]
    name = world.topic(rng).name
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=rng.randrange(2),
        topics=[ListOffsetsRequest.Topic(name=name, partitions=rows)],
    )


def _metadata(world: World, rng: random.Random) -> Any:
    rows = [
        MetadataRequest.Topic(
            name=topic.name, topic_id=topic.id if rng.random() < 0.3 else ZERO_UUID
        )
        for topic in rng.sample(world.topics, rng.randint(0, 3))
    ]
    return MetadataRequest(
        topics=rows,
        allow_auto_topic_creation=rng.random() < 0.5,
        include_topic_authorized_operations=True,
    )


def _offset_commit(world: World, rng: random.Random) -> Any:
    topic = world.topic(rng)
    rows = [
        OffsetCommitRequest.Partition(
            partition_index=index, committed_offset=index, committed_metadata="m"
        )
        for index in range(2)
    ]
    simple = rng.random() < 0.5
    return OffsetCommitRequest(
        group_id=rng.choice(GROUPS) if simple else "stable",
        generation_id_or_member_epoch=-1 if simple else world.generation,
        member_id="" if simple else world.member_id,
        topics=[OffsetCommitRequest.Topic(name=topic.name, topic_id=topic.id, partitions=rows)],
    )


def _txn_offset_commit(world: World, rng: random.Random) -> Any:
    cls = TxnOffsetCommitRequest
    topic = world.topic(rng)
    rows = [cls.Partition(partition_index=index, committed_offset=index) for index in range(2)]
    simple = rng.random() < 0.5
    return cls(
        transactional_id=TRANSACTIONAL_ID,
        group_id=rng.choice(GROUPS) if simple else "stable",
        producer_id=world.transactional_producer_id,
        producer_epoch=rng.randrange(2),
        generation_id_or_member_epoch=-1 if simple else world.generation,
        member_id="" if simple else world.member_id,
        topics=[cls.Topic(name=topic.name, topic_id=topic.id, partitions=rows)],
    )


def _offset_fetch(world: World, rng: random.Random) -> Any:
    topic = world.topic(rng)
    rows = [OffsetFetchRequest.Topic(name=topic.name, topic_id=topic.id, partition_indexes=[0, 1])]
    groups = [
        OffsetFetchRequest.Group(group_id=group, topics=rng.choice((rows, None)))
        for group in rng.sample(GROUPS, 2)
    ]
    return OffsetFetchRequest(
        group_id=rng.choice(GROUPS),
        topics=rows,
        groups=groups,
        require_stable=rng.random() < 0.5,
    )


def _find_coordinator(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.FIND_COORDINATOR,
        key=rng.choice(GROUPS),
        key_type=rng.choice((0, 0, 1, 2)),
        coordinator_keys=[*GROUPS, _share_name(world.topics[0])],
    )


def _share_name(topic: Topic) -> str:
    return SharePartitionKey(GROUPS[0], topic.id, 0).name


def _join_group(world: World, rng: random.Random) -> Any:
    group = rng.choice(GROUPS)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=world.member_id if group == "stable" else "",
        group_instance_id=rng.choice((None, "i")),
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.Protocol(name=name, metadata=b"m") for name in ("range", "other")
        ],
        reason="why",
    )


def _sync_group(world: World, rng: random.Random) -> Any:
    mine = SyncGroupRequest.Assignment(member_id=world.member_id, assignment=b"a")
    return SyncGroupRequest(
        group_id="stable",
        generation_id=world.generation,
        member_id=world.member_id,
        protocol_type=rng.choice((None, "consumer")),
        protocol_name=rng.choice((None, "range")),
        assignments=[mine],
    )


def _heartbeat(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.HEARTBEAT,
        group_id=rng.choice(GROUPS),
        generation_id=world.generation,
        member_id=world.member_id,
    )


def _consumer_heartbeat(world: World, rng: random.Random) -> Any:
    cls = ConsumerGroupHeartbeatRequest
    joins = rng.random() < 0.5
    topic = world.topic(rng)
    rows = [] if joins else [cls.Topic(topic_id=topic.id, partitions=[0])]
    return cls(
        group_id=rng.choice((CONSUMER_GROUP, "patterns", *GROUPS)),
        member_id=rng.choice((CONSUMER, "other")),
        member_epoch=0 if joins else rng.choice((2, 3, -1, -2)),
        instance_id=rng.choice((None, None, "i")),
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["plain", topic.name],
        subscribed_topic_regex=rng.choice((None, "", "pl.*", "(")),
        server_assignor=rng.choice((None, "range", "other")),
        topic_partitions=rows,
    )


def _streams_join(group: str, member: str, sources: list[str]) -> Any:
    """Return a join with a topology that has all kinds of topics."""
    cls = StreamsGroupHeartbeatRequest
    config = cls.KeyValue(key="retention.ms", value="-1")
    first = cls.Subtopology(
        subtopology_id="0", source_topics=sources, repartition_sink_topics=[f"{group}-between"]
    )
    second = cls.Subtopology(
        subtopology_id="1",
        repartition_source_topics=[cls.TopicInfo(name=f"{group}-between", topic_configs=[config])],
        state_changelog_topics=[cls.TopicInfo(name=f"{group}-log", topic_configs=[config])],
        copartition_groups=[cls.CopartitionGroup(repartition_source_topics=[0])],
    )
    return cls(
        group_id=group,
        member_id=member,
        rebalance_timeout_ms=60_000,
        topology=cls.Topology(subtopologies=[first, second]),
        process_id="process",
        user_endpoint=cls.Endpoint(host="localhost", port=1),
        client_tags=[cls.KeyValue(key="zone", value="a")],
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )


def _streams_heartbeat(world: World, rng: random.Random) -> Any:
    cls = StreamsGroupHeartbeatRequest
    group = rng.choice((STREAMS_GROUP, STREAMS_GROUP, "other streams", CONSUMER_GROUP, *GROUPS))
    member = rng.choice((STREAMS_MEMBER, "other"))
    if rng.random() < 0.5:
        return _streams_join(group, member, ["plain", world.topic(rng).name])
    tasks = [cls.TaskIds(subtopology_id=rng.choice("01"), partitions=[0, 1])]
    return cls(
        group_id=group,
        member_id=member,
        member_epoch=rng.choice((1, 2, 3, 4, -1, -2)),
        endpoint_information_epoch=rng.choice((0, 1)),
        active_tasks=tasks,
        standby_tasks=rng.choice(([], tasks)),
        warmup_tasks=rng.choice(([], [], tasks)),
        task_offsets=rng.choice((None, None, [cls.TaskOffset(subtopology_id="0")])),
        task_end_offsets=rng.choice((None, None, [cls.TaskOffset(subtopology_id="0")])),
        shutdown_application=rng.random() < 0.1,
    )


def _streams_describe_topology(world: World, rng: random.Random) -> Any:
    nodes = [
        TopologyDescriptionNode(name="source", node_type=1, source_topics=["plain"]),
        TopologyDescriptionNode(name="sink", node_type=rng.choice((0, 3)), sink_topic="out"),
    ]
    description = TopologyDescription(
        subtopologies=[TopologyDescriptionSubtopology(subtopology_id="0", nodes=nodes)]
    )
    return request(
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
        group_id=rng.choice((STREAMS_GROUP, STREAMS_GROUP, CONSUMER_GROUP)),
        member_id=rng.choice((STREAMS_MEMBER, "other")),
        topology_epoch=rng.choice((0, 0, 1)),
        topology_description=description,
    )


def _streams_describe(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.STREAMS_GROUP_DESCRIBE,
        group_ids=[STREAMS_GROUP, CONSUMER_GROUP, *GROUPS],
        include_authorized_operations=True,
        include_topology_description=rng.random() < 0.5,
    )


def _consumer_describe(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        group_ids=[CONSUMER_GROUP, *GROUPS],
        include_authorized_operations=True,
    )


def _share_heartbeat(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        group_id=rng.choice((SHARE_GROUP, SHARE_GROUP, *GROUPS)),
        member_id=rng.choice((CONSUMER, "other")),
        member_epoch=rng.choice((0, 0, 2, 3, -1)),
        rack_id=rng.choice((None, "r")),
        subscribed_topic_names=rng.choice((None, ["plain", world.topic(rng).name])),
    )


def _share_describe(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.SHARE_GROUP_DESCRIBE,
        group_ids=[SHARE_GROUP, EMPTY_SHARE_GROUP, *GROUPS],
        include_authorized_operations=True,
    )


def _share_fetch(world: World, rng: random.Random) -> Any:
    epoch = rng.choice((0, 0, 1, 2, -1))
    return request(
        ApiKey.SHARE_FETCH,
        group_id=SHARE_GROUP,
        member_id=rng.choice((CONSUMER, "somebody")),
        share_session_epoch=epoch,
        max_wait_ms=rng.choice((0, 5)),
        min_bytes=rng.randrange(2),
        max_bytes=rng.choice((1000, 1 << 20)),
        max_records=rng.choice((1, 100)),
        batch_size=rng.choice((1, 100)),
        topics=_share_topics(ApiKey.SHARE_FETCH, world, rng, says=epoch != 0),
    )


def _share_acknowledge(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.SHARE_ACKNOWLEDGE,
        group_id=SHARE_GROUP,
        member_id=CONSUMER,
        share_session_epoch=rng.choice((1, 2, -1)),
        topics=_share_topics(ApiKey.SHARE_ACKNOWLEDGE, world, rng, says=True),
    )


def _share_topics(key: ApiKey, world: World, rng: random.Random, *, says: bool) -> list[Any]:
    cls: Any = request_class(key)
    first = rng.randrange(10)
    batches = [
        cls.AcknowledgementBatch(
            first_offset=first,
            last_offset=first + rng.randrange(3),
            acknowledge_types=[rng.randrange(4)],
        )
    ]
    row = cls.Partition(
        partition_index=rng.choice((0, 0, 1)), acknowledgement_batches=batches if says else []
    )
    return [cls.Topic(topic_id=world.topic(rng).id, partitions=[row])]


def _describe_share_offsets(world: World, rng: random.Random) -> Any:
    cls: Any = request_class(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
    topics = [cls.Topic(topic_name=world.topic(rng).name, partitions=[0, 1])]
    groups = [SHARE_GROUP, EMPTY_SHARE_GROUP]
    return cls(
        groups=[cls.Group(group_id=each, topics=rng.choice((None, topics))) for each in groups]
    )


def _alter_share_offsets(world: World, rng: random.Random) -> Any:
    cls: Any = request_class(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    row = cls.Partition(partition_index=rng.choice((0, 1, -1)), start_offset=rng.choice((0, -1, 7)))
    topic = cls.Topic(topic_name=world.topic(rng).name, partitions=[row])
    return cls(group_id=rng.choice((EMPTY_SHARE_GROUP, SHARE_GROUP)), topics=[topic])


def _delete_share_offsets(world: World, rng: random.Random) -> Any:
    cls: Any = request_class(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
    topics = [cls.Topic(topic_name=world.topic(rng).name)]
    return cls(group_id=rng.choice((EMPTY_SHARE_GROUP, SHARE_GROUP)), topics=topics)


def _leave_group(world: World, rng: random.Random) -> Any:
    members = [
        LeaveGroupRequest.Member(member_id=rng.choice(("other", "")), group_instance_id="i")
        for _ in range(2)
    ]
    return LeaveGroupRequest(group_id=rng.choice(GROUPS), member_id="other", members=members)


def _describe_groups(world: World, rng: random.Random) -> Any:
    return request(ApiKey.DESCRIBE_GROUPS, groups=list(GROUPS), include_authorized_operations=True)


def _list_groups(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.LIST_GROUPS,
        states_filter=rng.choice(([], ["Stable", "Empty"])),
        types_filter=rng.choice(([], ["classic"], ["consumer"], ["share"])),
    )


def _delete_groups(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.DELETE_GROUPS, groups_names=["fresh", "stable", "none", EMPTY_SHARE_GROUP]
    )


def _offset_delete(world: World, rng: random.Random) -> Any:
    row = OffsetDeleteRequest.Partition(partition_index=0)
    rows = [OffsetDeleteRequest.Topic(name=world.topic(rng).name, partitions=[row])]
    return OffsetDeleteRequest(group_id=rng.choice(GROUPS), topics=rows)


def _api_versions(world: World, rng: random.Random) -> Any:
    return request(ApiKey.API_VERSIONS, client_software_name="fuzz", client_software_version="1.0")


def _create_topics(world: World, rng: random.Random) -> Any:
    assigned = rng.random() < 0.2
    topic = CreateTopicsRequest.Topic(
        name=f"new{rng.randrange(20)}",
        num_partitions=-1 if assigned else rng.randint(1, 3),
        replication_factor=-1 if assigned else 1,
        assignments=[CreateTopicsRequest.Assignment(partition_index=0, broker_ids=[1])]
        if assigned
        else [],
        configs=[CreateTopicsRequest.Config(name="retention.ms", value="1000")],
    )
    return CreateTopicsRequest(topics=[topic], validate_only=rng.random() < 0.3)


def _delete_topics(world: World, rng: random.Random) -> Any:
    names = [f"new{rng.randrange(20)}", "missing"]
    return DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.Topic(name=name) for name in names]
        + [DeleteTopicsRequest.Topic(topic_id=world.topics[-1].id)],
        topic_names=names,
    )


def _create_partitions(world: World, rng: random.Random) -> Any:
    topic = CreatePartitionsRequest.Topic(
        name=f"new{rng.randrange(20)}",
        count=rng.randint(1, 5),
        assignments=rng.choice((None, None, [CreatePartitionsRequest.Assignment(broker_ids=[1])])),
    )
    return CreatePartitionsRequest(topics=[topic], validate_only=rng.random() < 0.3)


def _delete_records(world: World, rng: random.Random) -> Any:
    rows = [
        DeleteRecordsRequest.Partition(partition_index=index, offset=rng.choice((0, 1, -1)))
        for index in range(2)
    ]
    name = rng.choice(("stamped", "compact", "missing"))
    return DeleteRecordsRequest(topics=[DeleteRecordsRequest.Topic(name=name, partitions=rows)])


def _init_producer_id(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.INIT_PRODUCER_ID,
        transactional_id=rng.choice((None, None, "", "other")),
        transaction_timeout_ms=1000,
    )


def _add_partitions_to_txn(world: World, rng: random.Random) -> Any:
    cls = AddPartitionsToTxnRequest
    topics = [cls.Topic(name=world.topic(rng).name, partitions=[0])]
    row = cls.Transaction(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=world.transactional_producer_id,
        producer_epoch=0,
        verify_only=rng.random() < 0.3,
        topics=topics,
    )
    return cls(
        transactions=[row],
        v3_and_below_transactional_id=TRANSACTIONAL_ID,
        v3_and_below_producer_id=world.transactional_producer_id,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )


def _add_offsets_to_txn(world: World, rng: random.Random) -> Any:
    return AddOffsetsToTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=world.transactional_producer_id,
        producer_epoch=0,
        group_id=rng.choice(GROUPS),
    )


def _end_txn(world: World, rng: random.Random) -> Any:
    return EndTxnRequest(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=world.transactional_producer_id,
        producer_epoch=rng.randrange(2),
        committed=rng.random() < 0.5,
    )


def _write_txn_markers(world: World, rng: random.Random) -> Any:
    cls = WriteTxnMarkersRequest
    topics = [cls.Topic(name=world.topic(rng).name, partition_indexes=[0])]
    row = cls.Marker(producer_id=77, producer_epoch=0, transaction_result=True, topics=topics)
    return cls(markers=[row])


def _describe_transactions(world: World, rng: random.Random) -> Any:
    return DescribeTransactionsRequest(transactional_ids=[TRANSACTIONAL_ID, "missing", ""])


def _list_transactions(world: World, rng: random.Random) -> Any:
    return ListTransactionsRequest(
        state_filters=rng.choice(([], ["Empty", "Ongoing"])),
        producer_id_filters=rng.choice(([], [world.transactional_producer_id])),
        duration_filter=rng.choice((-1, 0, 1000)),
        transactional_id_pattern=rng.choice((None, "", "t.*", "(a+)+b", "(")),
    )


def _epoch(world: World, rng: random.Random) -> Any:
    row = OffsetForLeaderEpochRequest.Partition(
        partition=0, current_leader_epoch=rng.choice((-1, 0)), leader_epoch=rng.randrange(2)
    )
    rows = [OffsetForLeaderEpochRequest.Topic(topic=world.topic(rng).name, partitions=[row])]
    return OffsetForLeaderEpochRequest(topics=rows)


def _describe_configs(world: World, rng: random.Random) -> Any:
    resources = [
        DescribeConfigsRequest.Resource(
            resource_type=2,
            resource_name=world.topic(rng).name,
            configuration_keys=rng.choice((None, ["retention.ms", "nothing"])),
        ),
        DescribeConfigsRequest.Resource(resource_type=4, resource_name="1"),
    ]
    return DescribeConfigsRequest(
        resources=resources[rng.randrange(2) :],
        include_synonyms=rng.random() < 0.5,
        include_documentation=rng.random() < 0.5,
    )


def _alter_configs(world: World, rng: random.Random) -> Any:
    cls = AlterConfigsRequest
    rows = [cls.Config(name="retention.bytes", value=str(10**9 + rng.randrange(9)))]
    name = rng.choice(("quiet", "missing"))
    return cls(
        resources=[cls.Resource(resource_type=2, resource_name=name, configs=rows)],
        validate_only=rng.random() < 0.3,
    )


def _incremental_alter_configs(world: World, rng: random.Random) -> Any:
    cls = IncrementalAlterConfigsRequest
    rows = [
        cls.Config(name="segment.ms", value=str(10**9 + rng.randrange(9))),
        cls.Config(name="flush.ms", config_operation=1),
        cls.Config(name="cleanup.policy", config_operation=rng.choice((2, 3)), value="delete"),
    ]
    return cls(
        resources=[
            cls.Resource(resource_type=2, resource_name="quiet", configs=rows),
            rng.choice(_other_resources(rng)),
        ],
        validate_only=rng.random() < 0.3,
    )


def _other_resources(rng: random.Random) -> list[IncrementalAlterConfigsRequest.Resource]:
    """Return config resources other than topics."""
    cls = IncrementalAlterConfigsRequest
    settings = (
        (4, "1", "log.segment.bytes", str(10**9 + rng.randrange(9))),
        (4, "", "message.max.bytes", str(2 * 10**6 + rng.randrange(9))),
        (4, "1", "log.roll.ms", str(10**9 + rng.randrange(9))),
        (16, "metrics", "match", "client_id=a.*"),
        (32, rng.choice(GROUPS), "consumer.session.timeout.ms", "50000"),
    )
    return [
        cls.Resource(
            resource_type=kind, resource_name=name, configs=[cls.Config(name=key, value=value)]
        )
        for kind, name, key, value in settings
    ]


def _list_config_resources(world: World, rng: random.Random) -> Any:
    types = rng.sample((2, 4, 8, 16, 32), rng.randrange(6))
    return request(ApiKey.LIST_CONFIG_RESOURCES, resource_types=types)


def _describe_cluster(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=1
    )


def _describe_topic_partitions(world: World, rng: random.Random) -> Any:
    cls = DescribeTopicPartitionsRequest
    return cls(
        topics=[cls.Topic(name=topic.name) for topic in world.topics],
        response_partition_limit=rng.randint(1, 4),
        cursor=rng.choice((None, cls.Cursor(topic_name="plain", partition_index=1))),
    )


def _elect_leaders(world: World, rng: random.Random) -> Any:
    rows = [
        ElectLeadersRequest.Topic(topic=topic.name, partitions=[0, 1]) for topic in world.topics
    ]
    return ElectLeadersRequest(
        election_type=rng.randrange(2), topic_partitions=rng.choice((rows, None))
    )


def _alter_reassignments(world: World, rng: random.Random) -> Any:
    cls = AlterPartitionReassignmentsRequest
    row = cls.Partition(replicas=rng.choice((None, [1])))
    return cls(
        topics=[cls.Topic(name=topic.name, partitions=[row]) for topic in world.topics],
        allow_replication_factor_change=rng.random() < 0.5,
    )


def _list_reassignments(world: World, rng: random.Random) -> Any:
    cls = ListPartitionReassignmentsRequest
    rows = [cls.Topic(name=topic.name, partition_indexes=[0, 1]) for topic in world.topics]
    return cls(topics=rng.choice((None, rows)))


def _describe_quorum(world: World, rng: random.Random) -> Any:
    cls = DescribeQuorumRequest
    name = rng.choice(("__cluster_metadata", "plain"))
    return cls(topics=[cls.Topic(topic_name=name, partitions=[cls.Partition(partition_index=0)])])


def _update_features(world: World, rng: random.Random) -> Any:
    row = UpdateFeaturesRequest.Feature(
        feature=rng.choice(("metadata.version", "other")),
        max_version_level=rng.choice((0, 29, 30)),
        allow_downgrade=rng.random() < 0.5,
        upgrade_type=rng.choice((1, 1, 2, 3)),
    )
    return UpdateFeaturesRequest(feature_updates=[row], validate_only=rng.random() < 0.5)


def _describe_producers(world: World, rng: random.Random) -> Any:
    cls = DescribeProducersRequest
    return cls(topics=[cls.Topic(name=topic.name, partition_indexes=[0]) for topic in world.topics])


def _unregister_broker(world: World, rng: random.Random) -> Any:
    return request(ApiKey.UNREGISTER_BROKER, broker_id=rng.randrange(3))


def _add_raft_voter(world: World, rng: random.Random) -> Any:
    listener = AddRaftVoterRequest.Listener(name="CONTROLLER", host="localhost", port=9093)
    return AddRaftVoterRequest(voter_id=2, voter_directory_id=uuid.uuid4(), listeners=[listener])


def _remove_raft_voter(world: World, rng: random.Random) -> Any:
    return request(ApiKey.REMOVE_RAFT_VOTER, voter_id=1, voter_directory_id=uuid.uuid4())


def _unregister_controller(world: World, rng: random.Random) -> Any:
    return request(ApiKey.UNREGISTER_CONTROLLER, controller_id=rng.randrange(-1, 3))


def _describe_log_dirs(world: World, rng: random.Random) -> Any:
    cls = DescribeLogDirsRequest
    rows = [cls.Topic(topic=topic.name, partitions=[0, 1, 9]) for topic in world.topics]
    return cls(topics=rng.choice((None, rows)))


def _alter_replica_log_dirs(world: World, rng: random.Random) -> Any:
    cls = AlterReplicaLogDirsRequest
    rows = [cls.Topic(name=topic.name, partitions=[0, 9]) for topic in world.topics]
    return cls(dirs=[cls.Dir(path=rng.choice(("memory", "/elsewhere")), topics=rows)])


def _describe_acls(world: World, rng: random.Random) -> Any:
    return request(
        ApiKey.DESCRIBE_ACLS,
        resource_type_filter=rng.choice((1, 2, 3)),
        pattern_type_filter=rng.choice((1, 2, 3, 4)),
        operation=1,
        permission_type=1,
    )


def _create_acls(world: World, rng: random.Random) -> Any:
    cls = CreateAclsRequest
    rows = [
        cls.Acl(
            resource_type=2,
            resource_name=topic.name,
            principal="User:alice",
            host="*",
            operation=rng.randrange(2, 12),
            permission_type=rng.choice((2, 3)),
        )
        for topic in world.topics
    ]
    return cls(creations=rows)


def _delete_acls(world: World, rng: random.Random) -> Any:
    cls = DeleteAclsRequest
    row = cls.Filter(
        resource_type_filter=2,
        pattern_type_filter=rng.choice((1, 2)),
        operation=1,
        permission_type=1,
    )
    return cls(filters=[row])


def _sasl_handshake(world: World, rng: random.Random) -> Any:
    return request(ApiKey.SASL_HANDSHAKE, mechanism=rng.choice(("PLAIN", "SCRAM-SHA-256")))


def _sasl_authenticate(world: World, rng: random.Random) -> Any:
    return request(ApiKey.SASL_AUTHENTICATE, auth_bytes=b"\0alice\0pencil")


def _quota_entity(rng: random.Random) -> dict[str, str | None]:
    kinds = rng.choice((("user",), ("client-id",), ("user", "client-id"), ("ip",)))
    names = (None, "127.0.0.1") if kinds == ("ip",) else (None, "alice", "bob")
    return {kind: rng.choice(names) for kind in kinds}


def _describe_client_quotas(world: World, rng: random.Random) -> Any:
    cls = DescribeClientQuotasRequest
    rows = [
        cls.Component(entity_type=kind, match_type=1 if name is None else 0, match=name)
        for kind, name in _quota_entity(rng).items()
    ]
    return cls(components=rows, strict=rng.random() < 0.5)


def _alter_client_quotas(world: World, rng: random.Random) -> Any:
    """Alter quotas to rates that do not throttle."""
    cls = AlterClientQuotasRequest
    entity = _quota_entity(rng)
    key = "connection_creation_rate" if "ip" in entity else "producer_byte_rate"
    row = cls.Entry(
        entity=[cls.Entity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[cls.Op(key=key, value=rng.choice((1e9, 2e9)), remove=rng.random() < 0.3)],
    )
    return cls(entries=[row], validate_only=rng.random() < 0.2)


def _instance_id(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.randrange(4))


def _get_telemetry(world: World, rng: random.Random) -> Any:
    return request(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, client_instance_id=_instance_id(rng))


def _push_telemetry(world: World, rng: random.Random) -> Any:
    codec = rng.choice(tuple(Codec))
    return request(
        ApiKey.PUSH_TELEMETRY,
        client_instance_id=_instance_id(rng),
        subscription_id=rng.choice((0, 1)),
        terminating=rng.random() < 0.1,
        compression_type=codec,
        metrics=compress(codec, rng.randbytes(200)),
    )


def _describe_scram_users(world: World, rng: random.Random) -> Any:
    cls = DescribeUserScramCredentialsRequest
    rows = [cls.User(name=f"user{rng.randrange(5)}") for _ in range(rng.randint(1, 3))]
    return cls(users=rng.choice((None, rows)))


def _alter_scram_users(world: World, rng: random.Random) -> Any:
    cls = AlterUserScramCredentialsRequest
    mechanism = rng.randint(1, 2)
    upsertion = cls.Upsertion(
        name=f"user{rng.randrange(5)}",
        mechanism=mechanism,
        iterations=rng.randint(4096, 16384),
        salt=rng.randbytes(16),
        salted_password=rng.randbytes(32 * mechanism),
    )
    deletion = cls.Deletion(name=f"user{rng.randrange(5)}", mechanism=mechanism)
    return cls(deletions=[deletion], upsertions=[upsertion])


def _create_token(world: World, rng: random.Random) -> Any:
    cls = CreateDelegationTokenRequest
    rows = [cls.Renewer(principal_type="User", principal_name=f"user{rng.randrange(5)}")]
    return cls(
        owner_principal_type="User",
        owner_principal_name=f"user{rng.randrange(5)}",
        renewers=rows,
        max_lifetime_ms=rng.choice((-1, 1000)),
    )


def _renew_token(world: World, rng: random.Random) -> Any:
    hmac, period_ms = rng.randbytes(64), rng.choice((-1, 1000))
    return request(ApiKey.RENEW_DELEGATION_TOKEN, hmac=hmac, renew_period_ms=period_ms)


def _expire_token(world: World, rng: random.Random) -> Any:
    hmac, period_ms = rng.randbytes(64), rng.choice((-1, 1000))
    return request(ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=hmac, expiry_time_period_ms=period_ms)


def _describe_tokens(world: World, rng: random.Random) -> Any:
    cls = DescribeDelegationTokenRequest
    rows = [cls.Owner(principal_type="User", principal_name=f"user{rng.randrange(5)}")]
    return cls(owners=rng.choice((None, rows)))


def _initialize_share_state(world: World, rng: random.Random) -> Any:
    epochs = {"state_epoch": rng.randrange(-1, 4), "start_offset": rng.choice((-1, 0, 50))}
    return _share_state(ApiKey.INITIALIZE_SHARE_GROUP_STATE, world, rng, **epochs)


def _read_share_state(world: World, rng: random.Random) -> Any:
    epoch = rng.randrange(-1, 4)
    return _share_state(ApiKey.READ_SHARE_GROUP_STATE, world, rng, leader_epoch=epoch)


def _write_share_state(world: World, rng: random.Random) -> Any:
    cls = WriteShareGroupStateRequest
    rows = []
    for _ in range(rng.randrange(4)):
        first = rng.randrange(100)
        rows.append(
            cls.StateBatch(
                first_offset=first,
                last_offset=first + rng.randrange(-1, 20),
                delivery_state=rng.choice((0, 2, 4)),
                delivery_count=rng.randrange(6),
            )
        )
    return _share_state(
        ApiKey.WRITE_SHARE_GROUP_STATE,
        world,
        rng,
        state_epoch=rng.randrange(-1, 4),
        leader_epoch=rng.randrange(-1, 4),
        start_offset=rng.choice((-1, 0, 60)),
        delivery_complete_count=rng.choice((-1, 0, 7)),
        state_batches=rows,
    )


def _delete_share_state(world: World, rng: random.Random) -> Any:
    return _share_state(ApiKey.DELETE_SHARE_GROUP_STATE, world, rng)


def _read_share_state_summary(world: World, rng: random.Random) -> Any:
    return _share_state(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, world, rng)


def _share_state(key: ApiKey, world: World, rng: random.Random, **fields: Any) -> Any:
    cls: Any = request_class(key)
    partition = cls.Partition(partition=rng.choice((0, 0, 1, -1)), **fields)
    topic = cls.Topic(topic_id=world.topic(rng).id, partitions=[partition])
    return request(key, group_id=rng.choice(GROUPS), topics=[topic])


VALID: dict[ApiKey, Callable[[World, random.Random], Any]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.DESCRIBE_ACLS: _describe_acls,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.SASL_HANDSHAKE: _sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: _sasl_authenticate,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.HEARTBEAT: _heartbeat,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.SYNC_GROUP: _sync_group,
    ApiKey.DESCRIBE_GROUPS: _describe_groups,
    ApiKey.LIST_GROUPS: _list_groups,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _consumer_describe,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _streams_heartbeat,
    ApiKey.STREAMS_GROUP_DESCRIBE: _streams_describe,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: _streams_describe_topology,
    ApiKey.SHARE_GROUP_HEARTBEAT: _share_heartbeat,
    ApiKey.SHARE_GROUP_DESCRIBE: _share_describe,
    ApiKey.SHARE_FETCH: _share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: _share_acknowledge,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _describe_share_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _alter_share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _delete_share_offsets,
    ApiKey.API_VERSIONS: _api_versions,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: _add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: _add_offsets_to_txn,
    ApiKey.END_TXN: _end_txn,
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.LIST_TRANSACTIONS: _list_transactions,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epoch,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.LIST_CONFIG_RESOURCES: _list_config_resources,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _alter_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _list_reassignments,
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: _renew_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _expire_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _describe_tokens,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _get_telemetry,
    ApiKey.PUSH_TELEMETRY: _push_telemetry,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _describe_scram_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram_users,
    ApiKey.DESCRIBE_QUORUM: _describe_quorum,
    ApiKey.UPDATE_FEATURES: _update_features,
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.UNREGISTER_BROKER: _unregister_broker,
    ApiKey.ADD_RAFT_VOTER: _add_raft_voter,
    ApiKey.REMOVE_RAFT_VOTER: _remove_raft_voter,
    ApiKey.UNREGISTER_CONTROLLER: _unregister_controller,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _initialize_share_state,
    ApiKey.READ_SHARE_GROUP_STATE: _read_share_state,
    ApiKey.WRITE_SHARE_GROUP_STATE: _write_share_state,
    ApiKey.DELETE_SHARE_GROUP_STATE: _delete_share_state,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _read_share_state_summary,
}
