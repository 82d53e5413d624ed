"""Reassignment of partitions."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kbroker.cluster.reassignment import is_moving
from kbroker.protocol.errors import ErrorCode, KafkaError

from .clusters import move
from .members import lease_ends, make_topic, members, wait_until_settled


async def test_reassignment_completes_when_added_replicas_are_in_sync(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, three):
        await make_topic(one, [1, 2])
        await move(two, [3, 2])
        moving = one.partition()
        assert (moving.replicas, moving.isr, moving.leader) == ([3, 2, 1], [1, 2], 1)
        assert (list(moving.adding), list(moving.removing)) == ([3], [1])
        await one.put_isr([1, 2, 3])
        await wait_until_settled()
        done = three.partition()
        assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ([3, 2], [2, 3], 3, 1)
        assert not is_moving(done)


async def test_cancelled_reassignment_restores_replicas(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, _):
        await make_topic(one, [1, 2])
        with pytest.raises(KafkaError) as raised:
            await two.cluster.cancel_reassignment("orders", 0, cause="test")
        assert raised.value.code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        await move(two, [3])
        await two.cluster.cancel_reassignment("orders", 0, cause="test")
        now = one.partition()
        assert (sorted(now.replicas), now.isr, now.leader) == ([1, 2], [1, 2], 1)
        assert not is_moving(now)


async def test_cancel_elects_no_leader_that_lacks_records(autojump_clock: MockClock) -> None:
    async with members(4) as (one, two, three, four):
        await make_topic(one, [1, 2], min_insync_replicas="2")
        await move(one, [3, 4])
        await one.put_isr([1, 2, 3])
        await one.put_isr([1, 3])
        await one.crash()
        await lease_ends()
        now = four.partition()
        assert (now.leader, now.isr, list(now.elr)) == (3, [3], [1])
        await four.cluster.cancel_reassignment("orders", 0, cause="test")
        await wait_until_settled()
        now = two.partition()
        assert (sorted(now.replicas), now.leader, now.isr, list(now.elr)) == ([1, 2], -1, [], [1])
        await one.start()
        await wait_until_settled()
        assert three.partition().leader == 1


async def test_cancel_is_rejected_if_only_added_replicas_are_in_sync(
    autojump_clock: MockClock,
) -> None:
    async with members(4) as (one, two, _, four):
        await make_topic(one, [1, 2])
        await move(one, [3, 4])
        await one.put_isr([3, 1])
        await one.crash()
        await two.crash()
        await lease_ends()
        with pytest.raises(KafkaError) as raised:
            await four.cluster.cancel_reassignment("orders", 0, cause="test")
        assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert four.partition().leader == 3


async def test_new_reassignment_replaces_pending_one(autojump_clock: MockClock) -> None:
    async with members(4) as (one, *_):
        await make_topic(one, [1, 2])
        await move(one, [3, 2])
        await move(one, [4, 2])
        now = one.partition()
        assert (now.replicas, list(now.adding), list(now.removing)) == ([4, 2, 1], [4], [1])


async def test_reassignment_to_fewer_replicas_completes_immediately(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, *_):
        await make_topic(one, [1, 2, 3])
        await move(one, [2, 3])
        now = one.partition()
        assert (now.replicas, now.isr, now.leader) == ([2, 3], [2, 3], 2)
