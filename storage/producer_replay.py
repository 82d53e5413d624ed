"""Updates of the producer state from the batches of a log, on append and on replay after a start.

A batch with a producer ID advances the producer's sequence; a transaction marker ends its
transaction. Append and replay use the same functions, so that a restart restores the same state.
"""

from __future__ import annotations

from kbroker.protocol.record_stream import batch_records
from kbroker.protocol.records import BatchHeader, Marker, read_header, read_marker

from .aborted_index import AbortedIndex
from .index import AbortedTransaction
from .producer_state import ProducerStates


def marker_of(batch: memoryview | bytes) -> Marker | None:
    """Return the transaction marker of a control batch, or None for another record type."""
    record = next(batch_records(batch, read_header(batch)), None)
    return None if record is None else read_marker(record)


def replay(
    producers: ProducerStates,
    aborted: AbortedIndex,
    batch: memoryview | bytes,
    header: BatchHeader,
    now_ms: int,
) -> None:
    """Apply an accepted batch to the producer state.

    Args:
        producers: Producer state of the log.
        aborted: Index of the segment that holds the batch.
        batch: Bytes of the batch; only used for a control batch.
        header: Header of the batch, with its offset in the log.
        now_ms: Current time of the log clock in ms.
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
    """Apply the marker at `base_offset` to the producer state; other parameters as in `replay`."""
    ended = producers.end_transaction(header, marker, base_offset, now_ms)
    if ended is None or not ended.aborted:
        return
    # The last stable offset after the marker; reads use it to stop searching the index.
    stable = producers.first_open_offset
    if stable is None:
        stable = base_offset + 1
    aborted.entries.append(
        AbortedTransaction(ended.producer_id, ended.first_offset, base_offset, stable)
    )
