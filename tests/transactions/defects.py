"""kbroker with a defect planted, as a process that the bank must see through.

Usage: python -m tests.transactions.defects DEFECT serve ...; the rest is as for kbroker.
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


def stable_offset_passes_open() -> None:
    """The last stable offset is the high watermark, whatever is open."""
    _put(Log, "last_stable_offset", property(lambda log: log.high_watermark))


def aborted_list_empty() -> None:
    """Fetch names no aborted transactions."""
    _put(fetch_operation, "aborted_transactions", lambda log, offset, end_offset: [])


def end_answered_before_markers() -> None:
    """EndTxn is answered when the decision is stored; markers come a little later."""
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

    _put(TransactionCoordinatorService, "_write_markers", write_later)
    _put(TransactionCoordinatorService, "end", answer_at_once)


def offsets_of_aborted() -> None:
    """The offsets of a transaction are committed whatever becomes of it."""
    end = PendingTransactionalOffsets.end

    def always(pending: PendingTransactionalOffsets, producer_id: int, *, commit: bool) -> Any:
        return end(pending, producer_id, commit=True)

    _put(PendingTransactionalOffsets, "end", always)


def zombie_produces() -> None:
    """Produce takes batches of older epochs, and does not ask the coordinator."""
    check = ProducerStates.check

    def without_epoch(states: ProducerStates, header: Any) -> Any:
        try:
            return check(states, header)
        except KafkaError as error:
            if error.code != ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            return None

    _put(ProducerStates, "check", without_epoch)
    _put(ProduceTransaction, "check", lambda *_: None)


def old_epoch_ends() -> None:
    """EndTxn does not look at the epoch."""
    end = TransactionCoordinator.end

    def with_any_epoch(
        coordinator: TransactionCoordinator,
        name: str,
        producer_id: int,
        epoch: int,
        *rest: Any,
        **how: Any,
    ) -> Any:
        known = coordinator.transactions.get(name)
        return end(coordinator, name, producer_id, known.epoch if known else epoch, *rest, **how)

    _put(TransactionCoordinator, "end", with_any_epoch)


def old_generation_commits() -> None:
    """TxnOffsetCommit does not look at the generation and the member."""
    _put(OffsetMetadataManager, "_check_transactional_committer", lambda *_: ErrorCode.NONE)


def _put(owner: Any, name: str, planted: Any) -> None:
    """Type checkers are right that nobody should do this."""
    setattr(owner, name, planted)


DEFECTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        stable_offset_passes_open,
        aborted_list_empty,
        end_answered_before_markers,
        offsets_of_aborted,
        zombie_produces,
        old_epoch_ends,
        old_generation_commits,
    )
}

if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    main(prog_name="kbroker")
