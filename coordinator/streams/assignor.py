"""Sticky task assignor of streams groups, as in Apache Kafka (KIP-1071).

An active task stays with its member, or moves to a member with a copy of its state, within the
quota. The remaining tasks go to the process with the lowest load (tasks per member). A stateful
task gets the configured number of standbys in other processes: where the task or a copy was before,
or in the process with the lowest load.

A member has a copy if it has a standby of the task or has reported an offset of it. Standbys come
first, then higher offsets. Members with equal rank are ordered by member ID, and processes by
process ID. (Kafka uses hash table order, with the same queue of processes.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from .tasks import Tasks, TasksTuple, freeze_tasks
from .topics import ConfiguredSubtopology

# Work per time slice (a few milliseconds). Reading a task or an offset of a member counts 1.
WORK_AT_ONCE = 2_000
# Work of assigning a task, in addition to 1 for each member with a copy of it.
TASK_WORK = 10

_Task: TypeAlias = tuple[str, int]
# Process ID and member ID.
_Member: TypeAlias = tuple[str, str]
E = TypeVar("E")
TaskTargets: TypeAlias = dict[str, TasksTuple]


class AssignmentMemberSpec(NamedTuple):
    """Member data for the assignor: its process, current tasks and reported task offsets."""

    process_id: str
    assigned: TasksTuple
    task_offsets: Mapping[str, Mapping[int, int]] = MappingProxyType({})


class _Candidate(NamedTuple):
    """Member with a copy of a task; lower values rank first."""

    is_no_standby: bool
    negative_offset: int
    member: _Member


class _PriorityQueue(Generic[E]):
    """Binary heap that returns equal elements in the same order as Java's `PriorityQueue`.

    The assignments of Kafka depend on this order. That of `heapq` is different.
    """

    def __init__(self, priority: Callable[[E], float], elements: Iterable[E]) -> None:
        self._priority = priority
        self._heap: list[tuple[float, E]] = []
        for each in elements:
            self.add(each)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, element: E) -> None:
        """Add an element with its current priority."""
        heap, entry = self._heap, (self._priority(element), element)
        place = len(heap)
        heap.append(entry)
        while place and entry[0] < heap[parent := (place - 1) // 2][0]:
            heap[place] = heap[parent]
            place = parent
        heap[place] = entry

    def poll(self) -> E:
        """Remove and return the first element."""
        heap = self._heap
        first, last = heap[0], heap.pop()
        size, place = len(heap), 0
        while (child := 2 * place + 1) < size:
            right = child + 1
            if right < size and heap[right][0] < heap[child][0]:
                child = right
            if last[0] <= heap[child][0]:
                break
            heap[place] = heap[child]
            place = child
        if size:
            heap[place] = last
        return first[1]


class _Slice:
    """The work of a time slice."""

    def __init__(self) -> None:
        self._done = 0

    def is_over(self, work: int) -> bool:
        """Count work, and return True if a new time slice must begin."""
        self._done += work
        if self._done < WORK_AT_ONCE:
            return False
        self._done = 0
        return True


class _ProcessState:
    """State of one process: the tasks assigned to its members."""

    def __init__(self) -> None:
        # Number of tasks by member ID.
        self.counts: dict[str, int] = {}
        self.tasks: set[_Task] = set()
        self.active: dict[str, list[_Task]] = {}
        self.standby: dict[str, list[_Task]] = {}
        self._added = 0
        self._by_load: _PriorityQueue[str] | None = None

    def load(self) -> float:
        """Return the number of tasks per member."""
        return self._added / len(self.counts)

    def add(self, member_id: str, task: _Task, *, active: bool) -> int:
        """Assign a task to a member, and return the member's number of tasks."""
        self._by_load = None
        return self._add(member_id, task, active=active)

    def _add(self, member_id: str, task: _Task, *, active: bool) -> int:
        self._added += 1
        self.tasks.add(task)
        (self.active if active else self.standby).setdefault(member_id, []).append(task)
        self.counts[member_id] += 1
        return self.counts[member_id]

    def add_to_least(self, task: _Task, *, active: bool) -> int:
        """Assign a task to the member with the fewest tasks, and return its number of tasks."""
        if self._by_load is None:
            self._by_load = _PriorityQueue(self.counts.__getitem__, self.counts)
        member_id = self._by_load.poll()
        count = self._add(member_id, task, active=active)
        self._by_load.add(member_id)
        return count


