"""A member of a consumer group: its assignment and its rebalances."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from confluent_kafka import Consumer

from kbroker.client import member as member_module
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import ClientError, TimedOut
from kbroker.client.groups import committed_offsets
from kbroker.client.member import Member, open_member
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from kbroker.protocol.messages.offsets import OffsetCommitResponse
from kbroker.testing import LocalBroker

from ..brokers import started

T = [("t", 0), ("t", 1), ("t", 2)]


@pytest.fixture(autouse=True)
def short_heartbeat_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "HEARTBEAT_SECONDS", 0.05)


@pytest.fixture
def kafka() -> Iterator[LocalBroker]:
    with LocalBroker(topics={"t": 3}) as broker:
        yield broker


@pytest.fixture
async def cluster(kafka: LocalBroker) -> AsyncIterator[ClusterClient]:
    async with open_cluster([Endpoint.parse(kafka.bootstrap_servers)]) as cluster:
        yield cluster


async def test_single_member_gets_all_partitions_and_leaves_at_end(
    kafka: LocalBroker, cluster: ClusterClient
) -> None:
    async with open_member(cluster, "g", ["t"]) as member:
        assert await member.join() == T
        assert await member.commit({("t", 0): 0})
    group = await trio.to_thread.run_sync(kafka.group, "g")
    assert group is not None
    assert (group.state, group.members) == ("Empty", [])
    assert await committed_offsets(cluster, "g") == {("t", 0): 0}


async def test_two_members_split_partitions_and_rebalance(cluster: ClusterClient) -> None:
    async with open_member(cluster, "g", ["t"]) as one:
        assert await one.join() == T
        async with open_member(cluster, "g", ["t"]) as other:
            shares: dict[Member, list[tuple[str, int]]] = {}

            async def join(member: Member) -> None:
                if member is one:
                    await one.wait_for_rebalance()
                shares[member] = await member.join()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(join, one)
                nursery.start_soon(join, other)
            assert sorted(shares[one] + shares[other]) == T
            assert shares[one]
            assert shares[other]
            with one.until_rebalance() as waiting:
                nothing = trio.Event()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(other.leave)
                    await nothing.wait()
            assert waiting.cancelled_caught
        assert await one.join() == T


async def test_expired_member_rejoins(kafka: LocalBroker, cluster: ClusterClient) -> None:
    async with open_member(cluster, "g", ["t"]) as member:
        await member.join()
        (first,) = await trio.to_thread.run_sync(members_of, kafka)
        await trio.to_thread.run_sync(kafka.expire_member, "g", first)
        assert not await member.commit({("t", 0): 0})
        await member.wait_for_rebalance()
        assert await member.join() == T
        (second,) = await trio.to_thread.run_sync(members_of, kafka)
        assert second != first


def members_of(kafka: LocalBroker) -> list[str]:
    return [each.id for each in kafka.wait_for_group("g", members=1).members]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
async def test_member_shares_group_with_librdkafka(
    strategy: str, kafka: LocalBroker, cluster: ClusterClient
) -> None:
    """Either of the two may be the group leader."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
    other = Consumer(settings | {"partition.assignment.strategy": strategy})
    other.subscribe(["t"])
    mine: list[tuple[str, int]] = []
    theirs: list[tuple[str, int]] = []

    async def poll() -> None:
        while True:
            await trio.to_thread.run_sync(other.poll, 0.05)
            theirs[:] = [(each.topic, each.partition) for each in other.assignment()]

    async with trio.open_nursery() as nursery, open_member(cluster, "g", ["t"]) as member:
        nursery.start_soon(poll)  # at once: it takes part in rebalances only while it is polled
        with trio.fail_after(60):
            mine = await member.join()
            while not theirs or sorted(mine + theirs) != T:
                if member.is_rebalancing:
                    mine = await member.join()
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(other.close)


