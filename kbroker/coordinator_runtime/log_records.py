"""Human-readable form of the records of coordinators."""

from __future__ import annotations

from types import ModuleType
from typing import Any
from uuid import UUID

from kbroker.cluster.model import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordinator import TransactionState
from kbroker.protocol import (
    consumer_group_metadata,
    share_group_metadata,
    share_state_log,
    streams_group_metadata,
    transaction_log,
)
from kbroker.protocol.group_metadata import (
    GroupMetadataKey,
    OffsetCommitKey,
    decode_group_metadata,
    decode_key,
    decode_offset_commit,
    read_assignment,
    read_subscription,
)
from kbroker.protocol.schema import Struct, fields
from kbroker.protocol.versioned import UnreadValue

Row = dict[str, Any]


def coordinator_record(topic: str, key: bytes, value: bytes | None) -> Row | None:
    """Decode a record of an internal topic.

    Returns:
        Field values by name, or None for other topics and unknown record types.

    Raises:
        DecodeError: The bytes are not a record of the topic.
    """
    if topic == OFFSETS_TOPIC:
        return _group_record(key, value)
    if topic == TRANSACTIONS_TOPIC:
        return _transaction_record(key, value)
    if topic == SHARE_STATE_TOPIC:
        return _share_record(key, value)
    return None


def _group_record(key: bytes, value: bytes | None) -> Row | None:
    decoded = decode_key(key)
    if isinstance(decoded, OffsetCommitKey):
        row: Row = {"group": decoded.group, "topic": decoded.topic, "partition": decoded.partition}
        if value is None:
            return row | {"tombstone": True}
        commit = decode_offset_commit(value)
        return row | {
            "committed_offset": commit.offset,
            "leader_epoch": commit.leader_epoch,
            "metadata": commit.metadata,
            "commit_timestamp": commit.commit_timestamp,
        }
    if isinstance(decoded, GroupMetadataKey):
        return {"group": decoded.group} | _group_state(value)
    kinds = (consumer_group_metadata, share_group_metadata, streams_group_metadata)
    found = (_newer_group_record(kind, key, value) for kind in kinds)
    return next((row for row in found if row is not None), None)


def _newer_group_record(kind: ModuleType, key: bytes, value: bytes | None) -> Row | None:
    """Decode a record of a consumer, share or streams group, or return None for other types."""
    decoded = kind.decode_key(key)
    if decoded is None:
        return None
    row: Row = _to_plain(decoded)
    row["group"] = row.pop("group_id")
    if value is None:
        return row | {"tombstone": True}
    found = kind.decode_value(decoded, value)
    return row if isinstance(found, UnreadValue) else {**row, **_to_plain(found)}


def _to_plain(value: Any) -> Any:
    """Convert a struct of a record to plain values."""
    if isinstance(value, Struct):
        return {each.name: _to_plain(getattr(value, each.name)) for each in fields(type(value))}
    if isinstance(value, list):
        return [_to_plain(each) for each in value]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return str(value) if isinstance(value, UUID) else value


def _group_state(value: bytes | None) -> Row:
    if value is None:
        return {"tombstone": True}
    group = decode_group_metadata(value)
    return {
        "protocol_type": group.protocol_type,
        "generation": group.generation,
        "protocol": group.protocol,
        "leader": group.leader,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "subscription": _subscription(member.subscription),
                "assignment": _assignment(member.assignment),
            }
            for member in group.members
        ],
    }


def _subscription(data: bytes) -> list[str] | None:
    found = read_subscription(data)
    return None if found is None else found.topics


def _assignment(data: bytes) -> dict[str, list[int]] | None:
    found = read_assignment(data)
    return None if found is None else {t.topic: t.partitions for t in found.assigned_partitions}


def _transaction_record(key: bytes, value: bytes | None) -> Row | None:
    transactional_id = transaction_log.decode_key(key)
    if transactional_id is None:
        return None
    row: Row = {"transactional_id": transactional_id}
    if value is None:
        return row | {"tombstone": True}
    state = transaction_log.decode_value(value)
    return row | {
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": _state(state.status),
        "partitions": {topic.topic: topic.partitions for topic in state.partitions or ()},
        "timeout_ms": state.timeout_ms,
        "last_update_timestamp": state.last_update_timestamp,
        "start_timestamp": state.start_timestamp,
        "previous_producer_id": state.previous_producer_id,
        "next_producer_id": state.next_producer_id,
        "client_transaction_version": state.client_transaction_version,
    }


def _share_record(key: bytes, value: bytes | None) -> Row | None:
    """Decode a snapshot or an update of a share-partition state."""
    decoded = share_state_log.decode_key(key)
    if decoded is None:
        return None
    row: Row = {
        "group": decoded.group_id,
        "topic_id": str(decoded.topic_id),
        "partition": decoded.partition,
    }
    if value is None:
        return row | {"tombstone": True}
    state = "snapshot" if isinstance(decoded, share_state_log.ShareSnapshotKey) else "update"
    return {**row, "state": state, **_to_plain(share_state_log.decode_value(decoded, value))}


def _state(number: int) -> str | int:
    try:
        return TransactionState(number).label
    except ValueError:
        return number
