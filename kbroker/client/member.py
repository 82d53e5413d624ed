"""A consumer-group member that uses the classic protocol, which every Kafka version supports."""

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
from .errors import (
    CannotConnect,
    ClientError,
    NotReachable,
    TimedOut,
    check,
    error_code,
    first_error,
)
from .groups import OFFSETS_BY_NAME
from .topics import Partition

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"
# Kafka's defaults for consumers: session timeout and rebalance timeout.
SESSION_MS, REBALANCE_MS = 45_000, 60_000
HEARTBEAT_SECONDS = 3
# Time limit for JoinGroup: the coordinator waits up to the largest rebalance timeout of any member
# (300 s for Java consumers).
JOIN_SECONDS = 330
# How long to retry while the coordinator is unavailable.
AWAY_SECONDS = 30
LEAVE_SECONDS = 5
# How often the group leader checks for new partitions: Kafka's metadata.max.age.ms.
TOPICS_SECONDS = 300

_UNKNOWN_MEMBER_ERRORS = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
# Errors after which the member joins the group again.
_REJOIN_ERRORS = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.MEMBER_ID_REQUIRED,
        *_UNKNOWN_MEMBER_ERRORS,
        *_COORDINATOR_ERRORS,
    }
)

# Errors that mean that the coordinator is unreachable.
_UNREACHABLE = (OSError, CannotConnect, NotReachable)


class _Patience:
    """Limit of retries: `AWAY_SECONDS` after the first failure.

    Time before the first failure does not count: JoinGroup waits for the other members.
    """

    def __init__(self) -> None:
        self._failing_since: float | None = None

    def is_exhausted(self) -> bool:
        """Note a failure, and return True if no retry should follow."""
        now = trio.current_time()
        if self._failing_since is None:
            self._failing_since = now
        return now > self._failing_since + AWAY_SECONDS

    def reset(self) -> None:
        self._failing_since = None


