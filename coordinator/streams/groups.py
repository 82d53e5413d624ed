"""Heartbeats and timers of streams groups (KIP-1071).

A heartbeat has the same steps as in a consumer group (`consumer.groups`). The member's metadata is
updated, and the group epoch is bumped if necessary. A target is computed for the new epoch
(`target_assignments`), and the member makes its next step towards its target (`reconciliation`).

The first member sends the topology of the application. The topology and the existing topics
determine the required internal topics (`topics`), which the caller of the coordinator creates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, NoReturn, TypeAlias

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

from ..common.events import printable
from ..common.memory import TASK_OFFSETS, task_offset_bytes
from ..common.modern_group import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    UnknownMemberState,
)
from ..common.records import group_tombstone
from ..common.result import ClientInfo, Event, Now, Pieces, R, Result, append_error
from ..common.sessions import MemberSessions
from ..common.settings import StreamsGroupSettings
from ..common.static_members import check_owner, check_released, has_left_temporarily
from ..common.target_assignments import is_within_interval
from ..common.timers import Timers
from ..common.topics import KnownTopics
from ..state import ShardState
from .descriptions import requires_description
from .endpoints import partitions_by_endpoint
from .group import (
    StreamsGroup,
    StreamsGroupMember,
    StreamsGroupState,
    StreamsGroupTopologyDescriptionBackoff,
    StreamsMemberState,
)
from .reconciliation import reconcile
from .records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from .target_assignments import (
    INITIAL_DELAY,
    MISSING_CLIENT_TAGS,
    SHUTDOWN_APPLICATION,
    STALE_TOPOLOGY,
    StreamsStep,
    StreamsTargetAssignments,
)
from .tasks import (
    NO_TASK_OFFSETS,
    NOTHING,
    MemberTaskOffsets,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
    freeze_tasks,
    keys_of,
)
from .topics import ConfiguredInternalTopic, ConfiguredTopology
from .topology import TOPOLOGY_ENTRIES_MAX, check_topology

SESSION = "streams session"
REVOCATION = "streams revocation"
# Kinds of timers of streams groups.
STREAMS_KINDS = frozenset({SESSION, REVOCATION, INITIAL_DELAY})

# Maximum length, in characters, of an ID that a member chooses. Clients send UUIDs.
NAME_LENGTH_MAX = 1_000
# Maximum number of tasks that one member may report as owned.
TASKS_OWNED_MAX = 20_000
# Maximum number of client tags of one member.
TAGS_MAX = 100
# Values in heartbeat responses, with Kafka's defaults: how often members report the offsets of
# their tasks, and the lag in records of a task that counts as caught up.
TASK_OFFSET_INTERVAL_MS, ACCEPTABLE_RECOVERY_LAG = 60_000, 10_000

Request: TypeAlias = StreamsGroupHeartbeatRequest
Response: TypeAlias = StreamsGroupHeartbeatResponse
Settings: TypeAlias = "Callable[[str], StreamsGroupSettings]"


class StreamsHeartbeat(NamedTuple):
    """Result of a heartbeat, and the internal topics to create after the result is stored."""

    result: Result[Response]
    missing: Mapping[str, ConfiguredInternalTopic]


class StreamsGroups:
    """Streams groups of one shard.

    Timer keys:

    - (SESSION, group, member): session timeout.
    - (REVOCATION, group, member): deadline for revoking tasks.
    - (INITIAL_DELAY, group, ""): initial rebalance delay of a new group.

    Args:
        state: State of the shard.
        timers: Timers of the shard.
        settings: Returns the current settings of a group.
        topics: Topics of the cluster.
    """

    def __init__(
        self,
        state: ShardState,
        timers: Timers[tuple[str, str, str]],
        settings: Settings,
        topics: KnownTopics,
    ) -> None:
        self._state = state
        self._timers = timers
        self._settings = settings
        self._topics = topics
        self._target_assignments = StreamsTargetAssignments(state, timers, topics)
        self.sessions: MemberSessions[StreamsGroupMember] = MemberSessions(
            SESSION, timers, settings
        )

    # -- heartbeats

    def heartbeat(
        self, request: Request, client: ClientInfo, now: Now, version: int
    ) -> StreamsHeartbeat:
        """Handle a StreamsGroupHeartbeat: a member joins, stays or leaves."""
        try:
            _check_request(request)
            if request.member_epoch < JOIN_GROUP_MEMBER_EPOCH:
                return StreamsHeartbeat(self._leave(request, now), {})
            return self._join_or_update(request, client, now, version)
        except KafkaError as error:
            return StreamsHeartbeat(_error_result(error.code, error.message), {})
        except UnknownMemberState:
            message = (
                "The streams group member is in a unknown state. The member must abandon all its tasks "
                "and rejoin."
            )
            return StreamsHeartbeat(_error_result(ErrorCode.FENCED_MEMBER_EPOCH, message), {})

    def _join_or_update(
        self, request: Request, client: ClientInfo, now: Now, version: int
    ) -> StreamsHeartbeat:
        settings = self._settings(request.group_id)
        result: Result[Response] = Result()
        joins = request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
        group = self._group(request, joins, settings, result)
        step = StreamsStep(group, result.records)
        _find_member(step, request)
        step.member = _updated_member(step.before, request, client)
        if step.member != step.before or step.is_new_member:
            step.records.append(member_record(group.id, step.member))
            step.needs_new_epoch = request.instance_id is None or _affects_tasks(step)
        self._target_assignments.store_topology(step, request.topology)
        configured = self._target_assignments.configure(step)
        _check_tasks(configured, request)
        self._keep_task_offsets(group, request, client)
        self._target_assignments.advance(step, settings)
        epoch, target = self._target_assignments.update_target(step, now, settings)
        owned = _reported_tasks(request)
        self._reconcile(step, epoch, target, owned)
        if request.shutdown_application and group.shutdown_member_id is None:
            group.shutdown_member_id = request.member_id
        sends_tasks = (
            request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
            or step.member.assigned != step.before.assigned
            or _must_resend_tasks(group, step.member, owned, now, settings)
        )
        if sends_tasks:
            group.tasks_sent_ms[step.member.id] = now.coordinator_ms
            group.confirmed.discard(step.member.id)
        result.response = self._response(step, request, settings, sends_tasks=sends_tasks)
        if version >= 1:
            self._add_first_version_fields(step, result.response, settings, now)
        if step.replaced is not None:
            self._cancel_timers(group.id, step.replaced.id)
        self.sessions.keep_alive(group, step.member, now, settings)
        self._wait_for_revocation(group.id, step.member, step.before, now)
        result.work = step.work
        if step.replaced is not None or not isinstance(
            self._state.groups.get(group.id), StreamsGroup
        ):
            volatile = self._keep_volatile_data(group, step.member.id, now)
            result.work = chain(volatile, step.work or ())
        _add_step_event(step, now, result)
        result.on_failure = self._undo(step, settings) if result.records else None
        return StreamsHeartbeat(result, configured.missing)

    def _keep_volatile_data(self, group: StreamsGroup, member_id: str, now: Now) -> Pieces:
        """Keep the volatile data of a member after replay has created its group or replaced it."""
        known = self._state.find_group(group.id, StreamsGroup)
        if known is not None and member_id in known.members:
            known.last_heartbeat_ms.setdefault(member_id, now.coordinator_ms)
            known.tasks_sent_ms.setdefault(member_id, now.coordinator_ms)
            known.description_backoff = group.description_backoff
            known.task_offsets = group.task_offsets
        yield None

    def _keep_task_offsets(self, group: StreamsGroup, request: Request, client: ClientInfo) -> None:
        """Keep the task offsets that a member reports, if there is memory. Null means unchanged.

        Raises:
            KafkaError: INVALID_REQUEST.
        """
        if request.task_offsets is None and request.task_end_offsets is None:
            return
        known = group.task_offsets.get(request.member_id, NO_TASK_OFFSETS)
        new, new_end = map(_offsets_by_task, (request.task_offsets, request.task_end_offsets))
        offsets = MemberTaskOffsets(
            known.offsets if new is None else new,
            known.end_offsets if new_end is None else new_end,
        )
        memory, item = self._state.memory, (TASK_OFFSETS, request.member_id)
        size = sum(map(task_offset_bytes, offsets))
        if memory.limits.members.permits(size - memory.size_of(group.id, item), client.host):
            memory.hold(group.id, item, client.host, size)
            group.task_offsets[request.member_id] = offsets

    def _group(
        self,
        request: Request,
        joins: bool,
        settings: StreamsGroupSettings,
        result: Result[Response],
    ) -> StreamsGroup:
        """Return the existing group, or a new group, which may replace an empty classic group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND or GROUP_MAX_SIZE_REACHED.
        """
        group_id = request.group_id
        group = self._state.groups.get(group_id)
        if not isinstance(group, StreamsGroup):
            if group is None and joins:
                return StreamsGroup(group_id)
            if group is None:
                _reject_unknown_group(f"Streams group {group_id} not found.")
            if not joins or not self._state.has_empty_classic_group(group_id):
                _reject_unknown_group(f"Group {group_id} is not a streams group.")
            result.records.append(group_tombstone(group_id))
            return StreamsGroup(group_id)
        is_known = request.member_id in group.members or request.instance_id in group.static_ids
        if joins and not is_known and len(group.members) >= settings.size_max:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {settings.size_max} members.",
            )
        return group

    def _reconcile(
        self, step: StreamsStep, epoch: int, target: TasksTuple, owned: TasksTuple | None
    ) -> None:
        """Move the member one step towards its target."""
        member = reconcile(step.member, epoch, target, owned, step.group)
        if member != step.member:
            step.records.append(current_record(step.group.id, member))
            step.member = member

    def _response(
        self,
        step: StreamsStep,
        request: Request,
        settings: StreamsGroupSettings,
        *,
        sends_tasks: bool,
    ) -> Response:
        group, member, configured = step.group, step.member, step.configured
        assert configured is not None
        response = Response(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            task_offset_interval_ms=TASK_OFFSET_INTERVAL_MS,
            acceptable_recovery_lag=ACCEPTABLE_RECOVERY_LAG,
        )
        if sends_tasks:
            response.active_tasks = _rows(keys_of(member.assigned.active))
            response.standby_tasks = _rows(member.assigned.standby)
            response.warmup_tasks = _rows(member.assigned.warmup)
        if step.replaced is not None:
            group.endpoint_rows.pop(member.id, None)
        has_other_endpoint = member.endpoint != step.before.endpoint
        has_other_tasks = member.assigned != step.before.assigned
        if has_other_endpoint or has_other_tasks:
            group.endpoint_rows.pop(member.id, None)
        if has_other_endpoint or (has_other_tasks and member.endpoint is not None):
            group.endpoint_epoch += 1
        if group.endpoint_epoch != request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = partitions_by_endpoint(
                group, step.members(), configured, self._topics
            )
        if group.id in self._state.groups:
            response.endpoint_information_epoch = group.endpoint_epoch
        if configured.problem is not None:
            step.add_status(configured.problem.status, configured.problem.detail)
        if group.shutdown_member_id is not None:
            step.add_status(
                SHUTDOWN_APPLICATION,
                f"Streams group member {group.shutdown_member_id} encountered a fatal error and "
                "requested a shutdown for the entire application.",
            )
        response.status = step.statuses
        return response

    def _add_first_version_fields(
        self, step: StreamsStep, response: Response, settings: StreamsGroupSettings, now: Now
    ) -> None:
        """Add the parts of a response that clients understand since version 1."""
        tags = {key for key, _ in step.member.tags}
        missing = [each for each in settings.rack_aware_tags if each not in tags]
        if missing:
            step.add_status(
                MISSING_CLIENT_TAGS,
                f"Missing required client tags for rack-aware standby assignment: "
                f"[{', '.join(missing)}]. Configure them via 'client.tag.<tagKey>' in your Streams "
                "config.",
            )
        is_stale = any(each.status_code == STALE_TOPOLOGY for each in step.statuses)
        if not is_stale and step.topology is not None:
            response.topology_description_required = requires_description(
                step.group, step.topology, now
            )

    def _undo(
        self, step: StreamsStep, settings: StreamsGroupSettings
    ) -> Callable[[ErrorCode, Now], Result[Response]]:
        """Return the function that undoes a step. The next heartbeat then repeats all checks."""

        def undo(code: ErrorCode, now: Now) -> Result[Response]:
            group = step.group
            group.configure(None)
            group.description_backoff = StreamsGroupTopologyDescriptionBackoff()
            self._timers.cancel((REVOCATION, group.id, step.member.id))
            if step.member.id not in group.members:
                group.task_offsets.pop(step.member.id, None)
                self._state.memory.drop(group.id, (TASK_OFFSETS, step.member.id))
            for known in filter(None, (group.members.get(step.member.id), step.replaced)):
                self.sessions.keep_alive(group, known, now, settings)
                self._wait_for_revocation(group.id, known, None, now)
            return _error_result(append_error(code), None)

        return undo

    # -- members that leave

    def _leave(self, request: Request, now: Now) -> Result[Response]:
        group_id, member_id = request.group_id, request.member_id
        group = self._state.find_group(group_id, StreamsGroup)
        if group is None:
            is_other = self._state.groups.get(group_id) is not None
            problem = "is not a streams group." if is_other else "not found."
            _reject_unknown_group(f"Group {group_id} {problem}")
        if request.shutdown_application and group.shutdown_member_id is None:
            group.shutdown_member_id = member_id
        member = _existing_member(group, member_id, request.instance_id)
        response = Response(member_id=member_id, member_epoch=request.member_epoch, status=[])
        result = Result(response)
        if request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            self._leave_temporarily(group, member, now, result)
            return result
        self._remove_member(group, member, f"member {member_id} left", now, result)
        result.on_failure = lambda code, now: _error_result(append_error(code), None)
        return result

    def _leave_temporarily(
        self, group: StreamsGroup, member: StreamsGroupMember, now: Now, result: Result[Response]
    ) -> None:
        """Keep the tasks of a static member until it returns or its session expires."""
        active = {each: dict.fromkeys(tasks, 0) for each, tasks in member.assigned.active.items()}
        away = replace(
            member,
            epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
            assigned=member.assigned._replace(active=active),
            revoking=NOTHING,
        )
        result.records.append(current_record(group.id, away))
        self._wait_for_revocation(group.id, away, member, now)
        cause = f"static member {member.instance_id} left temporarily"
        _add_event(group.id, cause, group.epoch, group.state, now, result)

        def undo(code: ErrorCode, now: Now) -> Result[Response]:
            self._wait_for_revocation(group.id, member, None, now)
            return _error_result(append_error(code), None)

        result.on_failure = undo

    def _remove_member(
        self,
        group: StreamsGroup,
        member: StreamsGroupMember,
        cause: str,
        now: Now,
        result: Result[R],
        since_ms: int | None = None,
    ) -> None:
        """Remove a member. The other members get new targets with their next heartbeats."""
        result.records += member_tombstones(group.id, member.id)
        result.records.append(
            epoch_record(
                group,
                group.epoch + 1,
                group.metadata_hash,
                group.validated_epoch,
                group.assignment_configs,
            )
        )
        # The timers of removed members are left: they do nothing when they expire.
        state = group.state
        if len(group.members) == 1:
            state = StreamsGroupState.EMPTY
            result.records.append(target_epoch_record(group.id, group.epoch + 1, 0))
        elif state is not StreamsGroupState.NOT_READY:
            state = StreamsGroupState.ASSIGNING
        _add_event(group.id, cause, group.epoch + 1, state, now, result, since_ms)

    # -- time

    def _cancel_timers(self, group_id: str, member_id: str) -> None:
        for kind in (SESSION, REVOCATION):
            self._timers.cancel((kind, group_id, member_id))

    def _wait_for_revocation(
        self, group_id: str, member: StreamsGroupMember, before: StreamsGroupMember | None, now: Now
    ) -> None:
        """Start or cancel the revocation timer, which lasts for the member's rebalance timeout."""
        key = (REVOCATION, group_id, member.id)
        if member.state is not StreamsMemberState.UNREVOKED or has_left_temporarily(member):
            self._timers.cancel(key)
        elif before is None or (member.revoking, member.epoch) != (before.revoking, before.epoch):
            self._timers.schedule(key, now.coordinator_ms + max(member.rebalance_timeout_ms, 0))

    def expire(self, key: tuple[str, str, str], now: Now) -> Result[None]:
        """Process an expired timer."""
        kind, group_id, member_id = key
        result: Result[None] = Result()
        group = self._state.find_group(group_id, StreamsGroup)
        if group is None:
            return result
        if kind == INITIAL_DELAY:
            waits = group.epoch > group.assignment_epoch
            interval_ms = self._settings(group_id).assignment_interval_ms
            if waits and not is_within_interval(group.assigned_at_ms, interval_ms, now):
                result.work = self._target_assignments.compute_in_background(group_id, now)
            return result
        member = group.members.get(member_id)
        if member is None:
            return result
        since_ms = None
        if kind == SESSION:
            last_heartbeat_ms = group.last_heartbeat_ms.get(member_id, now.coordinator_ms)
            since_ms = now.log_ms - (now.coordinator_ms - last_heartbeat_ms)
            cause = f"member {member_id} missed heartbeats"
        elif member.state is StreamsMemberState.UNREVOKED:
            cause = f"member {member_id} did not revoke tasks in time"
        else:
            return result
        self._remove_member(group, member, cause, now, result, since_ms)
        result.on_failure = lambda code, now: self.sessions.retry(key, now)
        return result

    def resume(self, group: StreamsGroup, now: Now) -> None:
        """Start the sessions and revocation timers of a loaded group."""
        self.sessions.restart(group, now)
        for member in group.members.values():
            self._wait_for_revocation(group.id, member, None, now)

    def cancel_initial_delay(self, group_id: str) -> None:
        """Cancel the initial delay of a deleted group, so that a new group starts its own delay."""
        self._timers.cancel((INITIAL_DELAY, group_id, ""))


