"""Transactions of a broker under test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from kbroker.coordinator import TransactionMetadata, TransactionState
from kbroker.coordinator_runtime.transactions import TransactionShard
from kbroker.node.node import Node

# Number of syncs that finish a transaction: first the decision, then the markers, then the
# completion.
SYNCS_PER_TRANSACTION_END = 3
# Maximum seconds to wait until other nodes have written the markers.
MARKER_SECONDS_MAX = 5
# Seconds between two checks of the transactions.
POLL_SECONDS = 0.01

# Coordinator shard, transactional ID and state of a transaction.
KnownTransaction = tuple[TransactionShard, str, TransactionMetadata]


async def finish_prepared_transactions(nodes: Sequence[Node]) -> None:
    """Finish transactions that are prepared to commit or abort, and sync all writes."""
    await _sync(nodes)
    if len(nodes) > 1:
        with trio.move_on_after(MARKER_SECONDS_MAX):
            while any(
                transaction.state.is_prepared for _, _, transaction in known_transactions(nodes)
            ):
                await trio.sleep(POLL_SECONDS)
                await _sync(nodes)


async def _sync(nodes: Sequence[Node]) -> None:
    for _ in range(SYNCS_PER_TRANSACTION_END):
        for node in nodes:
            await node.partitions.flusher.sync_now()


def known_transactions(nodes: Sequence[Node]) -> Iterator[KnownTransaction]:
    """Yield the transactions of all coordinators."""
    for node in nodes:
        yield from node.transactions.known()


def transaction_of(
    nodes: Sequence[Node], transactional_id: str
) -> tuple[TransactionShard, TransactionMetadata]:
    """Return the coordinator shard and the transaction of a transactional ID.

    Raises:
        ValueError: The transactional ID does not exist; the message lists those that exist.
    """
    for shard, known, transaction in known_transactions(nodes):
        if known == transactional_id:
            return shard, transaction
    valid = ", ".join(sorted(known for _, known, _ in known_transactions(nodes))) or "none"
    raise ValueError(f"there is no transactional ID {transactional_id!r} (valid: {valid})")


def open_transaction(nodes: Sequence[Node], transactional_id: str) -> TransactionShard:
    """Return the coordinator shard of an open transaction.

    Raises:
        ValueError: The transaction is not open; the message lists the open ones.
    """
    shard, transaction = transaction_of(nodes, transactional_id)
    if transaction.state is not TransactionState.ONGOING:
        open_ids = [
            each
            for _, each, transaction in known_transactions(nodes)
            if transaction.state is TransactionState.ONGOING
        ]
        raise ValueError(
            f"transactional ID {transactional_id!r}: no transaction is open, its state is "
            f"{transaction.state.label} (open: {', '.join(sorted(open_ids)) or 'none'})"
        )
    return shard
