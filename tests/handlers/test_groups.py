"""Tests of classic groups on the wire: timeouts, durability, and members that join, leave or fail.

tests/coordinator tests the decisions of the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from kbroker.broker import Broker
from kbroker.coordinator_runtime.causes import cause_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kbroker.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from kbroker.runtime.clock import SystemClock
from kbroker.testing.clock import MovableClock

from ..brokers import Start, started
from ..wire import ANSWER_SECONDS, ConnectionClosed, Wire, connected, create_topic, request, until


class Member:
    """A group member of the classic protocol without a client library."""

    def __init__(self, wire: Wire, group: str = "g", *, version: int = 5, **settings: Any) -> None:
        self.wire = wire
        self.group = group
        self.version = version
        self.settings = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            **settings,
        }
        self.id = ""
        self.generation = -1
        self.assignment: bytes | None = None

    async def join(self) -> Any:
        """Join the group, and again if the broker requires the member ID that it assigned."""
        response = await self._send_join()
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            response = await self._send_join()
        if not response.error_code:
            self.id, self.generation = response.member_id, response.generation_id
        return response

    async def _send_join(self) -> Any:
        find = request(ApiKey.FIND_COORDINATOR, key=self.group)
        await self.wire.ask(ApiKey.FIND_COORDINATOR, 0, find)
        ask = JoinGroupRequest(
            group_id=self.group,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.Protocol(name="range", metadata=b"wants")],
            **self.settings,
        )
        return await self.wire.ask(ApiKey.JOIN_GROUP, self.version, ask)

    async def sync(self, joined: Any) -> int:
        """Send SyncGroup; the leader assigns to each member its own ID."""
        ask = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[
                SyncGroupRequest.Assignment(
                    member_id=each.member_id, assignment=each.member_id.encode()
                )
                for each in joined.members
            ],
        )
        response = await self.wire.ask(ApiKey.SYNC_GROUP, min(self.version, 3), ask)
        self.assignment = response.assignment
        return int(response.error_code)

    async def enter(self) -> None:
        """Join and sync until both succeed."""
        while True:
            joined = await self.join()
            assert joined.error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS), joined
            if not joined.error_code and not await self.sync(joined):
                return

    async def heartbeat(self) -> int:
        beat = request(
            ApiKey.HEARTBEAT,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
        )
        return int((await self.wire.ask(ApiKey.HEARTBEAT, 3, beat)).error_code)

    async def run_until(self, stopped: Callable[[], bool]) -> None:
        """Send heartbeats and rejoin on each rebalance until `stopped()` is true."""
        while not stopped():
            code = await self.heartbeat()
            assert code in (0, ErrorCode.REBALANCE_IN_PROGRESS), code
            if code:
                await self.enter()
            await trio.sleep(0.05)

    async def leave(self) -> Any:
        ask = LeaveGroupRequest(
            group_id=self.group,
            member_id=self.id,
            members=[LeaveGroupRequest.Member(member_id=self.id)],
        )
        return await self.wire.ask(ApiKey.LEAVE_GROUP, 3, ask)

    async def commit(self, topic: str, offset: int, version: int = 7) -> int:
        row = OffsetCommitRequest.Partition(partition_index=0, committed_offset=offset)
        ask = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[OffsetCommitRequest.Topic(name=topic, partitions=[row])],
        )
        response = await self.wire.ask(ApiKey.OFFSET_COMMIT, version, ask)
        return int(response.topics[0].partitions[0].error_code)


async def committed(wire: Wire, topic: str, group: str = "g") -> int:
    rows = [OffsetFetchRequest.Topic(name=topic, partition_indexes=[0])]
    ask = OffsetFetchRequest(group_id=group, topics=rows)
    response = await wire.ask(ApiKey.OFFSET_FETCH, 5, ask)
    return int(response.topics[0].partitions[0].committed_offset)


def state(broker: Broker, group: str = "g") -> Any:
    return broker.node.groups.shard(group).coordinator.describe_group(group, 5)


def freeze_clock(broker: Broker) -> Callable[[int], None]:
    """Freeze the coordinator clock; return a function that advances it by milliseconds."""
    clock = broker.node.clock
    assert isinstance(clock, MovableClock)
    clock.coordinator.freeze()

    def advance(milliseconds: int) -> None:
        clock.coordinator.add(milliseconds)
        broker.node.groups.deadlines.clock_moved()

    return advance


@pytest.mark.slow
@pytest.mark.parametrize("version", range(10))
async def test_single_member_joins_commits_and_leaves_in_every_version(
    start: Start, version: int
) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        member = Member(wire, version=version)
        joined = await member.join()
        assert (joined.error_code, joined.leader) == (0, member.id)
        assert [each.metadata for each in joined.members] == [b"wants"]
        assert await member.sync(joined) == 0
        assert member.assignment == member.id.encode()
        assert await member.heartbeat() == 0
        assert await member.commit("t", 3) == 0
        assert await committed(wire, "t") == 3
        assert state(broker).group_state == "Stable"
        left = await member.leave()
        assert (left.error_code, left.members[0].error_code) == (0, 0)
        assert state(broker).group_state == "Empty"
        assert await member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_group_rebalances_as_members_join_and_leave(start: Start) -> None:
    """Each generation has one leader and one assignment per member."""
    async with start() as broker, trio.open_nursery() as nursery:
        ended = trio.Event()
        async with (
            connected(broker.endpoint) as a,
            connected(broker.endpoint) as b,
            connected(broker.endpoint) as c,
        ):
            first, second, third = Member(a), Member(b), Member(c)
            await first.enter()
            nursery.start_soon(first.run_until, ended.is_set)
            with trio.fail_after(ANSWER_SECONDS):
                await second.enter()
                await until(lambda: first.generation == second.generation)
                assert first.assignment == first.id.encode()
                assert second.assignment == second.id.encode()
                assert len(state(broker).members) == 2
                second_ended = trio.Event()
                async with trio.open_nursery() as stays:
                    stays.start_soon(second.run_until, second_ended.is_set)
                    await third.enter()
                    assert len(state(broker).members) == 3
                    second_ended.set()
                for each in (second, third):
                    await each.leave()
                await until(lambda: len(state(broker).members) == 1)
                await until(lambda: state(broker).group_state == "Stable")
            ended.set()
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()


async def test_lost_member_is_removed_after_session_timeout(start: Start) -> None:
    async with start(MovableClock()) as broker:
        advance = freeze_clock(broker)
        async with connected(broker.endpoint) as wire:
            member = Member(wire, session_timeout_ms=10_000)
            await member.enter()
        await until(lambda: not broker.server.connections)
        advance(9_999)
        assert len(state(broker).members) == 1, "a closed connection does not remove the member"
        advance(1)
        assert not state(broker).members
        assert state(broker).group_state == "Empty"


async def test_session_timeout_expires_in_real_time(start: Start) -> None:
    async with start(group_min_session_timeout_ms=100) as broker:
        async with connected(broker.endpoint) as wire:
            member = Member(wire, session_timeout_ms=300)
            await member.enter()
        await until(lambda: not state(broker).members)


async def test_heartbeats_and_commits_extend_session(start: Start) -> None:
    async with start(MovableClock()) as broker, connected(broker.endpoint) as wire:
        advance = freeze_clock(broker)
        await create_topic(wire, "t")
        member = Member(wire, session_timeout_ms=10_000)
        await member.enter()
        for i in range(5):
            advance(9_999)
            assert (await member.heartbeat() if i % 2 else await member.commit("t", i)) == 0


async def test_member_that_does_not_rejoin_is_removed(start: Start) -> None:
    """The first member does not notice the rebalance and is removed after the rebalance timeout."""
    async with (
        start(group_min_session_timeout_ms=100) as broker,
        connected(broker.endpoint) as a,
        connected(broker.endpoint) as b,
    ):
        silent = Member(a, session_timeout_ms=5_000, rebalance_timeout_ms=300)
        await silent.enter()
        member = Member(b, session_timeout_ms=5_000, rebalance_timeout_ms=300)
        began_at = time.perf_counter()
        await member.enter()
        assert time.perf_counter() - began_at > 0.2
        assert [each.member_id for each in state(broker).members] == [member.id]
        assert await silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_unused_member_id_expires(start: Start) -> None:
    async with start(MovableClock()) as broker, connected(broker.endpoint) as wire:
        advance = freeze_clock(broker)
        member = Member(wire, session_timeout_ms=10_000)
        response = await member._send_join()
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        member.id = response.member_id
        advance(10_000)
        assert (await member.join()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_session_timeout_applies_after_restart(tmp_path: Path) -> None:
    settings = {"group_min_session_timeout_ms": 100}
    async with started(tmp_path, **settings) as broker, connected(broker.endpoint) as wire:
        member = Member(wire, session_timeout_ms=600)
        await member.enter()
    async with started(tmp_path, **settings) as broker:
        await until(lambda: not state(broker).members)
        causes = map(cause_of, broker.node.groups.history.of("g"))
        assert any("missed heartbeats" in cause for cause in causes)


async def test_initial_rebalance_delay_gathers_members() -> None:
    async with (
        started(None, MovableClock(), group_initial_rebalance_delay_ms=400) as broker,
        connected(broker.endpoint) as a,
        connected(broker.endpoint) as b,
    ):
        advance = freeze_clock(broker)
        await broker.node.groups.create_topic()
        first, second = Member(a, version=3), Member(b, version=3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.enter)
            await until(lambda: len(state(broker).members) == 1)
            advance(399)
            nursery.start_soon(second.enter)
            await until(lambda: len(state(broker).members) == 2)
            advance(1)  # a member joined during the delay, so the delay is extended once
            assert state(broker).group_state == "PreparingRebalance"
            advance(400)
        assert first.generation == second.generation == 1


async def test_group_size_is_bounded() -> None:
    async with started(group_max_size=1) as broker, connected(broker.endpoint) as wire:
        member = Member(wire, version=3)
        await member.enter()
        other = Member(wire, version=3)
        assert (await other.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


# -- durability


async def test_commit_is_acknowledged_when_durable(tmp_path: Path) -> None:
    """Requests for offsets or for the group do not see the commit earlier."""
    async with (
        started(tmp_path) as broker,
        connected(broker.endpoint) as wire,
        connected(broker.endpoint) as other,
        connected(broker.endpoint) as third,
        trio.open_nursery() as nursery,
    ):
        await create_topic(wire, "t")
        member = Member(wire)
        await member.enter()
        await member.commit("t", 1)
        codes, seen, described = [], [], []

        async def commit() -> None:
            codes.append(await member.commit("t", 2))

        async def fetch_offset() -> None:
            seen.append(await committed(other, "t"))

        async def describe() -> None:
            ask = DescribeGroupsRequest(groups=["g"])
            described.append(await third.ask(ApiKey.DESCRIBE_GROUPS, 5, ask))

        async with broker.node.partitions.flusher.sync_lock:
            nursery.start_soon(commit)
            await trio.sleep(0.1)
            nursery.start_soon(fetch_offset)
            nursery.start_soon(describe)
            await trio.sleep(0.2)
            assert (codes, seen, described) == ([], [], [])
        await until(lambda: codes and seen and described)
        assert (codes, seen) == ([0], [2])
        assert described[0].groups[0].group_state == "Stable"


async def test_commit_that_cannot_be_stored_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        member = Member(wire)
        await member.enter()
        assert await member.commit("t", 1) == 0
        monkeypatch.setattr(broker.node.partitions.flusher, "_sync", lambda logs: [])
        try:
            code = await member.commit("t", 2)
        except ConnectionClosed:
            code = ErrorCode.NOT_COORDINATOR
        assert code
        monkeypatch.undo()
    async with started(tmp_path) as broker, connected(broker.endpoint) as wire:
        find = request(ApiKey.FIND_COORDINATOR, key="g")
        await wire.ask(ApiKey.FIND_COORDINATOR, 0, find)
        assert await committed(wire, "t") in (1, 2)


async def test_pipelined_commits_are_acknowledged_in_order(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        member = Member(wire)
        await member.enter()
        row = OffsetCommitRequest.Partition(partition_index=0)
        data = b""
        for offset in range(100):
            row.committed_offset = offset
            ask = OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=member.generation,
                member_id=member.id,
                topics=[OffsetCommitRequest.Topic(name="t", partitions=[row])],
            )
            data += wire.frame(ApiKey.OFFSET_COMMIT, 7, ask)
        await wire.send_bytes(data)
        for _ in range(100):
            assert (await wire.receive()).topics[0].partitions[0].error_code == 0
        assert await committed(wire, "t") == 99


async def test_offsets_expire_after_group_becomes_empty() -> None:
    class Calendar(SystemClock):
        """A clock whose days can be skipped by tests."""

        ahead_ms = 0

        def log_ms(self) -> int:
            return super().log_ms() + self.ahead_ms

    clock = Calendar()
    async with (
        started(None, clock, offsets_retention_check_interval_ms=50) as broker,
        connected(broker.endpoint) as wire,
    ):
        await create_topic(wire, "t")
        member = Member(wire)
        await member.enter()
        await member.commit("t", 5)
        clock.ahead_ms = 30 * 86_400_000
        await trio.sleep(0.2)
        assert await committed(wire, "t") == 5, "the group is not empty"
        await member.leave()
        await trio.sleep(0.2)
        assert await committed(wire, "t") == 5, (
            "the retention time starts when the group becomes empty"
        )
        clock.ahead_ms += 8 * 86_400_000
        with trio.fail_after(ANSWER_SECONDS):
            while await committed(wire, "t") != -1:  # noqa: ASYNC110  # polls with requests
                await trio.sleep(0.01)
        listed = await wire.ask(ApiKey.LIST_GROUPS, 4, request(ApiKey.LIST_GROUPS))
        assert listed.groups == []


async def test_groups_are_described_and_listed_in_every_version(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        member = Member(wire, version=5, group_instance_id="rack-1")
        await member.enter()
        for version in range(7):
            ask = request(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True)
            (row,) = (await wire.ask(ApiKey.DESCRIBE_GROUPS, version, ask)).groups
            assert (row.error_code, row.group_state, row.protocol_data) == (0, "Stable", "range")
            (each,) = row.members
            assert (each.client_id, each.client_host) == ("test", "/127.0.0.1")
            assert each.member_assignment == member.id.encode()
            assert each.group_instance_id == ("rack-1" if version >= 4 else None)
            assert row.authorized_operations == (0xD48 if version >= 3 else -(2**31))
            ask = request(ApiKey.DESCRIBE_GROUPS, groups=["x"], include_authorized_operations=True)
            (none,) = (await wire.ask(ApiKey.DESCRIBE_GROUPS, version, ask)).groups
            assert (none.authorized_operations >= 0) == (3 <= version < 6)
        for version in range(6):
            ask = request(ApiKey.LIST_GROUPS, states_filter=["stable"] if version >= 4 else [])
            (row,) = (await wire.ask(ApiKey.LIST_GROUPS, version, ask)).groups
            assert (row.group_id, row.protocol_type) == ("g", "consumer")


async def test_groups_work_after_offsets_topic_is_deleted(start: Start) -> None:
    async with start() as broker, connected(broker.endpoint) as wire:
        await create_topic(wire, "t")
        member = Member(wire)
        await member.enter()
        ask = request(ApiKey.DELETE_TOPICS, topic_names=["__consumer_offsets"])
        await wire.ask(ApiKey.DELETE_TOPICS, 4, ask)
        rejoined = Member(wire)
        await rejoined.enter()
        assert await rejoined.commit("t", 1) == 0