# -- requests


def _check_request(request: Request) -> None:
    """Validate the fields of a request.

    Raises:
        KafkaError: A field is invalid.
    """
    _check_supported(request)
    for name, value in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            _invalid(f"{name} can't be empty.")
    epoch = request.member_epoch
    task_lists = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if epoch == JOIN_GROUP_MEMBER_EPOCH:
        _check_join(request)
    elif epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(each is None for each in task_lists) and any(each is not None for each in task_lists):
        _invalid("If one task-type is non-null, all must be non-null.")
    if epoch != JOIN_GROUP_MEMBER_EPOCH and request.topology is not None:
        _invalid("Topology can only be provided when (re-)joining.")
    _check_lengths(request)


def _check_supported(request: Request) -> None:
    subtopologies = () if request.topology is None else request.topology.subtopologies
    if any(each.source_topic_regex for each in subtopologies):
        _invalid("Regular expressions for source topics are not supported yet.")


def _check_join(request: Request) -> None:
    if request.rebalance_timeout_ms == -1:
        _invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            _invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        _invalid("Topology must be non-null when (re-)joining.")
    else:
        check_topology(request.topology)


def _check_lengths(request: Request) -> None:
    endpoint = request.user_endpoint
    names = [request.group_id, request.member_id, request.instance_id or ""]
    names += [request.rack_id or "", request.process_id or ""]
    names += [endpoint.host] if endpoint is not None else []
    tags = request.client_tags or []
    names += [text for tag in tags[:TAGS_MAX] for text in (tag.key, tag.value)]
    if any(len(name) > NAME_LENGTH_MAX for name in names):
        _invalid(
            f"IDs, host names and tags of a member may have at most {NAME_LENGTH_MAX} characters."
        )
    if len(tags) > TAGS_MAX or len({tag.key for tag in tags}) < len(tags):
        _invalid(f"A member may have at most {TAGS_MAX} client tags with distinct keys.")
    for rows in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        if sum(1 + len(row.partitions) for row in rows or ()) > TASKS_OWNED_MAX:
            _invalid(f"A member may own at most {TASKS_OWNED_MAX} tasks; start more members.")
        if len({row.subtopology_id for row in rows or ()}) < len(rows or ()):
            _invalid("Subtopology IDs must be unique.")
    for offsets in (request.task_offsets, request.task_end_offsets):
        if len(offsets or ()) > TASKS_OWNED_MAX:
            _invalid(f"A member may report the offsets of at most {TASKS_OWNED_MAX} tasks.")
        ids = {each.subtopology_id for each in offsets or ()}
        if len(ids) > TOPOLOGY_ENTRIES_MAX or any(len(each) > NAME_LENGTH_MAX for each in ids):
            _invalid(
                f"Task offsets may have at most {TOPOLOGY_ENTRIES_MAX} subtopology IDs of at most "
                f"{NAME_LENGTH_MAX} characters."
            )


