"""Descriptions of share partitions: acquired records and the reasons for missing records (KIP-932)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..common.events import printable, some_of
from .delivery import ShareDelivery
from .in_flight import ACQUIRED, ARCHIVED, Run


def describe_share_partition_status(
    delivery: ShareDelivery, readable_end: int, high_watermark: int, now_ms: int
) -> str:
    """Describe the records in flight of a share partition, and the records that members can acquire.

    Args:
        delivery: Delivery state of the share partition.
        readable_end: End offset of the records that members can acquire.
        high_watermark: High watermark of the partition.
        now_ms: Coordinator time in ms.
    """
    runs = [run for batch in delivery.batches for run in batch.runs]
    said = [f"is done with what is before offset {delivery.start_offset}"]
    said += _held(runs, now_ms)
    said += _other_states(runs)
    said += _outlook(delivery, runs, readable_end, high_watermark)
    return printable("; ".join(said))


def _count(runs: Iterable[Run]) -> int:
    return sum(len(run) for run in runs)


def _held(runs: Iterable[Run], now_ms: int) -> list[str]:
    """Who has records, and how long at most."""
    held: Counter[str] = Counter()
    first_ms = None
    for run in runs:
        if run.state is ACQUIRED and run.lock_until is not None:
            held[run.member_id] += len(run)
            first_ms = run.lock_until if first_ms is None else min(first_ms, run.lock_until)
    if first_ms is None:
        return []
    who = some_of([f"{count} records with member {name}" for name, count in held.most_common()])
    return [f"{who}, the first locks end in {max(first_ms - now_ms, 0) / 1000:.1f} s"]


def _other_states(runs: Iterable[Run]) -> list[str]:
    """What became of others that are still looked after."""
    counts: Counter[str] = Counter()
    for run in runs:
        if run.change is not None:
            counts["wait until the share coordinator has stored what was said of them"] += len(run)
        elif run.state is ARCHIVED:
            counts["were archived"] += len(run)
        elif run.state.is_final:
            counts["were accepted"] += len(run)
    return [f"{count} {what}" for what, count in counts.items()]


def _outlook(
    delivery: ShareDelivery, runs: list[Run], readable_end: int, high_watermark: int
) -> list[str]:
    """What a member that asks now gets."""
    most = delivery.settings().locks_max
    if not delivery.can_acquire():
        count = f"{delivery.in_flight_count} records from that offset on are under way"
        return [f"nobody gets more: {count}, and share.partition.max.record.locks is {most}"]
    following = delivery.next_offset()
    if following < readable_end:
        free = [run for run in runs if run.is_free and run.deliveries]
        said = f"a member that asks gets records from offset {following} on"
        if free:
            deliveries = max(run.deliveries for run in free)
            said += f", {_count(free)} of which were given back (deliveries: up to {deliveries})"
        return [said]
    if readable_end < high_watermark:
        return [f"what follows from offset {readable_end} on is of transactions that are open"]
    return [f"there is nothing more to get: the records end at offset {high_watermark}"]
