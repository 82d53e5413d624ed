"""Reconciliation: steps of a streams group member from its tasks to its target (KIP-1071).

The steps are those of a consumer group (`consumer.reconciliation`), with three differences:

- A process has each task only once. A member waits for an active task until no process has it as
  active, and no other member of its process has a copy of it. It waits for a standby until no other
  member of its process has the task in any role.
- An active task becomes a standby at once. A standby or warm-up of a task that gets another role is
  not revoked first.
- The member epoch is incremented when the member has revoked its tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ..common.modern_group import UnknownMemberState
from .group import StreamsGroup, StreamsGroupMember, StreamsMemberState
from .tasks import (
    NO_ACTIVE_TASKS,
    NOTHING,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
    freeze_tasks,
)

_Task: TypeAlias = tuple[str, int]


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
    step = _Step(member, target, group)
    revoking = step.revoking()
    if not revoking.is_empty and (owned is None or owned.has_any(revoking)):
        kept = step.assigned(epoch, with_free=False)
        return _with_assignment(member, own_epoch, StreamsMemberState.UNREVOKED, kept, revoking)
    state = StreamsMemberState.UNRELEASED if step.waits else StreamsMemberState.STABLE
    assigned = step.assigned(epoch, with_free=True)
    return _with_assignment(member, epoch, state, assigned, NOTHING)


class _Role:
    """Tasks of one role: those that the member had and wants, and the free ones that it gets.

    Attributes:
        had: Tasks before the step.
        kept: Tasks that the member has during the revocation of others.
        revoked: Tasks to revoke.
        free: Tasks that the member gets when it has revoked all tasks.
        waits: True if some tasks of the target are not free yet.
    """

    def __init__(
        self, had: set[_Task], wanted: set[_Task], is_taken: Callable[[_Task], bool]
    ) -> None:
        self.had = had
        self.kept = had & wanted
        self.revoked = had - wanted
        new = wanted - had
        self.free = {task for task in new if not is_taken(task)}
        self.waits = len(self.free) < len(new)

    def convert(self, other: _Role) -> set[_Task]:
        """Give the member free tasks that it had in another role, and return them."""
        converted = self.free & other.had
        self.free -= converted
        self.kept |= converted
        return converted


class _Step:
    """Tasks of a member during one step, by role.

    A task may change its role without a revocation of its own: an active task becomes a standby at
    once, and a standby stays until the task is free to become active. The client then keeps the
    state of the task.
    """

    def __init__(self, member: StreamsGroupMember, target: TasksTuple, group: StreamsGroup) -> None:
        had = member.assigned
        self._epochs = {
            (subtopology, partition): epoch
            for subtopology, tasks in had.active.items()
            for partition, epoch in tasks.items()
        }
        self._process_id = member.process_id
        self._processes = group.task_process_ids
        active, standby, warmup = set(self._epochs), _pairs(had.standby), _pairs(had.warmup)
        self._had = active, standby, warmup
        self._active = _Role(active, _pairs(target.active), self._is_active_taken)
        self._standby = _Role(standby, _pairs(target.standby), self._is_standby_taken)
        self._warmup = _Role(warmup, _pairs(target.warmup), self._is_warmup_taken)
        self._convert_roles(_pairs(target.active))

    @property
    def waits(self) -> bool:
        """True if some tasks of the target are not free yet."""
        return self._active.waits or self._standby.waits or self._warmup.waits

    def revoking(self) -> TasksTupleWithEpochs:
        """Return the tasks to revoke."""
        return self._tasks(self._active.revoked, self._standby.revoked, self._warmup.revoked, 0)

    def assigned(self, epoch: int, *, with_free: bool) -> TasksTupleWithEpochs:
        """Return the tasks that the member may use.

        Args:
            epoch: Assignment epoch of new active tasks.
            with_free: True if the member has revoked all other tasks.
        """
        roles = self._active, self._standby, self._warmup
        active, standby, warmup = (
            role.kept | role.free if with_free else role.kept for role in roles
        )
        # A standby or warm-up is given up when its task becomes active.
        promoted = self._active.free if with_free else set()
        return self._tasks(active, standby - promoted, warmup - promoted, epoch)

    def _convert_roles(self, wanted_active: set[_Task]) -> None:
        self._standby.convert(self._active)
        self._standby.revoked -= self._warmup.convert(self._standby)
        self._warmup.revoked -= self._standby.convert(self._warmup)
        for role in (self._standby, self._warmup):
            promoted = role.had & wanted_active
            role.revoked -= promoted
            role.kept |= promoted

    def _tasks(
        self, active: set[_Task], standby: set[_Task], warmup: set[_Task], epoch: int
    ) -> TasksTupleWithEpochs:
        with_epochs: dict[str, dict[int, int]] = {}
        for task in sorted(active):
            with_epochs.setdefault(task[0], {})[task[1]] = self._epochs.get(task, epoch)
        return TasksTupleWithEpochs(with_epochs or NO_ACTIVE_TASKS, _by_id(standby), _by_id(warmup))

    # -- tasks that others have

    def _is_active_taken(self, task: _Task) -> bool:
        return (
            self._processes.active(*task) is not None
            or self._has_other_standby(task)
            or self._has_other_warmup(task)
        )

    def _is_standby_taken(self, task: _Task) -> bool:
        return (
            (self._is_active_here(task) and task not in self._had[0])
            or self._process_id in self._processes.standby(*task)
            or self._has_other_warmup(task)
        )

    def _is_warmup_taken(self, task: _Task) -> bool:
        return (
            self._is_active_here(task)
            or self._has_other_standby(task)
            or self._process_id in self._processes.warmup(*task)
        )

    def _is_active_here(self, task: _Task) -> bool:
        return self._processes.active(*task) == self._process_id

    def _has_other_standby(self, task: _Task) -> bool:
        """Return True if another member of the process has the task as standby."""
        return self._process_id in self._processes.standby(*task) and task not in self._had[1]

    def _has_other_warmup(self, task: _Task) -> bool:
        """Return True if another member of the process has the task as warm-up."""
        return self._process_id in self._processes.warmup(*task) and task not in self._had[2]


def _pairs(tasks: Tasks) -> set[_Task]:
    return {(subtopology, each) for subtopology, partitions in tasks.items() for each in partitions}


def _by_id(tasks: set[_Task]) -> Tasks:
    found: dict[str, set[int]] = {}
    for subtopology, partition in tasks:
        found.setdefault(subtopology, set()).add(partition)
    return freeze_tasks(found.items())


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
