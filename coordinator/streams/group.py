"""A streams group (KIP-1071) and its members: their data and queries on it.

A streams group is a consumer group whose members are assigned tasks instead of partitions. A task
is one partition index of all topics that a subtopology reads. One member processes it (active), and
others may have a copy of its state (standby, warm-up). The members of a process share its disk, so
a process has each task only once. Epochs, targets and reconciliation are those of a consumer group.
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

# Tasks (partition indexes) by subtopology ID.
Tasks: TypeAlias = Mapping[str, AbstractSet[int]]
# Tasks by subtopology ID, each with the epoch in which the member got it.
ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
Endpoint: TypeAlias = tuple[str, int]

NO_TASKS: Tasks = MappingProxyType({})
NO_ACTIVE_TASKS: ActiveTasks = MappingProxyType({})

# Member epochs with which a heartbeat leaves or joins the group.
LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH, JOIN_GROUP_MEMBER_EPOCH = -1, -2, 0
# Epoch of a group without records, and of its target.
FIRST_EPOCH = 1
# Intervals between two requests for a topology description, which double from the first one.
DESCRIPTION_BACKOFF_MS, DESCRIPTION_BACKOFF_MAX_MS = 30_000, 3_600_000
NO_TOPOLOGY_EPOCH = -1
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


class StreamsGroupState(StrEnum):
    """State of a streams group, with the names of the protocol."""

    EMPTY = "Empty"
    # Topics of the topology are missing or have wrong partition counts.
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"

    @property
    def filter_name(self) -> str:
        """Lower-case name that ListGroups filters use."""
        return "not_ready" if self is StreamsGroupState.NOT_READY else self.value.lower()


class StreamsMemberState(Enum):
    """Reconciliation state of a member, with the values of the member record."""

    STABLE = 1
    # The member must revoke tasks and has not confirmed the revocation yet.
    UNREVOKED = 2
    # The member waits for tasks that other members must revoke first.
    UNRELEASED = 3
    # The state was written by a later release; the member must rejoin.
    UNKNOWN = 127


@dataclass(frozen=True, slots=True)
class StreamsGroupMember:
    """A member of a streams group. The timeout is in milliseconds.

    Attributes:
        endpoint: Host and port at which the instance answers interactive queries.
        assigned: Tasks that the member may use.
        revoking: Tasks that the member has been asked to revoke.
    """

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_TOPOLOGY_EPOCH
    process_id: str = ""
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    assigned: TasksTupleWithEpochs = NOTHING
    revoking: TasksTupleWithEpochs = NOTHING

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has all tasks of the target of an epoch."""
        return self.state is StreamsMemberState.STABLE and self.epoch == epoch

    def assigned_in_epoch(self, subtopology: str, partition: int) -> int | None:
        """Return the epoch in which the member got an active task, or None."""
        for held in (self.assigned, self.revoking):
            epoch = held.active.get(subtopology, {}).get(partition)
            if epoch is not None:
                return epoch
        return None


class DescriptionEpochs(NamedTuple):
    """Epochs of topologies by the state of their descriptions (KIP-1331).

    Attributes:
        stored: Epoch of the description that a plugin of Kafka stores. kbroker keeps it for Kafka.
        failed: Epoch of the topology whose description was permanently rejected.
    """

    stored: int = NO_TOPOLOGY_EPOCH
    failed: int = NO_TOPOLOGY_EPOCH


class StreamsGroupTopologyDescriptionBackoff:
    """Times of the requests for the description of a group's topology (KIP-1331)."""

    __slots__ = ("_interval_ms", "_next_ms", "_topology_epoch")

    def __init__(self) -> None:
        self._topology_epoch = NO_TOPOLOGY_EPOCH
        self._interval_ms = self._next_ms = 0

    def arm_if_not_active(self, topology_epoch: int, coordinator_ms: int) -> bool:
        """Return True if a member shall be asked now, and wait longer before the next time."""
        if topology_epoch != self._topology_epoch:
            self._topology_epoch, self._interval_ms = topology_epoch, 0
        elif coordinator_ms < self._next_ms:
            return False
        self._interval_ms = min(
            2 * self._interval_ms or DESCRIPTION_BACKOFF_MS, DESCRIPTION_BACKOFF_MAX_MS
        )
        self._next_ms = coordinator_ms + self._interval_ms
        return True


