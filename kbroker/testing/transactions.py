"""Transactions of a broker under test: which there are, and having their ends done."""

from __future__ import annotations

from kbroker.coordinator import Transaction, TransactionState
from kbroker.node import Node
from kbroker.transactions import TransactionShard

STEPS_OF_AN_END = 3
"""The decision, the markers, and that all of them are written: each waits for a sync of the others."""


async def complete_ends(node: Node) -> None:
    """Have transactions whose end is decided end now, and everything else that is written synced."""
    for _ in range(STEPS_OF_AN_END):
        await node.flusher.sync_now()


def transaction_of(node: Node, transactional_id: str) -> tuple[TransactionShard, Transaction]:
    """What a transactional id stands for. Raises ValueError for one that nobody has begun with, with
    those that there are."""
    for shard, known, transaction in node.transactions.known():
        if known == transactional_id:
            return shard, transaction
    there_are = ", ".join(sorted(known for _, known, _ in node.transactions.known())) or "none"
    raise ValueError(f"there is no transactional id {transactional_id!r}; there are {there_are}")


def open_transaction(node: Node, transactional_id: str) -> TransactionShard:
    """The coordinator of a transaction that is open. Raises ValueError: there is none, with what
    there is instead."""
    shard, transaction = transaction_of(node, transactional_id)
    if transaction.state is not TransactionState.ONGOING:
        is_open = [
            each
            for _, each, it in node.transactions.known()
            if it.state is TransactionState.ONGOING
        ]
        raise ValueError(
            f"transactional id {transactional_id!r} has no open transaction, it is "
            f"{transaction.state.label}; open are {', '.join(sorted(is_open)) or 'none'}"
        )
    return shard
