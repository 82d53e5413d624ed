"""Records of share groups, byte for byte as Apache Kafka 4.3 writes them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.share_group_metadata import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

TOPIC = UUID(int=1 << 64 | 2)
OTHER = UUID(int=3 << 64 | 4)
Current = ShareGroupCurrentMemberAssignmentValue
Target = ShareGroupTargetAssignmentMemberValue
States = ShareGroupStatePartitionMetadataValue

KEYS: dict[str, Any] = {
    "000a00016700016d": ShareGroupMemberMetadataKey(group_id="g", member_id="m"),
    "000b000167": ShareGroupMetadataKey(group_id="g"),
    "000c000167": ShareGroupTargetAssignmentMetadataKey(group_id="g"),
    "000d00016700016d": ShareGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
    "000e00016700016d": ShareGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
    "000f000167": ShareGroupStatePartitionMetadataKey(group_id="g"),
}
VALUES: dict[str, tuple[str, Any]] = {
    "000002720263032f68030261026200": (
        "000a00016700016d",
        ShareGroupMemberMetadataValue(
            rack_id="r", client_id="c", client_host="/h", subscribed_topic_names=["a", "b"]
        ),
    ),
    "00000001010100": (
        "000a00016700016d",
        ShareGroupMemberMetadataValue(
            rack_id=None, client_id="", client_host="", subscribed_topic_names=[]
        ),
    ),
    "000000000005fffffffffffffff900": (
        "000b000167",
        ShareGroupMetadataValue(epoch=5, metadata_hash=-7),
    ),
    "0000000000050100080000000000000009": (
        "000c000167",
        ShareGroupTargetAssignmentMetadataValue(assignment_epoch=5, assignment_timestamp=9),
    ),
    "00000000000500": (
        "000c000167",
        ShareGroupTargetAssignmentMetadataValue(assignment_epoch=5),
    ),
    "000002000000000000000100000000000000020300000000000000030000": (
        "000d00016700016d",
        Target(topic_partitions=[Target.TopicPartition(topic_id=TOPIC, partitions=[0, 3])]),
    ),
    "000000000006000000050002000000000000000100000000000000020300000000000000030000": (
        "000e00016700016d",
        Current(
            member_epoch=6,
            previous_member_epoch=5,
            state=0,
            assigned_partitions=[Current.TopicPartitions(topic_id=TOPIC, partitions=[0, 3])],
        ),
    ),
    "0000020000000000000001000000000000000202610200000001000200000000000000010000000000000002026102"
    "0000000000020000000000000003000000000000000402620000": (
        "000f000167",
        States(
            initializing_topics=[
                States.TopicPartitions(topic_id=TOPIC, topic_name="a", partitions=[1])
            ],
            initialized_topics=[
                States.TopicPartitions(topic_id=TOPIC, topic_name="a", partitions=[0])
            ],
            deleting_topics=[States.Topic(topic_id=OTHER, topic_name="b")],
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
    assert decode_key(bytes.fromhex("0003000167")) is None
    with pytest.raises(DecodeError):
        decode_value(KEYS["000b000167"], b"\x00\x63")
