"""The group coordinator of one partition of `__consumer_offsets`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import chain, islice
from typing import TypeVar
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
)
from kbroker.protocol.transaction_log import NO_PRODUCER_ID

from .classic.group import ClassicGroup
from .classic.group_state import STABLE
from .classic.groups import ClassicGroups
from .classic.rebalance import Rebalances, note
from .common.memory import GroupMemory, MemoryLimit, ShardMemory
from .common.record import OFFSETS_SERDE, CoordinatorRecord
from .common.result import Answer, ClientInfo, Now, PendingResponse, Pieces, Result, append_error
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
from .streams.group import StreamsGroup
from .streams.groups import STREAMS_KINDS, StreamsGroups, StreamsHeartbeat
from .tombstones import tombstones_of
from .views import GroupView, view_of

R = TypeVar("R")

GROUPS_AT_ONCE = 100
"""That go on in one piece after a load: some milliseconds with their events."""


class GroupCoordinator:
    """Groups of all protocols and offsets of one shard: pure, so every call says what time it is.

    Life: `replay` each record of the partition, then `on_loaded`; operations; at the end
    `on_unloaded`.
    `kbroker.coordinator.result` says what the caller does with a `Result`. Operations do not raise
    for anything that a client can send. `version` is that of the request.

    Parameters:
      settings: Limits and delays.
      topics: The cluster's topics; `topics_changed` says when they change.
      consumer_settings: Those of one consumer group, by its id, as they are now.
      streams_settings: The same of a streams group.
      share_settings: The same of a share group.
      memory: Limits that the coordinators of a node share; none by default.
      new_uuid: Where member ids come from; tests give a counter.
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
        """Requests for committed offsets."""
        self._topics = KnownTopics(topics)
        default = ConsumerGroupSettings()
        self._settings_of = consumer_settings or (lambda group_id: default)
        timers = self._rebalances.timers
        conversion = Conversion(self._state, self._rebalances, settings, self._topics)
        self._consumer = ConsumerGroups(
            self._state, timers, self._settings_of, self._topics, conversion, new_uuid
        )
        streams_default = StreamsGroupSettings()
        self._streams = StreamsGroups(
            self._state,
            timers,
            streams_settings or (lambda group_id: streams_default),
            self._topics,
        )
        default_of_shares = ShareGroupSettings()
        self.share_states = ShareStateInitializations(self._state, self._topics)
        """States that share coordinators are to create."""
        self._share = ShareGroups(
            self._state,
            timers,
            share_settings or (lambda group_id: default_of_shares),
            self._topics,
            self.share_states,
        )
        self.share_offsets = ShareOffsets(self._state, self._topics, self.share_states)
        """Requests for the states of share groups."""
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
        """JoinGroup 0-9. Usually the response completes when all members have joined.

        A modern group without members is treated as missing, see `free_for_classic`.
        """
        size = sum(len(row.name) + len(row.metadata) for row in request.protocols)
        if size > self._settings.member_metadata_bytes_max:
            code = ErrorCode.INVALID_REQUEST
            return Result(JoinGroupResponse(error_code=code, member_id=request.member_id))
        group = self._consumer_group(request.group_id)
        if group is not None and group.members:
            joined = self._classic_members.join(group, request, client, now, version)
            return self._bounded(joined, client.host, now)
        streams = self._state.streams_group(request.group_id)
        if streams is not None and streams.members:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return Result(JoinGroupResponse(error_code=code))
        if self.has_share_group(request.group_id):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return Result(JoinGroupResponse(error_code=code, member_id=""))
        return self._classic.join(request, client, now, version)

    def sync(self, request: SyncGroupRequest, now: Now, version: int) -> Result[SyncGroupResponse]:
        """SyncGroup 0-5. The answer comes with the assignment that the leader brings."""
        group = self._consumer_group(request.group_id)
        if group is not None:
            return self._classic_members.sync(group, request, now)
        classic = self._state.classic_group(request.group_id)
        member = None if classic is None else classic.members.get(request.member_id)
        synced = self._classic.sync(request, now, version)
        if member is None:
            return synced
        # Clients take COORDINATOR_LOAD_IN_PROGRESS in this answer for a fatal error.
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self._bounded(synced, member.client_host, now, code)

    def heartbeat(self, request: HeartbeatRequest, now: Now) -> Result[HeartbeatResponse]:
        """Heartbeat 0-4."""
        group = self._consumer_group(request.group_id)
        if group is not None:
            return self._classic_members.heartbeat(group, request, now)
        return self._classic.heartbeat(request, now)

    def leave(
        self, request: LeaveGroupRequest, now: Now, version: int
    ) -> Result[LeaveGroupResponse]:
        """LeaveGroup 0-5."""
        group = self._consumer_group(request.group_id)
        if group is not None:
            return self._classic_members.leave(group, request, now, version)
        return self._classic.leave(request, now, version)

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        group = self._state.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: ClientInfo,
        now: Now,
        version: int,
        rights: TopicRights | None = None,
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """ConsumerGroupHeartbeat 0-1.

        `rights` say which topics the client may describe, None for all: a regular expression does
        not find others.
        """
        result = self._consumer.heartbeat(request, client, now, version, rights)
        return self._bounded(result, client.host, now)

    def streams_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client: ClientInfo, now: Now
    ) -> StreamsHeartbeat:
        """StreamsGroupHeartbeat 0. The internal topics that it names are to be made once its result
        is stored, if the client may do that."""
        heartbeat = self._streams.heartbeat(request, client, now)
        result = self._bounded(heartbeat.result, client.host, now)
        return heartbeat if result is heartbeat.result else StreamsHeartbeat(result, {})

    def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: ClientInfo, now: Now
    ) -> Result[ShareGroupHeartbeatResponse]:
        """ShareGroupHeartbeat 1. What it asks of share coordinators is in `share_states`."""
        return self._bounded(self._share.heartbeat(request, client, now), client.host, now)

    def _bounded(
        self,
        result: Result[R],
        host: str,
        now: Now,
        code: ErrorCode = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ) -> Result[R]:
        """Undo an operation whose records would exceed the limit of the node for members.

        Args:
            result: The result of the operation.
            host: The address of the client.
            now: The time of the operation.
            code: The error for the client, after which it tries again.

        Returns:
            The result, or the one that replaces it.
        """
        memory = self._state.memory
        undo = result.on_failure
        if undo is None or memory.limits.members.has_room(memory.growth(result.records), host):
            return result
        result.on_failure = None  # it may hold the result itself
        return undo(code, now)

    def has_share_group(self, group_id: str) -> bool:
        """Whether there is a share group of that name."""
        return self._state.share_group(group_id) is not None

    def free_for_classic(
        self, request: JoinGroupRequest, now: Now
    ) -> Result[JoinGroupResponse] | None:
        """Delete a modern group without members before a JoinGroup; its offsets stay.

        Return None if there is no such group, or if the request will be rejected anyway. Release the
        result only if it could not be stored.
        """
        group_id = request.group_id
        group = self._consumer_group(group_id) or self._state.streams_group(group_id)
        if group is None or group.members or not self._classic.could_begin(request):
            return None
        self._streams.forget(group_id)
        result: Result[JoinGroupResponse] = Result()
        result.records = tombstones_of(group)
        result.on_failure = lambda code, now: Result(
            JoinGroupResponse(error_code=append_error(code))
        )
        return result

    def abandon(self, slot: PendingResponse[R], now: Now) -> Result[None]:
        """The client that waits in `slot` has gone; call it once, before the slot is answered."""
        return self._classic.abandon(slot, now)

    # -- offsets

    def forget_topics(self, names: Collection[str]) -> Pieces:
        """Delete the offsets of deleted topics, in pieces.

        From the call on nobody sees them. What is committed meanwhile to a topic that has one of
        the names again stays. Without pieces when the work of an earlier call is not done yet: then
        that goes on with these names.
        """
        return self.offsets.forget_topics(names)

    def forget_missing_topics(self) -> Pieces:
        """Delete the offsets of topics that there are no more, in pieces."""
        return chain(
            self.offsets.forget_missing_topics(), self.share_offsets.forget_missing_topics()
        )

    def expire(self, now: Now) -> Pieces:
        """Delete what has outlived its retention, in pieces."""
        return self.offsets.expire(now)

    # -- requests of operators

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Iterator[ListGroupsResponse.Group]:
        """ListGroups 0-5: the rows of this shard, filtered by state and type if any are named.

        There may be many: take them in pieces.
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
        """DescribeGroups 0-6: the row of one group. Authorized operations are left unset."""
        return describe_group(self._state, group_id, version)

    def describe_consumer_group(self, group_id: str) -> ConsumerGroupDescribeResponse.Group:
        """ConsumerGroupDescribe 0-1: the row of one group. Authorized operations are left unset."""
        assignor = self._settings_of(group_id).assignors[0]
        return describe_consumer_group(self._state, self._topics, group_id, assignor)

    def describe_streams_group(self, group_id: str) -> StreamsGroupDescribeResponse.Group:
        """StreamsGroupDescribe 0: the row of one group. Authorized operations are left unset."""
        return describe_streams_group(self._state, group_id)

    def describe_share_group(self, group_id: str) -> ShareGroupDescribeResponse.Group:
        """ShareGroupDescribe 1: the row of one group. Authorized operations are left unset."""
        return describe_share_group(self._state, self._topics, group_id)

    def delete_group(self, group_id: str, now: Now) -> Iterator[Result[DeleteGroupsResponse.Group]]:
        """DeleteGroups 0-2, one group of it, in pieces whose response is its row.

        Handle each before taking the next, and take no more behind one that could not be stored.
        Between two of them nobody else may use the group.
        """
        streams = self._state.streams_group(group_id)
        if streams is not None and not streams.members:
            self._streams.forget(group_id)
        return delete_group(self._state, group_id, now)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """The committed offsets of a group, by topic and partition; pending ones do not count."""
        offsets = self._state.offsets.get(group_id, {})
        return {partition: value.offset for partition, value in offsets.items()}

    def view(self, group_id: str) -> GroupView:
        """The state and the members of a group of any kind."""
        return view_of(self._state, self._topics, group_id)

    def pending_share_work(self, group_id: str) -> str | None:
        """Return a description of the pending work of a share group, or None if it is idle."""
        group = self._state.share_group(group_id)
        return None if group is None else pending_share_group_work(group)

    def describe_status(self, group_id: str, now: Now) -> str | None:
        """Return a sentence about the state of a group and its pending events, or None if unknown."""
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
        """When `due` must be called next, in coordinator time; None: not before another call."""
        return self._rebalances.timers.next_deadline()

    def due(self, now: Now) -> Iterator[Result[None]]:
        """The time-outs that have come. Handle each result before taking the next."""
        while (key := self._rebalances.timers.pop_due(now.coordinator_ms)) is not None:
            yield self._owner(key[0]).expire(key, now)

    def _owner(self, kind: str) -> ConsumerGroups | StreamsGroups | ShareGroups | Rebalances:
        """Whose a kind of timers is."""
        if kind in STREAMS_KINDS:
            return self._streams
        if kind in SHARE_KINDS:
            return self._share
        return self._consumer if kind in KINDS else self._rebalances

    def end_session(self, group_id: str, member_id: str, now: Now) -> None:
        """A member is not heard of any more: its session is over the next time `due` is called."""
        group = self._state.groups.get(group_id)
        if isinstance(group, StreamsGroup):
            self._streams.sessions.end(group_id, member_id, now)
        elif isinstance(group, ConsumerGroup):
            self._consumer.sessions.end(group_id, member_id, now)
        elif isinstance(group, ShareGroup):
            self._share.sessions.end(group_id, member_id, now)
        else:
            self._rebalances.expect(group_id, member_id, 0, now)

    def renew_sessions(self, now: Now) -> None:
        """All members were just heard of: for a clock that jumps while its clients do not."""
        for group in self._state.groups.values():
            if isinstance(group, ConsumerGroup):
                self._consumer.sessions.restart(group, now)
            elif isinstance(group, StreamsGroup):
                self._streams.sessions.restart(group, now)
            elif isinstance(group, ShareGroup):
                self._share.sessions.restart(group, now)
            else:
                for member in group.members.values():
                    self._rebalances.keep_alive(group, member, now)

    def topics_changed(self, names: Collection[str]) -> None:
        """These topics are new, gone or different: consumer and streams groups look again with the next
        heartbeat of a member."""
        self._topics.changed(names)

    # -- life

    def replay(self, record: CoordinatorRecord, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the partition, in log order, at start-up and after an append.

        Args:
            record: As it was made, or as `serde` decodes it.
            producer_id: That of a transactional batch.
        """
        replay(self._state, record, producer_id)

    def groups_in_transaction(self, producer_id: int) -> Collection[str]:
        """The groups in which a producer has committed offsets that are pending."""
        return self._state.pending_offsets.groups(producer_id)

    def end_transaction(self, producer_id: int, *, commit: bool) -> Iterator[int]:
        """Apply one transaction marker of the partition, in log order like a record.

        There may be many offsets, so it goes in pieces; yields how many each had. Until all are
        taken nobody may use the `groups_in_transaction`, as they were before the call.
        """
        return end_transaction(self._state, producer_id, commit=commit)

    def on_loaded(self, now: Now) -> Iterator[Result[None]]:
        """All records have been replayed: sessions start, and members go on where they were.

        In pieces: handle each before taking the next, and all before anything else is asked.
        """
        groups = iter(tuple(self._state.groups.values()))
        while some := tuple(islice(groups, GROUPS_AT_ONCE)):
            result: Result[None] = Result()
            for group in some:
                self._go_on(group, now, result)
            yield result

    def _go_on(self, group: AnyGroup, now: Now, result: Result[None]) -> None:
        if isinstance(group, ConsumerGroup):
            self._consumer.resume(group, now)
        elif isinstance(group, StreamsGroup):
            self._streams.resume(group, now)
        elif isinstance(group, ShareGroup):
            self._share.resume(group, now)
        elif group.state is STABLE:
            note(group, f"loaded with {len(group.members)} members", now, result)
            for member in group.members.values():
                self._rebalances.keep_alive(group, member, now)
            if len(group.members) > self._settings.group_size_max:
                reason = "it has more members than group.max.size"
                self._rebalances.begin(group, reason, now, result)

    def on_unloaded(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Answer]:
        """The shard goes: an error for all who are parked. Release at once; do not use it again."""
        result: Result[None] = Result()
        for group in self._state.groups_of(ClassicGroup):
            for member in group.members.values():
                self._rebalances.fail_slots(group, member, code, member.id, result)
        self._state.memory.close()
        return result.answers
