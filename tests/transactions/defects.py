"""A kbroker process with a planted bug, which the checker must detect.

Usage: python -m tests.transactions.defects BUG serve ...; the other arguments are kbroker's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import trio

from kbroker.cli import main
from kbroker.coordinator import TransactionCoordinator
from kbroker.coordinator.common.pending import PendingTransactionalOffsets
from kbroker.coordinator.offsets import OffsetMetadataManager
from kbroker.coordinator_runtime.transactions import TransactionCoordinatorService
from kbroker.handlers import fetch_operation
from kbroker.handlers.transactional_batches import ProduceTransaction
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.storage.log import Log
from kbroker.storage.producer_state import ProducerStates

MARKER_DELAY_SECONDS = 0.05


def ignore_open_transactions_in_stable_offset() -> None:
    """Use the high watermark as the last stable offset."""
    _replace(Log, "last_stable_offset", property(lambda log: log.high_watermark))


def return_no_aborted_transactions() -> None:
    """Return no aborted transactions in Fetch responses."""
    _replace(fetch_operation, "aborted_transactions", lambda log, offset, end_offset: [])


def respond_before_markers() -> None:
    """Respond to EndTxn before the markers are written."""
    write, end = TransactionCoordinatorService._write_markers, TransactionCoordinatorService.end

    def write_later(service: TransactionCoordinatorService, ending: Any) -> None:
        async def wait_and_write() -> None:
            await trio.sleep(MARKER_DELAY_SECONDS)
            write(service, ending)

        trio.lowlevel.spawn_system_task(wait_and_write)

    def answer_at_once(
        service: TransactionCoordinatorService, shard: Any, name: str, result: Any
    ) -> Any:
        if not result.records:
            return end(service, shard, name, result)
        return service.store(shard, result).response

    _replace(TransactionCoordinatorService, "_write_markers", write_later)
    _replace(TransactionCoordinatorService, "end", answer_at_once)


def commit_offsets_of_aborted() -> None:
    """Commit the offsets of aborted transactions."""
    end = PendingTransactionalOffsets.end

    def commit_always(
        pending: PendingTransactionalOffsets, producer_id: int, *, commit: bool
    ) -> Any:
        return end(pending, producer_id, commit=True)

    _replace(PendingTransactionalOffsets, "end", commit_always)


def accept_fenced_producers() -> None:
    """Accept batches of fenced epochs without checking with the coordinator."""
    check = ProducerStates.check

    def check_without_epoch(states: ProducerStates, header: Any) -> Any:
        try:
            return check(states, header)
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            return None

    _replace(ProducerStates, "check", check_without_epoch)
    _replace(ProduceTransaction, "check", lambda *_: None)


def ignore_epoch_in_end_txn() -> None:
    """Ignore the epoch in EndTxn."""
    end = TransactionCoordinator.end

    def end_with_any_epoch(
        coordinator: TransactionCoordinator,
        name: str,
        producer_id: int,
        epoch: int,
        *arguments: Any,
        **how: Any,
    ) -> Any:
        known = coordinator.transactions.get(name)
        return end(
            coordinator, name, producer_id, known.epoch if known else epoch, *arguments, **how
        )

    _replace(TransactionCoordinator, "end", end_with_any_epoch)


def ignore_generation_in_txn_offset_commit() -> None:
    """Ignore the generation and member ID in TxnOffsetCommit."""
    _replace(OffsetMetadataManager, "_check_transactional_committer", lambda *_: ErrorCode.NONE)


def _replace(owner: Any, name: str, planted: Any) -> None:
    """Replace an attribute; `Any` silences the type checker."""
    setattr(owner, name, planted)


BUGS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        ignore_open_transactions_in_stable_offset,
        return_no_aborted_transactions,
        respond_before_markers,
        commit_offsets_of_aborted,
        accept_fenced_producers,
        ignore_epoch_in_end_txn,
        ignore_generation_in_txn_offset_commit,
    )
}

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    main(prog_name="kbroker")
