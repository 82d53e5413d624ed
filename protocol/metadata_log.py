"""The records of Kafka's metadata log that say how topics stand, and who may do what (KIP-746, KIP-631).

A value in `__cluster_metadata` is a frame of three unsigned varints, frame version (1), record type
and record version, and a struct in flexible form. Only what is needed to take over a
broker is read; other types are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from .compile import decode
from .primitives import Buffer, DecodeError, read_uvarint
from .schema import ZERO_UUID, Float64, Int8, Int32, Int64, Uuid, message, struct, wire

FRAME_VERSION = 1
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
LEADER_UNCHANGED = -2


@message(versions="0-2", flexible="0+")
class PartitionRecord:
    """A partition was made, or stands like this at a snapshot."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = wire()
    isr: list[Int32] = wire()
    removing_replicas: list[Int32] | None = None
    adding_replicas: list[Int32] | None = None
    leader: Int32 = -1
    leader_recovery_state: Int8 = wire(tag=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[Uuid] = wire(since=1)
    eligible_leader_replicas: list[Int32] | None = wire(since=2, tag=1, default=None)
    last_known_elr: list[Int32] | None = wire(since=2, tag=2, default=None)


@message(versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """A partition changed; a change of its leader raises the leader epoch by one."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: list[Int32] | None = wire(tag=0, default=None)
    leader: Int32 = wire(tag=1, default=LEADER_UNCHANGED)


@message(versions="0", flexible="0+")
class ConfigRecord:
    """A setting of a resource was set, or taken away with a null value."""

    resource_type: Int8 = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = None


@message(versions="0", flexible="0+")
class ProducerIdsRecord:
    """All producer ids below `next_producer_id` were given to brokers."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@message(versions="0", flexible="0+")
class UserScramCredentialRecord:
    """A user got a credential of a mechanism (KIP-900)."""

    name: str = ""
    mechanism: Int8 = 0
    salt: bytes = wire(secret=True)
    stored_key: bytes = wire(secret=True)
    server_key: bytes = wire(secret=True)
    iterations: Int32 = 0


@message(versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    """A user has no credential of a mechanism any more."""

    name: str = ""
    mechanism: Int8 = 0


@message(versions="0", flexible="0+")
class DelegationTokenRecord:
    """A delegation token was made or renewed. What makes its password is a setting of brokers."""

    owner: str = ""
    requester: str = ""
    renewers: list[str] = wire()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: str = ""


@message(versions="0", flexible="0+")
class RemoveDelegationTokenRecord:
    """A delegation token has ended."""

    token_id: str = ""


@message(versions="0", flexible="0+")
class ClientQuotaRecord:
    """A quota was set, or taken away (KIP-546)."""

    @struct
    class Entity:
        entity_type: str = ""
        entity_name: str | None = None

    entity: list[Entity] = wire()
    key: str = ""
    value: Float64 = 0.0
    remove: bool = False


@message(versions="0", flexible="0+")
class AccessControlEntryRecord:
    """An ACL was made."""

    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 0
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message(versions="0", flexible="0+")
class RemoveAccessControlEntryRecord:
    """An ACL was removed."""

    id: Uuid = ZERO_UUID


RightsRecord: TypeAlias = (
    UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
    | ClientQuotaRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
)
MetadataRecord: TypeAlias = (
    PartitionRecord | PartitionChangeRecord | ConfigRecord | ProducerIdsRecord | RightsRecord
)

_TYPES: Mapping[int, type[MetadataRecord]] = MappingProxyType(
    {
        3: PartitionRecord,
        4: ConfigRecord,
        5: PartitionChangeRecord,
        10: DelegationTokenRecord,
        11: UserScramCredentialRecord,
        14: ClientQuotaRecord,
        15: ProducerIdsRecord,
        18: AccessControlEntryRecord,
        19: RemoveAccessControlEntryRecord,
        22: RemoveUserScramCredentialRecord,
        26: RemoveDelegationTokenRecord,
    }
)


def decode_metadata_record(value: Buffer) -> MetadataRecord | None:
    """One value of the metadata log; None for a type that this module does not know.

    Raises:
        DecodeError: the bytes are no metadata record, or one of a newer frame or version.
    """
    try:
        frame, position = read_uvarint(value, 0)
        kind, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except IndexError:
        raise DecodeError(f"{len(value)} bytes are no metadata record") from None
    if frame != FRAME_VERSION:
        raise DecodeError(f"metadata frame of version {frame}")
    cls = _TYPES.get(kind)
    return None if cls is None else decode(cls, value, version, position)[0]
