"""Share coordinator of one partition of `__share_group_state` (KIP-932).

A group coordinator initializes and deletes the state of a share partition. The partition leader
reads the state and then writes its changes. The last reader is the only writer: epochs fence older
leaders and older incarnations of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from kbroker.protocol.share_state_log import (
    KINDS,
    UNCHANGED_OFFSET,
    UNKNOWN_COUNT,
    Key,
    SharePartitionKey,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    share_partition_of,
)
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from ..common.record import CoordinatorRecord, CoordinatorRecordSerde
from ..common.result import Answer, Now, PendingResponse, Pieces, Result, append_error
from .state_batches import PersisterStateBatch, PersisterStateBatches

NO_EPOCH = -1
NO_OFFSET = -1
# Leader epoch of a share partition before its first read.
INITIAL_LEADER_EPOCH = 0
# Maximum number of state batches of one share partition. It equals the maximum of
# `group.share.max.partition.max.record.locks`.
STATE_BATCHES_MAX = 10_000
# Snapshots to write per piece.
SNAPSHOTS_AT_ONCE = 10

# Row of one partition in a response. Each API has its own type, with the same error fields.
Row: TypeAlias = Any
R = TypeVar("R")


class SharedTopics(Protocol):
    """Topic lookups that share-partition states need."""

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, or None if the topic does not exist."""
        ...

    def exists(self, name: str, partition: int) -> bool:
        """Return True if a topic has this partition."""
        ...