class StreamsGroup:
    """A streams group, as stored in its records.

    The volatile attributes are not stored, and have their initial values after loading.
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
        "description_backoff",
        "description_epochs",
        "endpoint_epoch",
        "endpoint_rows",
        "epoch",
        "id",
        "is_assigning",
        "last_heartbeat_ms",
        "members",
        "metadata_hash",
        "shutdown_member_id",
        "targets",
        "tasks_sent_ms",
        "topics_version",
        "topology",
        "unreconciled",
        "validated_epoch",
    )

    def __init__(self, group_id: str) -> None:
        self.id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        # Epoch of the topology whose topics were validated, or NO_TOPOLOGY_EPOCH if they are
        # invalid. As in Kafka it is 0 until the first record of a group epoch sets it.
        self.validated_epoch = 0
        # Group configs that were used for the last assignment.
        self.assignment_configs: Mapping[str, str] = {}
        self.description_epochs = DescriptionEpochs()
        self.assignment_epoch = FIRST_EPOCH
        # Time of the target assignment in ms since 1970, or 0 if there is none or its time is unknown.
        self.assigned_at_ms = 0
        self.members: dict[str, StreamsGroupMember] = {}
        self.targets: dict[str, TasksTuple] = {}
        self.topology: StreamsTopology | None = None
        self._active: dict[str, dict[int, str]] = {}
        self._standby: dict[str, dict[int, set[str]]] = {}
        self._warmup: dict[str, dict[int, set[str]]] = {}
        # Members that have not reached the epoch of the target assignment.
        self.unreconciled: set[str] = set()
        # Volatile:
        # Time of each member's last heartbeat, in ms of the monotonic clock.
        self.last_heartbeat_ms: dict[str, int] = {}
        # Time at which each member was last sent its tasks, in ms of the monotonic clock.
        self.tasks_sent_ms: dict[str, int] = {}
        # Members that have reported the tasks that they were sent.
        self.confirmed: set[str] = set()
        # Configured topology; None if it must be recomputed.
        self.configured: ConfiguredTopology | None = None
        # Version of the cluster's topics that the group has last processed.
        self.topics_version = -1
        # True while a target assignment is computed in the background.
        self.is_assigning = False
        # Member that requested a shutdown of the application.
        self.shutdown_member_id: str | None = None
        # Times of the requests for the topology description.
        self.description_backoff = StreamsGroupTopologyDescriptionBackoff()
        # Incremented when the tasks of a member with an endpoint change.
        self.endpoint_epoch = 0
        # Cached response rows by member ID.
        self.endpoint_rows: dict[str, StreamsGroupHeartbeatResponse.EndpointPartitions] = {}

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
        """Return True if members read a topic."""
        return bool(self.members) and self.topology is not None and topic in self.topology.sources

    # -- members

    def put(self, member: StreamsGroupMember) -> None:
        """Add or update a member."""
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
        """Remove a member, if it exists."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member)
        self.unreconciled.discard(member_id)
        self.last_heartbeat_ms.pop(member_id, None)
        self.tasks_sent_ms.pop(member_id, None)
        self.confirmed.discard(member_id)
        self.endpoint_rows.pop(member_id, None)
        if not self.members:
            self.shutdown_member_id = None

    def set_assignment_epoch(self, epoch: int, at_ms: int) -> None:
        """Set the epoch of the target assignment and the time at which it was computed (ms since 1970)."""
        self.assignment_epoch = epoch
        self.assigned_at_ms = at_ms
        self.unreconciled = {
            member.id for member in self.members.values() if not member.is_reconciled_to(epoch)
        }

    def configure(self, configured: ConfiguredTopology | None) -> None:
        """Set the configured topology, or None if it must be recomputed."""
        self.configured = configured
        self.endpoint_rows.clear()

    # -- task holders

    def active_process(self, subtopology: str, partition: int) -> str | None:
        """Return the process that has a task as active or must still revoke it."""
        return self._active.get(subtopology, {}).get(partition)

    def has_standby_or_warmup(self, process_id: str, subtopology: str, partition: int) -> bool:
        """Return True if a process has a task as standby or warm-up, or must still revoke it."""
        for tasks in (self._standby, self._warmup):
            known = tasks.get(subtopology)
            if known is not None and process_id in known.get(partition, NO_PROCESSES):
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
                    # Another process already has the task if a damaged log lacks the record with
                    # which this member revoked it.
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


def freeze_tasks(rows: Iterable[tuple[str, Iterable[int]]]) -> Tasks:
    """Return tasks from the rows of a record or of a request."""
    return {subtopology: frozenset(partitions) for subtopology, partitions in rows} or NO_TASKS
