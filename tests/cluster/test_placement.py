"""Placement of new partitions, draining and rebalancing."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from kbroker.cluster.placement import Load, confine, drain, place, rebalance

THREE = dict.fromkeys((1, 2, 3))


def counts(placed: list[list[int]]) -> tuple[Counter[int], Counter[int]]:
    return Counter(nodes[0] for nodes in placed), Counter(chain(*placed))


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_replicas_are_placed_round_robin(factor: int) -> None:
    placed = [*place(THREE, 9, factor)]
    leaders, replicas = counts(placed)
    assert leaders == {1: 3, 2: 3, 3: 3}
    assert replicas == {1: 3 * factor, 2: 3 * factor, 3: 3 * factor}
    assert all(len(set(nodes)) == factor for nodes in placed)


def test_next_leaders_of_a_node_are_spread() -> None:
    placed = place(dict.fromkeys(range(5)), 50, 3)
    seconds = Counter(nodes[1] for nodes in placed if nodes[0] == 0)
    assert len(seconds) > 1


def test_next_leaders_are_spread_with_full_replication() -> None:
    placed = [*place(THREE, 12, 3)]
    for leader in THREE:
        seconds = Counter(nodes[1] for nodes in placed if nodes[0] == leader)
        assert sorted(seconds.values()) == [2, 2]


def test_single_partition_topics_are_spread() -> None:
    every: list[list[int]] = []
    for _ in range(6):
        every += place(THREE, 1, 1, load=Load(every))
    assert counts(every)[0] == {1: 2, 2: 2, 3: 2}


def test_added_partitions_continue_round_robin() -> None:
    first = [*place(THREE, 4, 2)]
    leaders, replicas = counts([*first, *place(THREE, 2, 2, topic=first)])
    assert leaders == {1: 2, 2: 2, 3: 2}
    assert replicas == {1: 4, 2: 4, 3: 4}


def test_replicas_use_all_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = [*place(racks, 12, 3)]
    assert all({racks[each] for each in nodes} == {"a", "b", "c"} for nodes in placed)
    assert counts(placed) == (Counter(dict.fromkeys(racks, 2)), Counter(dict.fromkeys(racks, 6)))


def test_replicas_share_racks_if_necessary() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    assert all(sorted(nodes) == [1, 2, 3] for nodes in place(racks, 3, 3))


def test_down_nodes_are_used_last_and_never_lead() -> None:
    assert counts([*place(THREE, 4, 2, last=[2])])[1] == {1: 4, 3: 4}
    leaders, replicas = counts([*place(THREE, 4, 3, last=[2])])
    assert leaders == {1: 2, 3: 2}
    assert replicas == {1: 4, 2: 4, 3: 4}


def test_drain_spreads_replicas_over_other_nodes() -> None:
    nodes = dict.fromkeys((1, 2, 3, 4))
    placed = {("t", i): each for i, each in enumerate(place(nodes, 12, 2))}
    moves = drain(placed, 4, nodes)
    assert moves.keys() == {key for key, each in placed.items() if 4 in each}
    after = placed | moves
    leaders, replicas = counts(list(after.values()))
    assert set(replicas) == {1, 2, 3}
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert all(len(set(each)) == 2 for each in after.values())
    assert all(len(set(moved) - set(placed[key])) == 1 for key, moved in moves.items())


def test_drain_without_spare_node_keeps_one_replica() -> None:
    placed = {("t", 0): [3, 1, 2], ("t", 1): [3]}
    assert drain(placed, 3, THREE) == {("t", 0): [2, 1], ("t", 1): [1]}
    assert drain({("t", 1): [3]}, 3, {3: None}) == {}


def test_confine_moves_replicas_of_one_topic_to_some_nodes_evenly() -> None:
    placed = {("t", i): each for i, each in enumerate(place(dict.fromkeys(range(1, 5)), 8, 2))}
    placed["u", 0] = [1, 2]
    moves = confine(placed, "t", {3: None, 4: None})
    assert ("u", 0) not in moves
    leaders, replicas = counts([(placed | moves)["t", i] for i in range(8)])
    assert replicas == {3: 8, 4: 8}
    assert leaders == {3: 4, 4: 4}
    assert confine(placed | moves, "t", {3: None, 4: None}) == {}


def test_confine_spreads_a_topic_from_one_of_the_nodes() -> None:
    placed = {("t", i): [1] for i in range(4)}
    moves = confine(placed, "t", {1: None, 2: None})
    assert counts(list((placed | moves).values()))[1] == {1: 2, 2: 2}


def test_confine_to_too_few_nodes_reduces_the_replicas() -> None:
    assert confine({("t", 0): [1, 2]}, "t", {3: None}) == {("t", 0): [3]}


def test_rebalance_fills_new_node_with_few_moves() -> None:
    placed = {("t", i): each for i, each in enumerate(place(THREE, 12, 3))}
    nodes = dict.fromkeys((1, 2, 3, 4))
    moves = rebalance(placed, nodes)
    leaders, replicas = counts(list((placed | moves).values()))
    assert replicas == {1: 9, 2: 9, 3: 9, 4: 9}
    assert leaders == {1: 3, 2: 3, 3: 3, 4: 3}
    assert sum(len(set(moved) - set(placed[key])) for key, moved in moves.items()) == 9
    assert rebalance(placed | moves, nodes) == {}


def test_rebalance_adds_replicas_up_to_node_count() -> None:
    placed = {("t", i): [1] for i in range(6)} | {("u", 0): [2, 1]}
    moves = rebalance(placed, THREE, {each: 3 for each in placed if each[0] == "t"})
    leaders, replicas = counts(list((placed | moves).values()))
    assert all(sorted(moves["t", i]) == [1, 2, 3] for i in range(6))
    assert sum(replicas.values()) == 20
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert rebalance({("t", 0): [1]}, {1: None, 2: None}, {("t", 0): 3}) == {("t", 0): [1, 2]}
    assert rebalance({("t", 0): [1, 2, 3]}, THREE, {("t", 0): 1}) == {}, "none is taken away"


def test_rebalance_adds_replicas_in_other_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    assert rebalance({("t", 0): [1]}, racks, {("t", 0): 2}) == {("t", 0): [1, 3]}


def test_rebalance_keeps_rack_spread() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    placed = {("t", i): [1, 2] for i in range(8)}
    after = placed | rebalance(placed, racks)
    assert all({racks[each] for each in nodes} == {"a", "b"} for nodes in after.values())
    assert counts(list(after.values()))[1] == {1: 4, 2: 4, 3: 4, 4: 4}
