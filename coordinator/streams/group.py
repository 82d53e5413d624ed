"""A streams group (KIP-1071) and its members: their data and queries on it.

A streams group is a consumer group whose members are assigned tasks instead of partitions. A task
is one partition index of all topics that a subtopology reads. One member processes it (active), and
others may have a copy of its state (standby, warm-up). The members of a process share its disk, so
a process has each task only once. Epochs, targets and reconciliation are those of a consumer group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

from kbroker.protocol.messages.streams_groups import StreamsGroupHeartbeatResponse

from ..common.static_members import drop_static, put_static
from .tasks import NOTHING, MemberTaskOffsets, TaskProcessIds, TasksTuple, TasksTupleWithEpochs
from .topics import ConfiguredTopology
from .topology import StreamsTopology

Endpoint: TypeAlias = tuple[str, int]

# Epoch of a group without records, and of its target.
FIRST_EPOCH = 1
# Intervals between two requests for a topology description, which double from the first one.
DESCRIPTION_BACKOFF_MS, DESCRIPTION_BACKOFF_MAX_MS = 30_000, 3_600_000
NO_TOPOLOGY_EPOCH = -1


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
        "static_ids",
        "targets",
        "task_offsets",
        "task_process_ids",
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
        # invalid.
        self.validated_epoch = NO_TOPOLOGY_EPOCH
        # Group configs that were used for the last assignment.
        self.assignment_configs: Mapping[str, str] = {}
        self.description_epochs = DescriptionEpochs()
        self.assignment_epoch = FIRST_EPOCH
        # Time of the target assignment in ms since 1970, or 0 if there is none or its time is unknown.
        self.assigned_at_ms = 0
        self.members: dict[str, StreamsGroupMember] = {}
        self.targets: dict[str, TasksTuple] = {}
        self.topology: StreamsTopology | None = None
        # Member IDs by instance ID.
        self.static_ids: dict[str, str] = {}
        self.task_process_ids = TaskProcessIds()
        # Members that have not reached the epoch of the target assignment.
        self.unreconciled: set[str] = set()
        # Volatile:
        # Time of each member's last heartbeat, in ms of the monotonic clock.
        self.last_heartbeat_ms: dict[str, int] = {}
        # Time at which each member was last sent its tasks, in ms of the monotonic clock.
        self.tasks_sent_ms: dict[str, int] = {}
        # Members that have reported the tasks that they were sent.
        self.confirmed: set[str] = set()
        # Offsets of tasks that members have reported, by member ID.
        self.task_offsets: dict[str, MemberTaskOffsets] = {}
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
                self._remove_tasks(old)
            for tasks in (member.assigned, member.revoking):
                self.task_process_ids.add(member.process_id, tasks)
        self.members[member.id] = member
        put_static(self.static_ids, old, member)
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
        self._remove_tasks(member)
        drop_static(self.static_ids, member)
        self.unreconciled.discard(member_id)
        self.last_heartbeat_ms.pop(member_id, None)
        self.tasks_sent_ms.pop(member_id, None)
        self.confirmed.discard(member_id)
        self.task_offsets.pop(member_id, None)
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

    def static_member(self, instance_id: str) -> StreamsGroupMember | None:
        """Return the member with an instance ID, or None."""
        member_id = self.static_ids.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def _remove_tasks(self, member: StreamsGroupMember) -> None:
        for tasks in (member.assigned, member.revoking):
            self.task_process_ids.remove(member.process_id, tasks)
