"""What the batches of a log say about its producers: as they are appended, and once more from disk.

A batch with a producer id moves that producer's sequence, a transaction marker ends its transaction.
Appending and replaying do the same, so that a start after a crash knows what was known before it.
"""

from __future__ import annotations

from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import BatchHeader, Marker, read_header, read_marker

from .aborted_index import AbortedIndex
from .index import AbortedTransaction
from .producer_state import ProducerStates


def marker_of(batch: memoryview | bytes) -> Marker | None:
    """The transaction marker in a control batch; None when it has another kind of record."""
    record = next(batch_records(batch, read_header(batch)), None)
    return None if record is None else read_marker(record)


def replay(
    producers: ProducerStates,
    aborted: AbortedIndex,
    batch: memoryview | bytes,
    header: BatchHeader,
    now_ms: int,
) -> None:
    """Take an accepted batch into the producer state.

    Parameters:
        producers: those of the log.
        aborted: of the segment that has the batch.
        batch: its bytes, which only a control batch needs.
        header: of the batch, with the offset that it has in the log.
        now_ms: log clock.
    """
    if header.producer_id < 0:
        return
    if header.is_control:
        marker = marker_of(batch)
        if marker is not None:
            end_transaction(producers, aborted, header, marker, header.base_offset, now_ms)
    else:
        producers.update(header, header.base_offset, now_ms)


def end_transaction(
    producers: ProducerStates,
    aborted: AbortedIndex,
    header: BatchHeader,
    marker: Marker,
    base_offset: int,
    now_ms: int,
) -> None:
    """Take the marker at `base_offset` into the producer state, the rest as for `replay`."""
    ended = producers.end_transaction(header, marker, base_offset, now_ms)
    if ended is None or not ended.aborted:
        return
    # What is stable right after the marker; tells readers where they may stop looking.
    stable = producers.first_open_offset
    if stable is None:
        stable = base_offset + 1
    aborted.entries.append(
        AbortedTransaction(ended.producer_id, ended.first_offset, base_offset, stable)
    )
