"""Leader election and ISR changes when nodes of one store start and stop."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kbroker.cluster import IsrChange
from kbroker.cluster.controller import Cause, Step
from kbroker.cluster.election import without_leader
from kbroker.cluster.store import Document
from kbroker.protocol.errors import ErrorCode, KafkaError

from .clusters import move
from .members import lease_ends, make_topic, members, wait_until_settled


async def test_another_node_takes_over_from_crashed_controller(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, three):
        assert {each.cluster.controller_id for each in (one, two, three)} == {1}
        epoch = two.cluster.controller_epoch
        await one.crash()
        await lease_ends()
        assert two.cluster.controller_id in (2, 3)
        assert three.cluster.controller_epoch == epoch + 1
        assert [two.controller.in_charge, three.controller.in_charge].count(True) == 1
        assert two.cluster.ready_ids == [2, 3]
        assert two.cluster.node_ids == [1, 2, 3]


async def test_writes_of_earlier_controller_are_fenced(autojump_clock: MockClock) -> None:
    async with members() as (one, two, _):
        await make_topic(one, [1, 2, 3])
        term = one.controller._term
        while two.cluster.controller_epoch == 1:  # node 1 may register again before others notice
            await one.membership.lease.revoke()
            await lease_ends()
        before = two.partition()
        assert one.partition() == before
        late = Step(one.cluster.topics["orders"], before, without_leader(before), Cause("late"))
        for as_of, accepted in (
            (term, False),
            (one.cluster.registrations.controller_revision, True),
        ):
            one.controller._term = as_of
            assert await one.controller._try_write([late], {}) == accepted


@pytest.mark.parametrize("crashes", [True, False])
async def test_in_sync_node_replaces_stopped_leader(
    crashes: bool, autojump_clock: MockClock
) -> None:
    async with members() as (one, two, three):
        await make_topic(two, [1, 2, 3], [2, 3, 1])
        await (one.crash() if crashes else one.stop())
        await lease_ends()
        for each in (two, three):
            assert [
                (p.leader, p.leader_epoch, p.isr) for p in each.cluster.topics["orders"].partitions
            ] == [
                (2, 1, [2, 3]),
                (2, 0, [2, 3]),
            ]
        assert two.partition().leader_registration == two.membership.epoch


async def test_controlled_shutdown_moves_leadership_first(autojump_clock: MockClock) -> None:
    async with members() as (one, two, _):
        await make_topic(two, [1, 2, 3])
        await one.membership.leave()
        assert two.partition().leader == 2
        assert 1 in two.cluster.nodes
        assert two.partition().isr == [2, 3]


async def test_last_isr_member_leads_after_its_return(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, three):
        await make_topic(three, [1, 2])
        await one.crash()
        await lease_ends()
        await two.crash()
        await lease_ends()
        after_failure = three.partition()
        assert (after_failure.leader, after_failure.isr) == (-1, [2])
        await one.start()
        await wait_until_settled()
        assert three.partition() == after_failure, "node 1 may lack what node 2 committed alone"
        await two.start()
        await wait_until_settled()
        back = three.partition()
        assert (back.leader, back.leader_epoch) == (2, after_failure.leader_epoch + 1)


async def test_nodes_that_left_small_isr_stay_eligible(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, three):
        await make_topic(three, [1, 2, 3], min_insync_replicas="2")
        assert await three.put_isr([3]) is None, "it does not lead"
        await one.put_isr([1, 2])
        await two.crash()
        await lease_ends()
        assert (one.partition().isr, list(one.partition().elr)) == ([1], [2])
        await two.start()
        await one.crash()
        await lease_ends()
        now = two.partition()
        assert (now.leader, now.isr) == (2, [2])
        assert list(now.elr) == [1]
        assert await two.put_isr([2, 3]) is not None
        assert list(two.partition().elr) == []


async def test_preferred_leader_is_restored_periodically(autojump_clock: MockClock) -> None:
    async with members() as (one, two, three):
        await make_topic(one, [1, 2])
        await one.crash()
        await lease_ends()
        await one.start()
        await two.put_isr([2, 1])
        await wait_until_settled()
        assert three.partition().leader == 2
        autojump_clock.jump(301)
        await wait_until_settled()
        assert (three.partition().leader, three.partition().leader_epoch) == (1, 2)


async def test_isr_change_with_stale_broker_epoch_is_rejected(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, three):
        await make_topic(one, [1, 2, 3])
        await one.put_isr([1])
        stale = two.membership.epoch
        await two.crash()
        await two.start()
        topic = one.cluster.topics["orders"]
        for registrations, stored in (({2: stale}, False), ({2: two.membership.epoch}, True)):
            revision = await one.cluster.change_isr(
                [IsrChange(topic, one.partition(), [1, 2], registrations)],
                self_id=1,
                self_epoch=one.membership.epoch,
                cause="caught up",
            )
            assert (revision is not None) == stored
        await three.membership.leave()
        assert await one.put_isr([1, 2, 3]) is None


# -- membership and placement


async def test_unregister_requires_stopped_node_without_replicas(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, _, three):
        await make_topic(one, [1, 3])
        for node_id, code in (
            (9, ErrorCode.BROKER_ID_NOT_REGISTERED),
            (3, ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(KafkaError) as raised:
                await one.cluster.unregister(node_id, cause="test")
            assert raised.value.code == code
        await three.stop()
        with pytest.raises(KafkaError, match="kbroker cluster drain 3"):
            await one.cluster.unregister(3, cause="test")
        await move(one, [1])
        await one.cluster.unregister(3, cause="test")
        assert one.cluster.node_ids == [1, 2]


async def test_node_that_starts_while_it_is_unregistered_stays(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members() as (one, _, three):
        await three.stop()
        transact = one.cluster.transact

        async def start_before(
            puts: dict[str, Document | None], *, compares: dict[str, int], cause: str
        ) -> bool:
            await three.start()
            return await transact(puts, compares=compares, cause=cause) is not None

        monkeypatch.setattr(one.cluster, "_transact", start_before)
        with pytest.raises(KafkaError, match="broker 3 is running"):
            await one.cluster.unregister(3, cause="test")
        assert one.cluster.node_ids == [1, 2, 3]


async def test_unclean_election_happens_only_on_request(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with members() as (one, two, three):
        await make_topic(three, [1, 2])
        await one.put_isr([1])
        await one.crash()
        await lease_ends()
        assert three.partition().leader == -1
        partitions = [("orders", 0)]
        (error,) = await three.cluster.elect_leaders(partitions, unclean=False, cause="test")
        assert error is not None
        assert await three.cluster.elect_leaders(partitions, unclean=True, cause="test") == [None]
        assert (two.partition().leader, two.partition().isr) == (2, [2])
        assert "are lost" in caplog.text


async def test_cordoned_node_gets_no_new_partitions(autojump_clock: MockClock) -> None:
    async with members() as (one, two, _):
        two.membership.cordon(True)
        await wait_until_settled()
        placed = [*one.cluster.place_partitions(4, 2)]
        assert {node for nodes in placed for node in nodes} == {1, 3}
        with pytest.raises(KafkaError):
            one.cluster.place_partitions(1, 3)
        two.membership.cordon(False)
        await wait_until_settled()
        assert one.cluster.open_ids == [1, 2, 3]


async def test_replicas_are_placed_on_down_nodes_only_if_necessary(
    autojump_clock: MockClock,
) -> None:
    async with members() as (one, two, _):
        await two.stop()
        assert {n for nodes in one.cluster.place_partitions(3, 2) for n in nodes} == {1, 3}
        placed = one.cluster.place_partitions(3, 3)
        await make_topic(one, *placed)
        for index in range(3):
            assert sorted(one.partition(index).replicas) == [1, 2, 3]
            assert sorted(one.partition(index).isr) == [1, 3]
