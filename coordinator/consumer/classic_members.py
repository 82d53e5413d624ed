"""Members of consumer groups that still use the classic protocol (online migration of KIP-848).

Classic members send JoinGroup, SyncGroup and Heartbeat as usual. The coordinator computes the
assignment instead of a leader, so JoinGroup responses name no leader. The member epoch is its
generation.

A member of the consumer protocol gets its assignment in a heartbeat response. For a classic member,
the heartbeat returns REBALANCE_IN_PROGRESS and the member rejoins. With the JoinGroup request it
confirms revocations and reports its owned partitions. Members of eager protocols own no partitions
when they join.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.group_metadata import MemberSubscription, read_member_subscription
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

from ..classic.group import CONSUMER_PROTOCOL_TYPE, FIRST_VERSION_REQUIRING_MEMBER_ID, protocols_of
from ..common.modern_group import MemberState
from ..common.result import ClientInfo, Now, Result, append_error
from ..common.settings import GroupSettings, MigrationPolicy
from ..common.timers import Timers
from ..common.topics import KnownTopics
from ..common.version_adapters import leave_response, leaving_members
from .conversion import Conversion
from .group import ClassicMemberMetadata, ConsumerGroup, ConsumerGroupMember
from .groups import JOIN, SYNC, ConsumerGroups, Settings, describe_members
from .reconciliation import Owned
from .target_assignments import Step


class ClassicMembers:
    """Requests of classic members to the consumer groups of one shard."""

    def __init__(
        self,
        groups: ConsumerGroups,
        timers: Timers[tuple[str, str, str]],
        settings: GroupSettings,
        consumer_settings: Settings,
        topics: KnownTopics,
        conversion: Conversion,
        new_uuid: Callable[[], UUID],
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._classic_settings = settings
        self._settings = consumer_settings
        self._topics = topics
        self._conversion = conversion
        self._new_uuid = new_uuid

    # -- join

    def join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: ClientInfo,
        now: Now,
        version: int,
    ) -> Result[JoinGroupResponse]:
        """Handle a JoinGroup of a new or existing member."""
        try:
            return self._join(group, request, client, now, version)
        except KafkaError as error:
            # Kafka returns no member ID, except for errors that do not depend on the group.
            keeps_id = error.code is ErrorCode.INVALID_SESSION_TIMEOUT
            return _error_result(error.code, request.member_id if keeps_id else "")

    def _join(
        self,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: ClientInfo,
        now: Now,
        version: int,
    ) -> Result[JoinGroupResponse]:
        settings = self._settings(group.id)
        self._check_session_timeout(request)
        if settings.migration is MigrationPolicy.DISABLED:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.is_full_for(request.member_id, request.group_instance_id, settings.size_max):
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        subscription = self._read_subscription(group, request)
        member_id = request.member_id or f"{client.client_id[:255]}-{self._new_uuid()}"
        is_static = request.group_instance_id is not None
        if not (request.member_id or is_static) and version >= FIRST_VERSION_REQUIRING_MEMBER_ID:
            return _error_result(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        result: Result[JoinGroupResponse] = Result()
        step = Step(group, result.records)
        self._find_member(step, request, member_id)
        step.member = _updated_member(step.before, request, subscription, client)
        self._groups.put_member(step)
        # A classic member has no pattern, and its permissions do not apply to other members'
        # patterns.
        self._groups.target_assignments.advance(step, now, settings, None, resolves=False)
        if step.replaced is not None and self._groups.should_downgrade(group.id, step.members()):
            self._become_classic(step, now, result)
        else:
            epoch, target = self._groups.target_assignments.update_target(step, now, settings)
            self._groups.reconcile(step, epoch, target, self._owned_partitions(subscription))
            self._groups.finish(step, result, now, settings)
            self._start_timer(SYNC, group.id, step.member, now)
        self._timers.cancel((JOIN, group.id, step.member.id))
        assert step.member.classic is not None
        result.response = JoinGroupResponse(
            generation_id=step.member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=step.member.classic.protocols[0][0],
            member_id=step.member.id,
        )
        if result.records:
            undo = self._groups.undo(step, settings)
            result.on_failure = lambda code, now: self._fail_join(undo, code, now, member_id)
        return result

    def _fail_join(
        self, undo: Callable[..., object], code: ErrorCode, now: Now, member_id: str
    ) -> Result[JoinGroupResponse]:
        undo(code, now)
        return _error_result(append_error(code), member_id)

    def _check_session_timeout(self, request: JoinGroupRequest) -> None:
        """Check the session timeout.

        Raises:
            KafkaError: INVALID_SESSION_TIMEOUT.
        """
        settings = self._classic_settings
        shortest_ms, longest_ms = settings.session_timeout_min_ms, settings.session_timeout_max_ms
        if not shortest_ms <= request.session_timeout_ms <= longest_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)

    def _read_subscription(
        self, group: ConsumerGroup, request: JoinGroupRequest
    ) -> MemberSubscription:
        """Return the member's subscription.

        Raises:
            KafkaError: INCONSISTENT_GROUP_PROTOCOL.
        """
        offered = {row.name for row in request.protocols}
        for member in group.members.values():
            if member.classic is not None and member.id != request.member_id:
                offered &= {name for name, _ in member.classic.protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not offered:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        subscription = read_member_subscription(request.protocols[0].metadata)
        if subscription is None:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return subscription

    def _find_member(self, step: Step, request: JoinGroupRequest, member_id: str) -> None:
        """Set `step.before`; if a static member returns, replace its member ID."""
        group, instance_id = step.group, request.group_instance_id
        known = group.members.get(member_id)
        if instance_id is not None:
            static = group.static_member(instance_id)
            if request.member_id:
                known = self._groups.find(group, request.member_id, instance_id)
            elif static is not None:
                self._groups.replace_member(step, static, member_id, is_classic=True)
                return
        step.before = known or ConsumerGroupMember(member_id)

    def _owned_partitions(self, subscription: MemberSubscription) -> Owned:
        owned: dict[UUID, set[int]] = {}
        for row in subscription.owned_partitions:
            for topic_id in self._topics.ids_of({row.topic}):
                owned.setdefault(topic_id, set()).update(row.partitions)
        return owned

    def _become_classic(self, step: Step, now: Now, result: Result[JoinGroupResponse]) -> None:
        """Convert the group when its last consumer-protocol member returns as a classic member."""
        group = step.group
        stale = step.epoch > group.assignment_epoch
        if not stale:
            step.member = step.member._replace(epoch=step.epoch, previous_epoch=step.epoch)
        result.records.clear()
        cause = f"static member {step.member.instance_id} rejoined as {step.member.id}"
        members = step.members()
        self._conversion.to_classic_group(
            group, members, group.epoch, cause if stale else None, now, result
        )

    # -- sync and heartbeat

    def sync(
        self, group: ConsumerGroup, request: SyncGroupRequest, now: Now
    ) -> Result[SyncGroupResponse]:
        """Handle a SyncGroup: return the member's assignment immediately."""
        try:
            member, classic = self._find_classic_member(
                group, request.member_id, request.group_instance_id
            )
            _check_generation(member, request.generation_id)
            own = (CONSUMER_PROTOCOL_TYPE, classic.protocols[0][0])
            wanted = (request.protocol_type, request.protocol_name)
            if any(w is not None and w != o for w, o in zip(wanted, own, strict=True)):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            is_behind = member.epoch < group.assignment_epoch
            if is_behind and member.state is not MemberState.UNREVOKED:
                self._expect_join(group.id, member, now)
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as error:
            return Result(SyncGroupResponse(error_code=error.code))
        self._timers.cancel((SYNC, group.id, member.id))
        self._groups.sessions.keep_alive(group, member, now, self._settings(group.id))
        return Result(
            SyncGroupResponse(
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignment=self._conversion.assignment_of(member.assigned, classic.protocols[0][1]),
            )
        )

    def heartbeat(
        self, group: ConsumerGroup, request: HeartbeatRequest, now: Now
    ) -> Result[HeartbeatResponse]:
        """Handle a Heartbeat; it asks the member to rejoin if its assignment changed."""
        try:
            member, _ = self._find_classic_member(
                group, request.member_id, request.group_instance_id
            )
            _check_generation(member, request.generation_id)
        except KafkaError as error:
            return Result(HeartbeatResponse(error_code=error.code))
        self._groups.sessions.keep_alive(group, member, now, self._settings(group.id))
        if not _must_rejoin(group, member):
            return Result(HeartbeatResponse())
        self._expect_join(group.id, member, now)
        return Result(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))

    # -- leave

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Now, version: int
    ) -> Result[LeaveGroupResponse]:
        """Remove members of either protocol that leave, or that an operator removes."""
        rows: list[LeaveGroupResponse.Member] = []
        removed: dict[str, ConsumerGroupMember] = {}
        for leaver in leaving_members(request, version):
            row = LeaveGroupResponse.Member(
                member_id=leaver.member_id, group_instance_id=leaver.group_instance_id
            )
            rows.append(row)
            member_id = leaver.member_id
            static = group.static_member(leaver.group_instance_id)
            if static is not None and not member_id:
                member_id = static.id
            try:
                member = self._groups.find(group, member_id, leaver.group_instance_id)
            except KafkaError as error:
                row.error_code = error.code
            else:
                removed[member.id] = member
        result = Result(leave_response(rows, version))
        if removed:
            members = list(removed.values())
            self._groups.remove_members(
                group, members, f"{describe_members(members)} left", now, result
            )
            result.on_failure = lambda code, now: Result(
                LeaveGroupResponse(error_code=append_error(code))
            )
        return result

    # -- time

    def _start_timer(self, kind: str, group_id: str, member: ConsumerGroupMember, now: Now) -> None:
        timeout_ms = max(member.rebalance_timeout_ms, 0)
        self._timers.schedule((kind, group_id, member.id), now.coordinator_ms + timeout_ms)

    def _expect_join(self, group_id: str, member: ConsumerGroupMember, now: Now) -> None:
        if self._timers.deadline((JOIN, group_id, member.id)) is None:
            self._start_timer(JOIN, group_id, member, now)

    def _find_classic_member(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None
    ) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
        member = self._groups.find(group, member_id, instance_id)
        if member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member, member.classic


def _must_rejoin(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Return True if the member must rejoin to change its assignment."""
    if member.epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED:
        return True
    if member.state is not MemberState.UNRELEASED:
        return False
    return all(
        group.holder(topic_id, partition) in (None, member.id)
        for topic_id, partitions in group.target_of(member).items()
        for partition in partitions
    )


def _updated_member(
    member: ConsumerGroupMember,
    request: JoinGroupRequest,
    subscription: MemberSubscription,
    client: ClientInfo,
) -> ConsumerGroupMember:
    protocols = protocols_of((row.name, bytes(row.metadata)) for row in request.protocols)
    rebalance_ms = request.rebalance_timeout_ms
    return member._replace(
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        rebalance_timeout_ms=request.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
        assignor=None,
        topics=frozenset(subscription.topics),
        pattern="",
        classic=ClassicMemberMetadata(request.session_timeout_ms, protocols),
    )


def _check_generation(member: ConsumerGroupMember, generation: int) -> None:
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)


def _error_result(code: ErrorCode, member_id: str) -> Result[JoinGroupResponse]:
    return Result(JoinGroupResponse(error_code=code, member_id=member_id))
