"""Heartbeats and timers of consumer groups (KIP-848).

A heartbeat contains only changed fields, and so does its response: null means unchanged. A
heartbeat has four steps, and each step adds records for its changes:

1. The member is added, or its metadata is updated.
2. The group epoch is bumped if the member or the topics require a new assignment.
3. A target assignment is computed for the new epoch (`target_assignments`).
4. The member makes its next step towards its target (`reconciliation`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TypeAlias
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

from ..classic.group import ClassicGroup
from ..common.events import printable, some_of
from ..common.modern_group import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    NAME_LENGTH_MAX,
    NOTHING,
    SUBSCRIPTION_MAX,
    Assigned,
    MemberState,
    Target,
    UnknownMemberState,
)
from ..common.result import ClientInfo, Event, Now, R, Result, append_error
from ..common.sessions import MemberSessions, SessionSettings
from ..common.settings import ConsumerGroupSettings
from ..common.static_members import check_owner, check_released, has_left_temporarily
from ..common.timers import Timers
from ..common.topics import KnownTopics
from ..state import ShardState
from .conversion import Conversion
from .group import ConsumerGroup, ConsumerGroupMember, ConsumerGroupState, same_partitions
from .reconciliation import Holder, Owned, reconcile
from .records import current_record, member_record, member_tombstones, target_record
from .target_assignments import Step, TargetAssignments, TopicRights

SESSION = "consumer session"
REVOCATION = "revocation"
JOIN = "classic join"
SYNC = "classic sync"
# Kinds of timers of consumer groups.
KINDS = frozenset({SESSION, REVOCATION, JOIN, SYNC})

# Maximum number of partitions that one member may report as owned.
OWNED_MAX = 50_000

Settings: TypeAlias = "Callable[[str], ConsumerGroupSettings]"
Response: TypeAlias = ConsumerGroupHeartbeatResponse


class ConsumerSessions(MemberSessions[ConsumerGroupMember]):
    """Sessions of consumer group members. Classic members have their own session timeout."""

    def timeout_ms(self, member: ConsumerGroupMember, settings: SessionSettings) -> int:
        classic = member.classic
        return settings.session_timeout_ms if classic is None else classic.session_timeout_ms


class ConsumerGroups:
    """Consumer groups of one shard.

    Timer keys:

    - (SESSION, group, member): session timeout.
    - (REVOCATION, group, member): deadline for revoking partitions.
    - (JOIN, group, member): deadline for a classic member to rejoin.
    - (SYNC, group, member): deadline for a classic member to send SyncGroup after JoinGroup.

    Args:
        state: State of the shard.
        timers: Timers of the shard.
        settings: Returns the current settings of a group.
        topics: Topics of the cluster.
        conversion: Converter between group types.
        new_uuid: Source of member IDs.
    """

    def __init__(
        self,
        state: ShardState,
        timers: Timers[tuple[str, str, str]],
        settings: Settings,
        topics: KnownTopics,
        conversion: Conversion,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._state = state
        self._timers = timers
        self._settings = settings
        self._topics = topics
        self._conversion = conversion
        self._new_uuid = new_uuid
        self.target_assignments = TargetAssignments(state, topics)
        self.sessions = ConsumerSessions(SESSION, timers, settings)

    # -- heartbeats

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        now: Now,
        version: int,
        rights: TopicRights | None = None,
    ) -> Result[Response]:
        """Handle a ConsumerGroupHeartbeat: a member joins, stays or leaves.

        Args:
            request: The request.
            client: Client that sent the request.
            now: Current time.
            version: Version of the request.
            rights: Topics that the client may describe, or None for all.
        """
        settings = self._settings(request.group_id)
        try:
            _check_request(request, version, settings)
            if request.member_epoch < JOIN_GROUP_MEMBER_EPOCH:
                return self._leave(request, now)
            return self._join_or_update(request, client, now, settings, rights)
        except KafkaError as error:
            return _error_result(error.code, error.message)
        except UnknownMemberState:
            return _error_result(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The state of the member was written by a later release; the member must abandon all its "
                "partitions and rejoin.",
            )

    def _join_or_update(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        now: Now,
        settings: ConsumerGroupSettings,
        rights: TopicRights | None,
    ) -> Result[Response]:
        result: Result[Response] = Result()
        group = self._group(request, settings, now, result)
        step = Step(group, result.records)
        if group.is_full_for(request.member_id, request.instance_id, settings.size_max):
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group is full: it has {settings.size_max} members "
                "(group.consumer.max.size).",
            )
        owned = _reported_partitions(request)
        self._find_member(step, request, owned)
        step.member = _updated_member(step.before, request, client)
        self.put_member(step)
        self.target_assignments.advance(step, now, settings, rights)
        epoch, target = self.target_assignments.update_target(step, now, settings)
        self.reconcile(step, epoch, target, owned)
        needs_assignment = request.member_epoch == JOIN_GROUP_MEMBER_EPOCH or _is_full(request)
        is_new = needs_assignment or not same_partitions(step.before.assigned, step.member.assigned)
        result.response = Response(
            member_id=step.member.id,
            member_epoch=step.member.epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            assignment=_assignment(step.member.assigned) if is_new else None,
        )
        if not isinstance(self._state.groups.get(group.id), ConsumerGroup):
            self.resume(group, now)
        self.finish(step, result, now, settings)
        result.on_failure = self.undo(step, settings) if result.records else None
        return result

    def _group(
        self,
        request: ConsumerGroupHeartbeatRequest,
        settings: ConsumerGroupSettings,
        now: Now,
        result: Result[Response],
    ) -> ConsumerGroup:
        """Return the existing group, a converted classic group, or a new group."""
        group_id = request.group_id
        known = self._state.groups.get(group_id)
        if isinstance(known, ConsumerGroup):
            return known
        classic = known if isinstance(known, ClassicGroup) else None
        joins = request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
        if known is None:
            if joins:
                return ConsumerGroup(group_id)
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if classic is None or not joins:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group."
            )
        return self._conversion.to_consumer_group(classic, settings, now, result)

    def _find_member(
        self, step: Step, request: ConsumerGroupHeartbeatRequest, owned: Owned | None
    ) -> None:
        """Find the member that sent the heartbeat.

        Raises:
            KafkaError: The member is unknown or fenced.
        """
        group, joins = step.group, request.member_epoch == JOIN_GROUP_MEMBER_EPOCH
        member_id = request.member_id or str(self._new_uuid())
        known = group.members.get(member_id)
        if request.instance_id is not None:
            known = group.static_member(request.instance_id)
            if (
                known is not None
                and joins
                and (known.id != member_id or has_left_temporarily(known))
            ):
                self.replace_member(step, known, member_id)
                return
            if known is not None or not joins:
                known = check_owner(known, member_id, request.instance_id)
        if known is None and not joins:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {group.id}.",
            )
        step.before = known or ConsumerGroupMember(member_id)
        _check_epoch(step.before, request.member_epoch, owned)

    def replace_member(
        self, step: Step, known: ConsumerGroupMember, member_id: str, *, is_classic: bool = False
    ) -> None:
        """Replace the member ID of a returning static member, which keeps its assignment.

        Raises:
            KafkaError: UNRELEASED_INSTANCE_ID, if the previous member has not left.
        """
        if known.classic is None and not is_classic:
            check_released(known, member_id)
        step.replaced = known
        step.before = known._replace(
            id=member_id, epoch=0, previous_epoch=0, state=MemberState.STABLE
        )
        step.records += member_tombstones(step.group.id, known.id)

    def put_member(self, step: Step) -> None:
        """Add the records of a member that is new, changed, or has a new member ID."""
        group, member = step.group, step.member
        if step.replaced is not None:
            step.records.append(member_record(group.id, member))
            step.records.append(target_record(group.id, member.id, group.target_of(step.replaced)))
            step.records.append(current_record(group.id, member))
        elif member.id not in group.members or (
            member is not step.before and member != step.before
        ):
            step.records.append(member_record(group.id, member))

    def reconcile(self, step: Step, epoch: int, target: Target, owned: Owned | None) -> None:
        """Move the member one step towards its target."""
        group = step.group
        replaced = step.replaced
        has_changed = step.member.topics != step.before.topics or (
            (step.member.pattern or "") != (step.before.pattern or "")
        )
        is_known = replaced is None and step.member.id in group.members
        if is_known and not has_changed and step.member.is_reconciled_to(epoch):
            return  # the most common case
        member = reconcile(
            step.member,
            epoch,
            target,
            self._subscribed(step),
            owned,
            group.holder if replaced is None else _holder_without(group, replaced.id),
            has_new_subscription=has_changed,
        )
        if member != step.member:
            step.records.append(current_record(group.id, member))
            step.member = member
        elif replaced is None and member.id not in group.members:
            step.records.append(current_record(group.id, member))

    def _subscribed(self, step: Step) -> frozenset[UUID]:
        """Return the topics whose partitions the member may have.

        While the topics that the member may describe are being resolved, it keeps its assigned
        topics.
        """
        member = step.member
        found = self._topics.ids_of(step.group.topics_of(member, step.resolved))
        if step.is_described:
            return found
        return self._topics.ids_of(member.topics) | (found & member.assigned.keys())

    def finish(
        self, step: Step, result: Result[R], now: Now, settings: ConsumerGroupSettings
    ) -> None:
        """Set the timers of the member, and add an event if the group has changed."""
        group, member = step.group, step.member
        if step.replaced is not None:
            self.forget_timers(group.id, step.replaced.id)
        if step.before.classic is not None and member.classic is None:
            self.forget_timers(group.id, member.id)
        self.sessions.keep_alive(group, member, now, settings)
        self._wait_for_revocation(group.id, member, step.before, now)
        if step.work is not None:
            result.work = chain(result.work or (), step.work)
        if not result.records:
            return  # nothing has changed
        state = step.state()
        if step.replaced is not None:
            cause = f"static member {member.instance_id} rejoined as {member.id}"
        elif step.previous_member is None:
            cause = f"member {member.id} joined"
        elif step.epoch != group.epoch:
            other = member.topics != step.before.topics or member.pattern != step.before.pattern
            cause = (
                f"member {member.id} changed its subscription" if other else "topics have changed"
            )
        elif state is not group.state and state is ConsumerGroupState.STABLE:
            cause = "all members are reconciled"
        else:
            return
        _add_event(group.id, cause, step.epoch, state, now, result)

    def undo(
        self, step: Step, settings: ConsumerGroupSettings
    ) -> Callable[[ErrorCode, Now], Result[Response]]:
        """Return the function that undoes a step. The next heartbeat then repeats all checks."""

        def undo(code: ErrorCode, now: Now) -> Result[Response]:
            group = step.group
            group.topics_version = group.patterns_version = -1
            step.restore()
            known = group.members.get(step.before.id)
            self._timers.cancel((REVOCATION, group.id, step.member.id))
            for member in filter(None, (known, step.replaced)):
                self.sessions.keep_alive(group, member, now, settings)
                self._wait_for_revocation(group.id, member, None, now)
            code = append_error(code)
            return _error_result(code, None)

        return undo

    # -- members that leave

    def _leave(self, request: ConsumerGroupHeartbeatRequest, now: Now) -> Result[Response]:
        group = self._state.find_group(request.group_id, ConsumerGroup)
        if group is None:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {request.group_id} not found."
            )
        member = self.find(group, request.member_id, request.instance_id)
        response = Response(member_id=request.member_id, member_epoch=request.member_epoch)
        result = Result(response)
        if (
            request.instance_id is not None
            and request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH
        ):
            away = member._replace(
                epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
                revoking=NOTHING,
                assigned={
                    each: dict.fromkeys(member.assigned[each], 0) for each in member.assigned
                },
            )
            result.records.append(current_record(group.id, away))
            self._wait_for_revocation(group.id, away, member, now)
            cause = f"static member {member.instance_id} left temporarily"
            _add_event(group.id, cause, group.epoch, group.state, now, result)
        else:
            self.remove_members(group, [member], f"member {member.id} left", now, result)

        def undo(code: ErrorCode, now: Now) -> Result[Response]:
            self._wait_for_revocation(group.id, member, None, now)
            return _error_result(append_error(code), None)

        result.on_failure = undo
        return result

    def find(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> ConsumerGroupMember:
        """Return the member with this member ID and instance ID.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
        """
        if instance_id is not None:
            return check_owner(group.static_member(instance_id), member_id, instance_id)
        member = group.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {group.id}.",
            )
        return member

    def remove_members(
        self,
        group: ConsumerGroup,
        members: list[ConsumerGroupMember],
        cause: str,
        now: Now,
        result: Result[R],
        since_ms: int | None = None,
    ) -> None:
        """Remove members, and convert the group if only classic members remain."""
        removed = {member.id for member in members}
        left = [member for member in group.members.values() if member.id not in removed]
        if self.should_downgrade(group.id, left):
            generation = group.epoch
            self._conversion.to_classic_group(group, left, generation, cause, now, result)
            return
        result.records += self.target_assignments.remove_members(group, members)
        # The timers of removed members are left: they do nothing when they expire.
        state = ConsumerGroupState.ASSIGNING if left else ConsumerGroupState.EMPTY
        _add_event(group.id, cause, group.epoch + 1, state, now, result, since_ms)

    def should_downgrade(self, group_id: str, members: Collection[ConsumerGroupMember]) -> bool:
        """Return True if a group with these members must be converted to a classic group."""
        return (
            bool(members)
            and all(member.classic is not None for member in members)
            and self._settings(group_id).migration.downgrades
            and self._conversion.fits_classic_size(len(members))
        )

    # -- time

    def forget_timers(self, group_id: str, member_id: str) -> None:
        for kind in KINDS:
            self._timers.cancel((kind, group_id, member_id))

    def _wait_for_revocation(
        self,
        group_id: str,
        member: ConsumerGroupMember,
        before: ConsumerGroupMember | None,
        now: Now,
    ) -> None:
        """Start or cancel the revocation timer, which lasts for the member's rebalance timeout."""
        key = (REVOCATION, group_id, member.id)
        is_revoking = member.state is MemberState.UNREVOKED and not has_left_temporarily(member)
        if not is_revoking or member.classic is not None:
            self._timers.cancel(key)
        elif before is None or member.revoking != before.revoking:
            self._timers.schedule(key, now.coordinator_ms + max(member.rebalance_timeout_ms, 0))

    def expire(self, key: tuple[str, str, str], now: Now) -> Result[None]:
        """Process an expired timer."""
        kind, group_id, member_id = key
        result: Result[None] = Result()
        group = self._state.find_group(group_id, ConsumerGroup)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            return result
        since_ms = None
        if kind == SESSION:
            last_heartbeat_ms = group.last_heartbeat_ms.get(member_id, now.coordinator_ms)
            since_ms = now.log_ms - (now.coordinator_ms - last_heartbeat_ms)
            cause = f"member {member_id} missed heartbeats"
        elif kind in (JOIN, SYNC) and member.classic is not None:
            cause = f"member {member_id} did not {'join' if kind == JOIN else 'sync'} in time"
        elif kind == REVOCATION and member.state is MemberState.UNREVOKED:
            cause = f"member {member_id} did not revoke partitions in time"
        else:
            return result
        self.remove_members(group, [member], cause, now, result, since_ms)
        result.on_failure = lambda code, now: self.sessions.retry(key, now)
        return result

    def resume(self, group: ConsumerGroup, now: Now) -> None:
        """Start the sessions and revocation timers of a loaded group."""
        self.sessions.restart(group, now)
        for member in group.members.values():
            self._wait_for_revocation(group.id, member, None, now)


