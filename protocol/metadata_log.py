"""The records of Kafka's metadata log that are needed to import a broker (KIP-746, KIP-631).

A value in `__cluster_metadata` has three unsigned varints, frame version (1), record type and
record version, and a struct in flexible format. These records describe topics, settings and
permissions; other types are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from .compile import decode
from .primitives import Buffer, DecodeError, read_uvarint
from .schema import ZERO_UUID, Float64, Int8, Int32, Int64, Uuid, message, struct, wire

FRAME_VERSION = 1
LEADER_UNCHANGED = -2


@message(versions="0-2", flexible="0+")
class PartitionRecord:
    """A new partition, or the state of a partition in a snapshot."""

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
    """A change of a partition; a change of its leader increments the leader epoch."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: list[Int32] | None = wire(tag=0, default=None)
    leader: Int32 = wire(tag=1, default=LEADER_UNCHANGED)


@message(versions="0", flexible="0+")
class ConfigRecord:
    """A changed setting of a resource; a null value removes it."""

    resource_type: Int8 = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = None


@message(versions="0", flexible="0+")
class ProducerIdsRecord:
    """An allocation of producer IDs: all IDs below `next_producer_id` are allocated."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@message(versions="0", flexible="0+")
class UserScramCredentialRecord:
    """A SCRAM credential of a user (KIP-900)."""

    name: str = ""
    mechanism: Int8 = 0
    salt: bytes = wire(secret=True)
    stored_key: bytes = wire(secret=True)
    server_key: bytes = wire(secret=True)
    iterations: Int32 = 0


@message(versions="0", flexible="0+")
class RemoveUserScramCredentialRecord:
    """A removed SCRAM credential of a user."""

    name: str = ""
    mechanism: Int8 = 0


@message(versions="0", flexible="0+")
class DelegationTokenRecord:
    """A created or renewed delegation token.

    Its password is derived from the broker setting `delegation.token.secret.key`.
    """

    owner: str = ""
    requester: str = ""
    renewers: list[str] = wire()
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: str = ""


@message(versions="0", flexible="0+")
class RemoveDelegationTokenRecord:
    """A removed delegation token."""

    token_id: str = ""


@message(versions="0", flexible="0+")
class ClientQuotaRecord:
    """A changed or removed client quota (KIP-546)."""

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
    """A created ACL."""

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
    """A removed ACL."""

    id: Uuid = ZERO_UUID


SecurityRecord: TypeAlias = (
    UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
    | ClientQuotaRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
)
MetadataRecord: TypeAlias = (
    PartitionRecord | PartitionChangeRecord | ConfigRecord | ProducerIdsRecord | SecurityRecord
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
    """Decode a value of the metadata log; return None for an unknown type.

    Raises:
        DecodeError: The bytes are not a metadata record, or have a newer frame or record version.
    """
    try:
        frame, position = read_uvarint(value, 0)
        kind, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except IndexError:
        raise DecodeError(f"{len(value)} bytes are not a metadata record") from None
    if frame != FRAME_VERSION:
        raise DecodeError(f"metadata frame of version {frame}")
    cls = _TYPES.get(kind)
    return None if cls is None else decode(cls, value, version, position)[0]