def _check_tasks(configured: ConfiguredTopology, request: Request) -> None:
    """Check that the reported tasks exist.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    if configured.subtopologies is None or not configured.is_ready:
        return
    for row in chain(
        request.active_tasks or (), request.standby_tasks or (), request.warmup_tasks or ()
    ):
        subtopology = configured.subtopologies.get(row.subtopology_id)
        if subtopology is None:
            _invalid(f"Subtopology {row.subtopology_id} does not exist in the topology.")
        for partition in row.partitions:
            if not 0 <= partition < subtopology.tasks:
                _invalid(
                    f"Task {partition} for subtopology {row.subtopology_id} is invalid. Number of "
                    f"tasks for this subtopology: {subtopology.tasks}"
                )


def _invalid(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


# -- members


def _find_member(step: StreamsStep, request: Request) -> None:
    """Find the member that sent the heartbeat, or the static member that it replaces.

    Raises:
        KafkaError: The member is unknown or fenced, or the instance ID belongs to another member.
    """
    group, member_id, instance_id = step.group, request.member_id, request.instance_id
    if request.member_epoch != JOIN_GROUP_MEMBER_EPOCH:
        step.before = _existing_member(group, member_id, instance_id)
        _check_epoch(step.before, request)
        return
    known = None if instance_id is None else group.static_member(instance_id)
    if known is None:
        step.before = group.members.get(member_id) or StreamsGroupMember(member_id)
        return
    check_released(known, member_id)
    step.replaced = known
    step.before = replace(known, id=member_id, epoch=0, previous_epoch=0)
    step.records += member_tombstones(group.id, known.id)
    step.records.append(member_record(group.id, step.before))
    step.records.append(target_record(group.id, member_id, step.target))
    step.records.append(current_record(group.id, step.before))


def _check_epoch(member: StreamsGroupMember, request: Request) -> None:
    """Check the member epoch of a heartbeat.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH.
    """
    epoch = request.member_epoch
    if epoch == member.epoch:
        return
    is_late = epoch == member.previous_epoch and epoch < member.epoch
    # Accept the previous epoch if the member owns only assigned tasks: it missed the response that
    # bumped its epoch.
    if is_late and _is_subset(_reported_tasks(request), member.assigned):
        return
    size = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {size} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _affects_tasks(step: StreamsStep) -> bool:
    """Return True if a change of a static member requires a new assignment."""
    before, after = step.before, step.member
    return (before.topology_epoch, before.rack_id, before.tags, before.process_id) != (
        after.topology_epoch,
        after.rack_id,
        after.tags,
        after.process_id,
    )


def _existing_member(
    group: StreamsGroup, member_id: str, instance_id: str | None
) -> StreamsGroupMember:
    if instance_id is not None:
        return check_owner(group.static_member(instance_id), member_id, instance_id)
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.id}."
        )
    return member


def _is_subset(owned: TasksTuple | None, assigned: TasksTupleWithEpochs) -> bool:
    if owned is None:
        return False
    pairs = zip(owned, (keys_of(assigned.active), assigned.standby, assigned.warmup), strict=True)
    return all(
        each in theirs and tasks <= theirs[each]
        for mine, theirs in pairs
        for each, tasks in mine.items()
    )


def _updated_member(
    member: StreamsGroupMember, request: Request, client: ClientInfo
) -> StreamsGroupMember:
    """Return the member with the changes of a heartbeat. Null and -1 mean unchanged."""
    topology, endpoint, tags = request.topology, request.user_endpoint, request.client_tags
    timeout_ms = request.rebalance_timeout_ms
    process_id = request.process_id
    keeps_endpoint = endpoint is None and request.member_epoch != JOIN_GROUP_MEMBER_EPOCH
    known_endpoint = member.endpoint if keeps_endpoint else None
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        topology_epoch=member.topology_epoch if topology is None else topology.epoch,
        process_id=member.process_id if process_id is None else process_id,
        endpoint=known_endpoint if endpoint is None else (endpoint.host, endpoint.port),
        tags=member.tags
        if tags is None
        else tuple(sorted((each.key, each.value) for each in tags)),
    )


def _must_resend_tasks(
    group: StreamsGroup,
    member: StreamsGroupMember,
    owned: TasksTuple | None,
    now: Now,
    settings: StreamsGroupSettings,
) -> bool:
    """Return True if the response must repeat the member's tasks, because one may have been lost.

    A member reports its tasks after it has received them. If it does not report them within a
    heartbeat interval, or if the coordinator has moved, the response repeats them. (Kafka sends the
    tasks once: if that response is lost, no member processes these tasks until the next
    assignment.)
    """
    if owned is not None:
        if owned == member.assigned.without_epochs():
            group.confirmed.add(member.id)
        else:
            group.confirmed.discard(member.id)
    elif member.assigned.is_empty and member.id in group.tasks_sent_ms:
        group.confirmed.add(member.id)
    if member.id in group.confirmed:
        return False
    tasks_sent_ms = group.tasks_sent_ms.get(member.id)
    return (
        tasks_sent_ms is None
        or now.coordinator_ms - tasks_sent_ms >= settings.heartbeat_interval_ms
    )


def _offsets_by_task(rows: list[Request.TaskOffset] | None) -> dict[str, dict[int, int]] | None:
    if rows is None:
        return None
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        partitions = found.setdefault(row.subtopology_id, {})
        if row.partition in partitions:
            _invalid(
                f"Task offsets contain a duplicate entry for subtopology {row.subtopology_id} and "
                f"partition {row.partition}."
            )
        partitions[row.partition] = row.offset
    return found


def _reported_tasks(request: Request) -> TasksTuple | None:
    """Return the tasks that the member reports as owned, or None if it reports nothing."""
    task_lists = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(each is None for each in task_lists):
        return None
    return TasksTuple(
        *(
            freeze_tasks((row.subtopology_id, row.partitions) for row in rows or ())
            for rows in task_lists
        )
    )


def _rows(tasks: Tasks) -> list[Response.TaskIds]:
    return [
        Response.TaskIds(subtopology_id=each, partitions=sorted(tasks[each]))
        for each in sorted(tasks)
    ]


# -- responses


def _error_result(code: ErrorCode, message: str | None) -> Result[Response]:
    return Result(Response(error_code=code, error_message=message, status=[]))


def _reject_unknown_group(message: str) -> NoReturn:
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


def _add_step_event(step: StreamsStep, now: Now, result: Result[R]) -> None:
    """Add an event for the changes of a heartbeat."""
    group, state = step.group, step.state()
    if step.replaced is not None:
        cause = f"static member {step.member.instance_id} rejoined as {step.member.id}"
    elif step.is_new_member:
        cause = f"member {step.member.id} joined"
    elif step.epoch != group.epoch:
        cause = "topics or group configs have changed"
        if step.records and step.needs_new_epoch and step.hash == group.metadata_hash:
            cause = f"member {step.member.id} changed its metadata"
    elif state is not group.state and state is StreamsGroupState.STABLE:
        cause = "all members are reconciled"
    else:
        return
    _add_event(group.id, cause, step.epoch, state, now, result)


def _add_event(
    group_id: str,
    cause: str,
    epoch: int,
    state: StreamsGroupState,
    now: Now,
    result: Result[R],
    since_ms: int | None = None,
) -> None:
    """Add an event: a change of the group and its cause."""
    result.events.append(
        Event(now.log_ms, group_id, printable(cause), epoch, state.value, since_ms)
    )
