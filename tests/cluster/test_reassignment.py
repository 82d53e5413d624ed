"""Partitions that move to other replicas."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kbroker.cluster.reassignment import is_moving
from kbroker.protocol.errors import ErrorCode, KafkaError

from .clusters import move
from .members import lease_ends, make_topic, members, settled


async def test_a_partition_moves_when_those_that_come_are_in_sync(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, three):
        await make_topic(one, [1, 2])
        await move(two, [3, 2])
        moving = one.partition()
        assert (moving.replicas, moving.isr, moving.leader) == ([3, 2, 1], [1, 2], 1)
        assert (list(moving.adding), list(moving.removing)) == ([3], [1])
        await one.put_isr([1, 2, 3])
        await settled()
        done = three.partition()
        assert (done.replicas, done.isr, done.leader, done.leader_epoch) == ([3, 2], [2, 3], 3, 1)
        assert not is_moving(done)


async def test_a_move_that_is_cancelled_leaves_the_partition_where_it_was(
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


async def test_a_cancelled_move_elects_nobody_who_lacks_records(autojump_clock: MockClock) -> None:
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
        await settled()
        now = two.partition()
        assert (sorted(now.replicas), now.leader, now.isr, list(now.elr)) == ([1, 2], -1, [], [1])
        await one.start()
        await settled()
        assert three.partition().leader == 1


async def test_a_move_waits_while_only_those_that_come_have_everything(
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


async def test_another_target_replaces_the_one_before(autojump_clock: MockClock) -> None:
    async with members(4) as (one, *_):
        await make_topic(one, [1, 2])
        await move(one, [3, 2])
        await move(one, [4, 2])
        now = one.partition()
        assert (now.replicas, list(now.adding), list(now.removing)) == ([4, 2, 1], [4], [1])


async def test_fewer_replicas_at_once_and_the_leader_moves(autojump_clock: MockClock) -> None:
    async with members() as (one, *_):
        await make_topic(one, [1, 2, 3])
        await move(one, [2, 3])
        now = one.partition()
        assert (now.replicas, now.isr, now.leader) == ([2, 3], [2, 3], 2)
