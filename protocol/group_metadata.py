"""The records of `__consumer_offsets`, and the consumer data in JoinGroup and SyncGroup.

A key or value in `__consumer_offsets` is an int16 and a struct in that version. For a key the int16
is the record type: 0 and 1 a committed offset, 2 a classic group; higher numbers are used by modern
groups. A null value (tombstone) removes the entry.

Records are written in the versions of Kafka 4.3, so that its tools can read them and an older Kafka
finds no unknown versions: offsets in value version 4 (topic ID as a tagged field, which older
readers skip due to KIP-915), groups in value version 3.

Clients (and their assignors) write subscriptions and assignments for each other. They are opaque to
a broker; the functions here serve descriptions, tests and kbroker's client.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias, TypeVar

from .compile import decode
from .primitives import Buffer, DecodeError
from .schema import ZERO_UUID, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import VERSION_SIZE, RecordKinds, decode_versioned, encode_versioned, version_of

OFFSET_COMMIT_KEY_VERSION = 1
OFFSET_COMMIT_VALUE_VERSION = 4
GROUP_METADATA_KEY_VERSION = 2
GROUP_METADATA_VALUE_VERSION = 3

M = TypeVar("M")


@message(versions="0-1")
class OffsetCommitKey:
    """The partition of a committed offset. Version 0 (Kafka 0.8) has the same format."""

    group: str
    topic: str
    partition: Int32


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset; times are in ms since the epoch."""

    offset: Int64
    leader_epoch: Int32 = wire(since=3, default=-1)
    """Epoch of the last consumed record, -1 if unknown (KIP-320)."""
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Int64 = wire(since=1, until=1, default=-1)
    """Only in version 1, for a commit with its own retention time (OffsetCommit 2 to 4)."""
    topic_id: Uuid = wire(since=4, tag=0, default=ZERO_UUID)