class Member:
    """A group member. Create it with `open_member`, `join`, read until a rebalance, then rejoin."""

    def __init__(self, cluster: ClusterClient, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = list(topics)
        # A separate connection: JoinGroup blocks it for as long as a rebalance takes.
        self._coordinator: Connection | None = None
        self._is_coordinator_lost = False
        self._connecting = trio.Lock()
        self._id = ""
        self._generation = -1
        self._rebalance = trio.Event()
        self._reading: trio.CancelScope | None = None
        # Partition count by topic at the last assignment, if this member is the group leader.
        self._topic_sizes: dict[str, int] = {}
        self._topics_checked_at = 0.0

    @property
    def is_rebalancing(self) -> bool:
        """True if the assignment is no longer valid and the member must join again."""
        return self._rebalance.is_set()

    async def wait_for_rebalance(self) -> None:
        """Wait until the group rebalances."""
        await self._rebalance.wait()

    @contextmanager
    def until_rebalance(self) -> Iterator[trio.CancelScope]:
        """Cancel the body of the context manager when a rebalance begins."""
        with trio.CancelScope() as self._reading:
            if self.is_rebalancing:
                self._reading.cancel()
            yield self._reading
        self._reading = None

    # -- a generation

    async def join(self) -> list[Partition]:
        """Join the group or its next generation; return the assigned partitions.

        Raises:
            KafkaError: The group rejects the member, or its coordinator stays unavailable.
            ClientError: The group uses other assignors, or the cluster stays unreachable.
        """
        patience = _Patience()
        while True:
            try:
                code, assignment = await self._try_to_join()
            except _UNREACHABLE:
                if patience.is_exhausted():
                    raise
                await trio.sleep(RETRY_BACKOFF_SECONDS)
                continue
            if not code:
                self._rebalance = trio.Event()
                return assignment
            self._check(code)
            if code not in _COORDINATOR_ERRORS:
                patience.reset()
            elif patience.is_exhausted():
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
        """Fetch this member's assignment; the group leader also sends all members' assignments."""
        self._topic_sizes.clear()
        is_leader = joined.leader == self._id
        assignments = await self._assign(joined) if is_leader and not joined.skip_assignment else {}
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequest.Assignment(member_id=member, assignment=write_assignment(parts))
                for member, parts in assignments.items()
            ],
        )
        synced = await self._ask(request, seconds=JOIN_SECONDS)
        assignment = read_assignment(synced.assignment)
        rows = assignment.assigned_partitions if assignment else []
        partitions = [(row.topic, index) for row in rows for index in row.partitions]
        return error_code(synced.error_code), sorted(partitions)

    async def _assign(self, joined: JoinGroupResponse) -> Mapping[str, list[Partition]]:
        found = {each.member_id: read_subscription(each.metadata) for each in joined.members}
        members = {member: each.topics if each else [] for member, each in found.items()}
        self._topic_sizes = await self._partition_counts(set().union(*members.values()))
        self._topics_checked_at = trio.current_time()
        return ASSIGNORS[joined.protocol_name or ""](members, self._topic_sizes)

    async def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        rows = (await self._cluster.metadata(topics)).topics
        return {row.name or "": len(row.partitions) for row in rows}

    # -- heartbeats and commits

    async def send_heartbeats(self) -> None:
        """Send heartbeats forever; signal a rebalance when the group starts one."""
        while True:
            await trio.sleep(HEARTBEAT_SECONDS)
            if self._generation < 0 or self.is_rebalancing:
                continue
            try:
                await self._send_heartbeat()
            except (*_UNREACHABLE, TimedOut) as error:
                logger.debug("the coordinator of group %r does not respond: %s", self._group, error)

    async def _send_heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._id
        )
        code = error_code((await self._ask(request)).error_code)
        if not self._is_current(request):
            return
        if code:
            self._check(code)
        if code and code not in _COORDINATOR_ERRORS:
            self._request_rejoin()
        if self._topic_sizes and trio.current_time() >= self._topics_checked_at + TOPICS_SECONDS:
            self._topics_checked_at = trio.current_time()
            sizes = self._topic_sizes
            found = await self._partition_counts(sizes)
            if self._is_current(request) and found != sizes:
                self._request_rejoin()

    def _is_current(self, request: HeartbeatRequest) -> bool:
        """Return False if the member has joined again since it sent a request."""
        sent = request.member_id, request.generation_id
        return sent == (self._id, self._generation)

    def _request_rejoin(self) -> None:
        self._rebalance.set()
        if self._reading is not None:
            self._reading.cancel()

    def _check(self, code: ErrorCode) -> None:
        """Update the state after an error. Raises if joining again cannot resolve it."""
        if code in _COORDINATOR_ERRORS:
            self._is_coordinator_lost = True
        if code in _UNKNOWN_MEMBER_ERRORS:
            self._id = ""
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            raise ClientError(
                f"group {self._group!r}: its members support none of the assignors of this client "
                f"({', '.join(ASSIGNORS)}); stop them, or use another group",
                hint=f"`kbroker group describe {self._group}` lists the members",
            )
        if code not in _REJOIN_ERRORS:
            check(code)

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """Commit offsets.

        Args:
            offsets: Next offset to read by partition.

        Returns:
            False if the commit failed because of a rebalance; the member must join again.

        Raises:
            KafkaError: The coordinator rejects the commit.
            OSError: The coordinator stays unreachable.
            ClientError: The coordinator stays unreachable, or does not respond in time.
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
        patience = _Patience()
        while True:
            try:
                answer = await self._ask(request, oldest=2, newest=OFFSETS_BY_NAME)
            except _UNREACHABLE:
                if patience.is_exhausted():
                    raise
                await trio.sleep(RETRY_BACKOFF_SECONDS)
                continue
            codes = {
                error_code(row.error_code) for topic in answer.topics for row in topic.partitions
            }
            if not codes & _COORDINATOR_ERRORS or patience.is_exhausted():
                break
            self._is_coordinator_lost = True
            await trio.sleep(RETRY_BACKOFF_SECONDS)
        for code in codes - {ErrorCode.NONE}:
            self._check(code)
            self._request_rejoin()
        return codes == {ErrorCode.NONE}

    async def leave(self) -> None:
        """Leave the group. Raises OSError, ClientError or KafkaError."""
        if self._id:
            each = LeaveGroupRequest.Member(member_id=self._id, reason="the consumer was closed")
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
        connection = await self._connect()
        return await connection.ask(request, oldest=oldest, newest=newest, seconds=seconds)

    async def _connect(self) -> Connection:
        """Return the connection to the coordinator; close the previous one if it is idle."""
        async with self._connecting:
            known = self._coordinator
            if known is not None and (known.broken or self._is_coordinator_lost):
                self._coordinator = None
                if known.is_idle:
                    with trio.CancelScope(shield=True):
                        await known.aclose()
            if self._coordinator is None:
                node_id = await self._cluster.coordinator_id(self._group)
                self._coordinator = await self._cluster.dial(node_id)
                self._is_coordinator_lost = False
            return self._coordinator


@asynccontextmanager
async def open_member(
    cluster: ClusterClient, group: str, topics: Sequence[str]
) -> AsyncIterator[Member]:
    """Yield a member of a group and send its heartbeats; the member leaves the group at the end.

    Args:
        cluster: The cluster of the group.
        group: Group ID.
        topics: Topics to subscribe to.

    Raises:
        KafkaError: The group rejects the member.
        ClientError: The group uses other assignors, or the cluster stays unreachable.
    """
    member = Member(cluster, group, topics)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.send_heartbeats)
            yield member
            nursery.cancel_scope.cancel()
    except ExceptionGroup as failures:
        raise first_error(failures) from None
    finally:
        with trio.move_on_after(LEAVE_SECONDS, shield=True):
            try:
                await member.leave()
            except (OSError, ClientError, KafkaError) as error:
                logger.debug("cannot leave group %r: %s", group, error)
