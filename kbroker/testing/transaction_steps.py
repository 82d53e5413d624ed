"""Steps of the end of a transaction, as seen in batches that are written to logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.cluster import TRANSACTIONS_TOPIC
from kbroker.coordinator import TransactionState
from kbroker.protocol.records import iter_headers, read_records
from kbroker.protocol.transaction_log import decode_value

# Steps: the decision to commit or abort, a marker in a partition, the end after the last marker.
PREPARED, MARKER, COMPLETED = "txn.prepared", "txn.marker", "txn.completed"


class Step(NamedTuple):
    """A step of a producer's transaction."""

    name: str
    producer_id: int


def parse_steps(path: str, batches: bytes) -> Iterator[Step]:
    """Yield the steps in batches that are written to the log `path`."""
    if f"/{TRANSACTIONS_TOPIC}-" in path:
        yield from _decisions(batches)
        return
    for _, header in iter_headers(batches):
        if header.is_control and header.is_transactional:
            yield Step(MARKER, header.producer_id)


def _decisions(batches: bytes) -> Iterator[Step]:
    for record in read_records(batches):
        if record.value is None:
            continue
        value = decode_value(record.value)
        state = TransactionState(value.status)
        if state.is_prepared:
            yield Step(PREPARED, value.producer_id)
        elif state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
            yield Step(COMPLETED, value.producer_id)
