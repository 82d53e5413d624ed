"""Members of classic groups, each alone in its group, with hand-written requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.group_metadata import write_assignment, write_subscription
from kbroker.protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest

from .brokers import BenchmarkFailed, Broker
from .lines import SETTLE_SECONDS, Line

FIND_VERSION, JOIN_VERSION, SYNC_VERSION, LEAVE_VERSION = 4, 5, 3, 3
OFFSET_FETCH_VERSION, OFFSET_COMMIT_VERSION = 7, 8
SESSION_TIMEOUT_MS = 300_000
PAUSE_SECONDS = 0.1
# Errors after which a member joins again.
_RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


@dataclass
class ClassicMember:
    """A group member whose requests use `line`, which may be shared.

    Attributes:
        generation: Generation of the group, 0 if the member is not in sync.
    """

    line: Line
    group: str
    topic: str
    id: str = ""
    generation: int = 0

    def offset_fetch_request(self) -> OffsetFetchRequest:
        """Return a request for the committed offset of the topic's first partition."""
        row = OffsetFetchRequest.Topic(name=self.topic, partition_indexes=[0])
        return OffsetFetchRequest(group_id=self.group, topics=[row])

    def offset_commit_request(self, offset: int) -> OffsetCommitRequest:
        """Return a request to commit an offset of the topic's first partition."""
        row = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset)
        return OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[OffsetCommitRequest.Topic(name=self.topic, partitions=[row])],
        )

    def fetch_committed_offset(self) -> int:
        """Return the committed offset of the topic's first partition, or -1."""
        key, version = ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION
        return committed_offset(self.line.ask(key, version, self.offset_fetch_request()))

    def join_request(self) -> JoinGroupRequest:
        """Return a JoinGroup request."""
        protocol = JoinGroupRequest.Protocol(
            name="range", metadata=write_subscription([self.topic])
        )
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def sync_request(self) -> SyncGroupRequest:
        """Return a SyncGroup request that assigns the topic's first partition to the member."""
        assignment = SyncGroupRequest.Assignment(
            member_id=self.id, assignment=write_assignment([(self.topic, 0)])
        )
        return SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[assignment],
        )

    def leave(self) -> None:
        """Leave the group.

        Raises:
            BenchmarkFailed: The broker rejected the request.
        """
        row = LeaveGroupRequest.Member(member_id=self.id)
        message = LeaveGroupRequest(group_id=self.group, members=[row])
        answer = self.line.ask(ApiKey.LEAVE_GROUP, LEAVE_VERSION, message)
        check(answer.error_code, f"{self.group}: LeaveGroup")
        self.generation = 0


@contextmanager
def joined_members(
    broker: Broker, groups: Sequence[str], topic: str, address: tuple[str, int]
) -> Iterator[list[ClassicMember]]:
    """Yield one stable member for each of these groups. The members leave at the end.

    Args:
        broker: The broker.
        groups: Names of the groups.
        topic: Topic to which the members subscribe.
        address: Address of the coordinator of the groups.
    """
    with closing(Line(broker, address=address)) as line:
        wait_for_coordinator(line)
        members = [ClassicMember(line, group, topic) for group in groups]
        deadline = time.monotonic() + SETTLE_SECONDS
        while waiting := [member for member in members if not member.generation]:
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"{broker.name}: {len(waiting)} groups are not stable")
            join_once(waiting)
            time.sleep(PAUSE_SECONDS)
        yield members
        for member in members:
            member.leave()


def join_once(members: Sequence[ClassicMember]) -> None:
    """Send JoinGroup for each member, then SyncGroup for each member that has joined.

    A member that was rejected with a retriable error gets generation 0.

    Raises:
        BenchmarkFailed: The broker rejected a request with another error.
    """
    for member in members:
        member.line.send([(ApiKey.JOIN_GROUP, JOIN_VERSION, member.join_request())])
    for member in members:
        answer = member.line.answer(ApiKey.JOIN_GROUP, JOIN_VERSION)
        member.id = answer.member_id
        member.generation = answer.generation_id if _is_accepted(member, answer) else 0
    joined = [member for member in members if member.generation]
    for member in joined:
        member.line.send([(ApiKey.SYNC_GROUP, SYNC_VERSION, member.sync_request())])
    for member in joined:
        if not _is_accepted(member, member.line.answer(ApiKey.SYNC_GROUP, SYNC_VERSION)):
            member.generation = 0


def wait_for_coordinator(line: Line) -> None:
    """Wait until the broker has created the offsets topic and coordinates groups."""
    find = FindCoordinatorRequest(coordinator_keys=["any"])
    deadline = time.monotonic() + SETTLE_SECONDS
    while line.ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, find).coordinators[0].error_code:
        if time.monotonic() > deadline:
            raise BenchmarkFailed("a broker has no group coordinator")
        time.sleep(PAUSE_SECONDS)


def coordinator_ports(line: Line, groups: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield each group with the port of its coordinator."""
    find = FindCoordinatorRequest(coordinator_keys=[*groups])
    for row in line.ask(ApiKey.FIND_COORDINATOR, FIND_VERSION, find).coordinators:
        check(row.error_code, "FindCoordinator")
        yield row.key, row.port


def committed_offset(answer: Any) -> int:
    """Return the offset in a response for one partition, or -1.

    Raises:
        BenchmarkFailed: The response has an error.
    """
    check(answer.error_code, "OffsetFetch")
    ((row,),) = (topic.partitions for topic in answer.topics)
    check(row.error_code, "OffsetFetch")
    return int(row.committed_offset)


def check(error: int, what: str) -> None:
    """Raise BenchmarkFailed if a broker rejected `what`."""
    if error:
        raise BenchmarkFailed(f"{what} failed: {ErrorCode(error).name}")


def _is_accepted(member: ClassicMember, answer: Any) -> bool:
    if answer.error_code in _RETRIABLE:
        return False
    check(answer.error_code, f"{member.group}: JoinGroup or SyncGroup")
    return True
