"""The records that a consumer returns from fetch responses."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.client import consumer
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import Connection
from kbroker.client.consumer import (
    AWAY_SECONDS,
    FOREVER,
    STORAGE_ERROR_SECONDS,
    Fetched,
    Position,
    _batches,
    _Reader,
    _records,
    reading,
)
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import ClientError, NotReachable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.records import (
    Marker,
    Record,
    encode_batch,
    end_transaction_marker,
    read_records,
)


def data(offset: int, producer_id: int = -1, count: int = 1) -> bytes:
    """Encode records of a producer. They are transactional if the producer has an ID."""
    records = [Record(None, b"%d" % (offset + i), 0) for i in range(count)]
    return encode_batch(
        records,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=offset if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return end_transaction_marker(
        Marker(commit, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp=0,
        base_offset=offset,
    )


def returned_offsets(
    position: Position,
    *batches: bytes,
    aborted: list[tuple[int, int]] | None = None,
    committed: bool = False,
    control: bool = False,
) -> list[int]:
    """Return the offsets of the records that the consumer returns from one response."""
    rows = [
        FetchResponse.AbortedTransaction(producer_id=pid, first_offset=first)
        for pid, first in aborted or []
    ]
    row = FetchResponse.Partition(records=b"".join(batches), aborted_transactions=rows)
    return [
        read.record.offset
        for read in _records(position, row, committed, control)
        if read is not None
    ]


LOG = (
    data(0, 1),
    data(1),
    data(2, 2),
    marker(3, 1, commit=False),
    data(4, 1),
    marker(5, 2, commit=True),
    marker(6, 1, commit=True),
    data(7, 1),
    marker(8, 1, commit=False),
)


async def test_aborted_transactions_are_left_out() -> None:
    position = Position(("t", 0), 0)
    found = returned_offsets(position, *LOG, aborted=[(1, 0), (1, 7)], committed=True)
    assert found == [1, 2, 4]
    assert position.offset == 9


async def test_abort_marker_without_transaction_is_ignored() -> None:
    """A transaction without records in this partition, or a marker that was written twice."""
    batches = (marker(0, 1, commit=False), data(1, 1), marker(2, 1, commit=False), data(3))
    assert returned_offsets(Position(("t", 0), 0), *batches, aborted=[(1, 1)], committed=True) == [
        3
    ]


async def test_read_from_within_aborted_transaction_skips_its_rest() -> None:
    """The response lists the transaction again, although its first record was read before."""
    position = Position(("t", 0), 8)
    batches = (data(7, 1, count=3), marker(10, 1, commit=False), data(11))
    assert returned_offsets(position, *batches, aborted=[(1, 2)], committed=True) == [11]


async def test_read_uncommitted_consumer_gets_all_records() -> None:
    assert returned_offsets(Position(("t", 0), 0), *LOG) == [0, 1, 2, 4, 7]


async def test_control_records_are_read_if_requested() -> None:
    assert returned_offsets(Position(("t", 0), 0), *LOG, control=True) == list(range(9))


async def test_consumer_returns_only_requested_range() -> None:
    """A broker returns whole batches."""
    position = Position(("t", 0), 2, 4)
    assert returned_offsets(position, data(0, count=6)) == [2, 3]
    assert position.done
    assert Position(("t", 0), 5).end == FOREVER


def row(**fields: object) -> FetchResponse.Partition:
    return FetchResponse.Partition(**fields)  # type: ignore[arg-type]


class Leader:
    """A connection with prepared responses, by partition."""

    def __init__(self, *responses: list[FetchResponse.Partition]) -> None:
        self.answers = list(responses)
        self.closed = False

    async def ask(self, _request: object, **_versions: int) -> FetchResponse:
        await trio.lowlevel.checkpoint()
        if not self.answers:
            raise OSError("the broker closed the connection")
        topic = FetchResponse.Topic(topic="t", partitions=self.answers.pop(0))
        return FetchResponse(responses=[topic])

    async def aclose(self) -> None:
        self.closed = True


async def read_from(leader: Leader, *positions: Position) -> tuple[list[int], bool]:
    """Return the offsets that a reader returns, and True if it requested a leader lookup."""
    send, receive = trio.open_memory_channel[Fetched](100)
    stop = trio.Event()
    reader = _Reader(list(positions), send, stop, False, _batches)
    connection: Any = leader
    await reader.run(connection)
    assert leader.closed
    send.close()
    offsets = [record.offset async for found in receive for record in read_records(found.batches)]
    return offsets, stop.is_set()


async def test_moved_partition_does_not_block_other_partitions() -> None:
    moved, kept = Position(("t", 0), 0, 1), Position(("t", 1), 5, 6)
    error = row(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    leader = Leader([error, row(partition_index=1, records=data(5))])
    assert await read_from(leader, moved, kept) == ([5], True)
    assert (moved.offset, kept.offset) == (0, 6)


async def test_disconnected_leader_is_looked_up_again() -> None:
    position = Position(("t", 0), 0, 9)
    leader = Leader([row(partition_index=0, records=data(0))])
    assert await read_from(leader, position) == ([0], True)
    assert await read_from(Leader([row(records=data(1, count=8))]), position) == (
        list(range(1, 9)),
        False,
    )


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1.0),
        (ErrorCode.KAFKA_STORAGE_ERROR, STORAGE_ERROR_SECONDS),
        (ErrorCode.LEADER_NOT_AVAILABLE, AWAY_SECONDS),
    ],
)
async def test_read_error_is_raised_after_its_time_limit(
    code: ErrorCode, seconds: float, autojump_clock: object
) -> None:
    position = Position(("t", 0), 0)
    if seconds > 0:
        position.check_error(code)
        await trio.sleep(seconds)
        position.check_error(code)
        await trio.sleep(0.1)
    with pytest.raises(ClientError, match=f"partition 0 of t: cannot be read .{code.name}"):
        position.check_error(code)


async def test_time_before_first_error_does_not_count(autojump_clock: object) -> None:
    """The receiver may have been blocked, or the computer suspended."""
    position = Position(("t", 0), 0, 1)
    for _ in range(2):
        await trio.sleep(AWAY_SECONDS + 1)
        position.check_error(ErrorCode.LEADER_NOT_AVAILABLE)
        assert await read_from(Leader([row(partition_index=0)]), position) == ([], True)


async def test_unreachable_cluster_is_retried_after_a_pause(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    async def connect(*_: object) -> list[tuple[Connection, list[Position]]]:
        if not attempts:
            await trio.sleep(AWAY_SECONDS + 1)  # this process was suspended
        attempts.append(trio.current_time())
        raise NotReachable(0, Endpoint("x", 1), "connection refused")

    async def read() -> None:
        async with reading(ClusterClient([], "x", direct=False), {("t", 0): (0, 1)}) as channel:
            await channel.receive()

    monkeypatch.setattr(consumer, "_connect", connect)
    with pytest.raises(NotReachable):
        await read()
    assert attempts[-1] - attempts[0] > AWAY_SECONDS


async def test_connections_to_other_leaders_are_closed_if_one_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, each of the many retries would leave open connections."""
    reachable = Leader()

    async def find_leaders(*_: object) -> dict[int, list[tuple[str, int]]]:
        return {1: [("t", 0)], 2: [("t", 1)]}

    async def dial(node_id: int) -> Any:
        if node_id == 1:
            return reachable
        raise NotReachable(2, Endpoint("x", 1), "connection refused")

    cluster = ClusterClient([], "x", direct=False)
    monkeypatch.setattr(consumer, "by_leader", find_leaders)
    monkeypatch.setattr(cluster, "dial", dial)
    with pytest.raises(NotReachable):
        await consumer._connect(cluster, [Position(("t", 0), 0), Position(("t", 1), 0)])
    assert reachable.closed