@dataclass(slots=True)
class ShareState:
    """State of a share partition; times are in ms since 1970.

    Attributes:
        complete_count: Number of finished records after the start offset.
        seen_leader_epoch: Highest leader epoch that was stored; lower epochs are fenced.
        seen_state_epoch: Highest state epoch that was stored; lower epochs are fenced.
        updates: Number of update records since the last snapshot.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    created_ms: int
    written_ms: int
    batches: PersisterStateBatches = field(default_factory=PersisterStateBatches)
    seen_leader_epoch: int = NO_EPOCH
    seen_state_epoch: int = NO_EPOCH
    updates: int = 0


class ShareCoordinator:
    """States of the share partitions of one partition of the internal topic.

    Args:
        topics: Topics of the cluster.
        updates_max: Returns the maximum number of updates between two snapshots
            (`share.coordinator.snapshot.update.records.per.snapshot`).
    """

    serde = CoordinatorRecordSerde(KINDS)

    def __init__(self, topics: SharedTopics, updates_max: Callable[[], int]) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self._topics = topics
        self._updates_max = updates_max

    # -- requests

    def initialize(
        self,
        share: SharePartitionKey,
        request: InitializeShareGroupStateRequest.Partition,
        now: Now,
    ) -> Result[Row]:
        """Initialize the state of a share partition, or reset it with a new state epoch.

        Errors: INVALID_REQUEST for a negative state epoch, FENCED_STATE_EPOCH for an older one, and
        the errors of `_check_partition`.
        """
        row = InitializeShareGroupStateResponse.Partition(partition=share.partition)
        known = self.states.get(share)

        def record() -> CoordinatorRecord:
            _check_index(share)
            _require_not_negative(request.state_epoch, "state epoch")
            if known is not None:
                _check_state_epoch(known, request.state_epoch)
            self._check_partition(share)
            initial = ShareState(
                snapshot_epoch=0 if known is None else known.snapshot_epoch + 1,
                state_epoch=request.state_epoch,
                leader_epoch=INITIAL_LEADER_EPOCH,
                start_offset=request.start_offset,
                complete_count=UNKNOWN_COUNT if request.start_offset == NO_OFFSET else 0,
                created_ms=now.log_ms,
                written_ms=now.log_ms,
            )
            return _snapshot(share, initial)

        return _result_with_record(row, record)

    def read(
        self, share: SharePartitionKey, request: ReadShareGroupStateRequest.Partition, now: Now
    ) -> Result[Row]:
        """Return the state of a share partition to its leader, which becomes the only writer.

        Errors: INVALID_REQUEST if the leader epoch is negative or the state is not initialized,
        FENCED_LEADER_EPOCH for an older leader, and the errors of `_check_partition`.
        """
        row = ReadShareGroupStateResponse.Partition(partition=share.partition)
        try:
            _check_index(share)
            _require_not_negative(request.leader_epoch, "leader epoch")
            known = self._existing_state(share, "Read")
            if known.seen_leader_epoch > request.leader_epoch:
                raise _fenced_leader()
            self._check_partition(share)
        except KafkaError as error:
            return Result(_with_error(row, error))
        row.state_epoch, row.start_offset = known.state_epoch, known.start_offset
        row.state_batches = _rows_of(known.batches, ReadShareGroupStateResponse.StateBatch)
        if request.leader_epoch == known.seen_leader_epoch:
            return Result(row)
        change = ShareUpdateValue(
            snapshot_epoch=known.snapshot_epoch,
            leader_epoch=request.leader_epoch,
            start_offset=known.start_offset,
            state_batches=[],
            delivery_complete_count=known.complete_count,
        )
        return _result_with_record(row, lambda: self._record_of_change(share, known, change, now))

    def write(
        self, share: SharePartitionKey, request: WriteShareGroupStateRequest.Partition, now: Now
    ) -> Result[Row]:
        """Store changes of a share partition. The start offset never decreases.

        Errors: INVALID_REQUEST if an epoch is negative, or the state is not initialized or would
        have more than STATE_BATCHES_MAX ranges, FENCED_LEADER_EPOCH and FENCED_STATE_EPOCH for
        older epochs, and the errors of `_check_partition`.
        """
        row = WriteShareGroupStateResponse.Partition(partition=share.partition)

        def record() -> CoordinatorRecord:
            _check_index(share)
            _require_not_negative(request.leader_epoch, "leader epoch")
            _require_not_negative(request.state_epoch, "state epoch")
            known = self._existing_state(share, "Write")
            if request.leader_epoch < known.seen_leader_epoch:
                raise _fenced_leader()
            _check_state_epoch(known, request.state_epoch)
            self._check_partition(share)
            if len(request.state_batches) + len(known.batches) > STATE_BATCHES_MAX:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Share partition {share.name} has more than {STATE_BATCHES_MAX} state batches.",
                )
            new = PersisterStateBatches(_batches_of(request.state_batches))
            start_offset = max(request.start_offset, known.start_offset)
            new.forget_before(start_offset)
            change = ShareUpdateValue(
                snapshot_epoch=known.snapshot_epoch,
                leader_epoch=known.leader_epoch,
                start_offset=start_offset,
                state_batches=_rows_of(new, ShareSnapshotValue.Batch),
                delivery_complete_count=_complete_count(known, request),
            )
            return self._record_of_change(share, known, change, now)

        return _result_with_record(row, record)

    def delete(
        self, share: SharePartitionKey, request: DeleteShareGroupStateRequest.Partition, now: Now
    ) -> Result[Row]:
        """Delete the state of a share partition, if it exists.

        Errors: those of `_check_partition`.
        """
        row = DeleteShareGroupStateResponse.Partition(partition=share.partition)
        try:
            _check_index(share)
            self._check_partition(share)
        except KafkaError as error:
            return Result(_with_error(row, error))
        if share not in self.states:
            return Result(row)
        return _result_with_record(row, lambda: _tombstone(share))

    def summary(
        self,
        share: SharePartitionKey,
        request: ReadShareGroupStateSummaryRequest.Partition,
        now: Now,
    ) -> Result[Row]:
        """Return the start offset and the number of finished records of a share partition.

        Errors: those of `_check_partition`.
        """
        row = ReadShareGroupStateSummaryResponse.Partition(partition=share.partition)
        try:
            _check_index(share)
            self._check_partition(share)
        except KafkaError as error:
            return Result(_with_error(row, error))
        known = self.states.get(share)
        if known is None:
            row.start_offset, row.delivery_complete_count = NO_OFFSET, UNKNOWN_COUNT
            return Result(row)
        row.start_offset, row.delivery_complete_count = known.start_offset, known.complete_count
        row.leader_epoch, row.state_epoch = known.leader_epoch, known.state_epoch
        return Result(row)

    def _existing_state(self, share: SharePartitionKey, operation: str) -> ShareState:
        known = self.states.get(share)
        if known is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{operation} operation on uninitialized share partition not allowed.",
            )
        return known

    def _check_partition(self, share: SharePartitionKey) -> None:
        """Check that a partition exists.

        Raises:
            KafkaError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        name = self._topics.name_of(share.topic_id)
        if name is None or not self._topics.exists(name, share.partition):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "This server does not host this topic-partition.",
            )

    def _record_of_change(
        self, share: SharePartitionKey, known: ShareState, change: ShareUpdateValue, now: Now
    ) -> CoordinatorRecord:
        """Return the record of a change: an update, or a snapshot after enough updates."""
        if known.updates < self._updates_max():
            return CoordinatorRecord(_update_key(share), change)
        changed = replace(known, batches=known.batches.copy())
        _apply(changed, change)
        return _snapshot(share, _next_snapshot(changed, now))

    # -- the log

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition, in log order, during loading and after an append.

        `producer_id` is unused: no producer writes to this topic in a transaction.
        """
        key, value = record.key, record.value
        assert isinstance(key, Key)
        share = share_partition_of(key)
        known = self.states.get(share)
        if value is None:
            if isinstance(key, ShareSnapshotKey):
                self.states.pop(share, None)
        elif isinstance(value, ShareSnapshotValue):
            self.states[share] = _state_from(value, known)
        else:
            assert isinstance(value, ShareUpdateValue)
            if known is None:
                known = self.states[share] = _provisional_state(value)
            _apply(known, value)
            known.updates += 1

    def on_loaded(self, now: Now) -> Iterator[Result[None]]:
        """Do nothing: replay has done all the work."""
        return iter(())

    def on_unloaded(self) -> list[Answer]:
        """Return no answers: this coordinator has no pending requests."""
        return []

    def abandon(self, slot: PendingResponse[R], now: Now) -> Result[None]:
        """Do nothing: this coordinator has no pending requests."""
        return Result()

    # -- time

    def next_deadline(self) -> int | None:
        """Return None: share-partition states have no timers."""
        return None

    def due(self, now: Now) -> Iterator[Result[None]]:
        """Yield nothing: share-partition states have no timers."""
        return iter(())

    def expire(self, now: Now) -> Pieces:
        """Write a snapshot of each state in pieces, so that older records can be deleted."""
        rest = iter(list(self.states))
        while batch := list(islice(rest, SNAPSHOTS_AT_ONCE)):
            yield _result_with_records(
                _snapshot(share, _next_snapshot(self.states[share], now))
                for share in batch
                if share in self.states  # it may have been deleted in the meantime
            )

    def forget_topics(self, topic_ids: Collection[UUID]) -> Pieces:
        """Delete the states of deleted topics."""
        return self._forget(lambda share: share.topic_id in topic_ids)

    def forget_missing_topics(self) -> Pieces:
        """Delete the states of topics that do not exist."""
        return self._forget(lambda share: self._topics.name_of(share.topic_id) is None)

    def _forget(self, is_deleted: Callable[[SharePartitionKey], bool]) -> Pieces:
        rest = iter(list(self.states))
        while batch := list(islice(rest, SNAPSHOTS_AT_ONCE)):
            deleted = [share for share in batch if is_deleted(share) and share in self.states]
            yield _result_with_records(map(_tombstone, deleted)) if deleted else None


def _check_index(share: SharePartitionKey) -> None:
    if share.partition < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number.")


def _require_not_negative(epoch: int, name: str) -> None:
    if epoch < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The {name} cannot be a negative number.")


def _check_state_epoch(known: ShareState, epoch: int) -> None:
    if epoch < known.seen_state_epoch:
        raise KafkaError(
            ErrorCode.FENCED_STATE_EPOCH,
            "The coordinator rejected the request because the state epoch did not match.",
        )


def _fenced_leader() -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH,
        "The leader epoch in the request is older than the epoch on the broker.",
    )


def _complete_count(known: ShareState, request: WriteShareGroupStateRequest.Partition) -> int:
    """Return the number of finished records after a write, which counts from its start offset."""
    if request.start_offset > known.start_offset:
        return request.delivery_complete_count
    if request.start_offset < known.start_offset:
        return known.complete_count
    return max(request.delivery_complete_count, known.complete_count)


def _with_error(row: R, error: KafkaError) -> R:
    answer: Any = row
    answer.error_code, answer.error_message = error.code, error.message
    return row


def _result_with_record(row: R, record: Callable[[], CoordinatorRecord]) -> Result[R]:
    """Return a result with the record, or only an error response if `record` raises KafkaError."""
    result = Result(row)
    try:
        result.records = [record()]
    except KafkaError as error:
        result.response = _with_error(row, error)
        return result
    empty = type(row)

    def undo(code: ErrorCode, now: Now) -> Result[R]:
        answer: Any = empty()
        answer.partition = row.partition  # type: ignore[attr-defined]
        error = KafkaError(append_error(code), "The state could not be stored.")
        return Result(_with_error(answer, error))

    result.on_failure = undo
    return result


def _result_with_records(records: Iterable[CoordinatorRecord]) -> Result[None]:
    """Return a result without a response; records that cannot be stored are retried later."""
    result = Result[None]()
    result.records = list(records)
    result.on_failure = lambda code, now: Result()
    return result


def _batches_of(
    rows: Sequence[WriteShareGroupStateRequest.StateBatch | ShareSnapshotValue.Batch],
) -> Iterator[PersisterStateBatch]:
    for row in rows:
        yield PersisterStateBatch(
            row.first_offset, row.last_offset, row.delivery_state, row.delivery_count
        )


def _rows_of(batches: Iterable[PersisterStateBatch], row: Callable[..., R]) -> list[R]:
    return [
        row(
            first_offset=each.first,
            last_offset=each.last,
            delivery_state=each.state,
            delivery_count=each.deliveries,
        )
        for each in batches
    ]


def _tombstone(share: SharePartitionKey) -> CoordinatorRecord:
    return CoordinatorRecord(_snapshot_key(share), None)


def _snapshot_key(share: SharePartitionKey) -> ShareSnapshotKey:
    group_id, topic_id, partition = share
    return ShareSnapshotKey(group_id=group_id, topic_id=topic_id, partition=partition)


def _update_key(share: SharePartitionKey) -> ShareUpdateKey:
    group_id, topic_id, partition = share
    return ShareUpdateKey(group_id=group_id, topic_id=topic_id, partition=partition)


def _snapshot(share: SharePartitionKey, state: ShareState) -> CoordinatorRecord:
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=_rows_of(state.batches, ShareSnapshotValue.Batch),
        delivery_complete_count=state.complete_count,
    )
    return CoordinatorRecord(_snapshot_key(share), value)


def _next_snapshot(state: ShareState, now: Now) -> ShareState:
    """Return the state for its next snapshot."""
    return replace(state, snapshot_epoch=state.snapshot_epoch + 1, written_ms=now.log_ms)


def _state_from(value: ShareSnapshotValue, known: ShareState | None) -> ShareState:
    return ShareState(
        snapshot_epoch=value.snapshot_epoch,
        state_epoch=value.state_epoch,
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        complete_count=value.delivery_complete_count,
        created_ms=value.create_timestamp,
        written_ms=value.write_timestamp,
        batches=PersisterStateBatches(_batches_of(value.state_batches)),
        seen_leader_epoch=max(value.leader_epoch, known.seen_leader_epoch if known else NO_EPOCH),
        seen_state_epoch=max(value.state_epoch, known.seen_state_epoch if known else NO_EPOCH),
    )


def _provisional_state(change: ShareUpdateValue) -> ShareState:
    """Return a state for an update whose snapshot was compacted away; a later snapshot follows."""
    return ShareState(
        snapshot_epoch=change.snapshot_epoch,
        state_epoch=0,
        leader_epoch=change.leader_epoch,
        start_offset=change.start_offset,
        complete_count=change.delivery_complete_count,
        created_ms=0,
        written_ms=0,
    )


def _apply(state: ShareState, change: ShareUpdateValue) -> None:
    """Apply an update, which does not contain the state epoch."""
    if change.leader_epoch != NO_EPOCH:
        state.leader_epoch = change.leader_epoch
    state.seen_leader_epoch = max(state.seen_leader_epoch, change.leader_epoch)
    if change.start_offset != UNCHANGED_OFFSET:
        state.start_offset = change.start_offset
    state.complete_count = change.delivery_complete_count
    state.batches.add(_batches_of(change.state_batches))
    state.batches.forget_before(state.start_offset)
