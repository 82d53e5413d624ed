"""The records of `__consumer_offsets`, and what consumers put into JoinGroup and SyncGroup.

A key or value in `__consumer_offsets` is an int16 and a struct in the form of that version. For a
key the int16 says what kind of record it is: 0 and 1 a committed offset, 2 a classic group; higher
numbers belong to groups of the newer protocols. A null value (tombstone) takes the entry away.

Versions written are those of Kafka 4.3, so that its tools read our files and an older Kafka finds
nothing that it does not know: offsets in value version 4 (topic id as tagged field, KIP-915 makes
older readers skip it), groups in value version 3.

Subscriptions and assignments are written by clients (and their assignors) for each other. They are
opaque to a broker; the readers here serve descriptions, tests and our own client.
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
    """Whose offset it is. Version 0 is what Kafka 0.8 wrote; the form is the same."""

    group: str
    topic: str
    partition: Int32


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset; times are ms since the epoch."""

    offset: Int64
    leader_epoch: Int32 = wire(since=3, default=-1)
    """Epoch of the last consumed record, -1 when the client does not say (KIP-320)."""
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Int64 = wire(since=1, until=1, default=-1)
    """Set by a commit with a retention time of its own (OffsetCommit 2 to 4): write version 1."""
    topic_id: Uuid = wire(since=4, tag=0, default=ZERO_UUID)


@message(versions="2-2")
class GroupMetadataKey:
    """The classic group that a `GroupMetadataValue` describes."""

    group: str


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A classic group with its members, as it stood after a rebalance."""

    @nested
    class Member:
        """One member; timeouts are ms."""

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
    """The value of a record, with its version in front.

    Parameters:
        value: the value.
        version: to write another version than Kafka 4.3 does. Without it an offset with an
            `expire_timestamp` takes version 1, the only one that has the field.

    Raises:
        EncodeError: a field does not fit, or there is no such version.
    """
    if version is None:
        if isinstance(value, GroupMetadataValue):
            version = GROUP_METADATA_VALUE_VERSION
        else:
            version = OFFSET_COMMIT_VALUE_VERSION if value.expire_timestamp == -1 else 1
    return encode_versioned(value, version)


def decode_offset_commit(buffer: Buffer) -> OffsetCommitValue:
    """The value under an `OffsetCommitKey`. Raises DecodeError, for unknown versions too."""
    return decode_versioned(OffsetCommitValue, buffer)


def decode_group_metadata(buffer: Buffer) -> GroupMetadataValue:
    """The value under a `GroupMetadataKey`. Raises DecodeError, for unknown versions too."""
    return decode_versioned(GroupMetadataValue, buffer)


class _ClassicKinds(RecordKinds[Key, Value]):
    """Records of offsets and classic groups, whose values have different versions."""

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


# -- what consumers tell each other

_FORM_FOR_ALL = 0
_NEWEST_SUBSCRIPTION = 3


@nested
class TopicPartitions:
    """Partitions of one topic."""

    topic: str
    partitions: list[Int32]


@message(versions="0-0")
class Subscription:
    """What a member of protocol type "consumer" wants to read, as far as a broker is concerned.

    Versions 1 to 3 add for the members' assignors what each one owned (KIP-429, KIP-792) and its
    rack (KIP-881).
    """

    topics: list[str]
    user_data: bytes | None


@message(versions="0-3")
class MemberSubscription:
    """All that a member of protocol type "consumer" says of itself.

    Clients write any version, and each may add to the end: what is behind is left unread.
    """

    topics: list[str]
    user_data: bytes | None
    owned_partitions: list[TopicPartitions] = wire(since=1)
    generation_id: Int32 = wire(since=2, default=-1)
    rack_id: str | None = wire(since=3)


@message(versions="0-0")
class Assignment:
    """What the leader gives to one member of protocol type "consumer"."""

    assigned_partitions: list[TopicPartitions]
    user_data: bytes | None


def write_subscription(topics: Iterable[str]) -> bytes:
    """The metadata of a member that owns nothing yet, in the form that every client reads."""
    return encode_versioned(Subscription(topics=list(topics), user_data=None), _FORM_FOR_ALL)


def write_assignment(partitions: Iterable[tuple[str, int]], said: Buffer = b"") -> bytes:
    """What a leader gives to a member, in the form that every client reads.

    Parameters: `said` is the metadata of the member: the version of it is that of the answer, which
    has been the same in all versions.
    """
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    rows = [TopicPartitions(topic=name, partitions=found) for name, found in indexes.items()]
    assignment = Assignment(assigned_partitions=rows, user_data=None)
    form = encode_versioned(assignment, _FORM_FOR_ALL)
    try:
        version = min(version_of(said), _NEWEST_SUBSCRIPTION)
    except DecodeError:
        return form
    return version.to_bytes(VERSION_SIZE, "big") + form[VERSION_SIZE:]


def read_subscription(metadata: Buffer) -> Subscription | None:
    """The metadata of a member in JoinGroup; None when it is not of this form.

    Other protocol types put anything there, so the bytes are never an error. Whatever version they
    are of, they are read as version 0, as Kafka does: new versions only add at the end, and there
    are clients that leave out the last fields of the version that they name.
    """
    return _tolerant(Subscription, metadata)


def read_member_subscription(metadata: Buffer) -> MemberSubscription | None:
    """As `read_subscription`, with what the newer versions add; what cannot be read of that is left
    out."""
    try:
        version = min(version_of(metadata), _NEWEST_SUBSCRIPTION)
    except DecodeError:
        return None
    for form in range(version, -1, -1):
        with suppress(DecodeError):
            return decode(MemberSubscription, metadata, form, VERSION_SIZE)[0]
    return None


def read_assignment(assignment: Buffer) -> Assignment | None:
    """The assignment of a member in SyncGroup; None when it is not of this form.

    It has been the same since version 0.
    """
    return _tolerant(Assignment, assignment)


def _tolerant(cls: type[M], blob: Buffer) -> M | None:
    """The message behind the version, which stays unread: version 0 is the beginning of all."""
    try:
        return decode(cls, blob, 0, VERSION_SIZE)[0]
    except DecodeError:
        return None
