"""Replicas, leaders, drained brokers and balance of partitions in the console."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.client.moves import cordon_broker, drained_brokers, plan_moves
from kbroker.client.topics import NewTopic, create_topics
from kbroker.cluster import Cluster
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.acls import AclOperation
from kbroker.web.console import moves

from ...wire import until
from .consoles import Console, console
from .secured_consoles import ALICE, secured_console

ORDERS_0: dict[str, object] = {"topic": "orders", "partition": 0}


async def _make(setup: Console, partitions: int = 1, factor: int = 2) -> None:
    await create_topics(setup.cluster, [NewTopic("orders", partitions, factor)])


async def _post(setup: Console, path: str, **body: Any) -> Any:
    response = await setup.post(path, body)
    assert response.status == 200, response.text
    return response.json()


def _cluster(setup: Console) -> Cluster:
    return setup.broker.nodes[0].node.cluster


def _replicas(setup: Console) -> list[int]:
    return _cluster(setup).topics["orders"].partitions[0].replicas


async def test_replicas_move_only_after_the_preview() -> None:
    async with console(nodes=3) as setup:
        await _make(setup)
        before = list(_replicas(setup))
        (other,) = {1, 2, 3} - set(before)
        wanted = [other, before[0]]
        shown = await _post(setup, "/placement/reassign", **ORDERS_0, replicas=wanted)
        assert (shown["before"], shown["after"]) == (before, wanted)
        assert (shown["adding"], shown["removing"]) == ([other], [before[1]])
        assert _replicas(setup) == before
        await _post(setup, "/placement/reassign", **ORDERS_0, replicas=wanted, dry_run=False)
        await until(lambda: _replicas(setup) == wanted)
        listed = await setup.get("/placement", search="ORD")
        (row,) = listed["partitions"]
        assert (row["topic"], row["partition"], row["replicas"]) == ("orders", 0, wanted)
        assert (listed["matching"], listed["may_alter"], listed["drained"]) == (1, True, [])


async def test_topic_moves_to_brokers_only_after_the_preview() -> None:
    async with console(nodes=3) as setup:
        await _make(setup, partitions=4)
        body = {"topic": "orders", "brokers": [2, 3]}
        partitions = _cluster(setup).topics["orders"].partitions
        outside = sum(1 in each.replicas for each in partitions)
        shown = await _post(setup, "/placement/move-topic", **body)
        assert shown["count"] == len(shown["moves"]) >= outside > 0
        assert sum(1 in each.replicas for each in partitions) == outside
        await _post(setup, "/placement/move-topic", **body, dry_run=False)
        topics = _cluster(setup).topics
        await until(lambda: all({*each.replicas} == {2, 3} for each in topics["orders"].partitions))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"topic": "missing", "brokers": [1, 2]}, 404, "does not exist"),
        ({"topic": "orders", "brokers": []}, 400, "brokers must be a list of different"),
        ({"topic": "orders", "brokers": [1, 7]}, 400, "7 is down or drained (valid: 1, 2)"),
        ({"topic": "orders", "brokers": [2]}, 400, "2 replicas; name at least 2 brokers"),
    ],
)
async def test_invalid_move_of_topic_is_rejected(body: object, status: int, message: str) -> None:
    async with console(nodes=2) as setup:
        await _make(setup)
        response = await setup.post("/placement/move-topic", body)
        assert response.status == status
        assert message in response.json()["error"]


async def test_placement_is_listed_in_pages() -> None:
    async with console() as setup:
        await _make(setup, partitions=5, factor=1)
        listed = await setup.get("/placement", limit=2, offset=2)
        assert [each["partition"] for each in listed["partitions"]] == [2, 3]
        assert listed["matching"] == 5


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"topic": "orders", "partition": 0}, 400, "replicas must be a list of different"),
        ({**ORDERS_0, "replicas": [1, 1]}, 400, "replicas must be a list of different"),
        ({**ORDERS_0, "replicas": [True]}, 400, "replicas must be a list of different"),
        ({**ORDERS_0, "replicas": [7]}, 400, "broker 7 does not run (valid: 1)"),
        ({**ORDERS_0, "replicas": [*range(101)]}, 400, "replicas has 101 brokers"),
        ({"topic": "orders", "partition": 3, "replicas": [1]}, 404, "no partition 3, it has 1"),
        ({"topic": "orders", "partition": -1, "replicas": [1]}, 400, "partition must be"),
        ({"topic": "missing", "partition": 0, "replicas": [1]}, 404, "does not exist"),
    ],
)
async def test_invalid_move_is_rejected(body: object, status: int, message: str) -> None:
    async with console() as setup:
        await _make(setup, factor=1)
        response = await setup.post("/placement/reassign", body)
        assert response.status == status
        assert message in response.json()["error"]


async def test_reassignment_is_cancelled() -> None:
    async with console(nodes=3) as setup:
        await _make(setup, factor=1)
        response = await setup.post("/placement/cancel", ORDERS_0)
        assert response.status == 409
        assert "orders-0 is not being reassigned" in response.json()["error"]
        before = list(_replicas(setup))
        down = next(each for each in (2, 3) if each != before[0])
        await setup.broker.local_node(down).stop()
        await _cluster(setup).reassign("orders", 0, [down], factor_may_change=True, cause="test")
        assert _cluster(setup).topics["orders"].partitions[0].adding == [down]
        shown = await _post(setup, "/placement/cancel", **ORDERS_0)
        assert (shown["dry_run"], shown["partition"]) == (True, "orders-0")
        await _post(setup, "/placement/cancel", **ORDERS_0, dry_run=False)
        await until(lambda: _replicas(setup) == before)


async def test_another_replica_becomes_leader_after_the_preview() -> None:
    async with console(nodes=3) as setup:
        await _make(setup, factor=3)
        first, second, third = _replicas(setup)

        def leader() -> int:
            return _cluster(setup).topics["orders"].partitions[0].leader

        await until(lambda: leader() == first)
        shown = await _post(setup, "/placement/elect", **ORDERS_0, leader=second)
        assert shown["changes"] == [{"partition": "orders-0", "from": first, "to": second}]
        assert leader() == first
        await _post(setup, "/placement/elect", **ORDERS_0, leader=second, dry_run=False)
        await until(lambda: leader() == second)
        assert _replicas(setup) == [second, first, third]
        await _post(setup, "/placement/elect", **ORDERS_0, dry_run=False)
        response = await setup.post("/placement/elect", {**ORDERS_0, "leader": 9})
        assert response.status == 400
        assert "broker 9 has no replica" in response.json()["error"]


async def test_preferred_leaders_of_all_partitions_are_elected() -> None:
    async with console(nodes=2, auto_leader_rebalance_enable="false") as setup:
        await _make(setup, partitions=2)
        partitions = _cluster(setup).topics["orders"].partitions
        at = next(each.index for each in partitions if each.replicas[0] == 2)
        await setup.broker.local_node(2).stop()
        await until(lambda: _leader(setup, at) == 1)
        await setup.broker.local_node(2).start()
        await until(lambda: len(_cluster(setup).topics["orders"].partitions[at].isr) == 2)
        shown = await _post(setup, "/placement/elect")
        assert shown["changes"] == [{"partition": f"orders-{at}", "from": 1, "to": 2}]
        assert _leader(setup, at) == 1
        await _post(setup, "/placement/elect", dry_run=False)
        await until(lambda: _leader(setup, at) == 2)


def _leader(setup: Console, at: int) -> int:
    return _cluster(setup).topics["orders"].partitions[at].leader


@pytest.mark.slow
async def test_broker_is_drained_after_the_preview_and_gets_partitions_again() -> None:
    async with console(nodes=3) as setup:
        await _make(setup, partitions=6)

        def held() -> list[int]:
            partitions = _cluster(setup).topics["orders"].partitions
            return [node for each in partitions for node in each.replicas]

        shown = await _post(setup, "/placement/drain", broker=3)
        assert shown["count"] == len(shown["moves"]) == held().count(3)
        assert shown["fewer_replicas"] == []
        assert held().count(3) == 4
        await _post(setup, "/placement/drain", broker=3, dry_run=False)
        await until(lambda: held().count(3) == 0)
        assert (await setup.get("/placement"))["drained"] == [3]
        await _post(setup, "/placement/drain", broker=3, undo=True, dry_run=False)
        await until(lambda: _cluster(setup).open_ids == [1, 2, 3])
        gone = {"broker": 9, "undo": True, "dry_run": False}
        failed = await setup.post("/placement/drain", gone)
        assert (failed.status, "broker 9 is not running" in failed.text) == (409, True)
        planned = await _post(setup, "/placement/rebalance")
        assert planned["count"] > 0
        await _post(setup, "/placement/rebalance", dry_run=False)
        await until(lambda: held().count(3) == 4)


async def test_drain_that_loses_replicas_needs_permission() -> None:
    async with console(nodes=2) as setup:
        await _make(setup)
        assert (await _post(setup, "/placement/drain", broker=2))["fewer_replicas"] == ["orders-0"]
        response = await setup.post("/placement/drain", {"broker": 2, "dry_run": False})
        assert response.status == 409
        assert "too few other brokers for all replicas of orders" in response.json()["error"]
        body = {"broker": 2, "dry_run": False, "allow_fewer_replicas": True}
        assert (await setup.post("/placement/drain", body)).status == 200
        await until(lambda: _replicas(setup) == [1])
        response = await setup.post("/placement/drain", {"broker": 1})
        assert response.status == 409
        assert "no other broker can take the partitions of orders" in response.json()["error"]


@pytest.mark.parametrize("was_drained", [False, True])
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_drain_that_fails_restores_the_previous_state_of_the_broker(
    monkeypatch: pytest.MonkeyPatch, was_drained: bool, is_cancelled: bool
) -> None:
    async with console(nodes=2) as setup:
        await _make(setup, factor=1)
        if was_drained:
            await cordon_broker(setup.cluster, 2, cordoned=True)
        planned = trio.Event()

        async def fail(*args: Any, dry_run: bool) -> Any:
            if dry_run:
                return await plan_moves(*args, dry_run=True)
            planned.set()
            if is_cancelled:
                await trio.sleep_forever()
            raise KafkaError(ErrorCode.NOT_CONTROLLER)

        monkeypatch.setattr(moves, "plan_moves", fail)
        body = {"broker": 2, "dry_run": False, "allow_fewer_replicas": True}
        if is_cancelled:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(setup.post, "/placement/drain", body)
                await planned.wait()
                assert await drained_brokers(setup.cluster, [2]) == {2}
                nursery.cancel_scope.cancel()
            await setup.http.stream.aclose()
        else:
            assert (await setup.post("/placement/drain", body)).status == 502
        expected = [1] if was_drained else [1, 2]
        await until(lambda: _cluster(setup).open_ids == expected)


async def test_drain_is_checked_again_before_partitions_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with console(nodes=2) as setup:
        await _make(setup, factor=1)

        async def create_topic_and_cordon(*args: Any, cordoned: bool) -> bool:
            if cordoned:
                await create_topics(setup.cluster, [NewTopic("late", 1, 2)])
            return await cordon_broker(*args, cordoned=cordoned)

        monkeypatch.setattr(moves, "cordon_broker", create_topic_and_cordon)
        response = await setup.post("/placement/drain", {"broker": 2, "dry_run": False})
        assert response.status == 409
        assert "too few other brokers for all replicas of late" in response.json()["error"]
        assert sorted(_cluster(setup).topics["late"].partitions[0].replicas) == [1, 2]
        assert await drained_brokers(setup.cluster, [2]) == set()


async def test_drain_of_a_broker_that_is_down_reports_that_it_is_not_cordoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def is_down(*_: object, cordoned: bool) -> bool:
        return False

    async with console(nodes=2) as setup:
        await _make(setup, factor=1)
        assert (await _post(setup, "/placement/drain", broker=2, dry_run=False))["cordoned"] is True
        await cordon_broker(setup.cluster, 2, cordoned=False)
        monkeypatch.setattr(moves, "cordon_broker", is_down)
        drained = await _post(setup, "/placement/drain", broker=2, dry_run=False)
        assert drained["cordoned"] is False


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("move-topic", {"topic": "orders", "brokers": [2]}),
        ("drain", {"broker": 1, "allow_fewer_replicas": True}),
    ],
)
@pytest.mark.parametrize("in_progress", [0, 1])
async def test_moves_that_fail_in_part_name_the_number_in_progress(
    monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object], in_progress: int
) -> None:
    async def reject(*_: object) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def ongoing(_: object) -> dict[Any, Any]:
        return {("orders", 0): []} if in_progress else {}

    async with console(nodes=2) as setup:
        new = NewTopic("orders", assignments={0: [1], 1: [1]})
        await create_topics(setup.cluster, [new])
        monkeypatch.setattr("kbroker.client.moves.reassign_partitions", reject)
        monkeypatch.setattr(moves, "list_reassignments", ongoing)
        response = await setup.post(f"/placement/{path}", {**body, "dry_run": False})
        assert response.status == 404
        error = response.json()["error"]
        assert error.startswith("UNKNOWN_TOPIC_OR_PARTITION")
        assert ("1 of 2 reassignments are in progress" in error) == bool(in_progress)


async def test_plans_of_many_partitions_are_left_to_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(moves, "PARTITIONS_PLANNED_MAX", 1)
    async with console() as setup:
        await _make(setup, partitions=2, factor=1)
        for path, command in (
            ("drain", "kbroker cluster drain BROKER"),
            ("rebalance", "kbroker cluster rebalance"),
            ("move-topic", "kafka-reassign-partitions"),
        ):
            body = {"broker": 1, "topic": "orders", "brokers": [1]}
            response = await setup.post(f"/placement/{path}", body)
            assert response.status == 409
            assert f"use `{command}`" in response.json()["error"]


async def test_changes_of_placement_need_alter_on_the_cluster() -> None:
    async with secured_console() as setup:
        await setup.allow(AclOperation.DESCRIBE)
        assert (await setup.get("/placement", login=ALICE))["may_alter"] is False
        for path in ("reassign", "move-topic", "cancel", "elect", "drain", "rebalance"):
            body = {**ORDERS_0, "broker": 1, "dry_run": False}
            assert (await setup.refusal(f"/placement/{path}", body, login=ALICE))[0] == 403
            assert (await setup.refusal(f"/placement/{path}", body, token="wrong"))[0] == 403
