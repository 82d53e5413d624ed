"""The group coordinator of one partition of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain, islice
from typing import Any, TypeVar
from uuid import UUID, uuid4

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kbroker.protocol.messages.groups import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.share_groups import (
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .classic.group import ClassicGroup
from .classic.group_state import STABLE
from .classic.groups import ClassicGroups
from .classic.rebalance import Rebalances, add_event
from .common.memory import GroupMemory, MemoryLimit, ShardMemory
from .common.record import OFFSETS_SERDE, CoordinatorRecord
from .common.result import Answer, ClientInfo, Now, PendingResponse, Pieces, Result, append_error
from .common.sessions import MemberSessions
from .common.settings import (
    ConsumerGroupSettings,
    GroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
)
from .common.topics import KnownTopics, Topics
from .consumer.classic_members import ClassicMembers
from .consumer.conversion import Conversion
from .consumer.describing import describe_consumer_group
from .consumer.group import ConsumerGroup
from .consumer.groups import KINDS, ConsumerGroups
from .consumer.target_assignments import TopicRights
from .group_status import (
    describe_classic_group_status,
    describe_consumer_group_status,
    describe_share_group_status,
    describe_streams_group_status,
    pending_share_group_work,
)
from .listing import delete_group, describe_group, list_groups
from .offsets import OffsetMetadataManager
from .replay import end_transaction, replay
from .share.describing import describe_share_group
from .share.group import ShareGroup
from .share.groups import KINDS as SHARE_KINDS
from .share.groups import ShareGroups
from .share.initialization import ShareStateInitializations
from .share.offsets import ShareOffsets
from .state import AnyGroup, ShardState
from .streams.describing import describe_streams_group
from .streams.descriptions import update_description
from .streams.group import StreamsGroup
from .streams.groups import STREAMS_KINDS, StreamsGroups, StreamsHeartbeat
from .tombstones import tombstones_of
from .views import GroupView, view_of

R = TypeVar("R")

# Groups to resume per piece after loading (a few milliseconds including their events).
GROUPS_AT_ONCE = 100


class GroupCoordinator:
    """Groups of all protocols and committed offsets of one shard, without I/O or a clock.

    Life cycle: `replay` each record of the partition, call `on_loaded`, run operations, and finally
    call `on_unloaded`. `kbroker.coordinator.common.result` describes how the caller processes a
    `Result`. Operations raise no exception for any request that a client can send. Their `version`
    parameter is the version of the request.

    Args:
        settings: Limits and delays.
        topics: Topics of the cluster. Call `topics_changed` when they change.
        consumer_settings: Returns the current settings of a consumer group, by group ID.
        streams_settings: Returns the current settings of a streams group, by group ID.
        share_settings: Returns the current settings of a share group, by group ID.
        memory: Memory limits that all coordinators of a node share. None for no limits.
        new_uuid: Source of member IDs; tests pass a counter.

    Attributes:
        offsets: Handler of requests for committed offsets.
        share_states: Share states that share coordinators must create or delete.
        share_offsets: Handler of requests for the offsets of share groups.
    """

    serde = OFFSETS_SERDE

    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics,
        *,
        consumer_settings: Callable[[str], ConsumerGroupSettings] | None = None,
        streams_settings: Callable[[str], StreamsGroupSettings] | None = None,
        share_settings: Callable[[str], ShareGroupSettings] | None = None,
        memory: GroupMemory | None = None,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        self._settings = settings
        limits = memory or GroupMemory(MemoryLimit(), MemoryLimit())
        self._state = ShardState(ShardMemory(limits))
        self._rebalances = Rebalances(self._state, settings)
        self._classic = ClassicGroups(self._state, self._rebalances, settings, new_uuid)
        self.offsets = OffsetMetadataManager(self._state, self._rebalances, settings, topics)
        self._topics = KnownTopics(topics)
        default = ConsumerGroupSettings()
        self._settings_of = consumer_settings or (lambda group_id: default)
        timers = self._rebalances.timers
        conversion = Conversion(self._state, self._rebalances, settings, self._topics)
        self._consumer = ConsumerGroups(
            self._state, timers, self._settings_of, self._topics, conversion, new_uuid
        )
        streams_default = StreamsGroupSettings()
        self._streams_settings_of = streams_settings or (lambda group_id: streams_default)
        self._streams = StreamsGroups(
            self._state,
            timers,
            self._streams_settings_of,
            self._topics,
        )
        share_default = ShareGroupSettings()
        self.share_states = ShareStateInitializations(self._state, self._topics)
        self._share = ShareGroups(
            self._state,
            timers,
            share_settings or (lambda group_id: share_default),
            self._topics,
            self.share_states,
        )
        self.share_offsets = ShareOffsets(self._state, self._topics, self.share_states)
        self._classic_members = ClassicMembers(
            self._consumer,
            timers,
            settings,
            self._settings_of,
            self._topics,
            conversion,
            new_uuid,
        )

    # -- requests of members

    def join(
        self, request: JoinGroupRequest, client: ClientInfo, now: Now, version: int
    ) -> Result[JoinGroupResponse]:
        """Handle JoinGroup (versions 0-9). The response usually waits for the joins of all members.

        A modern group without members is treated as missing, see `delete_empty_modern_group`.
        """
        size = sum(len(row.name) + len(row.metadata) for row in request.protocols)
        if size > self._settings.member_metadata_bytes_max:
            code = ErrorCode.INVALID_REQUEST
            return Result(JoinGroupResponse(error_code=code, member_id=request.member_id))
        group = self._state.find_group(request.group_id, ConsumerGroup)
        if group is not None and group.members:
            joined = self._classic_members.join(group, request, client, now, version)
            return self._undo_if_over_limit(joined, client.host, now)
        streams = self._state.find_group(request.group_id, StreamsGroup)
        if streams is not None and streams.members:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return Result(JoinGroupResponse(error_code=code))
        if self.has_share_group(request.group_id):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return Result(JoinGroupResponse(error_code=code, member_id=""))
        return self._classic.join(request, client, now, version)

    def sync(self, request: SyncGroupRequest, now: Now, version: int) -> Result[SyncGroupResponse]:
        """Handle SyncGroup (versions 0-5). The response waits for the assignment of the leader."""
        group = self._state.find_group(request.group_id, ConsumerGroup)
        if group is not None:
            return self._classic_members.sync(group, request, now)
        classic = self._state.find_group(request.group_id, ClassicGroup)
        member = None if classic is None else classic.members.get(request.member_id)
        synced = self._classic.sync(request, now, version)
        if member is None:
            return synced
        # Clients treat COORDINATOR_LOAD_IN_PROGRESS in this response as a fatal error.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._undo_if_over_limit(synced, member.client_host, now, code)

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Result[HeartbeatResponse]:
        """Handle Heartbeat (versions 0-4)."""
        group = self._state.find_group(request.group_id, ConsumerGroup)
        if group is not None:
            return self._classic_members.heartbeat(group, request, now)
        return self._classic.heartbeat(request, now)

    def leave(
        self, request: LeaveGroupRequest, now: Now, version: int
    ) -> Result[LeaveGroupResponse]:
        """Handle LeaveGroup (versions 0-5)."""
        group = self._state.find_group(request.group_id, ConsumerGroup)
        if group is not None:
            return self._classic_members.leave(group, request, now, version)
        return self._classic.leave(request, now, version)

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        now: Now,
        version: int,
        rights: TopicRights | None = None,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """Handle ConsumerGroupHeartbeat (versions 0-1).

        Args:
            request: The request.
            client: Client that sent the request.
            now: Current time.
            version: Version of the request.
            rights: Topics that the client may describe, or None for all. A regular expression
                matches only these topics.
        """
        result = self._consumer.heartbeat(request, client, now, version, rights)
        return self._undo_if_over_limit(result, client.host, now)

    def streams_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client: ClientInfo, now: Now, version: int
    ) -> StreamsHeartbeat:
        """Handle StreamsGroupHeartbeat (versions 0-1).

        After the result is stored, the caller creates the internal topics that it names, if the
        client has permission to do so.
        """
        heartbeat = self._streams.heartbeat(request, client, now, version)
        result = self._undo_if_over_limit(heartbeat.result, client.host, now)
        return heartbeat if result is heartbeat.result else StreamsHeartbeat(result, {})

    def update_topology_description(
        self,
        request: StreamsGroupTopologyDescriptionUpdateRequest,
        client: ClientInfo,
        now: Now,
    ) -> Result[StreamsGroupTopologyDescriptionUpdateResponse]:
        """Handle StreamsGroupTopologyDescriptionUpdate (version 0)."""
        result = update_description(self._state, request)
        return self._undo_if_over_limit(result, client.host, now)

    def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: ClientInfo, now: Now
    ) -> Result[ShareGroupHeartbeatResponse]:
        """Handle ShareGroupHeartbeat (version 1).

        Requests for share coordinators are added to `share_states`.
        """
        return self._undo_if_over_limit(
            self._share.heartbeat(request, client, now), client.host, now
        )

    def _undo_if_over_limit(
        self,
        result: Result[R],
        host: str,
        now: Now,
        code: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ) -> Result[R]:
        """Undo an operation whose records would exceed the node's memory limit for members.

        Args:
            result: Result of the operation.
            host: Address of the client.
            now: Time of the operation.
            code: Retriable error for the client.

        Returns:
            The given result, or the result that replaces it.
        """
        memory = self._state.memory
        undo = result.on_failure
        if undo is None or memory.limits.members.permits(memory.growth(result.records), host):
            return result
        result.on_failure = None  # it may reference the result itself
        return undo(code, now)

    def has_share_group(self, group_id: str) -> bool:
        """Return True if a share group of that ID exists."""
        return self._state.find_group(group_id, ShareGroup) is not None

    def delete_empty_modern_group(
        self, request: JoinGroupRequest, now: Now
    ) -> Result[JoinGroupResponse] | None:
        """Delete a modern group without members before a JoinGroup; its offsets remain.

        Returns:
            None if there is no such group, or if the request will be rejected anyway. Otherwise the
            result to store. Release its response only if the append fails.
        """
        group_id = request.group_id
        group = self._state.find_group(group_id, ConsumerGroup) or self._state.find_group(
            group_id, StreamsGroup
        )
        if group is None or group.members or not self._classic.can_create_group(request):
            return None
        self._streams.cancel_initial_delay(group_id)
        result: Result[JoinGroupResponse] = Result()
        result.records = tombstones_of(group)
        result.on_failure = lambda code, now: Result(
            JoinGroupResponse(error_code=append_error(code))
        )
        return result

    def abandon(self, slot: PendingResponse[R], now: Now) -> Result[None]:
        """Remove a pending request whose client disconnected.

        Call this once, before the pending response completes.
        """
        return self._classic.abandon(slot, now)

    # -- offsets

    def forget_topics(self, names: Collection[str]) -> Pieces:
        """Delete the offsets of deleted topics, in pieces.

        Fetches stop returning these offsets immediately. Offsets committed later to a new topic of
        the same name are kept. If an earlier call is still in progress, that work continues with
        the new names, and this call returns no pieces.
        """
        return self.offsets.forget_topics(names)

    def forget_missing_topics(self) -> Pieces:
        """Delete the offsets of topics that no longer exist, in pieces."""
        return chain(
            self.offsets.forget_missing_topics(), self.share_offsets.forget_missing_topics()
        )

    def expire(self, now: Now) -> Pieces:
        """Delete expired offsets and groups, in pieces."""
        return self.offsets.expire(now)

    # -- requests of operators

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Iterator[ListGroupsResponse.Group]:
        """Handle ListGroups (versions 0-5): return the rows of this shard, optionally filtered.

        There may be many rows: consume the iterator in pieces.
        """
        return list_groups(self._state, states, types)

    def member_counts(self) -> Iterator[tuple[str, int]]:
        """Iterate over the groups that commit offsets, with their number of members.

        A shard may have many groups: consume the iterator in pieces.
        """
        for group in self._state.committing_groups():
            yield group.id, len(group.members)

    def share_member_counts(self) -> Iterator[tuple[str, int]]:
        """Iterate over the share groups, with their number of members."""
        for group in self._state.groups_of(ShareGroup):
            yield group.id, len(group.members)

    def describe_group(self, group_id: str, version: int) -> DescribeGroupsResponse.Group:
        """Handle DescribeGroups (versions 0-6) for one group, without authorized operations."""
        return describe_group(self._state, group_id, version)

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeResponse.Group:
        """Handle ConsumerGroupDescribe (versions 0-1) for one group; see `describe_group`."""
        assignor = self._settings_of(group_id).assignors[0]
        return describe_consumer_group(self._state, self._topics, group_id, assignor)

    def describe_streams_group(
        self, group_id: str, *, with_description: bool = False
    ) -> StreamsGroupDescribeResponse.Group:
        """Handle StreamsGroupDescribe (versions 0-1) for one group; see `describe_group`."""
        assignor = self._streams_settings_of(group_id).assignor
        return describe_streams_group(
            self._state, group_id, assignor, with_description=with_description
        )

    def describe_share_group(self, group_id: str) -> ShareGroupDescribeResponse.Group:
        """Handle ShareGroupDescribe (version 1) for one group; see `describe_group`."""
        return describe_share_group(self._state, self._topics, group_id)

    def delete_group(self, group_id: str, now: Now) -> Iterator[Result[DeleteGroupsResponse.Group]]:
        """Handle one group of DeleteGroups (versions 0-3) in pieces. Each response is its row.

        Process each piece before taking the next one, and stop after a piece that could not be
        stored. No other operation may use the group between two pieces.
        """
        streams = self._state.find_group(group_id, StreamsGroup)
        if streams is not None and not streams.members:
            self._streams.cancel_initial_delay(group_id)
        return delete_group(self._state, group_id, now)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets by topic and partition, without pending offsets."""
        offsets = self._state.offsets.get(group_id, {})
        return {partition: value.offset for partition, value in offsets.items()}

    def last_commit_ms(self, group_id: str) -> int | None:
        """Return the time of a group's newest commit (ms, log clock), or None without offsets."""
        offsets = self._state.offsets.get(group_id, {})
        return max((value.commit_timestamp for value in offsets.values()), default=None)

    def view(self, group_id: str) -> GroupView:
        """Return the state and the members of a group of any type."""
        return view_of(self._state, self._topics, group_id)

    def pending_share_work(self, group_id: str) -> str | None:
        """Return a description of the pending work of a share group, or None if it is idle."""
        group = self._state.find_group(group_id, ShareGroup)
        return None if group is None else pending_share_group_work(group)

    def describe_status(self, group_id: str, now: Now) -> str | None:
        """Return a sentence about a group's state and pending events, or None if it is unknown."""
        group = self._state.groups.get(group_id)
        if group is None:
            return None
        if isinstance(group, ShareGroup):
            return describe_share_group_status(group)
        producers = self._state.pending_offsets.producers(group_id)
        if isinstance(group, ConsumerGroup):
            return describe_consumer_group_status(group, producers)
        if isinstance(group, StreamsGroup):
            return describe_streams_group_status(group, producers)
        return describe_classic_group_status(group, self._rebalances.timers, producers, now)

    # -- time

    def next_deadline(self) -> int | None:
        """Return the time at which `due` must be called next (ms, monotonic clock), or None."""
        return self._rebalances.timers.next_deadline()

    def due(self, now: Now) -> Iterator[Result[None]]:
        """Yield the results of expired timers. Process each result before taking the next one."""
        while (key := self._rebalances.timers.pop_due(now.coordinator_ms)) is not None:
            yield self._timer_owner(key[0]).expire(key, now)

    def _timer_owner(self, kind: str) -> ConsumerGroups | StreamsGroups | ShareGroups | Rebalances:
        """Return the component that handles a kind of timer."""
        if kind in STREAMS_KINDS:
            return self._streams
        if kind in SHARE_KINDS:
            return self._share
        return self._consumer if kind in KINDS else self._rebalances

    def end_session(self, group_id: str, member_id: str, now: Now) -> None:
        """Expire the session of a member at the next call of `due`."""
        group = self._state.groups.get(group_id)
        if group is None or isinstance(group, ClassicGroup):
            self._rebalances.start_session(group_id, member_id, 0, now)
        else:
            self._sessions_of(group).end(group_id, member_id, now)

    def renew_sessions(self, now: Now) -> None:
        """Restart the sessions of all members, after the clock has jumped."""
        for group in self._state.groups.values():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    self._rebalances.keep_alive(group, member, now)
            else:
                self._sessions_of(group).restart(group, now)

    def _sessions_of(self, group: ConsumerGroup | StreamsGroup | ShareGroup) -> MemberSessions[Any]:
        """Return the sessions of the type of a modern group."""
        if isinstance(group, ConsumerGroup):
            return self._consumer.sessions
        return self._streams.sessions if isinstance(group, StreamsGroup) else self._share.sessions

    def topics_changed(self, names: Collection[str]) -> None:
        """Process a change of topics.

        Modern groups check the topics at the next heartbeat of a member.
        """
        self._topics.invalidate(names)

    # -- records and life cycle

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition, in log order, during loading and after an append.

        Args:
            record: Record as the coordinator created it, or as `serde` decoded it.
            producer_id: Producer of a transactional batch.
        """
        replay(self._state, record, producer_id)

    def groups_in_transaction(self, producer_id: int) -> Collection[str]:
        """Return the groups in which a producer has pending offsets."""
        return self._state.pending_offsets.groups(producer_id)

    def end_transaction(self, producer_id: int, *, commit: bool) -> Iterator[int]:
        """Apply one transaction marker of the partition, in log order like a record.

        The work is done in pieces because there may be many offsets. Until the iterator is
        exhausted, no other operation may use the groups that `groups_in_transaction` returned
        before this call.

        Yields:
            The number of offsets of each piece.
        """
        return end_transaction(self._state, producer_id, commit=commit)

    def on_loaded(self, now: Now) -> Iterator[Result[None]]:
        """Start the sessions of all members after the last record was replayed, in pieces.

        Process each piece before taking the next one, and all of them before any other operation.
        """
        groups = iter(tuple(self._state.groups.values()))
        while batch := tuple(islice(groups, GROUPS_AT_ONCE)):
            result: Result[None] = Result()
            for group in batch:
                self._resume(group, now, result)
            yield result

    def _resume(self, group: AnyGroup, now: Now, result: Result[None]) -> None:
        if isinstance(group, ConsumerGroup):
            self._consumer.resume(group, now)
        elif isinstance(group, StreamsGroup):
            self._streams.resume(group, now)
        elif isinstance(group, ShareGroup):
            self._share.resume(group, now)
        elif group.state is STABLE:
            add_event(group, f"loaded with {len(group.members)} members", now, result)
            for member in group.members.values():
                self._rebalances.keep_alive(group, member, now)
            if len(group.members) > self._settings.group_size_max:
                reason = "it has more members than group.max.size"
                self._rebalances.begin(group, reason, now, result)

    def on_unloaded(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Answer]:
        """Fail all pending requests because the shard is unloaded.

        Release the returned answers immediately. The coordinator must not be used afterwards.
        """
        result: Result[None] = Result()
        for group in self._state.groups_of(ClassicGroup):
            for member in group.members.values():
                self._rebalances.fail_pending_requests(group, member, code, member.id, result)
        self._state.memory.close()
        return result.answers