class _Quota:
    """Maximum number of tasks per member, recomputed for the others when a member reaches it."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.each = self._rounded()

    def _rounded(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def update(self, count: int) -> None:
        """Update the quota after a member's number of tasks changed to `count`."""
        if count == self.each:
            self._members -= 1
            self._tasks -= count
            self.each = self._rounded()


def _add_to_least_loaded(
    processes: _PriorityQueue[_ProcessState], task: _Task, *, active: bool
) -> int | None:
    """Assign a task to the first process without it.

    Returns:
        Number of tasks of the member that got it, or None if every process has the task.
    """
    passed = []
    count = None
    while count is None and processes:
        process = processes.poll()
        passed.append(process)
        if task not in process.tasks:
            count = process.add_to_least(task, active=active)
    for process in reversed(passed):
        processes.add(process)
    return count


class _Assignment:
    """One computation of targets."""

    def __init__(
        self,
        members: Mapping[str, AssignmentMemberSpec],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standby_replicas: int,
    ) -> None:
        self._members = members
        self._standby_replicas = standby_replicas
        self._active = _tasks_of(subtopologies.items())
        self._stateful = _tasks_of(
            each for each in subtopologies.items() if standby_replicas and each[1].is_stateful
        )
        self._slice = _Slice()
        self._processes: dict[str, _ProcessState] = {}
        self._previous_active: dict[_Task, _Member] = {}
        self._candidates: dict[_Task, list[_Candidate]] = {}
        standbys = len(self._stateful) * standby_replicas
        self._active_quota = _Quota(len(self._active), len(members))
        self._quota = _Quota(len(self._active) + standbys, len(members))

    def compute(self) -> Generator[None, None, TaskTargets]:
        """Compute the target of each member, in pieces."""
        for member_id, member in sorted(self._members.items()):
            yield from self._add_member(member_id, member)
        left = yield from self._keep_active(sorted(self._active, key=_by_partition))
        left.sort()
        by_load = self._by_load()
        for task in left:
            self._update_quotas(_add_to_least_loaded(by_load, task, active=True) or 0)
            if self._slice.is_over(TASK_WORK):
                yield
        yield from self._assign_standby()
        return self._targets()

    def _add_member(
        self, member_id: str, member: AssignmentMemberSpec
    ) -> Generator[None, None, None]:
        process = self._processes.setdefault(member.process_id, _ProcessState())
        process.counts[member_id] = 0
        process_and_member = member.process_id, member_id
        for task in _iter_tasks(member.assigned.active):
            self._previous_active[task] = process_and_member
            if self._slice.is_over(1):
                yield
        standbys = set(_iter_tasks(member.assigned.standby))
        for task in standbys:
            offset = member.task_offsets.get(task[0], {}).get(task[1], 0)
            self._add_candidate(task, _Candidate(False, -offset, process_and_member))
            if self._slice.is_over(1):
                yield
        for subtopology, offsets in member.task_offsets.items():
            for partition, offset in offsets.items():
                task = subtopology, partition
                if task not in standbys:
                    self._add_candidate(task, _Candidate(True, -offset, process_and_member))
                if self._slice.is_over(1):
                    yield
        if self._slice.is_over(1):
            yield

    def _add_candidate(self, task: _Task, candidate: _Candidate) -> None:
        self._candidates.setdefault(task, []).append(candidate)

    def _work_of(self, task: _Task) -> int:
        return TASK_WORK + len(self._candidates.get(task, ()))

    # -- active tasks

    def _keep_active(self, tasks: list[_Task]) -> Generator[None, None, list[_Task]]:
        """Keep active tasks on their members or standbys, and return the remaining tasks."""
        for find_member in (self._previous_active.get, self._least_loaded_standby):
            left = []
            for task in tasks:
                member = find_member(task)
                if member is not None and self._is_below_quota(member, self._active_quota):
                    self._update_quotas(self._assign(member, task, active=True))
                else:
                    left.append(task)
                if self._slice.is_over(self._work_of(task)):
                    yield
            tasks = left
        return tasks

    def _least_loaded_standby(self, task: _Task) -> _Member | None:
        return self._least_loaded(self._ranked(task), None)

    def _ranked(self, task: _Task) -> list[_Member]:
        """Return the members with a copy of a task, the most suitable one first."""
        candidates = self._candidates.get(task, ())
        return [each.member for each in sorted(candidates, key=itemgetter(0, 1))]

    def _assign(self, member: _Member, task: _Task, *, active: bool) -> int:
        process_id, member_id = member
        return self._processes[process_id].add(member_id, task, active=active)

    def _update_quotas(self, count: int) -> None:
        self._active_quota.update(count)
        self._quota.update(count)

    def _is_below_quota(self, member: _Member, quota: _Quota) -> bool:
        process_id, member_id = member
        return self._processes[process_id].counts[member_id] < quota.each

    def _least_loaded(self, members: Sequence[_Member], task: _Task | None) -> _Member | None:
        """Return the first member whose process does not have `task`, or one with a lower load."""
        best: _Member | None = None
        best_load, best_count = math.inf, math.inf
        for member in members:
            process = self._processes[member[0]]
            if task is not None and task in process.tasks:
                continue
            load, count = process.load(), process.counts[member[1]]
            if best is None or (load < best_load and count < best_count):
                best, best_load, best_count = member, load, count
        return best

    # -- standby tasks

    def _assign_standby(self) -> Generator[None, None, None]:
        left: list[tuple[_Task, int]] = []
        tasks = sorted(self._stateful, key=_by_partition, reverse=True)
        for task in tasks:
            missing = self._keep_standbys(task)
            if missing:
                left.append((task, missing))
            if self._slice.is_over(self._work_of(task)):
                yield
        left.sort(reverse=True)
        by_load = self._by_load()
        for task, missing in left:
            for _ in range(missing):
                given = _add_to_least_loaded(by_load, task, active=False)
                if given is None:
                    break  # fewer processes than replicas
                self._quota.update(given)
            if self._slice.is_over(TASK_WORK * missing):
                yield

    def _keep_standbys(self, task: _Task) -> int:
        """Keep standbys where the task or a standby was before, and return how many are missing."""
        for given in range(self._standby_replicas):
            member = self._find_standby_member(task)
            if member is None:
                return self._standby_replicas - given
            self._quota.update(self._assign(member, task, active=False))
        return 0

    def _find_standby_member(self, task: _Task) -> _Member | None:
        member = self._previous_active.get(task)
        if (
            member is not None
            and task not in self._processes[member[0]].tasks
            and self._is_below_quota(member, self._quota)
        ):
            return member
        member = self._least_loaded(self._ranked(task), task)
        if member is not None and self._is_below_quota(member, self._quota):
            return member
        return None

    def _by_load(self) -> _PriorityQueue[_ProcessState]:
        processes = (self._processes[each] for each in sorted(self._processes))
        return _PriorityQueue(_ProcessState.load, processes)

    # -- result

    def _targets(self) -> TaskTargets:
        targets = {}
        for member_id, member in self._members.items():
            process = self._processes[member.process_id]
            targets[member_id] = TasksTuple(
                _by_subtopology(process.active.get(member_id, ())),
                _by_subtopology(process.standby.get(member_id, ())),
            )
        return targets


def assign_tasks(
    members: Mapping[str, AssignmentMemberSpec],
    subtopologies: Mapping[str, ConfiguredSubtopology],
    standby_replicas: int,
) -> Generator[None, None, TaskTargets]:
    """Assign the tasks of a topology to members in pieces, and return the target of each member."""
    return _Assignment(members, subtopologies, standby_replicas).compute()


def _tasks_of(subtopologies: Iterable[tuple[str, ConfiguredSubtopology]]) -> list[_Task]:
    return [(name, index) for name, each in subtopologies for index in range(each.tasks)]


def _by_partition(task: _Task) -> tuple[int, str]:
    return task[1], task[0]


def _iter_tasks(tasks: Tasks) -> Iterable[_Task]:
    for subtopology, partitions in tasks.items():
        for partition in partitions:
            yield subtopology, partition


def _by_subtopology(tasks: Iterable[_Task]) -> Tasks:
    found: dict[str, list[int]] = {}
    for subtopology, partition in tasks:
        found.setdefault(subtopology, []).append(partition)
    return freeze_tasks(found.items())
