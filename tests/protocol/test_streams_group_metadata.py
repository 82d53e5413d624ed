"""Records of streams groups, byte for byte as Apache Kafka 4.4 writes them."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.streams_group_metadata import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

Group = StreamsGroupMetadataValue
Member = StreamsGroupMemberMetadataValue
Current = StreamsGroupCurrentMemberAssignmentValue
Target = StreamsGroupTargetAssignmentMemberValue
Topology = StreamsGroupTopologyValue

KEYS: dict[str, Any] = {
    "0011000167": StreamsGroupMetadataKey(group_id="g"),
    "001300016700016d": StreamsGroupMemberMetadataKey(group_id="g", member_id="m"),
    "0014000167": StreamsGroupTargetAssignmentMetadataKey(group_id="g"),
    "001500016700016d": StreamsGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
    "001600016700016d": StreamsGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
    "0017000167": StreamsGroupTopologyKey(group_id="g"),
}
VALUES: dict[str, tuple[str, Any]] = {
    "000000000007fffffffffffffffd02000400000002010602026b027600": (
        "0011000167",
        Group(
            epoch=7,
            metadata_hash=-3,
            validated_topology_epoch=2,
            last_assignment_configs=[Group.AssignmentConfig(key="k", value="v")],
        ),
    ),
    "000000000007000000000000000502020400000001030400000002": (
        "0011000167",
        Group(
            epoch=7,
            metadata_hash=5,
            stored_description_topology_epoch=1,
            failed_description_topology_epoch=2,
        ),
    ),
    "000000000007000000000000000500": ("0011000167", Group(epoch=7, metadata_hash=5)),
    "00000002720263032f68000013880000000102700102659c400002026102620000": (
        "001300016700016d",
        Member(
            instance_id=None,
            rack_id="r",
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=5000,
            topology_epoch=1,
            process_id="p",
            user_endpoint=Member.Endpoint(host="e", port=40000),
            client_tags=[Member.KeyValue(key="a", value="b")],
        ),
    ),
    "000001010263032f68ffffffff000000000270ff0100": (
        "001300016700016d",
        Member(instance_id="", rack_id="", client_id="c", client_host="/h", process_id="p"),
    ),
    "0000000000040100080000000000003039": (
        "0014000167",
        StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=4, assignment_timestamp=12345),
    ),
    "0000020230030000000000000003000202310200000002000100": (
        "001500016700016d",
        Target(
            active_tasks=[Target.TaskIds(subtopology_id="0", partitions=[0, 3])],
            standby_tasks=[Target.TaskIds(subtopology_id="1", partitions=[2])],
            warmup_tasks=[],
        ),
    ),
    "0000000000060000000502020230030000000000000003010009030000000600000002020231020000000200010202"
    "3002000000010100050200000001010100": (
        "001600016700016d",
        Current(
            member_epoch=6,
            previous_member_epoch=5,
            state=2,
            active_tasks=[
                Current.TaskIds(subtopology_id="0", partitions=[0, 3], assignment_epochs=[6, 2])
            ],
            standby_tasks=[Current.TaskIds(subtopology_id="1", partitions=[2])],
            warmup_tasks=[],
            active_tasks_pending_revocation=[
                Current.TaskIds(subtopology_id="0", partitions=[1], assignment_epochs=[1])
            ],
            standby_tasks_pending_revocation=[],
            warmup_tasks_pending_revocation=[],
        ),
    ),
    "0000000000030202300203696e0102046c6f670000000000000100020472657002047265700000000200010202"
    "6b027600000202000001020000000000": (
        "0017000167",
        Topology(
            epoch=3,
            subtopologies=[
                Topology.Subtopology(
                    subtopology_id="0",
                    source_topics=["in"],
                    source_topic_regex=[],
                    state_changelog_topics=[
                        Topology.TopicInfo(
                            name="log", partitions=0, replication_factor=0, topic_configs=[]
                        )
                    ],
                    repartition_sink_topics=["rep"],
                    repartition_source_topics=[
                        Topology.TopicInfo(
                            name="rep",
                            partitions=2,
                            replication_factor=1,
                            topic_configs=[Topology.TopicConfig(key="k", value="v")],
                        )
                    ],
                    copartition_groups=[
                        Topology.CopartitionGroup(
                            source_topics=[0], source_topic_regex=[], repartition_source_topics=[0]
                        )
                    ],
                )
            ],
        ),
    ),
}


@pytest.mark.parametrize("data", KEYS)
def test_keys_equal_those_of_kafka(data: str) -> None:
    assert encode_key(KEYS[data]).hex() == data
    assert decode_key(bytes.fromhex(data)) == KEYS[data]


@pytest.mark.parametrize("data", VALUES)
def test_values_equal_those_of_kafka(data: str) -> None:
    key, value = VALUES[data]
    assert encode_value(value).hex() == data
    assert decode_value(KEYS[key], bytes.fromhex(data)) == value


def test_unknown_records_are_rejected_or_ignored() -> None:
    assert decode_key(bytes.fromhex("0012000167")) is None
    with pytest.raises(DecodeError):
        decode_value(KEYS["0011000167"], b"\x00\x63")
