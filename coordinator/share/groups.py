"""Heartbeats and timers of share groups (KIP-932).

A heartbeat has five steps, and each step adds records for its changes:

1. The member is added, or its metadata is updated.
2. The group epoch is bumped if the member, the topics, or new share-partition states require a new
   target assignment.
3. A target assignment is computed for the new epoch (`target_assignments`).
4. The member gets its target immediately, unlike in a consumer group.
5. The share coordinator is asked to initialize partitions without a state (`initialization`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.share_groups import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

from ..common.events import printable
from ..common.modern_group import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_MEMBER_EPOCH,
    NAME_LENGTH_MAX,
    SUBSCRIPTION_MAX,
    MemberState,
    Target,
)
from ..common.result import ClientInfo, Event, Now, R, Result, append_error
from ..common.sessions import MemberSessions
from ..common.settings import ShareGroupSettings
from ..common.timers import Timers
from ..common.topics import KnownTopics
from ..state import ShardState
from .group import ShareGroup, ShareGroupMember, ShareGroupState
from .initialization import ShareStateInitializations
from .records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
)
from .target_assignments import ShareStep, ShareTargetAssignments

SESSION = "share session"
# Kinds of timers of share groups.
KINDS = frozenset({SESSION})

Settings: TypeAlias = "Callable[[str], ShareGroupSettings]"
Response: TypeAlias = ShareGroupHeartbeatResponse


class ShareGroups:
    """Share groups of one shard.

    The timer key of a session is (SESSION, group, member).

    Args:
        state: State of the shard.
        timers: Timers of the shard.
        settings: Returns the current settings of a group.
        topics: Topics of the cluster.
        initializations: Pending initializations of share-partition states.
    """

    def __init__(
        self,
        state: ShardState,
        timers: Timers[tuple[str, str, str]],
        settings: Settings,
        topics: KnownTopics,
        initializations: ShareStateInitializations,
    ) -> None:
        self._state = state
        self._timers = timers
        self._settings = settings
        self._topics = topics
        self._initializations = initializations
        self._target_assignments = ShareTargetAssignments(state, topics)
        self.sessions: MemberSessions[ShareGroupMember] = MemberSessions(SESSION, timers, settings)

    # -- heartbeats

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: ClientInfo, now: Now
    ) -> Result[Response]:
        """Handle a ShareGroupHeartbeat: a member joins, stays or leaves."""
        try:
            _check_request(request)
            if request.member_epoch == LEAVE_GROUP_MEMBER_EPOCH:
                return self._leave(request, now)
            return self._join_or_update(request, client, now)
        except KafkaError as error:
            return _error_result(error.code, error.message)

    def _join_or_update(
        self, request: ShareGroupHeartbeatRequest, client: ClientInfo, now: Now
    ) -> Result[Response]:
        settings = self._settings(request.group_id)
        result: Result[Response] = Result()
        group = self._group(request)
        _check_size(group, request.member_id, settings)
        step = ShareStep(group, result.records)
        step.before = _find_member(group, request)
        step.member = _updated_member(step.before, request, client)
        if step.is_new or step.member != step.before:
            step.records.append(member_record(group.id, step.member))
        is_bumped = self._advance(step)
        epoch, target = self._target_assignments.update_target(step, now, settings)
        self._reconcile(step, epoch, target, is_bumped=is_bumped)
        needs_assignment = (
            request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
            or request.subscribed_topic_names is not None
        )
        is_different = step.before.assigned != step.member.assigned
        result.response = Response(
            member_id=step.member.id,
            member_epoch=step.member.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            assignment=_assignment(step.member.assigned)
            if needs_assignment or is_different
            else None,
        )
        self.sessions.keep_alive(group, step.member, now, settings)
        self._initializations.request_missing(group, step.epoch, step.topics, now, result.records)
        result.work = step.work
        if is_bumped:
            _add_event(
                group.id, _describe_cause(step), step.epoch, ShareGroupState.STABLE, now, result
            )
        result.on_failure = self._undo(step) if result.records else None
        return result

    def _group(self, request: ShareGroupHeartbeatRequest) -> ShareGroup:
        """Return the existing group, or a new group.

        Raises:
            KafkaError: GROUP_ID_NOT_FOUND.
        """
        group_id = request.group_id
        if (
            request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
            and self._state.groups.get(group_id) is None
        ):
            return ShareGroup(group_id)
        return find_share_group(self._state, group_id)

    def _advance(self, step: ShareStep) -> bool:
        """Bump the group epoch if the step, the topics, or new share-partition states require it.

        Returns:
            True if the epoch was bumped.
        """
        group = step.group
        bump = step.member.topics != step.before.topics
        if group.assignment_epoch >= group.epoch:
            bump = group.lacks_partitions or bump
        step.topics = group.topics.keys()
        if not bump and group.topics_version == self._topics.version:
            return False
        group.is_initialization_checked = False
        known = None if step.is_new else step.before
        step.topics = group.topics_after(known, step.member)
        found = self._topics.hash_of(step.topics)
        group.topics_version = self._topics.version
        if not bump and found == group.metadata_hash:
            return False
        step.epoch += 1
        step.records.append(epoch_record(group.id, step.epoch, found))
        return True

    def _reconcile(self, step: ShareStep, epoch: int, target: Target, *, is_bumped: bool) -> None:
        """Assign the target to the member, limited to its subscribed topics."""
        member = step.member
        if member.is_reconciled_to(epoch) and not is_bumped:
            return
        reads = self._topics.ids_of(member.topics)
        changed = replace(
            member,
            state=MemberState.STABLE,
            epoch=epoch,
            previous_epoch=member.previous_epoch if member.epoch == epoch else member.epoch,
            assigned={each: target[each] for each in target if each in reads},
        )
        if changed != member:
            step.records.append(current_record(step.group.id, changed))
            step.member = changed

    def _undo(self, step: ShareStep) -> Callable[[ErrorCode, Now], Result[Response]]:
        """Return the function that undoes a step. The next heartbeat then repeats all checks."""

        def undo(code: ErrorCode, now: Now) -> Result[Response]:
            step.group.topics_version = -1
            self._initializations.forget(step.group)
            if step.is_new:
                self._timers.cancel((SESSION, step.group.id, step.member.id))
            return _error_result(append_error(code), None)

        return undo

    # -- members that leave

    def _leave(self, request: ShareGroupHeartbeatRequest, now: Now) -> Result[Response]:
        group = find_share_group(self._state, request.group_id)
        member = _existing_member(group, request.member_id)
        result = Result(Response(member_id=member.id, member_epoch=request.member_epoch))
        self._remove_member(group, member, f"member {member.id} left", now, result)
        result.on_failure = lambda code, now: _error_result(append_error(code), None)
        return result

    def _remove_member(
        self,
        group: ShareGroup,
        member: ShareGroupMember,
        cause: str,
        now: Now,
        result: Result[R],
        since_ms: int | None = None,
    ) -> None:
        """Remove a member. Its timer is left: it does nothing when it expires."""
        names = group.topics_after(member, None)
        epoch = group.epoch + 1
        result.records += member_tombstones(group.id, member.id)
        result.records.append(epoch_record(group.id, epoch, self._topics.hash_of(names)))
        state = ShareGroupState.STABLE
        if len(group.members) == 1:
            state = ShareGroupState.EMPTY
            result.records.append(target_epoch_record(group.id, epoch, 0))
        _add_event(group.id, cause, epoch, state, now, result, since_ms)

    # -- time

    def expire(self, key: tuple[str, str, str], now: Now) -> Result[None]:
        """Process an expired timer."""
        _, group_id, member_id = key
        result: Result[None] = Result()
        group = self._state.find_group(group_id, ShareGroup)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return result
        silent_since_ms = now.coordinator_ms - self._settings(group_id).session_timeout_ms
        last_heartbeat_ms = group.last_heartbeat_ms.get(member_id, silent_since_ms)
        since_ms = now.log_ms - (now.coordinator_ms - last_heartbeat_ms)
        cause = f"member {member_id} missed heartbeats"
        self._remove_member(group, member, cause, now, result, since_ms)
        result.on_failure = lambda code, now: self.sessions.retry(key, now)
        return result

    def resume(self, group: ShareGroup, now: Now) -> None:
        """Start the sessions of a loaded group, and repeat its pending initializations."""
        self.sessions.restart(group, now)
        self._initializations.repeat_pending(group, now)


def find_share_group(state: ShardState, group_id: str) -> ShareGroup:
    """Return a share group.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND.
    """
    group = state.groups.get(group_id)
    if isinstance(group, ShareGroup):
        return group
    if group is not None:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id[:255]} is not a share group."
        )
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id[:255]} not found.")


def _check_request(request: ShareGroupHeartbeatRequest) -> None:
    """Validate the fields of a request.

    Raises:
        KafkaError: A field is invalid.
    """
    if not request.group_id:
        _invalid("GroupId can't be empty.")
    if request.rack_id == "":
        _invalid("RackId can't be empty.")
    if request.member_epoch == JOIN_GROUP_MEMBER_EPOCH and not request.subscribed_topic_names:
        _invalid("SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_GROUP_MEMBER_EPOCH:
        _invalid("MemberEpoch is invalid.")
    if any(len(name or "") > NAME_LENGTH_MAX for name in (request.group_id, request.rack_id)):
        _invalid(f"GroupId and RackId may have at most {NAME_LENGTH_MAX} characters.")
    if len(request.subscribed_topic_names or ()) > SUBSCRIPTION_MAX:
        _invalid(f"A member may subscribe to at most {SUBSCRIPTION_MAX} topics.")


def _invalid(message: str) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_size(group: ShareGroup, member_id: str, settings: ShareGroupSettings) -> None:
    if len(group.members) >= settings.size_max and member_id not in group.members:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The share group is full: it has {settings.size_max} members (group.share.max.size).",
        )


def _find_member(group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareGroupMember:
    """Return the member that sent the heartbeat.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH.
    """
    epoch = request.member_epoch
    if epoch == JOIN_GROUP_MEMBER_EPOCH:
        return group.members.get(request.member_id) or ShareGroupMember(request.member_id)
    member = _existing_member(group, request.member_id)
    if epoch != member.epoch and not (epoch < member.epoch and epoch == member.previous_epoch):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member epoch is {member.epoch}, not {epoch}; the member must abandon all its "
            "partitions and rejoin.",
        )
    return member


def _existing_member(group: ShareGroup, member_id: str) -> ShareGroupMember:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {group.id}.",
        )
    return member


def _updated_member(
    member: ShareGroupMember, request: ShareGroupHeartbeatRequest, client: ClientInfo
) -> ShareGroupMember:
    """Return the member with the changes of a heartbeat. Null means unchanged."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=request.rack_id or member.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topics=member.topics if names is None else frozenset(names),
    )


def _assignment(assigned: Target) -> Response.Assignment:
    return Response.Assignment(
        topic_partitions=[
            Response.Topic(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )


def _error_result(code: ErrorCode, message: str | None) -> Result[Response]:
    return Result(Response(error_code=code, error_message=message))


def _describe_cause(step: ShareStep) -> str:
    """Return the cause of an epoch bump."""
    if step.is_new:
        return f"member {step.member.id} joined"
    if step.member.topics != step.before.topics:
        return f"member {step.member.id} changed its subscription"
    if step.group.lacks_partitions:
        return "share-partition states were initialized"
    return "topics have changed"


def _add_event(
    group_id: str,
    cause: str,
    epoch: int,
    state: ShareGroupState,
    now: Now,
    result: Result[R],
    since_ms: int | None = None,
) -> None:
    """Add an event: a change of the group and its cause."""
    result.events.append(
        Event(now.log_ms, group_id, printable(cause), epoch, state.value, since_ms)
    )
