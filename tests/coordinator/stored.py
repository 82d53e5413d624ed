"""Coordinator records in encoded form."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kbroker.coordinator import CoordinatorRecord
from kbroker.coordinator.common.record import CoordinatorRecordSerde
from kbroker.protocol.primitives import Buffer


class StoredRecord(NamedTuple):
    """Encoded key and value of a record."""

    key: bytes
    value: bytes | None


class Replaying(Protocol):
    """Interface of a coordinator for loading."""

    @property
    def serde(self) -> CoordinatorRecordSerde: ...

    def replay(self, record: CoordinatorRecord, producer_id: int = -1) -> None: ...


def store(serde: CoordinatorRecordSerde, record: CoordinatorRecord) -> StoredRecord:
    """Encode a record, and check that its bytes decode to the same record."""
    stored = StoredRecord(*serde.encode(record))
    assert serde.decode(*stored) == record, "a restart would replay another record"
    return stored


def load(coordinator: Replaying, key: Buffer, value: Buffer | None, producer_id: int = -1) -> None:
    """Decode a stored record and replay it, as during loading."""
    record = coordinator.serde.decode(key, value)
    if record is not None:
        coordinator.replay(record, producer_id)
