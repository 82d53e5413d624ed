"""Rebalances and timers of classic groups.

A rebalance is volatile until the leader's assignment is stored. If the group is loaded from the log
before that, it is in the previous generation and its members rejoin.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

from ..common.events import printable, some_of
from ..common.result import Answer, Event, Now, R, Result
from ..common.settings import GroupSettings
from ..common.timers import Timers
from ..state import AnyGroup, ShardState
from .group import ClassicGroup, ClassicGroupMember
from .group_state import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, ClassicGroupState
from .records import emptied_value, group_record
from .replay import replay_group

# Kinds of timers; the first element of a timer key.
SESSION = "session"
JOIN = "join"
SYNC = "sync"
# Minimum delay before a join phase without any joined member is checked again.
POSTPONED_MS_MIN = 1_000


class Rebalances:
    """Starts, completes and times out the rebalances of a shard's groups.

    Timer keys:

    - (SESSION, group, member): session timeout of a member.
    - (JOIN, group, ""): end of the join phase.
    - (SYNC, group, ""): deadline by which all members must fetch their assignment.
    """

    def __init__(self, state: ShardState, settings: GroupSettings) -> None:
        self.timers: Timers[tuple[str, str, str]] = Timers()
        self._state = state
        self._settings = settings

    # -- sessions

    def keep_alive(self, group: ClassicGroup, member: ClassicGroupMember, now: Now) -> None:
        """Restart the session of a member."""
        member.last_heartbeat_ms = now.coordinator_ms
        self.start_session(group.id, member.id, member.session_timeout_ms, now)

    def start_session(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        """Start the session of a member, or of a member ID that was returned to a client."""
        self.timers.schedule((SESSION, group_id, member_id), now.coordinator_ms + timeout_ms)

    def forget_session(self, group_id: str, member_id: str) -> None:
        self.timers.cancel((SESSION, group_id, member_id))

    # -- the phases

    def begin(
        self,
        group: ClassicGroup,
        cause: str,
        now: Now,
        result: Result[R],
        since_ms: int | None = None,
    ) -> None:
        """Start a rebalance, and complete the join phase at once if all members have joined."""
        if group.state is COMPLETING:
            self.fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now, result)
        self._stop_waiting_for_syncs(group)
        group.is_initial = group.state is EMPTY
        group.move(PREPARING)
        add_event(group, cause, now, result, since_ms)
        delay_ms = self._settings.initial_rebalance_delay_ms
        if group.is_initial and delay_ms > 0:
            group.has_new_member = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._end_joins_after(group, delay_ms, now)
        elif group.is_initial or group.all_joined:
            self._complete(group, now, result)
        else:
            self._end_joins_after(group, group.rebalance_timeout_ms, now)

    def begin_or_complete(
        self, group: ClassicGroup, cause: str, now: Now, result: Result[R]
    ) -> None:
        """Process a change of membership: start a rebalance, or complete the current one."""
        if group.state is PREPARING:
            self.complete_if_all_joined(group, now, result)
        else:
            self.begin(group, cause, now, result)

    def complete_if_all_joined(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        """Complete the join phase if all members have joined and no initial delay is pending."""
        if group.state is PREPARING and not group.is_initial and group.all_joined:
            self._complete(group, now, result)

    def _complete(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        """Complete the join phase with the members that have joined."""
        self.timers.cancel((JOIN, group.id, ""))
        group.is_initial = False
        # Static members stay until their session expires: that is their purpose (KIP-345).
        late = [
            m for m in group.members.values() if m.pending_join is None and m.instance_id is None
        ]
        for member in late:
            self.drop(group, member, result)
        if late:
            add_event(group, f"{_names(late)} did not rejoin in time", now, result)
        if not group.members:
            self._store_empty_group(group, now, result)
        elif group.elect_joined_leader():
            self._next_generation(group, now, result)
        else:
            # Only static members are left and none has joined: wait for their sessions to expire.
            # The minimum delay prevents a busy loop if the rebalance timeout is 0.
            delay_ms = max(group.rebalance_timeout_ms, POSTPONED_MS_MIN)
            self._end_joins_after(group, delay_ms, now)

    def _store_empty_group(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        value = emptied_value(group, now.log_ms)
        result.records.append(group_record(group.id, value))
        _write_event(group, "the last member left", now, result, value.generation, EMPTY)

        def replay_anyway(code: ErrorCode, now: Now) -> Result[R]:
            # The log still contains the previous generation. If the group is loaded from there, its
            # members time out. The group has no members, so nothing depends on the new record.
            replay_group(self._state, group.id, value)
            failed: Result[R] = Result(result.response)
            failed.answers = result.answers
            return failed

        result.on_failure = replay_anyway

    def _next_generation(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        group.generation += 1
        group.protocol_name = group.select_protocol()
        group.keep_subscriptions()
        group.move(COMPLETING)
        count = len(group.members)
        add_event(group, f"{count} member{'' if count == 1 else 's'} joined", now, result)
        rows = member_rows(group)
        for member in group.members.values():
            slot = group.remove_pending_join(member)
            if slot is not None:
                result.answers.append(Answer(slot, join_response(group, member, rows)))
            member.is_new = member.is_anonymous = False
            self.keep_alive(group, member, now)
        group.unsynced = set(group.members)
        self.timers.schedule((SYNC, group.id, ""), now.coordinator_ms + group.rebalance_timeout_ms)

    def mark_synced(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Mark a member as having fetched its assignment."""
        group.unsynced.discard(member.id)
        if not group.unsynced:
            self.timers.cancel((SYNC, group.id, ""))

    def fail_syncs(self, group: ClassicGroup, code: ErrorCode, now: Now, result: Result[R]) -> None:
        """Fail the pending SyncGroup requests, because this generation gets no assignment."""
        for member in group.members.values():
            member.assignment = b""
            if member.pending_sync is not None:
                result.answers.append(
                    Answer(member.pending_sync, SyncGroupResponse(error_code=code))
                )
                member.pending_sync = None
                self.keep_alive(group, member, now)

    def drop(self, group: ClassicGroup, member: ClassicGroupMember, result: Result[R]) -> None:
        """Remove a member. Its pending requests fail with UNKNOWN_MEMBER_ID."""
        self.forget_session(group.id, member.id)
        self.fail_pending_requests(group, member, ErrorCode.UNKNOWN_MEMBER_ID, "", result)
        group.remove(member)

    def fail_pending_requests(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        code: ErrorCode,
        member_id: str,
        result: Result[R],
    ) -> None:
        """Fail the pending requests of a member."""
        pending_join = group.remove_pending_join(member)
        if pending_join is not None:
            refusal = JoinGroupResponse(error_code=code, member_id=member_id)
            result.answers.append(Answer(pending_join, refusal))
        if member.pending_sync is not None:
            result.answers.append(Answer(member.pending_sync, SyncGroupResponse(error_code=code)))
            member.pending_sync = None

    def rebalance_after_leave(
        self,
        group: ClassicGroup,
        cause: str,
        now: Now,
        result: Result[R],
        since_ms: int | None = None,
    ) -> None:
        """Rebalance the remaining members after members were removed."""
        if group.state in (STABLE, COMPLETING):
            self.begin(group, cause, now, result, since_ms)
        else:
            add_event(group, cause, now, result, since_ms)
            self.complete_if_all_joined(group, now, result)

    def drop_pending(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a pending member ID."""
        group.stop_expecting(member_id)
        self.forget_session(group.id, member_id)

    def complete_after_pending_leave(
        self, group: ClassicGroup, now: Now, result: Result[R]
    ) -> None:
        """Drop the group if it is unused now, else complete the join phase if nobody is missing."""
        if group.is_unused:
            del self._state.groups[group.id]
        else:
            self.complete_if_all_joined(group, now, result)

    # -- time

    def expire(self, key: tuple[str, str, str], now: Now) -> Result[None]:
        """Process an expired timer."""
        kind, group_id, member_id = key
        result: Result[None] = Result()
        group = self._state.find_group(group_id, ClassicGroup)
        if group is not None:
            if kind == SESSION:
                self._expire_session(group, member_id, now, result)
            elif kind == JOIN:
                self._expire_joins(group, now, result)
            else:
                self._expire_syncs(group, now, result)
        return result

    def _expire_session(
        self, group: ClassicGroup, member_id: str, now: Now, result: Result[None]
    ) -> None:
        if member_id in group.pending:
            self.drop_pending(group, member_id)
            self.complete_after_pending_leave(group, now, result)
            return
        member = group.members.get(member_id)
        # A member with a pending request cannot send heartbeats; its session restarts with the
        # response. The session of a new member expires nevertheless, because its connection may be
        # dead.
        if member is None or (member.is_waiting and not member.is_new):
            return
        self.drop(group, member, result)
        silent_ms = now.coordinator_ms - member.last_heartbeat_ms
        cause = f"member {member_id} missed heartbeats"
        self.rebalance_after_leave(group, cause, now, result, now.log_ms - silent_ms)

    def _expire_joins(self, group: ClassicGroup, now: Now, result: Result[None]) -> None:
        if group.state is not PREPARING:
            return
        if group.is_initial and group.has_new_member and group.initial_delay_left_ms > 0:
            # The delay is meant for members that start one after another: extend it while members
            # join, up to the rebalance timeout.
            group.has_new_member = False
            delay_ms = self._settings.initial_rebalance_delay_ms
            delay_ms = min(delay_ms, group.initial_delay_left_ms)
            group.initial_delay_left_ms -= delay_ms
            self._end_joins_after(group, delay_ms, now)
        else:
            self._complete(group, now, result)

    def _expire_syncs(self, group: ClassicGroup, now: Now, result: Result[None]) -> None:
        if group.state not in (COMPLETING, STABLE) or not group.unsynced:
            return
        silent = [group.members[member_id] for member_id in sorted(group.unsynced)]
        for member in silent:
            self.drop(group, member, result)
        self.begin(group, f"{_names(silent)} did not sync in time", now, result)

    def _end_joins_after(self, group: ClassicGroup, delay_ms: int, now: Now) -> None:
        self.timers.schedule((JOIN, group.id, ""), now.coordinator_ms + delay_ms)

    def _stop_waiting_for_syncs(self, group: ClassicGroup) -> None:
        group.unsynced = set()
        self.timers.cancel((SYNC, group.id, ""))


def join_response(
    group: ClassicGroup, member: ClassicGroupMember, rows: list[JoinGroupResponse.Member]
) -> JoinGroupResponse:
    """Return the JoinGroup response for a member; only the leader gets the list of members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.id,
        members=rows if member.id == group.leader_id else [],
    )


