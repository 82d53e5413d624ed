"""Tasks of streams groups (KIP-1071): those of a member, and the processes that have each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

# Tasks (partition indexes) by subtopology ID.
Tasks: TypeAlias = Mapping[str, AbstractSet[int]]
# Tasks by subtopology ID, each with the epoch in which the member got it.
ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]

NO_TASKS: Tasks = MappingProxyType({})
NO_ACTIVE_TASKS: ActiveTasks = MappingProxyType({})

NO_PROCESSES: frozenset[str] = frozenset()


class TasksTuple(NamedTuple):
    """Active, standby and warm-up tasks of a member: its target, or the tasks it reports."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    def has_any(self, other: TasksTupleWithEpochs) -> bool:
        """Return True if one of these tasks is in `other` with the same role."""
        pairs = zip(self, (keys_of(other.active), other.standby, other.warmup), strict=True)
        return any(
            not tasks.isdisjoint(theirs.get(subtopology, ()))
            for mine, theirs in pairs
            for subtopology, tasks in mine.items()
        )

    @property
    def is_empty(self) -> bool:
        return not any(self)


class TasksTupleWithEpochs(NamedTuple):
    """Tasks assigned to a member; active tasks carry their assignment epochs."""

    active: ActiveTasks = NO_ACTIVE_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not any(self)

    def without_epochs(self) -> TasksTuple:
        """Return the tasks without their epochs."""
        active = {each: frozenset(tasks) for each, tasks in self.active.items()}
        return TasksTuple(active, self.standby, self.warmup)


NO_TARGET = TasksTuple()
NOTHING = TasksTupleWithEpochs()


def keys_of(active: ActiveTasks) -> dict[str, AbstractSet[int]]:
    """Return active tasks without their epochs."""
    return {subtopology: tasks.keys() for subtopology, tasks in active.items()}


class MemberTaskOffsets(NamedTuple):
    """Offsets of tasks that a member has last reported, by subtopology ID and partition.

    Attributes:
        offsets: Sum of the changelog offsets of each task.
        end_offsets: Sum of the changelog end offsets of each task.
    """

    offsets: Mapping[str, Mapping[int, int]] = MappingProxyType({})
    end_offsets: Mapping[str, Mapping[int, int]] = MappingProxyType({})


NO_TASK_OFFSETS = MemberTaskOffsets()


@dataclass(slots=True)
class TaskProcessIds:
    """Processes that have each task of a group, or must still revoke it."""

    _active: dict[str, dict[int, str]] = field(default_factory=dict)
    _standby: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    _warmup: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def active(self, subtopology: str, partition: int) -> str | None:
        """Return the process that has a task as active."""
        return self._active.get(subtopology, {}).get(partition)

    def standby(self, subtopology: str, partition: int) -> AbstractSet[str]:
        """Return the processes that have a task as standby."""
        return self._standby.get(subtopology, {}).get(partition, NO_PROCESSES)

    def warmup(self, subtopology: str, partition: int) -> AbstractSet[str]:
        """Return the processes that have a task as warm-up."""
        return self._warmup.get(subtopology, {}).get(partition, NO_PROCESSES)

    def add(self, process_id: str, tasks: TasksTupleWithEpochs) -> None:
        """Add the tasks of a member of a process."""
        for subtopology, active in tasks.active.items():
            self._active.setdefault(subtopology, {}).update(dict.fromkeys(active, process_id))
        _add(self._standby, tasks.standby, process_id)
        _add(self._warmup, tasks.warmup, process_id)

    def remove(self, process_id: str, tasks: TasksTupleWithEpochs) -> None:
        """Remove the tasks of a member of a process."""
        for subtopology, active in tasks.active.items():
            processes = self._active.get(subtopology, {})
            for partition in active:
                # Another process already has the task if a damaged log lacks the record with which
                # this member revoked it.
                if processes.get(partition) == process_id:
                    del processes[partition]
            if not processes:
                self._active.pop(subtopology, None)
        _remove(self._standby, tasks.standby, process_id)
        _remove(self._warmup, tasks.warmup, process_id)


def _add(known: dict[str, dict[int, set[str]]], tasks: Tasks, process_id: str) -> None:
    for subtopology, partitions in tasks.items():
        processes = known.setdefault(subtopology, {})
        for partition in partitions:
            processes.setdefault(partition, set()).add(process_id)


def _remove(known: dict[str, dict[int, set[str]]], tasks: Tasks, process_id: str) -> None:
    for subtopology, partitions in tasks.items():
        processes = known.get(subtopology, {})
        for partition in partitions:
            holders = processes.get(partition, set())
            holders.discard(process_id)
            if not holders:
                processes.pop(partition, None)
        if not processes:
            known.pop(subtopology, None)


def freeze_tasks(rows: Iterable[tuple[str, Iterable[int]]]) -> Tasks:
    """Return tasks from the rows of a record or of a request."""
    return {subtopology: frozenset(partitions) for subtopology, partitions in rows} or NO_TASKS
