"""Share coordinator: responses, stored records, and state after loading."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kbroker.coordinator import Now, Result, ShareCoordinator
from kbroker.coordinator.share.coordinator import STATE_BATCHES_MAX
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from kbroker.protocol.share_state_log import (
    SNAPSHOT_KIND,
    UPDATE_KIND,
    SharePartitionKey,
    ShareSnapshotValue,
    ShareUpdateValue,
)
from kbroker.protocol.versioned import decode_versioned, version_of

from ..harness import FakeTopics
from ..stored import StoredRecord, load, store

NOW = Now(1_000_000, 50_000)
ACKNOWLEDGED, ARCHIVED = 2, 4
UPDATES_MAX = 3
NO_EPOCH = -1


class Log:
    """A coordinator whose records are stored in a list, encoded as in a log."""

    def __init__(self) -> None:
        self.topics = FakeTopics()
        self.records: list[StoredRecord] = []
        self.coordinator = self._make_coordinator()
        self.share = SharePartitionKey("queue", self.topics.topics["orders"][0], 1)

    def _make_coordinator(self) -> ShareCoordinator:
        return ShareCoordinator(self.topics, lambda: UPDATES_MAX)

    def keep(self, result: Result[Any]) -> Any:
        for record in result.records:
            self.records.append(store(self.coordinator.serde, record))
            self.coordinator.replay(record)
        return result.response

    def kinds(self) -> list[int]:
        return [version_of(record.key) for record in self.records]

    def reload(self) -> None:
        before = self.coordinator.states
        self.coordinator = self._make_coordinator()
        for stored in self.records:
            load(self.coordinator, *stored)
        assert {share: fields_of(each) for share, each in self.coordinator.states.items()} == {
            share: fields_of(each) for share, each in before.items()
        }

    def initialize(self, *, epoch: int = 0, start: int = 0) -> Any:
        row = InitializeShareGroupStateRequest.Partition(state_epoch=epoch, start_offset=start)
        return self.keep(self.coordinator.initialize(self.share, row, NOW))

    def write(self, *ranges: tuple[int, int, int, int], **fields: int) -> Any:
        result = self.coordinator.write(self.share, self.change(*ranges, **fields), NOW)
        return self.keep(result)

    def change(self, *ranges: tuple[int, int, int, int], **fields: int) -> Any:
        cls = WriteShareGroupStateRequest
        values = {"state_epoch": 0, "leader_epoch": 0, "start_offset": -1} | fields
        rows = [
            cls.StateBatch(first_offset=a, last_offset=b, delivery_state=c, delivery_count=d)
            for a, b, c, d in ranges
        ]
        return cls.Partition(state_batches=rows, **values)

    def read(self, *, leader_epoch: int = 0) -> Any:
        row = ReadShareGroupStateRequest.Partition(leader_epoch=leader_epoch)
        return self.keep(self.coordinator.read(self.share, row, NOW))

    def summary(self) -> Any:
        row = ReadShareGroupStateSummaryRequest.Partition()
        return self.keep(self.coordinator.summary(self.share, row, NOW))

    def delete(self) -> Any:
        row = DeleteShareGroupStateRequest.Partition()
        return self.keep(self.coordinator.delete(self.share, row, NOW))

    def ranges(self) -> list[tuple[int, ...]]:
        return [tuple(each) for each in self.coordinator.states[self.share].batches]


def fields_of(state: Any) -> tuple[Any, ...]:
    return (
        *(getattr(state, name) for name in type(state).__slots__ if name != "batches"),
        list(state.batches),
    )


def test_read_returns_written_state() -> None:
    log = Log()
    assert log.initialize(start=10).error_code == ErrorCode.NONE
    assert log.write((10, 14, ACKNOWLEDGED, 1)).error_code == ErrorCode.NONE
    log.write((15, 19, 0, 1), start_offset=12, delivery_complete_count=3)
    row = log.read()
    assert (row.start_offset, row.state_epoch) == (12, 0)
    assert [(each.first_offset, each.last_offset) for each in row.state_batches] == [
        (12, 14),
        (15, 19),
    ]
    summary = log.summary()
    assert (summary.start_offset, summary.delivery_complete_count) == (12, 3)
    log.reload()


def test_snapshot_follows_maximum_number_of_updates() -> None:
    log = Log()
    log.initialize()
    for offset in range(8):
        log.write((offset, offset, ACKNOWLEDGED, 1))
    assert log.kinds() == [SNAPSHOT_KIND, 1, 1, 1, SNAPSHOT_KIND, 1, 1, 1, SNAPSHOT_KIND]
    value = decode_versioned(ShareSnapshotValue, log.records[-1].value or b"")
    assert value.snapshot_epoch == 2
    assert [(each.first_offset, each.last_offset) for each in value.state_batches] == [(0, 7)]
    log.reload()


def test_older_leader_is_fenced() -> None:
    log = Log()
    log.initialize()
    assert log.read(leader_epoch=5).error_code == ErrorCode.NONE
    assert log.kinds() == [SNAPSHOT_KIND, UPDATE_KIND]  # a read by a new leader is stored
    assert log.read(leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH
    late = log.write((0, 0, ACKNOWLEDGED, 1), leader_epoch=4)
    assert late.error_code == ErrorCode.FENCED_LEADER_EPOCH
    log.reload()
    assert log.write((0, 0, 2, 1), leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert log.write((0, 0, 2, 1), leader_epoch=5).error_code == ErrorCode.NONE


def test_negative_epoch_is_rejected() -> None:
    log = Log()
    leader, state = (
        f"The {name} epoch cannot be a negative number." for name in ("leader", "state")
    )
    for initialize in (False, True):
        if initialize:
            log.initialize(epoch=1)
        assert log.initialize(epoch=NO_EPOCH).error_message == state
        assert log.read(leader_epoch=NO_EPOCH).error_message == leader
        assert log.write(leader_epoch=NO_EPOCH, state_epoch=NO_EPOCH).error_message == leader
        refused = log.write(state_epoch=NO_EPOCH)
        assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, state)
    assert log.kinds() == [SNAPSHOT_KIND]


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(-1, 9, (10, 2)), (10, 1, (10, 2)), (10, 3, (10, 3)), (11, 1, (11, 1)), (9, 9, (10, 2))],
)
def test_write_never_decreases_progress(start: int, count: int, expected: tuple[int, int]) -> None:
    log = Log()
    log.initialize(start=3)
    log.write(start_offset=10, delivery_complete_count=2)
    log.write((0, 12, ACKNOWLEDGED, 1), start_offset=start, delivery_complete_count=count)
    value = decode_versioned(ShareUpdateValue, log.records[-1].value or b"")
    assert (value.start_offset, value.delivery_complete_count) == expected
    assert [each.first_offset for each in value.state_batches] == [expected[0]]
    summary = log.summary()
    assert (summary.start_offset, summary.delivery_complete_count) == expected
    log.reload()


def test_older_state_epoch_is_fenced() -> None:
    log = Log()
    log.initialize(epoch=3)
    assert log.initialize(epoch=2).error_code == ErrorCode.FENCED_STATE_EPOCH
    late = log.write((0, 0, ACKNOWLEDGED, 1), state_epoch=2)
    assert late.error_code == ErrorCode.FENCED_STATE_EPOCH
    log.write((0, 3, ACKNOWLEDGED, 1), state_epoch=3)
    log.initialize(epoch=4, start=100)
    assert log.ranges() == []
    log.reload()


def test_uninitialized_state_cannot_be_read_or_written() -> None:
    log = Log()
    for response in (log.read(), log.write((0, 0, 2, 1))):
        assert response.error_code == ErrorCode.INVALID_REQUEST
    nothing = log.summary()
    assert (nothing.error_code, nothing.start_offset) == (ErrorCode.NONE, -1)
    assert log.delete().error_code == ErrorCode.NONE
    assert not log.records


def test_deleted_state_is_removed() -> None:
    log = Log()
    log.initialize()
    log.write((0, 0, 2, 1))
    assert log.delete().error_code == ErrorCode.NONE
    assert log.read().error_code == ErrorCode.INVALID_REQUEST
    log.reload()
    assert not log.coordinator.states


@pytest.mark.parametrize(
    ("partition", "code"),
    [(-1, ErrorCode.INVALID_REQUEST), (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_unknown_partition_is_rejected(partition: int, code: ErrorCode) -> None:
    log = Log()
    log.share = log.share._replace(partition=partition)
    for response in (log.initialize(), log.summary(), log.delete()):
        assert response.error_code == code


def test_states_of_deleted_topics_are_deleted() -> None:
    log = Log()
    log.initialize()
    topic_id, _ = log.topics.topics.pop("orders")
    for piece in log.coordinator.forget_topics({topic_id}):
        if piece is not None:
            log.keep(piece)
    assert not log.coordinator.states
    log.reload()


def test_rewritten_log_loads_without_older_records() -> None:
    log = Log()
    log.initialize(start=3)
    log.write((3, 9, ACKNOWLEDGED, 2))
    past = len(log.records)
    pieces = log.coordinator.expire(NOW)
    log.write((12, 12, ARCHIVED, 5))  # written during the rewrite
    for piece in pieces:
        assert piece is not None
        log.keep(piece)
    del log.records[:past]
    log.reload()


def test_too_many_state_batches_are_rejected() -> None:
    log = Log()
    log.initialize()
    many = [(2 * n, 2 * n, ACKNOWLEDGED, 1) for n in range(STATE_BATCHES_MAX + 1)]
    assert log.write(*many).error_code == ErrorCode.INVALID_REQUEST
    assert log.write(*many[1:]).error_code == ErrorCode.NONE
    assert log.write(many[0]).error_code == ErrorCode.INVALID_REQUEST


def test_append_error_is_returned() -> None:
    log = Log()
    log.initialize()
    result = log.coordinator.write(log.share, log.change((0, 0, 2, 1)), NOW)
    assert result.on_failure is not None
    refused: Any = result.on_failure(ErrorCode.NOT_ENOUGH_REPLICAS, NOW).response
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refused.partition == log.share.partition


@pytest.mark.parametrize("seed", range(30))
def test_random_requests_survive_load(seed: int) -> None:
    rng = random.Random(seed)
    log = Log()
    for _ in range(60):
        choice = rng.randrange(10)
        if choice == 0:
            log.initialize(epoch=rng.randrange(4), start=rng.randrange(20))
        elif choice == 1:
            log.read(leader_epoch=rng.randrange(4))
        elif choice == 2:
            log.delete()
        else:
            first = rng.randrange(40)
            new = (first, first + rng.randrange(6), rng.choice((0, 2, 4)), rng.randrange(5))
            log.write(
                new, start_offset=rng.choice((-1, rng.randrange(20))), leader_epoch=3, state_epoch=4
            )
        log.reload()