def member_rows(group: ClassicGroup) -> list[JoinGroupResponse.Member]:
    """Return the member list for the leader, with the metadata of the selected protocol."""
    return [
        JoinGroupResponse.Member(
            member_id=member.id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def add_event(
    group: ClassicGroup, cause: str, now: Now, result: Result[R], since_ms: int | None = None
) -> None:
    """Add an event: a change of the group and its cause."""
    _write_event(group, cause, now, result, group.generation, group.state, since_ms)


def add_stable_event(group: ClassicGroup, cause: str, now: Now, result: Result[R]) -> None:
    """Add an event: the group becomes stable with the records of this result."""
    _write_event(group, cause, now, result, group.generation, STABLE)


def add_deletion_event(group: AnyGroup, cause: str, now: Now, result: Result[R]) -> None:
    """Add an event: the group is deleted with the records of this result."""
    generation = group.generation if isinstance(group, ClassicGroup) else group.epoch
    _write_event(group, cause, now, result, generation, DEAD)


def _write_event(
    group: AnyGroup,
    cause: str,
    now: Now,
    result: Result[R],
    generation: int,
    state: ClassicGroupState,
    since_ms: int | None = None,
) -> None:
    event = Event(now.log_ms, group.id, printable(cause), generation, state.value, since_ms)
    result.events.append(event)


def _names(members: Iterable[ClassicGroupMember]) -> str:
    return some_of([member.id for member in members])
