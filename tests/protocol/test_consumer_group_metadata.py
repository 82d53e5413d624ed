"""Records of consumer groups, byte for byte as Apache Kafka 4.3 writes them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kbroker.protocol.consumer_group_metadata import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from kbroker.protocol.group_metadata import read_member_subscription
from kbroker.protocol.primitives import DecodeError
from kbroker.protocol.versioned import UnreadValue

TOPIC = UUID(int=1 << 64 | 2)
Member = ConsumerGroupMemberMetadataValue
Current = ConsumerGroupCurrentMemberAssignmentValue
Target = ConsumerGroupTargetAssignmentMemberValue

KEYS: dict[str, Any] = {
    "0003000167": ConsumerGroupMetadataKey(group_id="g"),
    "0004000167": ConsumerGroupPartitionMetadataKey(group_id="g"),
    "000500016700016d": ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
    "0006000167": ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
    "000700016700016d": ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
    "000800016700016d": ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
    "00100001670003782e2a": ConsumerGroupRegularExpressionKey(
        group_id="g", regular_expression="x.*"
    ),
}
VALUES: dict[str, tuple[str, Any]] = {
    "000000000007010008fffffffffffffffd": (
        "0003000167",
        ConsumerGroupMetadataValue(epoch=7, metadata_hash=-3),
    ),
    "00000269000263032f68030261026204782e2a000013880672616e67650100110100002328020672616e6765"
    "0301020000": (
        "000500016700016d",
        Member(
            instance_id="i",
            rack_id=None,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["a", "b"],
            subscribed_topic_regex="x.*",
            rebalance_timeout_ms=5000,
            server_assignor="range",
            classic_member_metadata=Member.ClassicMemberMetadata(
                session_timeout_ms=9000,
                supported_protocols=[Member.ClassicProtocol(name="range", metadata=b"\1\2")],
            ),
        ),
    ),
    "000001010263032f680101ffffffff0101000100": (
        "000500016700016d",
        Member(
            instance_id="",
            rack_id="",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=[],
            subscribed_topic_regex="",
            rebalance_timeout_ms=-1,
            server_assignor="",
        ),
    ),
    "0000000000040100080000000000003039": (
        "0006000167",
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4, assignment_timestamp=12345),
    ),
    "000002000000000000000100000000000000020300000000000000030000": (
        "000700016700016d",
        Target(topic_partitions=[Target.TopicPartition(topic_id=TOPIC, partitions=[0, 3])]),
    ),
    "00000000000600000005010200000000000000010000000000000002030000000000000003010009030000000600"
    "000002020000000000000001000000000000000202000000010000": (
        "000800016700016d",
        Current(
            member_epoch=6,
            previous_member_epoch=5,
            state=1,
            assigned_partitions=[
                Current.TopicPartitions(topic_id=TOPIC, partitions=[0, 3], assignment_epochs=[6, 2])
            ],
            partitions_pending_revocation=[Current.TopicPartitions(topic_id=TOPIC, partitions=[1])],
        ),
    ),
    "0000020261000000000000000b000000000000001600": (
        "00100001670003782e2a",
        ConsumerGroupRegularExpressionValue(topics=["a"], version=11, timestamp=22),
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


def test_nullable_struct_with_defaults_is_encoded() -> None:
    key = KEYS["000500016700016d"]
    data = "000001010263032f680101ffffffff01"
    member = decode_value(key, bytes.fromhex(data + "01 00 07 01 00000000 01 00"))
    assert isinstance(member, Member)
    assert member.classic_member_metadata == Member.ClassicMemberMetadata(
        session_timeout_ms=0, supported_protocols=[]
    )
    assert encode_value(member).hex() == data + "0100070100000000" + "0100"


def test_null_struct_of_kafka_is_decoded_and_encoded() -> None:
    """Kafka encodes the missing metadata of a member that uses the consumer protocol."""
    key = KEYS["000500016700016d"]
    data = "000001010263032f680101ffffffff01"
    for tagged in ("01000100", "00"):  # kbroker once omitted the field
        null = decode_value(key, bytes.fromhex(data + tagged))
        assert isinstance(null, Member)
        assert null.classic_member_metadata is None
        assert encode_value(null).hex() == data + "01000100"


def test_unknown_records_are_rejected_or_ignored() -> None:
    assert decode_key(bytes.fromhex("0009000167")) is None
    # Topic metadata of Kafka up to 4.0, whose format kbroker does not decode.
    unread = decode_value(KEYS["0004000167"], b"\x00\x00anything")
    assert isinstance(unread, UnreadValue)
    with pytest.raises(DecodeError):
        decode_value(KEYS["0003000167"], b"\x00\x63")


@pytest.mark.parametrize(
    ("version", "tail", "owned", "rack"),
    [
        (0, "", [], None),
        (1, "00000000", [], None),
        (1, "00000001000161000000010000 0003", ["a"], None),
        (2, "00000001000161000000010000 0003 00000007", ["a"], None),
        (3, "00000001000161000000010000 0003 00000007 000172", ["a"], "r"),
        (3, "", [], None),
        (9, "00000000 00000007 000172 ffffffff", [], "r"),
    ],
)
def test_subscriptions_of_all_versions_are_read(
    version: int, tail: str, owned: list[str], rack: str | None
) -> None:
    metadata = version.to_bytes(2, "big") + bytes.fromhex("00000001000161 ffffffff" + tail)
    parsed = read_member_subscription(metadata)
    assert parsed is not None
    assert (parsed.topics, [row.topic for row in parsed.owned_partitions]) == (["a"], owned)
    assert parsed.rack_id == rack


def test_malformed_subscription_is_ignored() -> None:
    assert read_member_subscription(b"") is None
    assert read_member_subscription(b"\x00\x03junk") is None
