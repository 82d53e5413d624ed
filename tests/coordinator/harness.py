"""A coordinator with a fake log, a fake clock, and encoded requests.

Requests and responses are encoded and decoded in the version under test, so that tests cannot use
fields that the version lacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from kbroker.coordinator import (
    ClientInfo,
    ConsumerGroupSettings,
    CoordinatorRecord,
    Event,
    GroupCoordinator,
    GroupSettings,
    Now,
    PendingResponse,
    Pieces,
    Result,
    ShareGroupSettings,
    StatesToInitialize,
    StreamsGroupSettings,
    TopicRights,
)
from kbroker.coordinator.common.assignor import TopicShape
from kbroker.coordinator.common.memory import GroupMemory, MemoryLimit, ShardMemory
from kbroker.coordinator.common.version_adapters import fetch_response, groups_to_fetch
from kbroker.protocol.compile import decode, encode_bytes
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
    SyncGroupRequest,
    SyncGroupResponse,
)
from kbroker.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.share_groups import (
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
    TopologyDescription,
)
from kbroker.protocol.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from .stored import StoredRecord, store

R = TypeVar("R")
M = TypeVar("M")

LOG_START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 30_000

JOIN_VERSIONS = range(10)
SYNC_VERSIONS = range(6)
HEARTBEAT_VERSIONS = range(5)
LEAVE_VERSIONS = range(6)
COMMIT_VERSIONS = range(11)
FETCH_VERSIONS = range(11)
TRANSACTIONAL_VERSIONS = range(7)


def done(work: Generator[None, None, M]) -> M:
    """Run work that is divided into pieces, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def unlimited() -> ShardMemory:
    """Return the memory accounting of a shard without limits."""
    return ShardMemory(GroupMemory(MemoryLimit(), MemoryLimit()))


def subscription(*topics: str) -> bytes:
    """Return a version 0 subscription of the consumer protocol."""
    body = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"


RANGE = (("range", subscription("orders")),)


def travel(message: M, version: int) -> M:
    """Return the message after encoding and decoding."""
    return decode(type(message), encode_bytes(message, version), version)[0]


def topology(
    *subtopologies: StreamsGroupHeartbeatRequest.Subtopology, epoch: int = 0
) -> StreamsGroupHeartbeatRequest.Topology:
    """Return the topology of a streams application."""
    return StreamsGroupHeartbeatRequest.Topology(epoch=epoch, subtopologies=list(subtopologies))


def subtopology(
    name: str,
    *sources: str,
    sinks: Sequence[str] = (),
    repartition: Mapping[str, int] | None = None,
    changelogs: Sequence[str] = (),
    copartition: Sequence[tuple[list[int], list[int]]] = (),
) -> StreamsGroupHeartbeatRequest.Subtopology:
    """Return a subtopology.

    Args:
        repartition: Partition counts of repartition topics by name.
        copartition: Copartition groups: indexes of source topics and of repartition source topics.
    """
    cls = StreamsGroupHeartbeatRequest
    return cls.Subtopology(
        subtopology_id=name,
        source_topics=list(sources),
        repartition_sink_topics=list(sinks),
        repartition_source_topics=[
            cls.TopicInfo(name=topic, partitions=count)
            for topic, count in (repartition or {}).items()
        ],
        state_changelog_topics=[cls.TopicInfo(name=topic) for topic in changelogs],
        copartition_groups=[
            cls.CopartitionGroup(source_topics=own, repartition_source_topics=between)
            for own, between in copartition
        ],
    )


def _task_rows(
    tasks: Mapping[str, Collection[int]],
) -> list[StreamsGroupHeartbeatRequest.TaskIds]:
    cls = StreamsGroupHeartbeatRequest.TaskIds
    return [cls(subtopology_id=each, partitions=list(tasks[each])) for each in tasks]


