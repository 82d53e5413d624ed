"""Group epochs and target assignments of streams groups (KIP-1071).

A step changes one member. A step bumps the group epoch if the member, the topics, or the group
configs require a new assignment. The target for the new epoch is computed at once, or after the
initial rebalance delay or the assignment interval. For many tasks, the work is done in the
background, and the members get the result with later heartbeats.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

from ..common.record import CoordinatorRecord
from ..common.result import Now, Pieces
from ..common.settings import StreamsGroupSettings
from ..common.target_assignments import (
    MEMBERS_AT_ONCE,
    SYNCHRONOUS_WORK_MAX,
    TargetRecords,
    is_current_group,
    is_within_interval,
    run_to_end,
    store_targets,
)
from ..common.timers import Timers
from ..common.topics import KnownTopics
from ..state import ShardState
from .assignor import AssignmentMemberSpec, TaskTargets, assign_tasks
from .group import NO_TOPOLOGY_EPOCH, StreamsGroup, StreamsGroupMember, StreamsGroupState
from .records import epoch_record, target_epoch_record, target_record, topology_record
from .tasks import NO_TARGET, NO_TASK_OFFSETS, TasksTuple
from .topics import ConfiguredTopology, configure
from .topology import StreamsTopology, topology_of

INITIAL_DELAY = "streams initial delay"
# Status codes; the others are in `topics`.
STALE_TOPOLOGY, SHUTDOWN_APPLICATION, ASSIGNMENT_DELAYED, MISSING_CLIENT_TAGS = 0, 4, 5, 6
STANDBY_REPLICAS = "num.standby.replicas"
RACK_AWARE_TAGS = "rack.aware.assignment.tags"

RequestTopology = StreamsGroupHeartbeatRequest.Topology
Status = StreamsGroupHeartbeatResponse.Status


class StreamsStep:
    """Changes of a group by one heartbeat of one member.

    Attributes:
        group: The group before the step. It may not be in the state yet.
        records: Records to store.
        before, member: The member before the step (empty if it is new) and after it.
        replaced: Static member whose tasks `before` has taken over, or None.
        topology, configured: Topology of the group, and its configuration.
        epoch, assignment_epoch, hash: Values of the group after the step.
        needs_new_epoch: True to bump the group epoch.
        statuses: Statuses of the response.
        work: Work to do in the background once the records are stored.
    """

    __slots__ = (
        "assignment_epoch",
        "before",
        "configured",
        "epoch",
        "group",
        "hash",
        "member",
        "needs_new_epoch",
        "records",
        "replaced",
        "statuses",
        "topology",
        "work",
    )

    def __init__(self, group: StreamsGroup, records: list[CoordinatorRecord]) -> None:
        self.group = group
        self.records = records
        self.before = self.member = StreamsGroupMember("")
        self.replaced: StreamsGroupMember | None = None
        self.topology: StreamsTopology | None = group.topology
        self.configured: ConfiguredTopology | None = None
        self.epoch = group.epoch
        self.assignment_epoch = group.assignment_epoch
        self.hash = group.metadata_hash
        self.needs_new_epoch = False
        self.statuses: list[Status] = []
        self.work: Pieces | None = None

    @property
    def is_new_member(self) -> bool:
        return self.replaced is None and self.member.id not in self.group.members

    @property
    def target(self) -> TasksTuple:
        """The stored target of the member, or of the static member that it replaces."""
        member = self.replaced or self.member
        return self.group.targets.get(member.id, NO_TARGET)

    def add_status(self, code: int, detail: str) -> None:
        """Add a status to the response."""
        self.statuses.append(Status(status_code=code, status_detail=detail))

    def members(self) -> list[StreamsGroupMember]:
        """Return all members after the step."""
        members = self.group.members | {self.member.id: self.member}
        if self.replaced is not None and self.replaced.id != self.member.id:
            del members[self.replaced.id]
        return list(members.values())

    def changed_targets(self, targets: TaskTargets) -> list[tuple[str, TasksTuple]]:
        """Return the targets that differ from the stored ones, by member ID."""
        known = self.group.targets
        if self.replaced is not None:
            known = known | {self.member.id: self.target}
        return [each for each in targets.items() if each[1] != known.get(each[0])]

    def state(self) -> StreamsGroupState:
        """Return the state of the group after the step."""
        if self.configured is None or not self.configured.is_ready:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        group = self.group
        is_new = self.assignment_epoch != group.assignment_epoch
        waiting = group.members if is_new else group.unreconciled
        own = {self.member.id, (self.replaced or self.member).id}
        waits = any(each not in own for each in waiting)
        if waits or not self.member.is_reconciled_to(self.assignment_epoch):
            return StreamsGroupState.RECONCILING
        return StreamsGroupState.STABLE


class StreamsTargetAssignments:
    """Topologies, epochs and target assignments of the streams groups of one shard."""

    def __init__(
        self, state: ShardState, timers: Timers[tuple[str, str, str]], topics: KnownTopics
    ) -> None:
        self._state = state
        self._timers = timers
        self._topics = topics

    # -- the topology

    def store_topology(self, step: StreamsStep, sent: RequestTopology | None) -> None:
        """Store the topology of the first member, and compare later members' topologies with it.

        Raises:
            KafkaError: INVALID_REQUEST, if the topology has changed.
        """
        group, known = step.group, step.group.topology
        if sent is not None:
            topology = topology_of(sent)
            if known is None:
                step.topology = topology
                step.records.append(topology_record(group.id, topology))
            elif known.epoch <= topology.epoch and known != topology:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet."
                )
        if known is not None and step.member.topology_epoch < known.epoch:
            step.add_status(
                STALE_TOPOLOGY,
                f"The member's topology epoch {step.member.topology_epoch} is behind the group's "
                f"topology epoch {known.epoch}.",
            )

    def configure(self, step: StreamsStep) -> ConfiguredTopology:
        """Return the configured topology, which is recomputed after changes of topics.

        Raises:
            KafkaError: STREAMS_INVALID_TOPOLOGY.
        """
        group, topology = step.group, step.topology
        if topology is None:  # its record was lost: a member must rejoin with it
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {group.id} has no topology.")
        configured = group.configured
        if configured is None or group.topics_version != self._topics.version:
            step.hash = self._topics.hash_of(topology.required)
            is_other = step.hash != group.metadata_hash
            step.needs_new_epoch = step.needs_new_epoch or is_other
            if configured is None or is_other:
                configured = configure(topology, self._topics.count_of)
                group.configure(configured)
        step.configured = configured
        return configured

    # -- the epoch

    def advance(self, step: StreamsStep, settings: StreamsGroupSettings) -> None:
        """Bump the group epoch if the step, topics or configs require it."""
        group, configured = step.group, step.configured
        assert configured is not None
        validated = configured.epoch if configured.is_ready else NO_TOPOLOGY_EPOCH
        configs = {STANDBY_REPLICAS: str(settings.standby_replicas)}
        if settings.rack_aware_tags:
            configs[RACK_AWARE_TAGS] = ",".join(settings.rack_aware_tags)
        if (
            step.needs_new_epoch
            or validated != group.validated_epoch
            or configs != group.assignment_configs
        ):
            step.epoch += 1
            step.records.append(epoch_record(group, step.epoch, step.hash, validated, configs))
        group.topics_version = self._topics.version

    # -- the target

    def update_target(
        self, step: StreamsStep, now: Now, settings: StreamsGroupSettings
    ) -> tuple[int, TasksTuple]:
        """Return the epoch and the target of the member, computing a new target if it is due."""
        group = step.group
        known = step.target
        delay = (INITIAL_DELAY, group.id, "")
        delay_ms = settings.initial_rebalance_delay_ms
        if not group.members and delay_ms > 0 and self._timers.deadline(delay) is None:
            self._timers.schedule(delay, now.coordinator_ms + delay_ms)
        if self._timers.deadline(delay) is not None:
            step.add_status(
                ASSIGNMENT_DELAYED,
                "Assignment delayed due to the configured initial rebalance delay.",
            )
            return group.assignment_epoch, NO_TARGET
        if step.epoch <= group.assignment_epoch or group.is_assigning:
            return group.assignment_epoch, known
        if is_within_interval(group.assigned_at_ms, settings.assignment_interval_ms, now):
            step.add_status(
                ASSIGNMENT_DELAYED,
                "Assignment delayed due to the configured assignment interval.",
            )
            return group.assignment_epoch, known
        assert step.configured is not None
        members = step.members()
        if _work_size(step.configured, len(members)) > SYNCHRONOUS_WORK_MAX:
            step.work = self.compute_in_background(group.id, now)
            return group.assignment_epoch, known
        standbys = settings.standby_replicas
        targets = run_to_end(_compute_targets(group, members, step.configured, standbys))
        step.records += [target_record(group.id, *each) for each in step.changed_targets(targets)]
        step.records.append(target_epoch_record(group.id, step.epoch, now.log_ms))
        step.assignment_epoch = step.epoch
        return step.epoch, targets[step.member.id]

    def compute_in_background(self, group_id: str, now: Now) -> Pieces:
        """Compute the target of a group in pieces, for the group epoch at the start."""
        group = self._state.find_group(group_id, StreamsGroup)
        if group is None or group.is_assigning or not group.members or group.configured is None:
            return
        group.is_assigning = True
        epoch = group.epoch
        standbys = int(group.assignment_configs.get(STANDBY_REPLICAS, "0"))
        members = tuple(group.members.values())
        targets = yield from _compute_targets(group, members, group.configured, standbys)
        is_current = partial(is_current_group, self._state.groups, group)
        records = TargetRecords(target_record, target_epoch_record)
        yield from store_targets(group, targets, epoch, now, is_current, records)


def _work_size(configured: ConfiguredTopology, members: int) -> int:
    """Return the amount of work for an assignment."""
    if not configured.is_ready:
        return members
    return members + sum(each.tasks for each in (configured.subtopologies or {}).values())


def _compute_targets(
    group: StreamsGroup,
    members: Iterable[StreamsGroupMember],
    configured: ConfiguredTopology,
    standby_replicas: int,
) -> Generator[None, None, TaskTargets]:
    """Run the assignor in pieces. If topics are missing, the targets are empty."""
    known: dict[str, AssignmentMemberSpec] = {}
    for count, member in enumerate(members, 1):
        reported = group.task_offsets.get(member.id, NO_TASK_OFFSETS)
        known[member.id] = AssignmentMemberSpec(
            member.process_id, member.assigned.without_epochs(), reported.offsets
        )
        if not count % MEMBERS_AT_ONCE:
            yield
    if configured.subtopologies is None or not configured.is_ready:
        return dict.fromkeys(known, NO_TARGET)
    return (yield from assign_tasks(known, configured.subtopologies, standby_replicas))
