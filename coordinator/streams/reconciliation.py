"""Reconciliation: steps of a streams group member from its tasks to its target (KIP-1071).

The steps are those of a consumer group (`consumer.reconciliation`), with two differences:

- A process has each task only once. A member waits for an active task until no process has it as
  active, and its own process has no standby of it. It waits for a standby until its own process
  does not have the task in any role.
- The member epoch is incremented when the member has revoked its tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ..common.modern_group import UnknownMemberState
from .group import (
    NO_TASKS,
    NOTHING,
    ActiveTasks,
    StreamsGroup,
    StreamsGroupMember,
    StreamsMemberState,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
)

# Returns True if a task is not free yet.
_Taken: TypeAlias = Callable[[str, int], bool]


def reconcile(
    member: StreamsGroupMember,
    epoch: int,
    target: TasksTuple,
    owned: TasksTuple | None,
    group: StreamsGroup,
) -> StreamsGroupMember:
    """Return the member after its next step, or the same member if it has to wait.

    Args:
        member: The member, including the changes of its heartbeat.
        epoch: Group epoch for which the target was computed.
        target: Target of the member.
        owned: Tasks that the member reports as owned; None if it reports nothing, as in most
            heartbeats.
        group: The group, from which the holders of all tasks are read.

    Raises:
        UnknownMemberState: The stored state is unknown and the member still owns tasks.
    """
    if member.is_reconciled_to(epoch):
        return member
    if member.state is StreamsMemberState.UNKNOWN:
        if owned is None or not owned.is_empty:
            raise UnknownMemberState
        return _advance(member, epoch, epoch, target, owned, group)
    if member.state is StreamsMemberState.UNREVOKED:
        if owned is None or owned.has_any(member.revoking):
            return member
        return _advance(member, member.epoch + 1, epoch, target, owned, group)
    return _advance(member, member.epoch, epoch, target, owned, group)


def _advance(
    member: StreamsGroupMember,
    own_epoch: int,
    epoch: int,
    target: TasksTuple,
    owned: TasksTuple | None,
    group: StreamsGroup,
) -> StreamsGroupMember:
    """Return the member after a step towards the target, as far as it is possible now."""
    process_id = member.process_id

    def is_assigned(subtopology: str, partition: int) -> bool:
        return group.active_process(
            subtopology, partition
        ) is not None or group.has_standby_or_warmup(process_id, subtopology, partition)

    def is_in_process(subtopology: str, partition: int) -> bool:
        return group.active_process(
            subtopology, partition
        ) == process_id or group.has_standby_or_warmup(process_id, subtopology, partition)

    had = member.assigned
    active = _active_step(had.active, target.active, epoch, is_assigned)
    standby = _step(had.standby, target.standby, is_in_process)
    warmup = _step(had.warmup, target.warmup, is_in_process)
    revoking = TasksTupleWithEpochs(active[1], standby[1], warmup[1])
    if not revoking.is_empty and (owned is None or owned.has_any(revoking)):
        kept = TasksTupleWithEpochs(active[0], standby[0], warmup[0])
        return _with_assignment(member, own_epoch, StreamsMemberState.UNREVOKED, kept, revoking)
    waits = active[3] or standby[3] or warmup[3]
    state = StreamsMemberState.UNRELEASED if waits else StreamsMemberState.STABLE
    return _with_assignment(
        member, epoch, state, TasksTupleWithEpochs(active[2], standby[2], warmup[2]), NOTHING
    )


def _active_step(
    had: ActiveTasks, target: Tasks, epoch: int, is_taken: _Taken
) -> tuple[ActiveTasks, ActiveTasks, ActiveTasks, bool]:
    """Split active tasks.

    Returns:
        Tasks that are kept, tasks to revoke, tasks that are kept or free, and True if some tasks of
        the target are not free yet.
    """
    kept: dict[str, dict[int, int]] = {}
    revoked: dict[str, dict[int, int]] = {}
    for subtopology, tasks in had.items():
        wanted = target.get(subtopology, frozenset())
        _put_unless_empty(
            kept, subtopology, {each: tasks[each] for each in tasks if each in wanted}
        )
        _put_unless_empty(
            revoked, subtopology, {each: tasks[each] for each in tasks if each not in wanted}
        )
    after, waits = dict(kept), False
    for subtopology, wanted in target.items():
        known = kept.get(subtopology, {})
        new = [each for each in sorted(wanted) if each not in known]
        free = [each for each in new if not is_taken(subtopology, each)]
        waits = waits or len(free) < len(new)
        _put_unless_empty(after, subtopology, known | dict.fromkeys(free, epoch))
    return kept, revoked, after, waits


def _step(had: Tasks, target: Tasks, is_taken: _Taken) -> tuple[Tasks, Tasks, Tasks, bool]:
    """Split standby or warm-up tasks, which have no epochs, like `_active_step`."""
    epochs = {subtopology: dict.fromkeys(tasks, 0) for subtopology, tasks in had.items()}
    kept, revoked, after, waits = _active_step(epochs, target, 0, is_taken)
    return _without_epochs(kept), _without_epochs(revoked), _without_epochs(after), waits


def _without_epochs(tasks: ActiveTasks) -> Tasks:
    return {each: frozenset(partitions) for each, partitions in tasks.items()} or NO_TASKS


def _with_assignment(
    member: StreamsGroupMember,
    epoch: int,
    state: StreamsMemberState,
    assigned: TasksTupleWithEpochs,
    revoking: TasksTupleWithEpochs,
) -> StreamsGroupMember:
    return replace(
        member,
        previous_epoch=member.epoch,
        epoch=epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


def _put_unless_empty(
    into: dict[str, dict[int, int]], subtopology: str, tasks: dict[int, int]
) -> None:
    if tasks:
        into[subtopology] = tasks