class FakeTopics:
    """Topics of a cluster: "orders" with 4 partitions and "audit" with 1."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self.topics: dict[str, tuple[UUID, int]] = {}
        self.racks: dict[str, list[set[str]]] = {}
        self.create("orders", 4)
        self.create("audit", 1)

    def create(self, name: str, partitions: int) -> None:
        self.topics[name] = (UUID(int=0xABC << 64 | next(self._ids)), partitions)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((name for name, topic in self.topics.items() if topic[0] == topic_id), None)

    def id_of(self, name: str) -> UUID | None:
        topic = self.topics.get(name)
        return None if topic is None else topic[0]

    def exists(self, name: str, partition: int) -> bool:
        return name in self.topics and 0 <= partition < self.topics[name][1]

    def shape_of(self, name: str) -> TopicShape:
        return TopicShape(self.topics[name][1], self.racks.get(name, ()))

    def names(self) -> Collection[str]:
        return self.topics


class Call(Generic[R]):
    """A request in progress. `response` is the response that the client has received so far."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.slot: PendingResponse[R] | None = None
        self._response: R | None = None

    def release(self, response: R) -> None:
        assert self._response is None, "the request was answered twice"
        self._response = travel(response, self.version)

    @property
    def is_pending(self) -> bool:
        return self._response is None

    @property
    def response(self) -> R:
        assert self._response is not None, "the request is not answered yet"
        return self._response


class Entry(NamedTuple):
    """Content of the log at one offset: a (transactional) record, or a marker (no record)."""

    record: StoredRecord | None
    producer_id: int = -1
    commit: bool = False

    def load(
        self,
        replay: Callable[[CoordinatorRecord, int], None],
        end_transaction: Callable[..., Iterator[int]],
    ) -> None:
        """Decode and replay the entry."""
        if self.record is None:
            for _ in end_transaction(self.producer_id, commit=self.commit):
                pass
            return
        record = GroupCoordinator.serde.decode(*self.record)
        if record is not None:
            replay(record, self.producer_id)


