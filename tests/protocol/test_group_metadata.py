"""Keys and values of __consumer_offsets against the bytes that Kafka 4.3 writes."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.protocol.group_metadata import (
    Assignment,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Subscription,
    TopicPartitions,
    decode_group_metadata,
    decode_key,
    decode_offset_commit,
    encode_key,
    encode_value,
    read_assignment,
    read_subscription,
)
from kbroker.protocol.primitives import DecodeError, EncodeError
from kbroker.protocol.schema import ZERO_UUID
from kbroker.protocol.versioned import encode_versioned

TOPIC_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")

# Written by Kafka 4.3's serializers (MessageUtil.toVersionPrefixedByteBuffer), by version.
OFFSETS = [
    "00000000001cbe991a1400056dc3a974610000018bcfe5687b",
    "00010000001cbe991a1400056dc3a974610000018bcfe5687b0000018bcfe6ee9f",
    "00020000001cbe991a1400056dc3a974610000018bcfe5687b",
    "00030000001cbe991a140000000700056dc3a974610000018bcfe5687b",
    (
        "00040000001cbe991a1400000007066dc3a974610000018bcfe5687b"
        "01001000112233445566778899aabbccddeeff"
    ),
]
GROUPS = [
    (
        "00000008636f6e73756d657200000005000572616e676500036d2d310000000100036d2d310002636c"
        "000a2f3132372e302e302e310000afc80000000301020300000000"
    ),
    (
        "00010008636f6e73756d657200000005000572616e676500036d2d310000000100036d2d310002636c"
        "000a2f3132372e302e302e310000ea600000afc80000000301020300000000"
    ),
    (
        "00020008636f6e73756d657200000005000572616e676500036d2d310000018bcfe5687b0000000100"
        "036d2d310002636c000a2f3132372e302e302e310000ea600000afc80000000301020300000000"
    ),
    (
        "00030008636f6e73756d657200000005000572616e676500036d2d310000018bcfe5687b0000000100"
        "036d2d310004696e73740002636c000a2f3132372e302e302e310000ea600000afc800000003010203"
        "00000000"
    ),
    (
        "000409636f6e73756d6572000000050672616e6765046d2d310000018bcfe5687b02046d2d3105696e"
        "737403636c0b2f3132372e302e302e310000ea600000afc804010203010000"
    ),
]
EMPTY_GROUPS = {
    3: "0003000000000000ffffffff000000000000000900000000",
    4: "00040100000000000000000000000000090100",
}
SUBSCRIPTIONS = [
    "000000000002000161000162000000020102",
    "00010000000200016100016200000002010200000001000161000000020000000000000003",
    "0002000000020001610001620000000201020000000100016100000002000000000000000300000009",
    "000300000002000161000162000000020102000000010001610000000200000000000000030000000900027231",
]
ASSIGNMENT = "0003000000010001610000000200000000000000" + "03ffffffff"


def offset(version: int) -> OffsetCommitValue:
    """Return the value that is encoded in `OFFSETS`."""
    return OffsetCommitValue(
        offset=123456789012,
        leader_epoch=7 if version >= 3 else -1,
        metadata="méta",
        commit_timestamp=1700000000123,
        expire_timestamp=1700000099999 if version == 1 else -1,
        topic_id=TOPIC_ID if version >= 4 else ZERO_UUID,
    )


def group(version: int) -> GroupMetadataValue:
    """Return the value that is encoded in `GROUPS`."""
    member = GroupMetadataValue.Member(
        member_id="m-1",
        group_instance_id="inst" if version >= 3 else None,
        client_id="cl",
        client_host="/127.0.0.1",
        rebalance_timeout=60000 if version >= 1 else -1,
        session_timeout=45000,
        subscription=b"\1\2\3",
        assignment=b"",
    )
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=5,
        protocol="range",
        leader="m-1",
        current_state_timestamp=1700000000123 if version >= 2 else -1,
        members=[member],
    )


@pytest.mark.parametrize("version", range(5))
def test_offset_commit_value_equals_that_of_kafka(version: int) -> None:
    assert encode_value(offset(version), version).hex() == OFFSETS[version]
    assert decode_offset_commit(bytes.fromhex(OFFSETS[version])) == offset(version)


@pytest.mark.parametrize("version", range(5))
def test_group_metadata_value_equals_that_of_kafka(version: int) -> None:
    assert encode_value(group(version), version).hex() == GROUPS[version]
    assert decode_group_metadata(memoryview(bytes.fromhex(GROUPS[version]))) == group(version)


@pytest.mark.parametrize("version", [3, 4])
def test_empty_group_is_decoded(version: int) -> None:
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=9,
        members=[],
    )
    assert encode_value(value, version).hex() == EMPTY_GROUPS[version]
    assert decode_group_metadata(bytes.fromhex(EMPTY_GROUPS[version])) == value


def test_written_versions_equal_those_of_kafka() -> None:
    assert encode_value(offset(4)).hex() == OFFSETS[4]
    assert encode_value(offset(1)).hex() == OFFSETS[1]
    assert encode_value(group(3)).hex() == GROUPS[3]
    with pytest.raises(EncodeError):
        encode_value(group(3), 5)


def test_a_commit_without_a_topic_id_has_no_tag() -> None:
    value = offset(4)
    value.topic_id = ZERO_UUID
    data = encode_value(value)
    assert data.hex() == OFFSETS[4][: -2 * 19] + "00"
    assert decode_offset_commit(data) == value


def test_tags_of_later_kafkas_are_skipped() -> None:
    data = bytes.fromhex(OFFSETS[4])
    later = data.replace(b"\x01\x00\x10", b"\x02\x00\x10") + b"\x09\x03abc"
    assert decode_offset_commit(later) == offset(4)


def test_keys_equal_those_of_kafka() -> None:
    commit = OffsetCommitKey(group="g", topic="topic", partition=3)
    metadata = GroupMetadataKey(group="g")
    assert encode_key(commit).hex() == "00010001670005746f70696300000003"
    assert encode_key(metadata).hex() == "0002000167"
    assert decode_key(encode_key(commit)) == commit
    assert decode_key(encode_key(metadata)) == metadata
    oldest = b"\0\0" + encode_key(commit)[2:]
    assert decode_key(memoryview(oldest)) == commit


@pytest.mark.parametrize("kind", [3, 8, 16, 0x7FFF])
def test_keys_of_other_types_are_ignored(kind: int) -> None:
    assert decode_key(kind.to_bytes(2) + b"\0\x01g") is None


@pytest.mark.parametrize(
    "data", ["", "00", "ffff000167", "0001", "00020001", "000200016700", "0002ffff", "0002000180"]
)
def test_malformed_keys_are_rejected(data: str) -> None:
    with pytest.raises(DecodeError):
        decode_key(bytes.fromhex(data))


def test_malformed_values_are_rejected() -> None:
    for good in OFFSETS[:4] + GROUPS[:4]:
        data = bytes.fromhex(good)
        decoder = decode_offset_commit if good in OFFSETS else decode_group_metadata
        for end in range(len(data)):
            with pytest.raises(DecodeError):
                decoder(data[:end])
        for bad in (data + b"\0", b"\0\x05" + data[2:], b"\xff\xff" + data[2:]):
            with pytest.raises(DecodeError):
                decoder(bad)


@pytest.mark.parametrize("version", range(4))
def test_subscription_topics_are_read_in_every_version(version: int) -> None:
    subscription = Subscription(topics=["a", "b"], user_data=b"\1\2")
    whole = bytes.fromhex(SUBSCRIPTIONS[version])
    needed = len(bytes.fromhex(SUBSCRIPTIONS[0]))
    for end in range(len(whole) + 1):
        # Some clients omit the last fields of the version that they name.
        assert read_subscription(whole[:end]) == (subscription if end >= needed else None)


@given(
    version=st.integers(-(2**15), 2**15 - 1),
    topics=st.lists(st.text(max_size=20), max_size=5),
    user_data=st.none() | st.binary(max_size=20),
    more=st.binary(max_size=40),
)
@settings(max_examples=300)
def test_subscription_with_trailing_bytes_is_read(
    version: int, topics: list[str], user_data: bytes | None, more: bytes
) -> None:
    subscription = Subscription(topics=topics, user_data=user_data)
    blob = version.to_bytes(2, signed=True) + encode_versioned(subscription, 0)[2:] + more
    assert read_subscription(blob) == subscription


def test_assignment_round_trips() -> None:
    expected = Assignment(
        assigned_partitions=[TopicPartitions(topic="a", partitions=[0, 3])], user_data=None
    )
    for version in range(4):
        assert read_assignment(version.to_bytes(2) + bytes.fromhex(ASSIGNMENT)[2:]) == expected


def test_later_subscription_versions_are_read_partly() -> None:
    later = b"\0\x09" + bytes.fromhex(SUBSCRIPTIONS[3])[2:] + b"and more"
    assert read_subscription(later) == read_subscription(bytes.fromhex(SUBSCRIPTIONS[3]))
    assert read_assignment(bytes.fromhex(ASSIGNMENT) + b"and more") is not None


def test_metadata_of_other_protocols_is_ignored() -> None:
    for blob in (b"", b"\0", b"\xff\xff", b"{}", b"sticky leader", b"\0\0\x7f\xff\xff\xff"):
        assert read_subscription(blob) is None
        assert read_assignment(blob) is None


@given(data=st.binary(max_size=120))
@settings(max_examples=300)
def test_arbitrary_bytes_raise_only_decode_errors(data: bytes) -> None:
    for reader in (decode_key, decode_offset_commit, decode_group_metadata):
        for version in range(5):
            with suppress(DecodeError):
                reader(version.to_bytes(2) + data)
    read_subscription(data)
    read_assignment(data)