def _holder_without(group: ConsumerGroup, replaced_id: str) -> Holder:
    """Return a `Holder` that ignores a replaced member, whose partitions its successor keeps."""

    def holder(topic_id: UUID, partition: int) -> str | None:
        found = group.holder(topic_id, partition)
        return None if found == replaced_id else found

    return holder


def _check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, settings: ConsumerGroupSettings
) -> None:
    """Validate the fields of a request.

    Raises:
        KafkaError: A field is invalid.
    """
    epoch = request.member_epoch
    if not request.member_id and (version >= 1 or epoch > 0 or epoch == LEAVE_GROUP_MEMBER_EPOCH):
        _invalid("MemberId can't be empty.")
    for name, value in (
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value == "":
            _invalid(f"{name} can't be empty.")
    if epoch == JOIN_GROUP_MEMBER_EPOCH:
        if request.rebalance_timeout_ms == -1:
            _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
                "(re-)joining."
            )
    elif epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _invalid("MemberEpoch is invalid.")
    _check_lengths(request)
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"Server assignor {request.server_assignor!r} is not supported (valid: "
            f"{', '.join(settings.assignors)}; see group.consumer.assignors).",
        )


def _check_lengths(request: ConsumerGroupHeartbeatRequest) -> None:
    names = (request.group_id, request.member_id, request.instance_id, request.rack_id)
    if any(name is not None and len(name) > NAME_LENGTH_MAX for name in names):
        _invalid(
            f"GroupId, MemberId, InstanceId and RackId may have at most {NAME_LENGTH_MAX} characters."
        )
    if len(request.subscribed_topic_names or ()) > SUBSCRIPTION_MAX:
        _invalid(
            f"A member may subscribe to at most {SUBSCRIPTION_MAX} topics by name; use a regular expression."
        )
    if sum(len(row.partitions) for row in request.topic_partitions or ()) > OWNED_MAX:
        _invalid(f"A member may own at most {OWNED_MAX} partitions; start more members.")