def joining(
    member_id: str = "",
    protocols: tuple[tuple[str, bytes], ...] = RANGE,
    *,
    session_ms: int = SESSION_MS,
    group: str = "g",
) -> JoinGroupRequest:
    """Return a JoinGroup request of the classic protocol."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=REBALANCE_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.Protocol(name=n, metadata=m) for n, m in protocols],
    )


class Harness:
    """One shard. `hold` holds the high watermark; `append_fails` makes the next append fail."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        topics: FakeTopics | None = None,
        log: Sequence[StoredRecord | Entry] = (),
        start_ms: int = 5_000,
        log_ms: int = LOG_START_MS,
        ids: itertools.count[int] | None = None,
        consumer: ConsumerGroupSettings | None = None,
        streams: StreamsGroupSettings | None = None,
        share: ShareGroupSettings | None = None,
        memory: GroupMemory | None = None,
    ) -> None:
        self.settings = settings or GroupSettings()
        self.topics = topics or FakeTopics()
        self.entries = [each if isinstance(each, Entry) else Entry(each) for each in log]
        self.ms = start_ms
        self._log_ahead_ms = log_ms - start_ms
        self.hold = False
        self.append_fails: ErrorCode | None = None
        self.committed = len(self.entries)
        # Keys whose last record could not be appended.
        self.not_stored: set[bytes] = set()
        self.events: list[Event] = []
        self._waiting: list[tuple[Result[Any], Call[Any] | None]] = []
        self._ids = ids or itertools.count()
        # Settings of all consumer groups; tests may replace them at any time.
        self.consumer = consumer or ConsumerGroupSettings()
        # Settings of all streams groups; tests may replace them at any time.
        self.streams = streams or StreamsGroupSettings(initial_rebalance_delay_ms=0)
        # Partition counts of the internal topics that the last heartbeat requested.
        self.missing: dict[str, int] = {}
        # Settings of all share groups; tests may replace them at any time.
        self.share = share or ShareGroupSettings()
        # Pending initialization requests for share coordinators.
        self.to_make: list[StatesToInitialize] = []
        self.coordinator = GroupCoordinator(
            self.settings,
            self.topics,
            consumer_settings=lambda group_id: self.consumer,
            streams_settings=lambda group_id: self.streams,
            share_settings=lambda group_id: self.share,
            memory=memory,
            new_uuid=lambda: UUID(int=next(self._ids)),
        )
        for entry in self.entries:
            entry.load(self.coordinator.replay, self.coordinator.end_transaction)
        for result in self.coordinator.on_loaded(self.now):
            self.settle(result)

    @property
    def log(self) -> list[StoredRecord]:
        """Return the records of the log, without markers."""
        return [entry.record for entry in self.entries if entry.record is not None]

    @property
    def now(self) -> Now:
        return Now(self._log_ahead_ms + self.ms, self.ms)

    def restarted(self) -> Harness:
        """Return the shard in a new process with committed records and a new monotonic clock."""
        log, log_ms = self.entries[: self.committed], self.now.log_ms
        return Harness(
            self.settings,
            self.topics,
            log,
            start_ms=900,
            log_ms=log_ms,
            ids=self._ids,
            consumer=self.consumer,
            streams=self.streams,
            share=self.share,
        )

    # -- caller of the coordinator

    def settle(self, result: Result[R], call: Call[R] | None = None) -> None:
        """Append, replay and release a result, as the contract of `Result` requires."""
        if call is not None and isinstance(result.response, PendingResponse):
            call.slot = result.response
            call.slot.on_answer = call.release
        serde = self.coordinator.serde
        if result.records:
            assert result.on_failure is not None, "result has records but no on_failure"
            if self.append_fails is not None:
                code, self.append_fails = self.append_fails, None
                self.not_stored |= {store(serde, record).key for record in result.records}
                result = result.on_failure(code, self.now)
                self.events += [each for each in result.events if isinstance(each, Event)]
                self._release(result, call)
                return
            producer_id = result.producer[0] if result.producer else -1
            for record in result.records:
                stored = store(serde, record)
                self.entries.append(Entry(stored, producer_id))
                self.coordinator.replay(record, producer_id)
                self.not_stored.discard(stored.key)
        self.events += [each for each in result.events if isinstance(each, Event)]
        self._waiting.append((result, call))
        for piece in result.work or ():
            if piece is not None:
                self.settle(piece)
        self.to_make += self.coordinator.share_states.take()
        if not self.hold:
            self.commit_log()

    def commit_log(self) -> None:
        """Move the high watermark to the log end offset."""
        self.committed = len(self.entries)
        waiting, self._waiting = self._waiting, []
        for result, call in waiting:
            self._release(result, call)

    def promised(self) -> set[int]:
        """Return the `id`s of pending requests whose responses wait for the high watermark."""
        return {id(slot) for result, _ in self._waiting for slot, _ in result.answers}

    def _release(self, result: Result[R], call: Call[R] | None) -> None:
        if call is not None and not isinstance(result.response, PendingResponse):
            assert result.response is not None
            call.release(result.response)
        for slot, response in result.answers:
            slot.answer(response)

    def history(self, group: str) -> list[Event]:
        """Return the events of one group."""
        return [event for event in self.events if event.group_id == group]

    def sleep(self, ms: int) -> list[Event]:
        """Let time pass from timer to timer, and return the events."""
        before = len(self.events)
        end_ms = self.ms + ms
        turns = 0
        while True:
            deadline = self.coordinator.next_deadline()
            if deadline is None or deadline > end_ms:
                break
            self.ms = max(deadline, self.ms)
            for result in self.coordinator.due(self.now):
                self.settle(result)
                turns += 1
                assert turns < 100_000, "timers never end"
        self.ms = end_ms
        return self.events[before:]

    def abandon(self, call: Call[Any]) -> None:
        """Disconnect the client of a pending request."""
        assert call.slot is not None
        self.settle(self.coordinator.abandon(call.slot, self.now))

    # -- requests

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        version: int = 1,
        group: str = "g",
        may_describe: Callable[[str], bool] | None = None,
        owned: Mapping[str, Collection[int]] | EllipsisType | None = ...,
        topics: Collection[str] | None = None,
        **fields: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        """Send a ConsumerGroupHeartbeat; a join (epoch 0) has defaults for required fields."""
        if owned is ...:
            owned = {} if epoch == 0 else None
        if epoch == 0:
            fields.setdefault("rebalance_timeout_ms", REBALANCE_MS)
            if topics is None and "subscribed_topic_regex" not in fields:
                topics = ["orders"]
        cls = ConsumerGroupHeartbeatRequest
        rows = None
        if isinstance(owned, Mapping):
            rows = [
                cls.Topic(topic_id=self.topics.id_of(name) or UUID(int=0), partitions=list(indexes))
                for name, indexes in owned.items()
            ]
        request = cls(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
            topic_partitions=rows,
            **fields,
        )
        call: Call[ConsumerGroupHeartbeatResponse] = Call(version)
        info = ClientInfo("c", "/10.0.0.1")
        request = travel(request, version)
        rights = None if may_describe is None else TopicRights(may_describe, may_describe)
        result = self.coordinator.consumer_heartbeat(request, info, self.now, version, rights)
        self.settle(result, call)
        return call.response

    def describe_consumer(self, group: str = "g") -> ConsumerGroupDescribeResponse.Group:
        row = self.coordinator.describe_consumer_group(group)
        return travel(ConsumerGroupDescribeResponse(groups=[row]), 1).groups[0]

    def streams_beat(
        self,
        member_id: str,
        epoch: int,
        *,
        group: str = "g",
        owned: Mapping[str, Collection[int]] | EllipsisType | None = ...,
        standby: Mapping[str, Collection[int]] | None = None,
        version: int = 1,
        **fields: Any,
    ) -> StreamsGroupHeartbeatResponse:
        """Send a StreamsGroupHeartbeat; a join (epoch 0) has defaults for required fields.

        Args:
            owned: Reported active tasks.
            standby: Reported standby tasks.
        """
        cls = StreamsGroupHeartbeatRequest
        if owned is ...:
            owned = {} if epoch == 0 else None
        if epoch == 0:
            fields = {
                "rebalance_timeout_ms": REBALANCE_MS,
                "process_id": member_id,
                "topology": topology(subtopology("0", "orders")),
                **fields,
            }
        if isinstance(owned, Mapping):
            fields["active_tasks"] = _task_rows(owned)
            fields["standby_tasks"] = _task_rows(standby or {})
            fields["warmup_tasks"] = []
        request = cls(group_id=group, member_id=member_id, member_epoch=epoch, **fields)
        call: Call[StreamsGroupHeartbeatResponse] = Call(version)
        info = ClientInfo("c", "/10.0.0.1")
        found = self.coordinator.streams_heartbeat(
            travel(request, version), info, self.now, version
        )
        self.missing = {each.name: each.partitions for each in found.missing.values()}
        self.settle(found.result, call)
        return call.response

    def describe_streams(self, group: str = "g") -> StreamsGroupDescribeResponse.Group:
        row = self.coordinator.describe_streams_group(group, with_description=True)
        return travel(StreamsGroupDescribeResponse(groups=[row]), 1).groups[0]

    def describe_topology(
        self,
        description: TopologyDescription,
        *,
        member_id: str = "a",
        epoch: int = 0,
        group: str = "g",
    ) -> StreamsGroupTopologyDescriptionUpdateResponse:
        """Send a StreamsGroupTopologyDescriptionUpdate."""
        request = StreamsGroupTopologyDescriptionUpdateRequest(
            group_id=group,
            member_id=member_id,
            topology_epoch=epoch,
            topology_description=description,
        )
        call: Call[StreamsGroupTopologyDescriptionUpdateResponse] = Call(0)
        info = ClientInfo("c", "/10.0.0.1")
        self.settle(
            self.coordinator.update_topology_description(travel(request, 0), info, self.now), call
        )
        return call.response

    def make_missing(self) -> None:
        """Create the missing internal topics."""
        for name, partitions in self.missing.items():
            self.create_topic(name, partitions)

    def share_beat(
        self,
        member_id: str,
        epoch: int,
        topics: Collection[str] | None = None,
        *,
        group: str = "g",
        **fields: Any,
    ) -> ShareGroupHeartbeatResponse:
        """Send a ShareGroupHeartbeat; a join (epoch 0) subscribes to "orders" by default."""
        if epoch == 0 and topics is None:
            topics = ["orders"]
        request = ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=None if topics is None else list(topics),
            **fields,
        )
        call: Call[ShareGroupHeartbeatResponse] = Call(1)
        info = ClientInfo("c", "/10.0.0.1")
        request = travel(request, 1)
        self.settle(self.coordinator.share_heartbeat(request, info, self.now), call)
        return call.response

    def describe_share(self, group: str = "g") -> ShareGroupDescribeResponse.Group:
        row = self.coordinator.describe_share_group(group)
        return travel(ShareGroupDescribeResponse(groups=[row]), 1).groups[0]

    def make_states(self, *, succeeded: bool = True) -> list[StatesToInitialize]:
        """Complete all pending initialization requests, and return them."""
        requested, self.to_make = self.to_make, []
        for each in requested:
            self.settle(
                self.coordinator.share_states.record_outcome(
                    each.group_id, each.partitions, succeeded=succeeded
                )
            )
        return requested

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        known = self.topics.topics.get(name)
        self.topics.create(name, partitions)
        if known is not None:
            self.topics.topics[name] = (known[0], partitions)
        self.coordinator.topics_changed([name])

    def delete_topic(self, name: str) -> None:
        del self.topics.topics[name]
        self.coordinator.topics_changed([name])

    def join(
        self,
        member_id: str = "",
        *,
        version: int = 9,
        group: str = "g",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client: str = "c",
    ) -> Call[JoinGroupResponse]:
        request = joining(member_id, protocols, session_ms=session_ms, group=group)
        request.rebalance_timeout_ms = rebalance_ms
        request.group_instance_id = instance
        request.protocol_type = protocol_type
        call: Call[JoinGroupResponse] = Call(version)
        info = ClientInfo(client, "/10.0.0.1")
        request = travel(request, version)
        self.settle(self.coordinator.join(request, info, self.now, version), call)
        return call

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        version: int = 5,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol: str | None = "range",
    ) -> Call[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequest.Assignment(member_id=m, assignment=a)
                for m, a in (assignments or {}).items()
            ],
        )
        call: Call[SyncGroupResponse] = Call(version)
        request = travel(request, version)
        self.settle(self.coordinator.sync(request, self.now, version), call)
        return call

    def heartbeat(
        self,
        member_id: str,
        generation: int,
        *,
        version: int = 4,
        group: str = "g",
        instance: str | None = None,
    ) -> int:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        call: Call[HeartbeatResponse] = Call(version)
        self.settle(self.coordinator.heartbeat(travel(request, version), self.now), call)
        return call.response.error_code

    def leave(
        self, *members: tuple[str, str | None], version: int = 5, group: str = "g"
    ) -> LeaveGroupResponse:
        """Send a LeaveGroup for (member ID, instance ID) pairs; one member up to version 2."""
        request = LeaveGroupRequest(group_id=group)
        if version >= 3:
            request.members = [
                LeaveGroupRequest.Member(member_id=m, group_instance_id=i) for m, i in members
            ]
        else:
            ((request.member_id, _),) = members
        call: Call[LeaveGroupResponse] = Call(version)
        request = travel(request, version)
        self.settle(self.coordinator.leave(request, self.now, version), call)
        return call.response

    def commit_request(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        version: int = 9,
        group: str = "g",
        instance: str | None = None,
        metadata: str | None = "m",
        retention_ms: int = -1,
        leader_epoch: int = -1,
        commit_timestamp: int = -1,
    ) -> OffsetCommitRequest:
        topics: dict[str, OffsetCommitRequest.Topic] = {}
        for (name, partition), offset in offsets.items():
            topic = topics.setdefault(name, OffsetCommitRequest.Topic(name=name))
            topic.topic_id = self.topics.id_of(name) or UUID(int=0xDEAD)
            topic.partitions.append(
                OffsetCommitRequest.Partition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=leader_epoch,
                    commit_timestamp=commit_timestamp,
                    committed_metadata=metadata,
                )
            )
        return OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=list(topics.values()),
        )

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        version: int = 9,
        **fields: Any,
    ) -> list[int]:
        """Commit, and return the error codes of the partitions in request order."""
        request = self.commit_request(offsets, member_id, generation, version=version, **fields)
        call: Call[OffsetCommitResponse] = Call(version)
        request = travel(request, version)
        self.settle(self.coordinator.offsets.commit(request, self.now, version), call)
        return [row.error_code for topic in call.response.topics for row in topic.partitions]

    def commit_in_transaction(
        self,
        offsets: dict[tuple[str, int], int],
        producer_id: int = 7,
        *,
        version: int = 5,
        group: str = "g",
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "m",
        leader_epoch: int = -1,
        refusal: ErrorCode = ErrorCode.NONE,
    ) -> list[int]:
        """Commit in a transaction, and return the error codes like `commit`."""
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=3,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        topics: dict[str, TxnOffsetCommitRequest.Topic] = {}
        for (name, partition), offset in offsets.items():
            topic = topics.setdefault(name, TxnOffsetCommitRequest.Topic(name=name))
            topic.topic_id = self.topics.id_of(name) or UUID(int=0xDEAD)
            topic.partitions.append(
                TxnOffsetCommitRequest.Partition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=leader_epoch,
                    committed_metadata=metadata,
                )
            )
        request.topics = list(topics.values())
        request = travel(request, version)
        call: Call[TxnOffsetCommitResponse] = Call(version)
        result = self.coordinator.offsets.commit_in_transaction(request, self.now, version, refusal)
        self.settle(result, call)
        return [row.error_code for topic in call.response.topics for row in topic.partitions]

    def end(self, producer_id: int = 7, *, commit: bool) -> None:
        """Write a transaction marker to the partition."""
        self.entries.append(Entry(None, producer_id, commit))
        for _ in self.coordinator.end_transaction(producer_id, commit=commit):
            pass
        self.commit_log()

    def fetch_error(self, member_id: str | None = None, epoch: int = -1, group: str = "g") -> int:
        """Fetch all offsets as a member, and return the error of the group."""
        row = OffsetFetchRequest.Group(
            group_id=group, topics=None, member_id=member_id, member_epoch=epoch
        )
        return done(self.coordinator.offsets.fetch(row, 9)).error_code

    def fetch_response(
        self,
        wanted: dict[str, list[int]] | None,
        *,
        version: int = 9,
        group: str = "g",
        require_stable: bool = False,
    ) -> OffsetFetchResponse:
        topics = None
        if wanted is not None:
            topics = [
                OffsetFetchRequest.Topic(
                    name=name,
                    topic_id=self.topics.id_of(name) or UUID(int=0xDEAD),
                    partition_indexes=partitions,
                )
                for name, partitions in wanted.items()
            ]
        request = OffsetFetchRequest(
            group_id=group, topics=topics, require_stable=require_stable and version >= 7
        )
        if version >= 8:
            request.groups = [OffsetFetchRequest.Group(group_id=group, topics=topics)]
        request = travel(request, version)
        rows = [
            done(
                self.coordinator.offsets.fetch(row, version, require_stable=request.require_stable)
            )
            for row in groups_to_fetch(request, version)
        ]
        return travel(fetch_response(rows, version), version)

    def fetch(
        self,
        wanted: dict[str, list[int]] | None,
        *,
        version: int = 9,
        group: str = "g",
        require_stable: bool = False,
    ) -> dict[tuple[str, int], tuple[int, int, str | None, int]]:
        """Fetch offsets as (offset, leader epoch, metadata, error) by topic and partition."""
        response = self.fetch_response(
            wanted, version=version, group=group, require_stable=require_stable
        )
        topics = response.groups[0].topics if version >= 8 else response.topics
        return {
            (
                (self.topics.name_of(topic.topic_id) or "?") if version >= 10 else topic.name,
                row.partition_index,
            ): (row.committed_offset, row.committed_leader_epoch, row.metadata, row.error_code)
            for topic in topics
            for row in topic.partitions
        }

    def delete_offsets(
        self, wanted: dict[str, list[int]], *, group: str = "g"
    ) -> OffsetDeleteResponse:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequest.Topic(
                    name=name,
                    partitions=[OffsetDeleteRequest.Partition(partition_index=p) for p in ps],
                )
                for name, ps in wanted.items()
            ],
        )
        call: Call[OffsetDeleteResponse] = Call(0)
        self.settle(self.coordinator.offsets.delete(travel(request, 0)), call)
        return call.response

    def delete_groups(self, *group_ids: str) -> dict[str, int]:
        codes = {}
        for group_id in dict.fromkeys(group_ids):
            for piece in self.coordinator.delete_group(group_id, self.now):
                self.settle(piece)
                assert isinstance(piece.response, DeleteGroupsResponse.Group)
                codes[group_id] = piece.response.error_code
        return codes

    def forget(self, pieces: Pieces) -> None:
        """Process all pieces of long-running work."""
        for piece in pieces:
            if piece is not None:
                self.settle(piece)

    def describe(self, group: str = "g", version: int = 6) -> DescribeGroupsResponse.Group:
        row = self.coordinator.describe_group(group, version)
        return travel(DescribeGroupsResponse(groups=[row]), version).groups[0]

    # -- scenarios

    def new_id(self, version: int = 9, **fields: Any) -> str:
        """Return a member ID from a MEMBER_ID_REQUIRED response."""
        response = self.join(version=version, **fields).response
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id

    def enter(self, version: int = 9, **fields: Any) -> Call[JoinGroupResponse]:
        """Join as a new member, with one or two requests depending on the version."""
        if version >= 4 and fields.get("instance") is None:
            return self.join(self.new_id(version, **fields), version=version, **fields)
        return self.join(version=version, **fields)

    def make_stable(self, size: int = 2, version: int = 9, **fields: Any) -> list[str]:
        """Create a stable group "g" of dynamic members, and return their IDs, leader first.

        Member i has the assignment b"a<i>".
        """
        calls: list[Call[JoinGroupResponse]] = []
        for _ in range(size):
            newest = self.enter(version, **fields)
            rejoins = [self.join(c.response.member_id, version=version, **fields) for c in calls]
            calls = [*rejoins, newest]
        joined = [call.response for call in calls]
        ids = [response.member_id for response in joined]
        generation = joined[0].generation_id
        assert joined[0].leader == ids[0]
        assignments = {member_id: b"a%d" % i for i, member_id in enumerate(ids)}
        syncs = [self.sync(member_id, generation) for member_id in ids[1:]]
        syncs.append(self.sync(ids[0], generation, assignments))
        assert all(sync.response.error_code == ErrorCode.NONE for sync in syncs)
        assert self.describe().group_state == "Stable"
        return ids

    @property
    def generation(self) -> int:
        """Return the generation of the last event."""
        return self.history("g")[-1].generation
