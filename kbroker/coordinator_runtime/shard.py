"""A coordinator with the partition that stores its state, and the interface of all coordinators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kbroker.coordinator import Answer, Now, PendingResponse, Pieces, Result
from kbroker.coordinator.common.record import CoordinatorRecord, CoordinatorRecordSerde
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .partition_writer import LeaderReplica

R = TypeVar("R")


class Coordinator(Protocol):
    """Interface of all coordinators; see `kbroker.coordinator`."""

    @property
    def serde(self) -> CoordinatorRecordSerde: ...

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None: ...

    def on_loaded(self, now: Now) -> Iterator[Result[None]]: ...

    def on_unloaded(self) -> list[Answer]: ...

    def abandon(self, slot: PendingResponse[R], now: Now) -> Result[None]: ...

    def next_deadline(self) -> int | None: ...

    def due(self, now: Now) -> Iterator[Result[None]]: ...

    def expire(self, now: Now) -> Pieces: ...


C = TypeVar("C", bound=Coordinator)


@dataclass(slots=True, eq=False)
class Shard(Generic[C]):
    """A coordinator and the partition that stores its state."""

    replica: LeaderReplica
    coordinator: C