@message(versions="2-2")
class GroupMetadataKey:
    """The classic group that a `GroupMetadataValue` describes."""

    group: str


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A classic group with its members, as of its last rebalance."""

    @nested
    class Member:
        """One member; timeouts are in ms."""

        member_id: str
        group_instance_id: str | None = wire(since=3, default=None)
        client_id: str
        client_host: str
        rebalance_timeout: Int32 = wire(since=1, default=-1)
        session_timeout: Int32
        subscription: bytes
        assignment: bytes

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp: Int64 = wire(since=2, default=-1)
    members: list[Member]


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey
Value: TypeAlias = OffsetCommitValue | GroupMetadataValue


def encode_value(value: Value, version: int | None = None) -> bytes:
    """Encode the value of a record with a version prefix.

    Args:
        value: The value.
        version: Version to write. By default the version of Kafka 4.3, except version 1 for an
            offset with an `expire_timestamp`, because only that version has the field.

    Raises:
        EncodeError: A field does not fit, or the version is unknown.
    """
    if version is None:
        if isinstance(value, GroupMetadataValue):
            version = GROUP_METADATA_VALUE_VERSION
        else:
            version = OFFSET_COMMIT_VALUE_VERSION if value.expire_timestamp == -1 else 1
    return encode_versioned(value, version)


def decode_offset_commit(buffer: Buffer) -> OffsetCommitValue:
    """Decode the value of an `OffsetCommitKey`. Raises DecodeError, also for an unknown version."""
    return decode_versioned(OffsetCommitValue, buffer)


def decode_group_metadata(buffer: Buffer) -> GroupMetadataValue:
    """Decode the value of a `GroupMetadataKey`. Raises DecodeError, also for an unknown version."""
    return decode_versioned(GroupMetadataValue, buffer)


class _ClassicKinds(RecordKinds[Key, Value]):
    """Record types of offsets and classic groups, whose values have different versions."""

    def encode_value(self, value: Value) -> bytes:
        return encode_value(value)


KINDS = _ClassicKinds(
    {
        0: OffsetCommitKey,
        OFFSET_COMMIT_KEY_VERSION: OffsetCommitKey,
        GROUP_METADATA_KEY_VERSION: GroupMetadataKey,
    },
    {OffsetCommitKey: OffsetCommitValue, GroupMetadataKey: GroupMetadataValue},
    GROUP_METADATA_VALUE_VERSION,
)
encode_key, decode_key = KINDS.encode_key, KINDS.decode_key


# -- data that consumers exchange

_COMMON_VERSION = 0
_NEWEST_SUBSCRIPTION = 3


@nested
class TopicPartitions:
    """Partitions of one topic."""

    topic: str
    partitions: list[Int32]


@message(versions="0-0")
class Subscription:
    """The subscription of a member of protocol type "consumer", as far as a broker needs it.

    Versions 1 to 3 add the owned partitions (KIP-429, KIP-792) and the rack (KIP-881) for the
    members' assignors.
    """

    topics: list[str]
    user_data: bytes | None


@message(versions="0-3")
class MemberSubscription:
    """The complete subscription of a member of protocol type "consumer".

    Clients write any version, and each version may add fields at the end, which are ignored.
    """

    topics: list[str]
    user_data: bytes | None
    owned_partitions: list[TopicPartitions] = wire(since=1)
    generation_id: Int32 = wire(since=2, default=-1)
    rack_id: str | None = wire(since=3)


@message(versions="0-0")
class Assignment:
    """The assignment of one member of protocol type "consumer"."""

    assigned_partitions: list[TopicPartitions]
    user_data: bytes | None


def write_subscription(topics: Iterable[str]) -> bytes:
    """Encode the subscription of a member without partitions, for clients of all versions."""
    return encode_versioned(Subscription(topics=list(topics), user_data=None), _COMMON_VERSION)


def write_assignment(partitions: Iterable[tuple[str, int]], subscription: Buffer = b"") -> bytes:
    """Encode the assignment of a member, in a version that all clients read.

    Args:
        partitions: Topic names and partition numbers.
        subscription: Subscription of the member. The assignment gets the version number of the
        subscription, because the format is the same in all versions.
    """
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    rows = [TopicPartitions(topic=name, partitions=found) for name, found in indexes.items()]
    assignment = Assignment(assigned_partitions=rows, user_data=None)
    encoded = encode_versioned(assignment, _COMMON_VERSION)
    try:
        version = min(version_of(subscription), _NEWEST_SUBSCRIPTION)
    except DecodeError:
        return encoded
    return version.to_bytes(VERSION_SIZE, "big") + encoded[VERSION_SIZE:]


def read_subscription(metadata: Buffer) -> Subscription | None:
    """Decode the subscription of a member in JoinGroup; None if it has another format.

    Other protocol types use other formats, so invalid bytes are not an error. All versions are read
    as version 0, as in Kafka: newer versions only add fields at the end, and some clients omit the
    last fields of their version.
    """
    return _decode_common_part(Subscription, metadata)


def read_member_subscription(metadata: Buffer) -> MemberSubscription | None:
    """Decode a subscription with the fields of newer versions; unreadable fields are omitted."""
    try:
        version = min(version_of(metadata), _NEWEST_SUBSCRIPTION)
    except DecodeError:
        return None
    for encoded in range(version, -1, -1):
        with suppress(DecodeError):
            return decode(MemberSubscription, metadata, encoded, VERSION_SIZE)[0]
    return None


def read_assignment(assignment: Buffer) -> Assignment | None:
    """Decode the assignment of a member in SyncGroup; None if it has another format.

    The format is the same in all versions.
    """
    return _decode_common_part(Assignment, assignment)


def _decode_common_part(cls: type[M], blob: Buffer) -> M | None:
    """Decode a message as version 0, the common start of all versions, ignoring its version."""
    try:
        return decode(cls, blob, 0, VERSION_SIZE)[0]
    except DecodeError:
        return None
