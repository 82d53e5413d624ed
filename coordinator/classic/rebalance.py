"""How a classic group gets from one generation to the next, and what time does to it.

A rebalance is volatile from its start until the leader's assignment is stored: after a restart the
group is back in the generation before it, and its members join again.
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

SESSION = "session"
JOIN = "join"
SYNC = "sync"
POSTPONED_MS_MIN = 1_000


class Rebalances:
    """Starts, completes and times out the rebalances of a shard's groups.

    The keys of the timers are (SESSION, group, member), (JOIN, group, "") for the end of the join
    phase, and (SYNC, group, "") for members that never fetch their assignment.
    """

    def __init__(self, state: ShardState, settings: GroupSettings) -> None:
        self.timers: Timers[tuple[str, str, str]] = Timers()
        self._state = state
        self._settings = settings

    # -- sessions

    def keep_alive(self, group: ClassicGroup, member: ClassicGroupMember, now: Now) -> None:
        """A member was heard of: its session starts again."""
        member.heard_ms = now.coordinator_ms
        self.expect(group.id, member.id, member.session_timeout_ms, now)

    def expect(self, group_id: str, member_id: str, timeout_ms: int, now: Now) -> None:
        """A member, or an id that was given out, has so long to be heard of."""
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
        """Ask all members to join again, and go on at once if nobody is missing."""
        if group.state is COMPLETING:
            self.fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now, result)
        self._stop_waiting_for_syncs(group)
        group.is_initial = group.state is EMPTY
        group.move(PREPARING)
        note(group, cause, now, result, since_ms)
        delay_ms = self._settings.initial_rebalance_delay_ms
        if group.is_initial and delay_ms > 0:
            group.newcomer = False
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._end_joins_after(group, delay_ms, now)
        elif group.is_initial or group.all_joined:
            self._complete(group, now, result)
        else:
            self._end_joins_after(group, group.rebalance_timeout_ms, now)

    def begin_or_complete(
        self, group: ClassicGroup, cause: str, now: Now, result: Result[R]
    ) -> None:
        """Someone came or went: a new rebalance, or perhaps the last one missing in this one."""
        if group.state is PREPARING:
            self.complete_if_all_joined(group, now, result)
        else:
            self.begin(group, cause, now, result)

    def complete_if_all_joined(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        """End the join phase when nobody is missing; the first one waits out its delay."""
        if group.state is PREPARING and not group.is_initial and group.all_joined:
            self._complete(group, now, result)

    def _complete(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        """End the join phase with those who have joined."""
        self.timers.cancel((JOIN, group.id, ""))
        group.is_initial = False
        # Static members stay until their session ends: that is what they are for (KIP-345).
        late = [m for m in group.members.values() if m.join_slot is None and m.instance_id is None]
        for member in late:
            self.drop(group, member, result)
        if late:
            note(group, f"{_names(late)} did not rejoin in time", now, result)
        if not group.members:
            self._empty(group, now, result)
        elif group.elect_joined_leader():
            self._next_generation(group, now, result)
        else:
            # Only static members, none of them here: their sessions decide. A timeout of 0 must
            # not make us ask all the time.
            delay_ms = max(group.rebalance_timeout_ms, POSTPONED_MS_MIN)
            self._end_joins_after(group, delay_ms, now)

    def _empty(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        value = emptied_value(group, now.log_ms)
        result.records.append(group_record(group.id, value))
        _write_event(group, "the last member is gone", now, result, value.generation, EMPTY)

        def stored_or_not(code: ErrorCode, now: Now) -> Result[R]:
            # The log still has the generation before this one, whose members will time out if the
            # group is loaded from there. Without members nothing depends on it.
            replay_group(self._state, group.id, value)
            failed: Result[R] = Result(result.response)
            failed.answers = result.answers
            return failed

        result.on_failure = stored_or_not

    def _next_generation(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        group.generation += 1
        group.protocol_name = group.vote()
        group.keep_subscriptions()
        group.move(COMPLETING)
        note(group, f"{len(group.members)} members joined", now, result)
        rows = member_rows(group)
        for member in group.members.values():
            slot = group.take_join(member)
            if slot is not None:
                result.answers.append(Answer(slot, joined(group, member, rows)))
            member.is_new = member.is_anonymous = False
            self.keep_alive(group, member, now)
        group.unsynced = set(group.members)
        self.timers.schedule((SYNC, group.id, ""), now.coordinator_ms + group.rebalance_timeout_ms)

    def synced(self, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """A member has asked for its assignment."""
        group.unsynced.discard(member.id)
        if not group.unsynced:
            self.timers.cancel((SYNC, group.id, ""))

    def fail_syncs(self, group: ClassicGroup, code: ErrorCode, now: Now, result: Result[R]) -> None:
        """There will be no assignment for this generation."""
        for member in group.members.values():
            member.assignment = b""
            if member.sync_slot is not None:
                result.answers.append(Answer(member.sync_slot, SyncGroupResponse(error_code=code)))
                member.sync_slot = None
                self.keep_alive(group, member, now)

    def drop(self, group: ClassicGroup, member: ClassicGroupMember, result: Result[R]) -> None:
        """Take a member out; what it is parked in is answered as to a stranger."""
        self.forget_session(group.id, member.id)
        self.fail_slots(group, member, ErrorCode.UNKNOWN_MEMBER_ID, "", result)
        group.remove(member)

    def fail_slots(
        self,
        group: ClassicGroup,
        member: ClassicGroupMember,
        code: ErrorCode,
        member_id: str,
        result: Result[R],
    ) -> None:
        """Answer what a member is parked in with an error."""
        join_slot = group.take_join(member)
        if join_slot is not None:
            refusal = JoinGroupResponse(error_code=code, member_id=member_id)
            result.answers.append(Answer(join_slot, refusal))
        if member.sync_slot is not None:
            result.answers.append(Answer(member.sync_slot, SyncGroupResponse(error_code=code)))
            member.sync_slot = None

    def member_left(
        self,
        group: ClassicGroup,
        cause: str,
        now: Now,
        result: Result[R],
        since_ms: int | None = None,
    ) -> None:
        """After members were dropped: the others share anew."""
        if group.state in (STABLE, COMPLETING):
            self.begin(group, cause, now, result, since_ms)
        else:
            note(group, cause, now, result, since_ms)
            self.complete_if_all_joined(group, now, result)

    def drop_pending(self, group: ClassicGroup, member_id: str) -> None:
        """An id that was given out will not come back."""
        group.stop_expecting(member_id)
        self.forget_session(group.id, member_id)

    def pending_left(self, group: ClassicGroup, now: Now, result: Result[R]) -> None:
        """After ids were dropped: perhaps they were all that was missing."""
        if group.is_unused:
            del self._state.groups[group.id]
        else:
            self.complete_if_all_joined(group, now, result)

    # -- time

    def expire(self, key: tuple[str, str, str], now: Now) -> Result[None]:
        """A timer has come."""
        kind, group_id, member_id = key
        result: Result[None] = Result()
        group = self._state.classic_group(group_id)
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
            self.pending_left(group, now, result)
            return
        member = group.members.get(member_id)
        # Who waits for us cannot send heartbeats; its session starts again with the answer. A new
        # member may be the ghost of a connection that is gone, so it may not wait for ever.
        if member is None or (member.is_waiting and not member.is_new):
            return
        self.drop(group, member, result)
        silent_ms = now.coordinator_ms - member.heard_ms
        cause = f"member {member_id} missed heartbeats"
        self.member_left(group, cause, now, result, now.log_ms - silent_ms)

    def _expire_joins(self, group: ClassicGroup, now: Now, result: Result[None]) -> None:
        if group.state is not PREPARING:
            return
        if group.is_initial and group.newcomer and group.initial_delay_left_ms > 0:
            # The delay is for a group of members that start one after the other: it goes on while
            # they come, up to the rebalance timeout.
            group.newcomer = False
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


def joined(
    group: ClassicGroup, member: ClassicGroupMember, rows: list[JoinGroupResponse.Member]
) -> JoinGroupResponse:
    """The answer to a join; only the leader is told who the members are."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        member_id=member.id,
        members=rows if member.id == group.leader_id else [],
    )


def member_rows(group: ClassicGroup) -> list[JoinGroupResponse.Member]:
    """The members for the leader, with what they said for the chosen protocol."""
    return [
        JoinGroupResponse.Member(
            member_id=member.id,
            group_instance_id=member.instance_id,
            metadata=member.metadata(group.protocol_name),
        )
        for member in group.members.values()
    ]


def note(
    group: ClassicGroup, cause: str, now: Now, result: Result[R], since_ms: int | None = None
) -> None:
    """Write down a change and its cause."""
    _write_event(group, cause, now, result, group.generation, group.state, since_ms)


def note_stored(group: ClassicGroup, cause: str, now: Now, result: Result[R]) -> None:
    """Write down that the group becomes stable with the record of this result."""
    _write_event(group, cause, now, result, group.generation, STABLE)


def note_deleted(group: AnyGroup, cause: str, now: Now, result: Result[R]) -> None:
    """Write down that the group goes with the records of this result."""
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
