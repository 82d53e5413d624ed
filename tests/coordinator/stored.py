"""Records of coordinators as their logs keep them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kbroker.coordinator import CoordinatorRecord
from kbroker.coordinator.common.record import CoordinatorRecordSerde
from kbroker.protocol.primitives import Buffer


class StoredRecord(NamedTuple):
    """Key and value of a record as bytes."""

    key: bytes
    value: bytes | None


class Replaying(Protocol):
    """A coordinator, as far as its log is concerned."""

    @property
    def serde(self) -> CoordinatorRecordSerde: ...

    def replay(self, record: CoordinatorRecord, producer_id: int = -1) -> None: ...


def store(serde: CoordinatorRecordSerde, record: CoordinatorRecord) -> StoredRecord:
    """Encode a record. Fails if its bytes decode to another record."""
    stored = StoredRecord(*serde.encode(record))
    assert serde.decode(*stored) == record, "a restart would replay another record"
    return stored


def load(coordinator: Replaying, key: Buffer, value: Buffer | None, producer_id: int = -1) -> None:
    """Decode a stored record and replay it, as at start-up."""
    record = coordinator.serde.decode(key, value)
    if record is not None:
        coordinator.replay(record, producer_id)
