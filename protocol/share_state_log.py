"""The records of `__share_group_state`: the progress of share groups in partitions (KIP-932).

A key or value is an int16 and a struct. The int16 of a key is the record type, and the int16 of a
value is its version. A snapshot contains the whole state of a share partition. An update contains
the changes since the last snapshot. A snapshot without a value (tombstone) removes the share
partition.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple, TypeAlias
from uuid import UUID

from .schema import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid, message, wire
from .schema import struct as nested
from .versioned import RecordKinds

SNAPSHOT_KIND, UPDATE_KIND = 0, 1
# Length of a topic ID (16 bytes) in unpadded base64, in characters.
TOPIC_ID_CHARACTERS = 22
VALUE_VERSION = 0
# Number of completed deliveries from a leader that does not count them (before KIP-1226).
UNKNOWN_COUNT = -1
# Start offset in an update that leaves the start offset unchanged.
UNCHANGED_OFFSET = -1


class SharePartitionKey(NamedTuple):
    """A share partition: a share group and a topic partition."""

    group_id: str
    topic_id: UUID
    partition: int

    @property
    def name(self) -> str:
        """Key of the share partition in FindCoordinator."""
        topic_id = urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"

    @classmethod
    def named(cls, name: str) -> SharePartitionKey:
        """Parse a FindCoordinator key. Raises ValueError."""
        group_id, topic_id, partition = name.rsplit(":", 2)
        if len(topic_id) != TOPIC_ID_CHARACTERS:
            raise ValueError(f"invalid topic ID {topic_id!r}")
        share = cls(group_id, UUID(bytes=urlsafe_b64decode(f"{topic_id}==")), int(partition))
        if not group_id:
            raise ValueError(f"invalid share partition {name!r}")
        return share


@message(versions="0-0")
class ShareSnapshotKey:
    """The share partition of a `ShareSnapshotValue`."""

    group_id: str
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@message(versions="1-1")
class ShareUpdateKey:
    """The share partition of a `ShareUpdateValue`."""

    group_id: str
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


@message(versions="0-0", flexible="0+")
class ShareSnapshotValue:
    """The state of a share partition; timestamps are in ms since the epoch."""

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
    """The changes of a share partition since its last snapshot."""

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    """UNCHANGED_OFFSET if it did not change."""
    state_batches: list[ShareSnapshotValue.Batch]
    delivery_complete_count: Int32 = wire(tag=0, default=UNKNOWN_COUNT)


Key: TypeAlias = ShareSnapshotKey | ShareUpdateKey
Value: TypeAlias = ShareSnapshotValue | ShareUpdateValue

KINDS: RecordKinds[Key, Value] = RecordKinds(
    {SNAPSHOT_KIND: ShareSnapshotKey, UPDATE_KIND: ShareUpdateKey},
    {ShareSnapshotKey: ShareSnapshotValue, ShareUpdateKey: ShareUpdateValue},
    VALUE_VERSION,
)
encode_key, encode_value = KINDS.encode_key, KINDS.encode_value
decode_key, decode_value = KINDS.decode_key, KINDS.decode_value


def share_partition_of(key: Key) -> SharePartitionKey:
    """Return the share partition of a record."""
    return SharePartitionKey(key.group_id, key.topic_id, key.partition)
