"""A member of a consumer group, by the classic protocol that every Kafka serves."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.group_metadata import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.offsets import OffsetCommitRequest

from .assignors import ASSIGNORS
from .cluster import RETRY_BACKOFF_SECONDS, ClusterClient
from .connection import Answer, Connection
from .errors import CannotConnect, ClientError, NotReachable, check, error_code, first_error
from .groups import OFFSETS_BY_NAME
from .topics import Partition

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"
SESSION_MS, REBALANCE_MS = 45_000, 60_000
"""Kafka's defaults for consumers: how long it may be silent, and how long it may take to rejoin."""
HEARTBEAT_SECONDS = 3
JOIN_SECONDS = 330
"""A coordinator may wait for the others as long as the slowest of them allows: Java's say 300 s."""
AWAY_SECONDS = 30
"""How long a coordinator may be away."""
LEAVE_SECONDS = 5
TOPICS_SECONDS = 300
"""How often a leader looks whether topics have grown: Kafka's metadata.max.age.ms."""

_STRANGER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_ELSEWHERE = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_AGAIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.MEMBER_ID_REQUIRED,
        *_STRANGER,
        *_ELSEWHERE,
    }
)
"""What is answered by joining once more."""


class Member:
    """One member. Get it from `open_member`; `join`, read until a rebalance begins, join again."""

    def __init__(self, cluster: ClusterClient, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = list(topics)
        self._coordinator: Connection | None = None
        """A connection of its own: it waits there as long as a rebalance takes."""
        self._id = ""
        self._generation = -1
        self._rebalance = trio.Event()
        self._reading: trio.CancelScope | None = None
        self._shared: dict[str, int] = {}
        """The partitions of each topic that this member, as the leader, has shared out."""
        self._shared_at = 0.0

    @property
    def is_rebalancing(self) -> bool:
        """Whether what it was assigned last is to be given back: join again."""
        return self._rebalance.is_set()

    async def wait_for_rebalance(self) -> None:
        """Return when the others share anew."""
        await self._rebalance.wait()

    @contextmanager
    def until_rebalance(self) -> Iterator[trio.CancelScope]:
        """What is inside is left at once when a rebalance begins."""
        with trio.CancelScope() as self._reading:
            if self.is_rebalancing:
                self._reading.cancel()
            yield self._reading
        self._reading = None

    # -- a generation

    async def join(self) -> list[Partition]:
        """Join the group, or its next generation; returns the partitions that it is to read.

        Raises KafkaError, ClientError when the group does not take it, or its coordinator is away
        for long.
        """
        deadline = trio.current_time() + AWAY_SECONDS
        while True:
            try:
                code, assignment = await self._try_to_join()
            except (OSError, CannotConnect, NotReachable):
                if trio.current_time() > deadline:
                    raise
                await trio.sleep(RETRY_BACKOFF_SECONDS)
                continue
            if not code:
                self._rebalance = trio.Event()
                return assignment
            self._check(code)
            if code not in _ELSEWHERE:
                deadline = trio.current_time() + AWAY_SECONDS
            elif trio.current_time() > deadline:
                raise KafkaError(code)
            else:
                await trio.sleep(RETRY_BACKOFF_SECONDS)

    async def _try_to_join(self) -> tuple[ErrorCode, list[Partition]]:
        metadata = write_subscription(self._topics)
        protocols = [JoinGroupRequest.Protocol(name=name, metadata=metadata) for name in ASSIGNORS]
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
        )
        joined = await self._ask(request, seconds=JOIN_SECONDS)
        code = error_code(joined.error_code)
        if not code or code == ErrorCode.MEMBER_ID_REQUIRED:
            self._id, self._generation = joined.member_id, joined.generation_id
        return (code, []) if code else await self._sync(joined)

    async def _sync(self, joined: JoinGroupResponse) -> tuple[ErrorCode, list[Partition]]:
        """Learn what this member is assigned; a leader says that to all."""
        self._shared.clear()
        is_leader = joined.leader == self._id
        given = await self._share(joined) if is_leader and not joined.skip_assignment else {}
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member, assignment=write_assignment(parts))
                for member, parts in given.items()
            ],
        )
        synced = await self._ask(request, seconds=JOIN_SECONDS)
        assignment = read_assignment(synced.assignment)
        rows = assignment.assigned_partitions if assignment else []
        partitions = [(row.topic, index) for row in rows for index in row.partitions]
        return error_code(synced.error_code), sorted(partitions)

    async def _share(self, joined: JoinGroupResponse) -> Mapping[str, list[Partition]]:
        found = {each.member_id: read_subscription(each.metadata) for each in joined.members}
        members = {member: each.topics if each else [] for member, each in found.items()}
        self._shared = await self._counts(set().union(*members.values()))
        self._shared_at = trio.current_time()
        return ASSIGNORS[joined.protocol_name or ""](members, self._shared)

    async def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        rows = (await self._cluster.metadata(topics)).topics
        return {row.name or "": len(row.partitions) for row in rows}

    # -- while it reads

    async def beat(self) -> None:
        """Say again and again that it is alive; take note when the group rebalances."""
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            if self._generation < 0 or self.is_rebalancing:
                continue
            try:
                await self._beat_once()
            except (OSError, CannotConnect, NotReachable) as error:
                logger.debug("the coordinator of %r does not answer: %s", self._group, error)

    async def _beat_once(self) -> None:
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._id
        )
        code = error_code((await self._ask(request)).error_code)
        if code:
            self._check(code)
        if code and code not in _ELSEWHERE:
            self._must_join_again()
        if self._shared and trio.current_time() >= self._shared_at + TOPICS_SECONDS:
            self._shared_at = trio.current_time()
            if await self._counts(self._shared) != self._shared:
                self._must_join_again()

    def _must_join_again(self) -> None:
        self._rebalance.set()
        if self._reading is not None:
            self._reading.cancel()

    def _check(self, code: ErrorCode) -> None:
        """Take note of an error. Raises what joining again does not mend."""
        if code in _ELSEWHERE:
            self._coordinator = None
        if code in _STRANGER:
            self._id = ""
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            raise ClientError(
                f"the members of group {self._group!r} share partitions in none of the ways that "
                f"this command knows ({', '.join(ASSIGNORS)}): stop them, or take another group; "
                f"`kbroker group describe {self._group}` shows who they are"
            )
        if code not in _AGAIN:
            check(code)

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """Commit where reading goes on; False when others have read on from where it was before.

        Raises KafkaError, OSError.
        """
        rows: dict[str, list[OffsetCommitRequest.Partition]] = {}
        for (topic, index), offset in offsets.items():
            row = OffsetCommitRequest.Partition(
                partition_index=index, committed_offset=offset, committed_metadata=""
            )
            rows.setdefault(topic, []).append(row)
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._id,
            topics=[OffsetCommitRequest.Topic(name=k, partitions=v) for k, v in rows.items()],
        )
        deadline = trio.current_time() + AWAY_SECONDS
        while True:
            answer = await self._ask(request, oldest=2, newest=OFFSETS_BY_NAME)
            codes = {
                error_code(row.error_code) for topic in answer.topics for row in topic.partitions
            }
            if not codes & _ELSEWHERE or trio.current_time() > deadline:
                break
            self._coordinator = None
            await trio.sleep(RETRY_BACKOFF_SECONDS)
        for code in codes - {ErrorCode.NONE}:
            self._check(code)
            self._must_join_again()
        return codes == {ErrorCode.NONE}

    async def leave(self) -> None:
        """Let the others have what it has read. Raises OSError, ClientError, KafkaError."""
        if self._id:
            each = LeaveGroupRequest.Member(member_id=self._id, reason="it was told to end")
            request = LeaveGroupRequest(group_id=self._group, members=[each])
            await self._ask(request, oldest=3)

    async def _ask(
        self,
        request: object,
        *,
        oldest: int = 0,
        newest: int | None = None,
        seconds: float | None = None,
    ) -> Answer:
        if self._coordinator is None or self._coordinator.broken:
            node_id = await self._cluster.coordinator_id(self._group)
            self._coordinator = await self._cluster.dial(node_id)
        return await self._coordinator.ask(request, oldest=oldest, newest=newest, seconds=seconds)


@asynccontextmanager
async def open_member(
    cluster: ClusterClient, group: str, topics: Sequence[str]
) -> AsyncIterator[Member]:
    """A member of a group that reads some topics; it joins with `join`, and leaves at the end.

    Raises KafkaError, ClientError.
    """
    member = Member(cluster, group, topics)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.beat)
            yield member
            nursery.cancel_scope.cancel()
    except ExceptionGroup as failures:
        raise first_error(failures) from None
    finally:
        with trio.move_on_after(LEAVE_SECONDS, shield=True):
            try:
                await member.leave()
            except (OSError, ClientError, KafkaError) as error:
                logger.debug("%r could not be left: %s", group, error)
