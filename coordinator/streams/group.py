"""A streams group of KIP-1071 and its members: the data, and the questions that it can answer.

It is a consumer group whose members share tasks instead of partitions. A task is one partition of all
topics that a subtopology reads; one member is to work on it (active), others may keep a copy of its
state at hand (standby, warm-up). Members of one instance of the application, a process, share its
disk: a process has a task once, whatever for. Epochs, targets and the way there are those of a
consumer group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse

from .topics import ConfiguredTopology
from .topology import StreamsTopology

Tasks: TypeAlias = Mapping[str, AbstractSet[int]]
"""Tasks by subtopology."""
ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
"""Tasks by subtopology, each with the epoch in which its member got it."""
Endpoint: TypeAlias = tuple[str, int]

NO_TASKS: Tasks = MappingProxyType({})
NO_ACTIVE_TASKS: ActiveTasks = MappingProxyType({})

LEAVES, LEAVES_FOR_A_WHILE, JOINS = -1, -2, 0
"""Epochs of a heartbeat that say what a member wants."""
FIRST_EPOCH = 1
"""Of a group without records, and of its target."""
NO_TOPOLOGY_EPOCH = -1
NOBODY: frozenset[str] = frozenset()


class TasksTuple(NamedTuple):
    """Active, standby and warm-up tasks of a member: its target, or the tasks it reports."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    def has_any(self, other: TasksTupleWithEpochs) -> bool:
        """Whether one of these tasks is among others, and there for the same purpose."""
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

    def lists(self) -> TasksTuple:
        """These tasks without epochs."""
        active = {each: frozenset(tasks) for each, tasks in self.active.items()}
        return TasksTuple(active, self.standby, self.warmup)


NO_TARGET = TasksTuple()
NOTHING = TasksTupleWithEpochs()


def keys_of(active: ActiveTasks) -> dict[str, AbstractSet[int]]:
    """Active tasks without their epochs."""
    return {subtopology: tasks.keys() for subtopology, tasks in active.items()}


class StreamsGroupState(StrEnum):
    """Where a group stands; the values are the names on the wire."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of its topology are missing, or not as they must be."""
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"

    @property
    def filter_name(self) -> str:
        """As ListGroups filters by it, in small letters."""
        return "not_ready" if self is StreamsGroupState.NOT_READY else self.value.lower()


class StreamsMemberState(Enum):
    """How far a member is; the values are those of its record."""

    STABLE = 1
    UNREVOKED = 2
    """It has to give tasks back, and has not said that it has."""
    UNRELEASED = 3
    """It waits for tasks that others have to give back."""
    UNKNOWN = 127
    """Of a later release; the member has to begin anew."""


