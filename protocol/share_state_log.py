"""The records of `__share_group_state`: how far a share group is with a partition (KIP-932).

A key or value is an int16 and a struct. The int16 of a key says what kind of record it is, that of a
value its version. A snapshot is all there is to know of a share partition, an update what changed since
the last snapshot. A snapshot without a value (tombstone) takes the share partition away.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple
from uuid import UUID

from .compile import decode, encode_bytes
from .primitives import Buffer, DecodeError
from .schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import VERSION_SIZE, decode_versioned, encode_versioned, version_of

SNAPSHOT_KIND, UPDATE_KIND = 0, 1
TOPIC_ID_CHARACTERS = 22
"""Of 16 bytes in base64 without padding."""
VALUE_VERSION = 0
UNKNOWN_COUNT = -1
"""Of records that are done with: from a leader that does not count them (before KIP-1226)."""
UNCHANGED_OFFSET = -1
"""A start offset: the one before goes on."""

_KIND = struct.Struct(">h")


class SharePartition(NamedTuple):
    """What a share group knows of one partition of a topic."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def name(self) -> str:
        """As FindCoordinator asks for it."""
        topic_id = urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"

    @classmethod
    def named(cls, name: str) -> SharePartition:
        """The one of a name. Raises ValueError."""
        group_id, topic_id, partition = name.rsplit(":", 2)
        if len(topic_id) != TOPIC_ID_CHARACTERS:
            raise ValueError(f"no topic id: {topic_id}")
        share = cls(group_id, UUID(bytes=urlsafe_b64decode(f"{topic_id}==")), int(partition))
        if not group_id:
            raise ValueError(f"no share partition: {name}")
        return share


@message(versions="0-0")
class ShareStateKey:
    """Whose state it is."""

    group_id: str
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@message(versions="0-0", flexible="0+")
class ShareSnapshotValue:
    """All of a share partition; timestamps are ms since the epoch."""

    @nested
    class Batch:
        """A range of offsets in one state: 0 available, 2 acknowledged, 4 archived."""

        first_offset: Int64
        last_offset: Int64
        delivery_state: Int8
        delivery_count: Int16

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: list[Batch]
    delivery_complete_count: Int32 = wire(tag=0, default=UNKNOWN_COUNT)


@message(versions="0-0", flexible="0+")
class ShareUpdateValue:
    """What changed in a share partition since its snapshot."""

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    """UNCHANGED_OFFSET where it did not move."""
    state_batches: list[ShareSnapshotValue.Batch]
    delivery_complete_count: Int32 = wire(tag=0, default=UNKNOWN_COUNT)


def encode_key(kind: int, share: SharePartition) -> bytes:
    """The key of a record. Raises EncodeError when the group's id has more than 32767 bytes."""
    group_id, topic_id, partition = share
    key = ShareStateKey(group_id=group_id, topic_id=topic_id, partition=partition)
    return _KIND.pack(kind) + encode_bytes(key, 0)


def encode_value(value: ShareSnapshotValue | ShareUpdateValue) -> bytes:
    """The value of a record. Raises EncodeError when a field does not fit."""
    return encode_versioned(value, VALUE_VERSION)


def decode_key(buffer: Buffer) -> tuple[int, SharePartition] | None:
    """The kind and the share partition of a record; None for a kind that this module does not know.

    Raises:
        DecodeError: the bytes are no key.
    """
    kind = version_of(buffer)
    if kind not in (SNAPSHOT_KIND, UPDATE_KIND):
        return None
    key, end = decode(ShareStateKey, buffer, 0, VERSION_SIZE)
    if end != len(buffer):
        raise DecodeError(f"{ShareStateKey.__name__}: {len(buffer) - end} bytes left over")
    return kind, SharePartition(key.group_id, key.topic_id, key.partition)


def decode_snapshot(buffer: Buffer) -> ShareSnapshotValue:
    """The state in a snapshot. Raises DecodeError, for unknown versions too."""
    return decode_versioned(ShareSnapshotValue, buffer)


def decode_update(buffer: Buffer) -> ShareUpdateValue:
    """The change in an update. Raises DecodeError, for unknown versions too."""
    return decode_versioned(ShareUpdateValue, buffer)