def _invalid(message: str) -> None:
    raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned | None) -> None:
    """Check the member epoch of a heartbeat.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH.
    """
    if epoch in (JOIN_GROUP_MEMBER_EPOCH, member.epoch):
        return
    if epoch < member.epoch:
        # Accept the previous epoch if the member owns only assigned partitions: it missed the
        # response that bumped its epoch.
        is_subset = owned is not None and all(
            owned[topic_id] <= member.assigned.get(topic_id, {}).keys() for topic_id in owned
        )
        if epoch == member.previous_epoch and is_subset:
            return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member epoch is {member.epoch}, not {epoch}; the member must abandon all its partitions "
        "and rejoin.",
    )


def _updated_member(
    member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: ClientInfo
) -> ConsumerGroupMember:
    """Return the member with the changes of a heartbeat. Null and -1 mean unchanged."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    is_unchanged = (
        names is None
        and pattern is None
        and request.rebalance_timeout_ms == -1
        and request.rack_id is None
        and request.server_assignor is None
        and request.instance_id in (None, member.instance_id)
    )
    is_same_client = (client.client_id, client.host) == (member.client_id, member.client_host)
    if is_unchanged and is_same_client and member.classic is None:
        return member
    timeout_ms = request.rebalance_timeout_ms
    return member._replace(
        instance_id=request.instance_id or member.instance_id,
        rack_id=request.rack_id or member.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=request.server_assignor or member.assignor,
        topics=member.topics if names is None else frozenset(names),
        pattern=member.pattern if pattern is None else pattern,
        classic=None,
    )


def _reported_partitions(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    """Return the partitions that the member reports as owned, or None if it reports nothing."""
    if request.topic_partitions is None:
        return None
    owned: dict[UUID, set[int]] = {}
    for row in request.topic_partitions:
        owned.setdefault(row.topic_id, set()).update(row.partitions)
    return owned


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return True if the request has all fields, which requires a full response."""
    subscription = (request.subscribed_topic_names, request.subscribed_topic_regex)
    return (
        request.rebalance_timeout_ms != -1
        and any(each is not None for each in subscription)
        and request.topic_partitions is not None
    )


def _assignment(assigned: Assigned) -> Response.Assignment:
    return Response.Assignment(
        topic_partitions=[
            Response.Topic(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )


def _error_result(code: ErrorCode, message: str | None) -> Result[Response]:
    return Result(Response(error_code=code, error_message=message))


def _add_event(
    group_id: str,
    cause: str,
    epoch: int,
    state: ConsumerGroupState,
    now: Now,
    result: Result[R],
    since_ms: int | None = None,
) -> None:
    """Add an event: a change of the group and its cause."""
    result.events.append(
        Event(now.log_ms, group_id, printable(cause), epoch, state.value, since_ms)
    )


def describe_members(members: Iterable[ConsumerGroupMember]) -> str:
    """Return the member IDs as a list for a cause."""
    return some_of([f"member {member.id}" for member in members])