async def test_group_with_unsupported_assignor_is_reported(
    kafka: LocalBroker, cluster: ClusterClient
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
    other = Consumer(settings | {"partition.assignment.strategy": "cooperative-sticky"})
    other.subscribe(["t"])
    while not other.assignment():
        await trio.to_thread.run_sync(other.poll, 0.05)
    async with open_member(cluster, "g", ["t"]) as member:
        with pytest.raises(ClientError, match=r"none of the assignors .* \(range, roundrobin\)"):
            await member.join()
    await trio.to_thread.run_sync(other.close)


async def test_group_leader_rebalances_when_topic_grows(
    kafka: LocalBroker, cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbroker.client.topics import grow_topic

    monkeypatch.setattr(member_module, "TOPICS_SECONDS", 0)
    async with open_member(cluster, "g", ["t"]) as member:
        assert await member.join() == T
        await grow_topic(cluster, "t", 4)
        await member.wait_for_rebalance()
        assert await member.join() == [*T, ("t", 3)]


class ScriptedMember(Member):
    """A member whose coordinator answers from a script: a response, an error, or a function."""

    def __init__(self, *script: Any) -> None:
        super().__init__(ClusterClient([], "x", direct=False), "g", ["t"])
        self._id, self._generation = "old", 1
        self.script = list(script)

    async def _ask(self, request: object, **_: object) -> Any:
        await trio.lowlevel.checkpoint()
        each = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(each, OSError):
            raise each
        return await each() if callable(each) else each


@pytest.mark.parametrize(
    "code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.NOT_COORDINATOR]
)
async def test_heartbeat_answered_after_next_join_has_no_effect(code: ErrorCode) -> None:
    async def join_meanwhile() -> HeartbeatResponse:
        member._id, member._generation = "new", 2
        return HeartbeatResponse(error_code=code)

    member = ScriptedMember(join_meanwhile)
    await member._send_heartbeat()
    assert (member._id, member._generation, member.is_rebalancing) == ("new", 2, False)


async def test_partition_counts_found_after_next_join_have_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count(_: object) -> dict[str, int]:
        member._generation, member._topic_sizes = 2, {"t": 2, "u": 1}
        return {"t": 2}

    member = ScriptedMember(HeartbeatResponse())
    member._topic_sizes, member._topics_checked_at = {"t": 1}, -math.inf
    monkeypatch.setattr(member, "_partition_counts", count)
    await member._send_heartbeat()
    assert not member.is_rebalancing


COMMITTED = OffsetCommitResponse(
    topics=[OffsetCommitResponse.Topic(partitions=[OffsetCommitResponse.Partition()])]
)


async def test_commit_is_repeated_after_coordinator_disconnects(autojump_clock: object) -> None:
    member = ScriptedMember(OSError(), OSError(), COMMITTED)
    assert await member.commit({("t", 0): 1})
    member = ScriptedMember(OSError("gone"))
    began = trio.current_time()
    with pytest.raises(OSError, match="gone"):
        await member.commit({("t", 0): 1})
    assert trio.current_time() - began > member_module.AWAY_SECONDS


async def test_join_is_repeated_if_coordinator_disconnects_after_long_wait(
    autojump_clock: object,
) -> None:
    async def wait_for_other_members() -> None:
        await trio.sleep(member_module.REBALANCE_MS / 1000)
        raise ConnectionResetError

    joined = JoinGroupResponse(member_id="old", generation_id=2, leader="other")
    member = ScriptedMember(wait_for_other_members, joined, SyncGroupResponse())
    assert await member.join() == []


async def test_heartbeats_continue_after_coordinator_does_not_respond(
    autojump_clock: object,
) -> None:
    async def time_out() -> None:
        raise TimedOut("no response")

    async def fence() -> HeartbeatResponse:
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)

    member = ScriptedMember(time_out, fence)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.send_heartbeats)
        await member.wait_for_rebalance()
        nursery.cancel_scope.cancel()


async def test_connection_to_previous_coordinator_is_closed() -> None:
    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        member = Member(cluster, "g", ["t"])
        previous = await member._connect()
        member._check(ErrorCode.NOT_COORDINATOR)
        current = await member._connect()
        assert previous not in cluster._open
        assert current in cluster._open


async def test_requests_of_several_tasks_share_connection_to_coordinator() -> None:
    connections = set()

    async def connect() -> None:
        connections.add(await member._connect())

    async with started() as broker, open_cluster([broker.endpoint]) as cluster:
        member = Member(cluster, "g", ["t"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            nursery.start_soon(connect)
    assert len(connections) == 1
