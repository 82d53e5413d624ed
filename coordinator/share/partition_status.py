"""Status texts of share partitions: acquired records, and why none are available (KIP-932)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..common.events import printable, some_of
from .delivery import ShareDelivery
from .in_flight import ACQUIRED, ARCHIVED, ARCHIVING, Run


def describe_share_partition_status(
    delivery: ShareDelivery, readable_end: int, high_watermark: int, now_ms: int
) -> str:
    """Describe the in-flight records of a share partition, and the records that can be acquired.

    Args:
        delivery: Delivery state of the share partition.
        readable_end: End offset of the records that members can acquire.
        high_watermark: High watermark of the partition.
        now_ms: Current time in ms of the monotonic clock.
    """
    runs = [run for batch in delivery.batches for run in batch.runs]
    parts = [f"has share-partition start offset {delivery.start_offset}"]
    parts += _describe_holders(runs, now_ms)
    parts += _describe_other_states(runs)
    parts += _describe_next_fetch(delivery, runs, readable_end, high_watermark)
    return printable("; ".join(parts))


def _count(runs: Iterable[Run]) -> int:
    return sum(len(run) for run in runs)


def _describe_holders(runs: Iterable[Run], now_ms: int) -> list[str]:
    """Return the acquired records per member, and the time until the first lock expires."""
    held: Counter[str] = Counter()
    first_ms = None
    for run in runs:
        if run.state is ACQUIRED and run.lock_until is not None:
            held[run.member_id] += len(run)
            first_ms = run.lock_until if first_ms is None else min(first_ms, run.lock_until)
    if first_ms is None:
        return []
    holders = some_of([f"{count} records with member {name}" for name, count in held.most_common()])
    return [f"{holders}, the first lock expires in {max(first_ms - now_ms, 0) / 1000:.1f} s"]


def _describe_other_states(runs: Iterable[Run]) -> list[str]:
    """Return the number of records in other in-flight states."""
    counts: Counter[str] = Counter()
    for run in runs:
        if run.change is not None:
            counts["wait for the share coordinator to persist their state"] += len(run)
        elif run.state is ARCHIVING:
            counts["wait for the dead-letter queue"] += len(run)
        elif run.state is ARCHIVED:
            counts["were archived"] += len(run)
        elif run.state.is_final:
            counts["were accepted"] += len(run)
    return [f"{count} {state}" for state, count in counts.items()]


def _describe_next_fetch(
    delivery: ShareDelivery, runs: list[Run], readable_end: int, high_watermark: int
) -> list[str]:
    """Return which records a member can acquire now, or why it can acquire none."""
    most = delivery.settings().locks_max
    if not delivery.can_acquire():
        count = f"{delivery.in_flight_count} records from that offset on are in flight"
        return [
            f"no more records can be acquired: {count}, and share.partition.max.record.locks is {most}"
        ]
    following = delivery.next_offset()
    if following < readable_end:
        free = [run for run in runs if run.is_free and run.deliveries]
        parts = f"the next fetch acquires records from offset {following} on"
        if free:
            deliveries = max(run.deliveries for run in free)
            parts += f", {_count(free)} of which were released (deliveries: up to {deliveries})"
        return [parts]
    if readable_end < high_watermark:
        return [f"records from offset {readable_end} on belong to open transactions"]
    return [f"no records are available up to the high watermark {high_watermark}"]
