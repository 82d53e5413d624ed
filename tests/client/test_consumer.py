"""What a reader gives out of the answers to its fetches."""

from __future__ import annotations

import trio

from kbroker.client.consumer import FOREVER, Position, Read, _Reader
from kbroker.protocol.messages.fetch import FetchResponse
from kbroker.protocol.records import Marker, Record, encode_batch, end_transaction_marker


def data(offset: int, producer_id: int = -1, count: int = 1) -> bytes:
    """Records of a producer, in a transaction if it has an id."""
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


def given_out(
    position: Position,
    *batches: bytes,
    aborted: list[tuple[int, int]] | None = None,
    committed: bool = False,
    control: bool = False,
) -> list[int]:
    """The offsets of the records that come out of one answer."""
    send, _ = trio.open_memory_channel[list[Read]](1)
    reader = _Reader([position], send, committed, control)
    rows = [
        FetchResponse.AbortedTransaction(producer_id=pid, first_offset=first)
        for pid, first in aborted or []
    ]
    row = FetchResponse.Partition(records=b"".join(batches), aborted_transactions=rows)
    return [read.record.offset for read in reader._records(position, row)]


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


def test_aborted_transactions_are_left_out() -> None:
    position = Position(("t", 0), 0)
    found = given_out(position, *LOG, aborted=[(1, 0), (1, 7)], committed=True)
    assert found == [1, 2, 4]
    assert position.offset == 9


def test_reading_goes_on_within_an_aborted_transaction() -> None:
    """The answer names it again, although its first record was read before."""
    position = Position(("t", 0), 8)
    batches = (data(7, 1, count=3), marker(10, 1, commit=False), data(11))
    assert given_out(position, *batches, aborted=[(1, 2)], committed=True) == [11]


def test_without_isolation_all_records_come() -> None:
    assert given_out(Position(("t", 0), 0), *LOG) == [0, 1, 2, 4, 7]


def test_control_records_come_when_asked_for() -> None:
    assert given_out(Position(("t", 0), 0), *LOG, control=True) == list(range(9))


def test_only_the_range_is_given_out() -> None:
    """A broker answers with whole batches."""
    position = Position(("t", 0), 2, 4)
    assert given_out(position, data(0, count=6)) == [2, 3]
    assert position.done
    assert Position(("t", 0), 5).end == FOREVER
