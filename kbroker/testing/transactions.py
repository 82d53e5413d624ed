"""Transactions of a broker under test: which there are, and having their ends done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from kbroker.coordinator import TransactionMetadata, TransactionState
from kbroker.coordinator_runtime.transactions import TransactionShard
from kbroker.node.node import Node

SYNCS_PER_TRANSACTION_END = 3
"""The decision, the markers, and that all of them are written: each waits for a sync of the others."""
MARKER_SECONDS_MAX = 5
"""How long markers may be on their way to other nodes."""
POLL_SECONDS = 0.01

Known = tuple[TransactionShard, str, TransactionMetadata]


async def finish_prepared_transactions(nodes: Sequence[Node]) -> None:
    """Have transactions whose end is decided end now, and everything else that is written synced."""
    await _sync(nodes)
    if len(nodes) > 1:
        with trio.move_on_after(MARKER_SECONDS_MAX):
            while any(it.state.is_prepared for _, _, it in known_transactions(nodes)):
                await trio.sleep(POLL_SECONDS)
                await _sync(nodes)


async def _sync(nodes: Sequence[Node]) -> None:
    for _ in range(SYNCS_PER_TRANSACTION_END):
        for node in nodes:
            await node.partitions.flusher.sync_now()


def known_transactions(nodes: Sequence[Node]) -> Iterator[Known]:
    """What all coordinators know."""
    for node in nodes:
        yield from node.transactions.known()


def transaction_of(
    nodes: Sequence[Node], transactional_id: str
) -> tuple[TransactionShard, TransactionMetadata]:
    """What a transactional id stands for. Raises ValueError for one that nobody has begun with, with
    those that there are."""
    for shard, known, transaction in known_transactions(nodes):
        if known == transactional_id:
            return shard, transaction
    there_are = ", ".join(sorted(known for _, known, _ in known_transactions(nodes))) or "none"
    raise ValueError(f"there is no transactional id {transactional_id!r}; there are {there_are}")


def open_transaction(nodes: Sequence[Node], transactional_id: str) -> TransactionShard:
    """The coordinator of a transaction that is open. Raises ValueError: there is none, with what
    there is instead."""
    shard, transaction = transaction_of(nodes, transactional_id)
    if transaction.state is not TransactionState.ONGOING:
        is_open = [
            each
            for _, each, it in known_transactions(nodes)
            if it.state is TransactionState.ONGOING
        ]
        raise ValueError(
            f"transactional id {transactional_id!r} has no open transaction, it is "
            f"{transaction.state.label}; open are {', '.join(sorted(is_open)) or 'none'}"
        )
    return shard
