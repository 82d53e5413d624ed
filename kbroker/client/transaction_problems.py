"""Open transactions that delay read_committed consumers, as health problems."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from kbroker.protocol.errors import KafkaError

from .cluster import ClusterClient
from .cluster_details import WARNING, Row, problem_row
from .errors import ClientError
from .transactions import ONGOING, describe_transaction, list_transactions

# Time (ms) after which an open transaction is a problem.
OPEN_TRANSACTION_MS = 60_000
# Maximum number of open transactions that one check describes.
DESCRIBED_MAX = 50
# Maximum seconds for the queries of the coordinators.
CHECK_SECONDS = 5
# Maximum number of partitions that a problem names.
PLACES_MAX = 3


async def long_transaction_problems(cluster: ClusterClient, now_ms: int) -> list[Row]:
    """Return a warning for each transaction that has been open for more than one minute.

    Coordinators that do not respond are skipped: `cluster_problems` reports them.

    Args:
        cluster: The cluster to check.
        now_ms: Current time, in ms since the epoch.
    """
    problems: list[Row] = []
    with trio.move_on_after(CHECK_SECONDS):
        try:
            for each in (await list_transactions(cluster, states=[ONGOING]))[:DESCRIBED_MAX]:
                found = await describe_transaction(cluster, each.id)
                open_ms = now_ms - found.start_ms
                if found.state != ONGOING or found.start_ms < 0 or open_ms < OPEN_TRANSACTION_MS:
                    continue
                places = in_places(found.row()["partitions"], len(found.partitions))
                problem = f"open for {minutes_of(open_ms)} in {places or 'no partition'}"
                problems.append(transaction_problem(found.id, problem))
        except (ClientError, KafkaError, OSError):
            return problems
    return problems


def transaction_problem(transactional_id: str, problem: str, severity: str = WARNING) -> Row:
    """Return the problem of an open transaction."""
    action = "let its producer commit, or abort the transaction"
    waiting = f"{problem}; read_committed consumers wait"
    return problem_row("transaction", transactional_id, waiting, action, severity)


def minutes_of(ms: int) -> str:
    """Return a time in full minutes, such as "1 minute"."""
    count = ms // 60_000
    return f"{count:,} minute{'' if count == 1 else 's'}"


def in_places(partitions: Sequence[str], count: int) -> str:
    """Return the first of some partitions and the number of others: "a-0, a-1, a-2 and 4 more"."""
    shown = partitions[:PLACES_MAX]
    more = count - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
