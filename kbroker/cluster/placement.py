"""Which nodes hold a partition: new ones, and those that move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

Racks = Mapping[int, str | None]
"""The rack of each node; None for one that has none."""
Placing = tuple[str, int]
"""A topic and the index of a partition."""


class Load:
    """How many partitions each node leads and holds; the preferred leader counts as the leader."""

    def __init__(self, placed: Iterable[Sequence[int]] = ()) -> None:
        self.leaders: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        self.successors: Counter[tuple[int, int]] = Counter()
        """How often the second node stands behind the first, which leads; twice as much where it is
        the next to lead."""
        for nodes in placed:
            self.add(nodes)

    def add(self, nodes: Sequence[int]) -> None:
        """Count a partition."""
        self._count(nodes, 1)

    def remove(self, nodes: Sequence[int]) -> None:
        """Count a partition no more."""
        self._count(nodes, -1)

    def _count(self, nodes: Sequence[int], times: int) -> None:
        # `Counter.update` would take several times as long, for each partition of a large topic.
        for leader in nodes[:1]:
            self.leaders[leader] += times
        for node_id in nodes:
            self.replicas[node_id] += times
        for pair in _behind(nodes):
            self.successors[pair] += times


def _behind(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """The leader with each of those behind it; with the next one twice."""
    return [(nodes[0], each) for each in (*nodes[1:], *nodes[1:2])]


def place(
    racks: Racks,
    count: int,
    factor: int,
    *,
    load: Load | None = None,
    last: Iterable[int] = (),
    topic: Iterable[Sequence[int]] = (),
) -> Iterator[list[int]]:
    """Spread new partitions of a topic: the leaders go round, and so do the other replicas.

    Parameters: `racks` has the nodes to choose from, at least `factor`; a partition is in as many
    racks as there are. `load` is what the nodes have in all, to choose between equals; `last` are
    nodes that come only when there are no others (they are down), and never lead. `topic` is where
    its other partitions are. Gives a list of node ids for each partition, its preferred leader
    first; each is chosen when it is asked for, because among many nodes that takes a while.
    """
    if len(racks) == 1:
        yield from (list(racks) for _ in range(count))
        return
    load, own, shunned = load or Load(), Load(topic), set(last)
    for _ in range(count):
        nodes = _place_one(racks, factor, own, load, shunned)
        own.add(nodes)
        yield nodes


def _place_one(racks: Racks, factor: int, own: Load, load: Load, shunned: set[int]) -> list[int]:
    leader = min(
        racks,
        key=lambda node: (
            node in shunned,
            own.leaders[node],
            own.replicas[node],
            load.leaders[node],
            node,
        ),
    )
    nodes = [leader]
    while len(nodes) < factor:
        nodes.append(_next_replica(racks, nodes, own, load, shunned))
    return nodes


def _next_replica(
    racks: Racks, nodes: Sequence[int], own: Load, load: Load, shunned: Iterable[int] = ()
) -> int:
    """The node that a partition on `nodes` gets next: in another rack, with little to do."""
    taken = {racks[each] for each in nodes if each in racks}
    ring = {node: number for number, node in enumerate(sorted(racks))}
    after = ring.get(nodes[0], 0) if nodes else 0
    return min(
        (each for each in racks if each not in nodes),
        key=lambda node: (
            node in shunned,
            racks[node] is not None and racks[node] in taken,
            own.replicas[node],
            load.replicas[node],
            own.successors[nodes[0], node] if nodes else 0,
            (ring[node] - after) % len(ring),
        ),
    )


def drain(
    placed: Mapping[Placing, Sequence[int]], node_id: int, racks: Racks
) -> dict[Placing, list[int]]:
    """Where the partitions of a node go when it is to have none.

    `racks` has the nodes that may take them. Each keeps its number of replicas as far as there are
    nodes. Returns the partitions that move.
    """
    others = {each: rack for each, rack in racks.items() if each != node_id}
    load = Load(placed.values())
    moves = {}
    for partition, nodes in placed.items():
        if node_id not in nodes:
            continue
        rest = [each for each in nodes if each != node_id]
        load.remove(nodes)
        if set(others) - set(rest):
            taker = _next_replica(others, rest, load, load)
            moved = [taker if each == node_id else each for each in nodes]
        else:
            moved = rest
        if moved:
            load.add(moved)
            moves[partition] = moved
    for moved in moves.values():
        _swap_leader(moved, racks, load)
    return moves


def rebalance(
    placed: Mapping[Placing, Sequence[int]],
    racks: Racks,
    at_least: Mapping[Placing, int] | None = None,
) -> dict[Placing, list[int]]:
    """The moves after which all nodes hold and lead about as many partitions as the others.

    Partitions that are to have more replicas (`at_least`) get them, as far as there are nodes. As
    few others as possible move, one replica each; then preferred leaders change places with another
    replica. Racks that a partition is in already are kept apart.
    """
    now = {partition: list(nodes) for partition, nodes in placed.items()}
    load = Load(now.values())
    wanted = at_least or {}
    for partition, nodes in now.items():
        _widen(nodes, wanted.get(partition, 0), racks, load)
    for partition, nodes in now.items():
        _relieve(nodes, racks, load)
        now[partition] = nodes
    for nodes in now.values():
        _swap_leader(nodes, racks, load)
    return {each: nodes for each, nodes in now.items() if nodes != list(placed[each])}


def _widen(nodes: list[int], factor: int, racks: Racks, load: Load) -> None:
    """Add replicas until there are `factor` of them, or no more nodes."""
    load.remove(nodes)
    while len(nodes) < factor and set(racks) - set(nodes):
        nodes.append(_next_replica(racks, nodes, load, load))
    load.add(nodes)


def _relieve(nodes: list[int], racks: Racks, load: Load) -> None:
    """Move one replica from a node that has more than its share to the one that has least."""
    takers = [each for each in racks if each not in nodes]
    for giver in sorted(nodes, key=lambda node: -load.replicas[node]):
        for taker in sorted(takers, key=lambda node: (load.replicas[node], node)):
            if load.replicas[giver] - load.replicas[taker] < 2:
                break
            moved = [taker if each == giver else each for each in nodes]
            if _rack_count(moved, racks) < _rack_count(nodes, racks):
                continue
            load.remove(nodes)
            nodes[:] = moved
            load.add(nodes)
            return


def _swap_leader(nodes: list[int], racks: Racks, load: Load) -> None:
    candidates = [each for each in nodes if each in racks]
    if not candidates:
        return
    least = min(candidates, key=lambda node: (load.leaders[node], nodes.index(node)))
    if load.leaders[nodes[0]] - load.leaders[least] >= 2:
        load.remove(nodes)
        nodes.remove(least)
        nodes.insert(0, least)
        load.add(nodes)


def _rack_count(nodes: Sequence[int], racks: Racks) -> int:
    return len({racks.get(each) for each in nodes} - {None})
