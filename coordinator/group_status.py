"""Descriptions of group states and of the events that groups wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .classic.group import ClassicGroup
from .classic.group_state import EMPTY, PREPARING, STABLE
from .classic.rebalance import JOIN, SYNC
from .common.events import printable, some_of
from .common.result import Now
from .common.timers import Timers
from .consumer.group import ConsumerGroup, ConsumerGroupState
from .share.group import ShareGroup
from .streams.group import StreamsGroup, StreamsGroupState


def describe_classic_group_status(
    group: ClassicGroup, timers: Timers[tuple[str, str, str]], producers: Sequence[int], now: Now
) -> str:
    """Describe the state of a classic group in one sentence.

    Args:
        group: The group.
        timers: Rebalance timers of the shard.
        producers: IDs of the producers whose open transactions contain offsets of the group.
        now: Current time.
    """
    return _append_pending_offsets(_describe_classic_state(group, timers, now), producers)


def describe_consumer_group_status(group: ConsumerGroup, producers: Sequence[int]) -> str:
    """Describe the state of a consumer group (KIP-848) in one sentence."""
    text = f"group {group.id} is {group.state} in epoch {group.epoch}"
    if group.members:
        text += f": it has {some_of(_member_labels(group.members))}"
    if group.state is ConsumerGroupState.ASSIGNING:
        text += f"; its target assignment has epoch {group.assignment_epoch}"
    elif group.unreconciled:
        text += f"; waits for {some_of(_member_labels(sorted(group.unreconciled)))} to reconcile"
    slow = [each.id for each in group.members.values() if each.revoking]
    if slow:
        text += f"; {some_of(_member_labels(slow))} must revoke partitions"
    return _append_pending_offsets(text, producers)


def describe_streams_group_status(group: StreamsGroup, producers: Sequence[int]) -> str:
    """Describe the state of a streams group (KIP-1071) in one sentence."""
    text = f"group {group.id} is {group.state} in epoch {group.epoch}"
    if group.members:
        text += f": it has {some_of(_member_labels(group.members))}"
    problem = None if group.configured is None else group.configured.problem
    if group.state is StreamsGroupState.NOT_READY and problem is not None:
        text += f"; {problem.detail}"
    elif group.state is StreamsGroupState.ASSIGNING:
        text += f"; its target assignment has epoch {group.assignment_epoch}"
    elif group.unreconciled:
        text += f"; waits for {some_of(_member_labels(sorted(group.unreconciled)))} to reconcile"
    slow = [each.id for each in group.members.values() if not each.revoking.is_empty]
    if slow:
        text += f"; {some_of(_member_labels(slow))} must revoke tasks"
    return _append_pending_offsets(text, producers)


def describe_share_group_status(group: ShareGroup) -> str:
    """Describe the state of a share group (KIP-932) in one sentence."""
    text = f"group {group.id} is {group.state} in epoch {group.epoch}"
    if group.members:
        text += f": it has {some_of(_member_labels(group.members))}"
    if group.epoch > group.assignment_epoch:
        text += f"; its target assignment has epoch {group.assignment_epoch}"
    late = [
        each.id
        for each in group.members.values()
        if not each.is_reconciled_to(group.assignment_epoch)
    ]
    if late:
        text += f"; {some_of(_member_labels(late))} will receive the target assignment"
        text += " with the next heartbeat"
    for status, topics in (
        ("waits for share coordinators to initialize", group.shared.initializing),
        ("has share state for", group.shared.initialized),
    ):
        if topics:
            names = [
                f"{len(topic.partitions)} partitions of {topic.name}" for topic in topics.values()
            ]
            text += f"; {status} {some_of(names)}"
    return printable(text)


def pending_share_group_work(group: ShareGroup) -> str | None:
    """Return a description of the pending work of a share group, or None if it is idle."""
    if group.shared.initializing:
        return "waits for share coordinators"
    if group.members and group.epoch > group.assignment_epoch:
        return f"the target assignment has epoch {group.assignment_epoch}, the group {group.epoch}"
    if group.lacks_partitions:
        return "has unassigned partitions"
    late = [
        each.id
        for each in group.members.values()
        if not each.is_reconciled_to(group.assignment_epoch)
    ]
    return (
        f"{some_of(_member_labels(late))} have not received their target assignments"
        if late
        else None
    )


def _append_pending_offsets(sentence: str, producers: Sequence[int]) -> str:
    if producers:
        ids = some_of([f"producer {producer_id}" for producer_id in producers])
        sentence += f"; offsets are pending in open transactions of {ids}"
    return printable(sentence)


def _describe_classic_state(
    group: ClassicGroup, timers: Timers[tuple[str, str, str]], now: Now
) -> str:
    if group.state is EMPTY:
        return f"group {group.id} is Empty after generation {group.generation}"
    if group.state is PREPARING:
        waits = f"rebalance {group.generation + 1} waits for {_describe_missing_members(group)}"
        waits += _time_left(timers.deadline((JOIN, group.id, "")), now)
    elif group.state is STABLE:
        waits = f"generation {group.generation} has {some_of(_member_labels(group.members))}"
        if group.unsynced:
            waits += f"; waits for {some_of(sorted(group.unsynced))} to fetch the assignment"
    else:
        waits = f"generation {group.generation} waits for the assignment of its leader, member "
        waits += f"{group.leader_id}" + _time_left(timers.deadline((SYNC, group.id, "")), now)
    return f"group {group.id} is {group.state}: {waits}"


def _describe_missing_members(group: ClassicGroup) -> str:
    if group.is_initial:
        return "more members (group.initial.rebalance.delay.ms)"
    absent = [member.id for member in group.members.values() if member.pending_join is None]
    missing = [f"{some_of(_member_labels(absent))} to rejoin"] if absent else []
    if group.pending:
        missing.append(f"{some_of(_member_labels(sorted(group.pending)))} to join")
    return " and ".join(missing)


def _member_labels(ids: Iterable[str]) -> list[str]:
    return [f"member {member_id}" for member_id in ids]


def _time_left(deadline_ms: int | None, now: Now) -> str:
    if deadline_ms is None:
        return ""
    return f", at most {max(deadline_ms - now.coordinator_ms, 0) / 1000:.1f} s more"