@dataclass(frozen=True, slots=True)
class StreamsGroupMember:
    """One member. The timeout is ms; `assigned` is what it may use, `revoking` what it was told to
    give back."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ""
    endpoint: Endpoint | None = None
    """Where its instance answers queries."""
    tags: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: TasksTupleWithEpochs = NOTHING
    revoking: TasksTupleWithEpochs = NOTHING

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether it has all that the target of an epoch gives it."""
        return self.state is StreamsMemberState.STABLE and self.epoch == epoch

    def got_in(self, subtopology: str, partition: int) -> int | None:
        """The epoch in which it got an active task that it has or gives back; None of others."""
        for held in (self.assigned, self.revoking):
            epoch = held.active.get(subtopology, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


class StreamsGroup:
    """One streams group, as its records say.

    The attributes under "volatile" are not kept anywhere, and begin anew after a restart.
    """

    __slots__ = (
        "_active",
        "_standby",
        "_warmup",
        "assigned_at_ms",
        "assignment_configs",
        "assignment_epoch",
        "configured",
        "confirmed",
        "endpoint_epoch",
        "endpoint_rows",
        "epoch",
        "heard_ms",
        "id",
        "is_assigning",
        "members",
        "metadata_hash",
        "shutdown_member_id",
        "targets",
        "told_ms",
        "topics_version",
        "topology",
        "unreconciled",
        "validated_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.validated_epoch = 0
        """Of the topology whose topics were as they must be; NO_TOPOLOGY_EPOCH while they are not."""
        self.assignment_configs: Mapping[str, str] = {}
        """Settings with which tasks were shared."""
        self.assignment_epoch = FIRST_EPOCH
        self.assigned_at_ms = 0
        """Log time of the target, 0 if there is none or its time is not known."""
        self.members: dict[str, StreamsGroupMember] = {}
        self.targets: dict[str, TasksTuple] = {}
        self.topology: StreamsTopology | None = None
        self._active: dict[str, dict[int, str]] = {}
        self._standby: dict[str, dict[int, set[str]]] = {}
        self._warmup: dict[str, dict[int, set[str]]] = {}
        self.unreconciled: set[str] = set()
        """Members that are not stable at the epoch of the target."""
        # Volatile:
        self.heard_ms: dict[str, int] = {}
        """When each member was last heard of, in coordinator time."""
        self.told_ms: dict[str, int] = {}
        """When each member was last told its tasks, in coordinator time."""
        self.confirmed: set[str] = set()
        """Members that have said that they have the tasks which they were told."""
        self.configured: ConfiguredTopology | None = None
        """What became of the topology; None when somebody has to look."""
        self.topics_version = -1
        """The version of the cluster's topics that the group has seen."""
        self.is_assigning = False
        """A target is being computed beside clients."""
        self.shutdown_member_id: str | None = None
        """Who asked the whole application to shut down."""
        self.endpoint_epoch = 0
        """Rises when an instance that answers queries has other tasks."""
        self.endpoint_rows: dict[str, StreamsGroupHeartbeatResponse.EndpointPartitions] = {}
        """What of members has been made for answers."""

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if self.unreconciled:
            return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE

    def subscribes(self, topic: str) -> bool:
        """Whether members read a topic."""
        return bool(self.members) and self.topology is not None and topic in self.topology.sources

    # -- members

    def put(self, member: StreamsGroupMember) -> None:
        """A member is new, or is different now."""
        old = self.members.get(member.id)
        had = None if old is None else (old.process_id, old.assigned, old.revoking)
        if had != (member.process_id, member.assigned, member.revoking):
            if old is not None:
                self._release(old)
            self._hold(member)
        self.members[member.id] = member
        self.endpoint_rows.pop(member.id, None)
        if member.is_reconciled_to(self.assignment_epoch):
            self.unreconciled.discard(member.id)
        else:
            self.unreconciled.add(member.id)

    def remove(self, member_id: str) -> None:
        """A member is gone, if it was one."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member)
        self.unreconciled.discard(member_id)
        self.heard_ms.pop(member_id, None)
        self.told_ms.pop(member_id, None)
        self.confirmed.discard(member_id)
        self.endpoint_rows.pop(member_id, None)
        if not self.members:
            self.shutdown_member_id = None

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None:
        """The targets are those of an epoch, made at a log time."""
        self.assignment_epoch = epoch
        self.assigned_at_ms = at_ms
        self.unreconciled = {
            member.id for member in self.members.values() if not member.is_reconciled_to(epoch)
        }

    def configure(self, configured: ConfiguredTopology | None) -> None:
        """The topics of the topology are known, or somebody has to look again."""
        self.configured = configured
        self.endpoint_rows.clear()

    # -- who has which task

    def active_process(self, subtopology: str, partition: int) -> str | None:
        """The process that works on a task, or has to give it back."""
        return self._active.get(subtopology, {}).get(partition)

    def keeps(self, process_id: str, subtopology: str, partition: int) -> bool:
        """Whether a process has a task as standby or warm-up, or has to give it back."""
        for tasks in (self._standby, self._warmup):
            known = tasks.get(subtopology)
            if known is not None and process_id in known.get(partition, NOBODY):
                return True
        return False

    def _hold(self, member: StreamsGroupMember) -> None:
        for held in (member.assigned, member.revoking):
            for subtopology, tasks in held.active.items():
                processes = self._active.setdefault(subtopology, {})
                processes.update(dict.fromkeys(tasks, member.process_id))
            _hold(self._standby, held.standby, member.process_id)
            _hold(self._warmup, held.warmup, member.process_id)

    def _release(self, member: StreamsGroupMember) -> None:
        for held in (member.assigned, member.revoking):
            for subtopology, tasks in held.active.items():
                processes = self._active.get(subtopology, {})
                for partition in tasks:
                    # In a log that was cut short somebody else may have it already.
                    if processes.get(partition) == member.process_id:
                        del processes[partition]
                if not processes:
                    self._active.pop(subtopology, None)
            _release(self._standby, held.standby, member.process_id)
            _release(self._warmup, held.warmup, member.process_id)


def _hold(known: dict[str, dict[int, set[str]]], tasks: Tasks, process_id: str) -> None:
    for subtopology, partitions in tasks.items():
        processes = known.setdefault(subtopology, {})
        for partition in partitions:
            processes.setdefault(partition, set()).add(process_id)


def _release(known: dict[str, dict[int, set[str]]], tasks: Tasks, process_id: str) -> None:
    for subtopology, partitions in tasks.items():
        processes = known.get(subtopology, {})
        for partition in partitions:
            holders = processes.get(partition, set())
            holders.discard(process_id)
            if not holders:
                processes.pop(partition, None)
        if not processes:
            known.pop(subtopology, None)


def frozen(rows: Iterable[tuple[str, Iterable[int]]]) -> Tasks:
    """Tasks from the rows of a record or of a request."""
    return {subtopology: frozenset(partitions) for subtopology, partitions in rows} or NO_TASKS
