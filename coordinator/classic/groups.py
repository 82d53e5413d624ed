"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic groups (KIP-62, 345, 394, 814)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import GroupMetadataValue
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from ..common.events import some_of
from ..common.result import Answer, ClientInfo, Now, PendingResponse, R, Result, append_error
from ..common.settings import GroupSettings
from ..common.version_adapters import leave_response, leaving_members
from ..state import ShardState
from .group import (
    FIRST_VERSION_REQUIRING_MEMBER_ID,
    ClassicGroup,
    ClassicGroupMember,
    Protocols,
    expected_bytes,
    member_bytes,
    metadata_size,
    protocols_of,
)
from .group_state import COMPLETING, EMPTY, HEARTBEAT_ERROR, PREPARING, STABLE
from .rebalance import Rebalances, add_stable_event, join_response, member_rows
from .records import group_record, group_value

# Maximum length of the client ID or instance ID within a generated member ID.
NAME_LENGTH_MAX = 255
# Maximum length of a client's reason for joining or leaving (KIP-800), in characters.
REASON_LENGTH_MAX = 255


class _JoinRequest(NamedTuple):
    """A JoinGroup request, with defaults for fields that its version lacks."""

    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    reason: str
    client: ClientInfo
    version: int


class ClassicGroups:
    """Classic groups of one shard."""

    def __init__(
        self,
        state: ShardState,
        rebalances: Rebalances,
        settings: GroupSettings,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._state = state
        self._rebalances = rebalances
        self._settings = settings
        self._new_uuid = new_uuid

    # -- join

    def join(
        self, request: JoinGroupRequest, client: ClientInfo, now: Now, version: int
    ) -> Result[JoinGroupResponse]:
        join_request = _parse_request(request, client, version)
        group = self._state.find_group(join_request.group_id, ClassicGroup)
        code = self._join_error(group, join_request)
        if code:
            return _error_result(code, join_request.member_id)
        if group is None:
            group = ClassicGroup(
                join_request.group_id, self._state.memory
            )  # added to the state with its first member or pending member ID
        if not self._fits_group_limits(group, join_request):
            return self._reject_full_group(group, join_request, now)
        if not group.supports(join_request.protocol_type, join_request.protocols):
            return _error_result(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join_request.member_id)
        if not self._fits_memory_limit(group, join_request):
            return _error_result(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, join_request.member_id)
        if not join_request.member_id:
            return self._join_without_member_id(group, join_request, now)
        if join_request.member_id in group.pending and join_request.instance_id is None:
            return self._admit(group, join_request.member_id, join_request, now)
        code = group.check_member(join_request.member_id, join_request.instance_id)
        if code:
            return _error_result(code, join_request.member_id)
        return self._rejoin(group, group.members[join_request.member_id], join_request, now)

    def _join_error(self, group: ClassicGroup | None, join_request: _JoinRequest) -> ErrorCode:
        if not join_request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not self._has_valid_session_timeout(join_request):
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if group is None and join_request.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE

    def can_create_group(self, request: JoinGroupRequest) -> bool:
        """Return True if a new group could be created by this request."""
        is_new = bool(request.group_id) and not request.member_id
        has_protocols = bool(request.protocol_type) and bool(request.protocols)
        return is_new and has_protocols and self._has_valid_session_timeout(request)

    def _has_valid_session_timeout(self, join_request: JoinGroupRequest | _JoinRequest) -> bool:
        """Return True if the session timeout is within the configured bounds."""
        shortest_ms = self._settings.session_timeout_min_ms
        return (
            shortest_ms <= join_request.session_timeout_ms <= self._settings.session_timeout_max_ms
        )

    def _fits_group_limits(self, group: ClassicGroup, join_request: _JoinRequest) -> bool:
        """Return True if `group.max.size` and `group.metadata.max.bytes` permit this member.

        During a rebalance, the members that rejoin first are kept. So after the limit was lowered,
        the last members are rejected.
        """
        limit = self._settings.group_size_max
        member = group.members.get(join_request.member_id) or group.static_member(
            join_request.instance_id
        )
        had = 0 if member is None else metadata_size(member.protocols)
        size = group.metadata_bytes - had + metadata_size(join_request.protocols)
        if size > self._settings.group_metadata_bytes_max:
            return False
        if group.state is EMPTY:
            return True
        if group.state is PREPARING:
            return group.joined < limit or (member is not None and member.pending_join is not None)
        return member is not None or len(group.members) < limit

    def _fits_memory_limit(self, group: ClassicGroup, join_request: _JoinRequest) -> bool:
        """Return True if the memory limit of the node permits this member.

        A member that rejoins without using more memory than before is always permitted.
        """
        memory, member_id = self._state.memory, join_request.member_id
        static = group.static_member(join_request.instance_id)
        if static is not None:
            member_id = static.id
        if (
            member_id
            or join_request.instance_id is not None
            or join_request.version < FIRST_VERSION_REQUIRING_MEMBER_ID
        ):
            strings = (
                group.id,
                member_id,
                join_request.client.client_id,
                join_request.instance_id or "",
            )
            size = member_bytes(join_request.protocols, *strings)
        else:
            size = expected_bytes(group.id, join_request.client.client_id)
        growth = size - memory.size_of(group.id, member_id)
        return memory.limits.members.permits(growth, join_request.client.host)

    def _reject_full_group(
        self, group: ClassicGroup, join_request: _JoinRequest, now: Now
    ) -> Result[JoinGroupResponse]:
        result = _error_result(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        member = group.members.get(join_request.member_id)
        if member is not None:
            self._rebalances.drop(group, member, result)
            self._rebalances.rebalance_after_leave(
                group, f"group is full, member {member.id} was removed", now, result
            )
        elif join_request.member_id in group.pending:
            self._rebalances.drop_pending(group, join_request.member_id)
            self._rebalances.complete_after_pending_leave(group, now, result)
        return result

    def _join_without_member_id(
        self, group: ClassicGroup, join_request: _JoinRequest, now: Now
    ) -> Result[JoinGroupResponse]:
        """Handle a JoinGroup without a member ID: a new member, or a restarted static one."""
        static = group.static_member(join_request.instance_id)
        name = join_request.instance_id or join_request.client.client_id
        new_id = f"{name[:NAME_LENGTH_MAX]}-{self._new_uuid()}"
        if static is not None:
            return self._replace(group, static, new_id, join_request, now)
        if (
            join_request.instance_id is None
            and join_request.version >= FIRST_VERSION_REQUIRING_MEMBER_ID
        ):
            # KIP-394: a client that misses this response leaves no member behind.
            self._state.groups[group.id] = group
            group.expect(new_id, join_request.client.host)
            self._rebalances.start_session(group.id, new_id, join_request.session_timeout_ms, now)
            return _error_result(ErrorCode.MEMBER_ID_REQUIRED, new_id)
        return self._admit(group, new_id, join_request, now)

    def _admit(
        self, group: ClassicGroup, member_id: str, join_request: _JoinRequest, now: Now
    ) -> Result[JoinGroupResponse]:
        """Add a new member and start a rebalance."""
        member = ClassicGroupMember(
            member_id,
            join_request.instance_id,
            join_request.client.client_id,
            join_request.client.host,
        )
        member.is_new = True
        member.is_anonymous = member_id not in group.pending
        _set_timeouts(member, join_request)
        self._state.groups[group.id] = group
        group.add(member, join_request.protocol_type, join_request.protocols)
        group.has_new_member = True
        member.last_heartbeat_ms = now.coordinator_ms
        self._rebalances.start_session(
            group.id, member_id, self._settings.new_member_join_timeout_ms, now
        )
        return self._add_pending_join(
            group, member, f"member {member_id} joined", join_request, now
        )

    def _rejoin(
        self, group: ClassicGroup, member: ClassicGroupMember, join_request: _JoinRequest, now: Now
    ) -> Result[JoinGroupResponse]:
        """Handle a JoinGroup of a member: rejoin, or repeat the response of this generation."""
        same = member.protocols == join_request.protocols
        if group.state is COMPLETING and same:
            # The first response may have been lost.
            return Result(join_response(group, member, member_rows(group)))
        if group.state is STABLE and same and member.id != group.leader_id:
            return Result(join_response(group, member, []))
        # In Stable, a leader rejoins to compute a new assignment, for example after a change of
        # topics.
        cause = f"member {member.id} " + ("joined again" if same else "joined with new metadata")
        group.set_protocols(member, join_request.protocols)
        _set_timeouts(member, join_request)
        return self._add_pending_join(group, member, cause, join_request, now)

    def _add_pending_join(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        cause: str,
        join_request: _JoinRequest,
        now: Now,
    ) -> Result[JoinGroupResponse]:
        slot: PendingResponse[JoinGroupResponse] = PendingResponse(group.id, member.id)
        result: Result[JoinGroupResponse] = Result(slot)
        # The member may use two connections: complete the earlier request.
        self._rebalances.fail_pending_requests(
            group, member, ErrorCode.REBALANCE_IN_PROGRESS, member.id, result
        )
        group.add_pending_join(member, slot)
        self._rebalances.begin_or_complete(group, cause + join_request.reason, now, result)
        return result

    # -- static members

    def _replace(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        new_id: str,
        join_request: _JoinRequest,
        now: Now,
    ) -> Result[JoinGroupResponse]:
        """Replace the member ID of a returning static member; this fences the old ID (KIP-345)."""
        fenced: Result[JoinGroupResponse] = Result()
        self._rebalances.fail_pending_requests(
            group, member, ErrorCode.FENCED_INSTANCE_ID, member.id, fenced
        )
        protocols_before = member.protocols
        group.set_protocols(member, join_request.protocols)
        if group.state is STABLE and group.select_protocol() == group.protocol_name:
            result = self._replace_in_stable_group(
                group, member, new_id, protocols_before, join_request, now
            )
        else:
            self._rebalances.forget_session(group.id, member.id)
            cause = f"static member {join_request.instance_id} rejoined as {new_id}"
            member.client_id, member.client_host = (
                join_request.client.client_id,
                join_request.client.host,
            )
            group.rename(member, new_id)
            member.is_new = False
            _set_timeouts(member, join_request)
            self._rebalances.keep_alive(group, member, now)
            result = self._add_pending_join(group, member, cause, join_request, now)
        result.answers[:0] = fenced.answers
        return result

    def _replace_in_stable_group(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        new_id: str,
        protocols_before: Protocols,
        join_request: _JoinRequest,
        now: Now,
    ) -> Result[JoinGroupResponse]:
        """Replace the member ID in a stable group without a rebalance.

        The new ID and the timeouts take effect with the record. The supported protocols are
        volatile, so they are restored (`protocols_before`) if the append fails.
        """
        old_id = member.id
        value = _value_with_new_id(group, member, new_id, join_request, now)
        result = Result(_rejoin_response(group, member, value, new_id, join_request.version))
        result.records.append(group_record(group.id, value))
        add_stable_event(
            group, f"static member {join_request.instance_id} rejoined as {new_id}", now, result
        )
        self._rebalances.forget_session(group.id, old_id)
        self._rebalances.start_session(group.id, new_id, join_request.session_timeout_ms, now)
        member.last_heartbeat_ms = now.coordinator_ms

        def undo(code: ErrorCode, now: Now) -> Result[JoinGroupResponse]:
            group.set_protocols(member, protocols_before)
            self._rebalances.forget_session(group.id, new_id)
            self._rebalances.keep_alive(group, member, now)
            return _error_result(append_error(code), "")

        result.on_failure = undo
        return result

    # -- sync

    def sync(self, request: SyncGroupRequest, now: Now, version: int) -> Result[SyncGroupResponse]:
        group = self._state.find_group(request.group_id, ClassicGroup)
        code = _sync_error(group, request, version)
        if code:
            return Result(SyncGroupResponse(error_code=code))
        assert group is not None  # otherwise the request was rejected above
        member = group.members[request.member_id]
        self._rebalances.mark_synced(group, member)
        if group.state is STABLE:
            return Result(_sync_response(group, member.assignment))
        slot: PendingResponse[SyncGroupResponse] = PendingResponse(group.id, member.id)
        result: Result[SyncGroupResponse] = Result(slot)
        self._rebalances.fail_pending_requests(
            group, member, ErrorCode.REBALANCE_IN_PROGRESS, member.id, result
        )
        member.pending_sync = slot
        if member.id == group.leader_id:
            self._store_assignment(group, request, now, result)
        return result

    def _store_assignment(
        self,
        group: ClassicGroup,
        request: SyncGroupRequest,
        now: Now,
        result: Result[SyncGroupResponse],
    ) -> None:
        """Store the leader's assignment, and complete the pending SyncGroup requests."""
        assignments = {row.member_id: row.assignment for row in request.assignments}
        value = group_value(group, assignments, now.log_ms)
        result.records.append(group_record(group.id, value))
        for member in group.members.values():
            if member.pending_sync is not None:
                answer = _sync_response(group, assignments.get(member.id, b""))
                result.answers.append(Answer(member.pending_sync, answer))
                member.pending_sync = None
                self._rebalances.keep_alive(group, member, now)
        count = len(group.members)
        members = "1 member" if count == 1 else f"{count:,} members"
        cause = f"leader {group.leader_id} assigned partitions to {members}"
        add_stable_event(group, cause, now, result)

        def start_over(code: ErrorCode, now: Now) -> Result[SyncGroupResponse]:
            # The assignment is lost, so this generation is too: all members rejoin.
            code = append_error(code)
            failed: Result[SyncGroupResponse] = Result(result.response)
            failed.answers += [
                Answer(answer.slot, SyncGroupResponse(error_code=code)) for answer in result.answers
            ]
            self._rebalances.begin(
                group, f"could not store the assignment: {code.name}", now, failed
            )
            return failed

        result.on_failure = start_over

    # -- heartbeat

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Result[HeartbeatResponse]:
        group = self._state.groups.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            code = _missing_group_error(request.group_id)
        else:
            code = group.check_member(request.member_id, request.group_instance_id)
            if not code:
                if request.generation_id != group.generation:
                    code = ErrorCode.ILLEGAL_GENERATION
                else:
                    code = HEARTBEAT_ERROR[group.state]
                    self._rebalances.keep_alive(group, group.members[request.member_id], now)
        return Result(HeartbeatResponse(error_code=code))

    # -- leave

    def leave(
        self, request: LeaveGroupRequest, now: Now, version: int
    ) -> Result[LeaveGroupResponse]:
        if not request.group_id:
            return Result(LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))
        group = self._state.find_group(request.group_id, ClassicGroup)
        result: Result[LeaveGroupResponse] = Result()
        rows = []
        left: list[str] = []
        for leaver in leaving_members(request, version):
            row = LeaveGroupResponse.Member(
                member_id=leaver.member_id, group_instance_id=leaver.group_instance_id
            )
            rows.append(row)
            if group is None:
                row.error_code = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                row.error_code = self._remove_leaver(group, leaver, left, result)
        if group is not None and left:
            self._rebalances.rebalance_after_leave(group, f"{some_of(left)} left", now, result)
        elif group is not None:
            self._rebalances.complete_after_pending_leave(group, now, result)
        result.response = leave_response(rows, version)
        _return_error_if_not_stored(result)
        return result

    def _remove_leaver(
        self,
        group: ClassicGroup,
        leaver: LeaveGroupRequest.Member,
        left: list[str],
        result: Result[LeaveGroupResponse],
    ) -> ErrorCode:
        """Remove a member and add it to `left`, or remove a pending member ID."""
        member_id = leaver.member_id
        if member_id in group.pending:
            self._rebalances.drop_pending(group, member_id)
            return ErrorCode.NONE
        static = group.static_member(leaver.group_instance_id)
        if not member_id and static is not None:
            member_id = static.id  # tools remove a static member by its instance ID alone
        code = group.check_member(member_id, leaver.group_instance_id)
        if not code:
            self._rebalances.drop(group, group.members[member_id], result)
            left.append(f"member {member_id}{_reason(leaver.reason)}")
        return code

    # -- connections

    def abandon(self, slot: PendingResponse[R], now: Now) -> Result[None]:
        """Remove the pending request of a client that disconnected.

        A member whose ID the client does not know is removed immediately. Any other member may
        return until its session times out. Until then it counts as not joined, so that no
        generation begins without it.
        """
        result: Result[None] = Result()
        group = self._state.find_group(slot.group_id, ClassicGroup)
        member = None if group is None else group.members.get(slot.member_id)
        if group is None or member is None:
            return result
        if member.pending_sync is slot:
            member.pending_sync = None
            self._rebalances.keep_alive(group, member, now)
        elif member.pending_join is slot:
            group.remove_pending_join(member)
            if member.is_anonymous and member.instance_id is None:
                self._rebalances.drop(group, member, result)
                cause = f"member {member.id} disconnected before it received its member ID"
                self._rebalances.rebalance_after_leave(group, cause, now, result)
            else:
                self._rebalances.keep_alive(group, member, now)
        return result


def _parse_request(request: JoinGroupRequest, client: ClientInfo, version: int) -> _JoinRequest:
    # Version 0 has no rebalance timeout, and some clients send -1 in later versions (KAFKA-8653).
    rebalance_ms = request.rebalance_timeout_ms
    return _JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=protocols_of((row.name, row.metadata) for row in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
        reason=_reason(request.reason),
        client=client,
        version=version,
    )


def _reason(given: str | None) -> str:
    """Format a client's reason for joining or leaving (KIP-800) as the end of a cause."""
    return f" (client reason: {given[:REASON_LENGTH_MAX]})" if given else ""


def _set_timeouts(member: ClassicGroupMember, join_request: _JoinRequest) -> None:
    member.session_timeout_ms = join_request.session_timeout_ms
    member.rebalance_timeout_ms = join_request.rebalance_timeout_ms


def _error_result(code: ErrorCode, member_id: str) -> Result[JoinGroupResponse]:
    return Result(JoinGroupResponse(error_code=code, member_id=member_id))


def _value_with_new_id(
    group: ClassicGroup,
    member: ClassicGroupMember,
    new_id: str,
    join_request: _JoinRequest,
    now: Now,
) -> GroupMetadataValue:
    """Return the group record in which a static member has its new member ID."""
    assignments = {other.id: other.assignment for other in group.members.values()}
    value = group_value(group, assignments, now.log_ms)
    row = next(row for row in value.members if row.member_id == member.id)
    row.member_id = new_id
    row.client_id, row.client_host = join_request.client.client_id, join_request.client.host
    row.session_timeout = join_request.session_timeout_ms
    row.rebalance_timeout = join_request.rebalance_timeout_ms
    if group.leader_id == member.id:
        value.leader = new_id
    return value


def _rejoin_response(
    group: ClassicGroup,
    member: ClassicGroupMember,
    value: GroupMetadataValue,
    new_id: str,
    version: int,
) -> JoinGroupResponse:
    """Return the JoinGroup response for a static member that rejoined a stable group.

    From version 9 on, the leader's response sets SkipAssignment (KIP-814). In older versions, the
    response names the old member ID as leader, so that the client does not compute an assignment.
    """
    leads = version >= 9 and group.leader_id == member.id
    rows = [
        JoinGroupResponse.Member(
            member_id=row.member_id,
            group_instance_id=row.group_instance_id,
            metadata=row.subscription,
        )
        for row in value.members
    ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=new_id if leads else group.leader_id or "",
        skip_assignment=leads,
        member_id=new_id,
        members=rows if leads else [],
    )


def _missing_group_error(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def _sync_error(group: ClassicGroup | None, request: SyncGroupRequest, version: int) -> ErrorCode:
    wanted = (request.protocol_type, request.protocol_name)
    if version >= 5 and None in wanted:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # KIP-559: mandatory from version 5 on
    if group is None:
        return _missing_group_error(request.group_id)
    code = group.check_member(request.member_id, request.group_instance_id)
    if code:
        return code
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    have = (group.protocol_type, group.protocol_name)
    if any(w is not None and h is not None and w != h for w, h in zip(wanted, have, strict=True)):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE


def _sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=assignment,
    )


def _return_error_if_not_stored(result: Result[LeaveGroupResponse]) -> None:
    undo = result.on_failure
    if undo is None:
        return

    def fail(code: ErrorCode, now: Now) -> Result[LeaveGroupResponse]:
        failed = undo(code, now)
        failed.response = LeaveGroupResponse(error_code=append_error(code))
        return failed

    result.on_failure = fail
