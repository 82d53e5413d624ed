"""Placement of partition replicas on nodes: new partitions, draining and rebalancing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

# Rack by node; None for nodes without a rack.
Racks = Mapping[int, str | None]
# Topic and partition number.
TopicPartition = tuple[str, int]


class Load:
    """Number of partitions that each node leads and holds; preferred leaders count as leaders."""

    def __init__(self, placed: Iterable[Sequence[int]] = ()) -> None:
        self.leaders: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        # Pairs of leader and follower, weighted 2 if the follower is next in line, else 1.
        self.successors: Counter[tuple[int, int]] = Counter()
        for nodes in placed:
            self.add(nodes)

    def add(self, nodes: Sequence[int]) -> None:
        """Add the replicas of a partition to the counts."""
        self._count(nodes, 1)

    def remove(self, nodes: Sequence[int]) -> None:
        """Remove the replicas of a partition from the counts."""
        self._count(nodes, -1)

    def _count(self, nodes: Sequence[int], times: int) -> None:
        # `Counter.update` is several times slower, which matters for large topics.
        for leader in nodes[:1]:
            self.leaders[leader] += times
        for node_id in nodes:
            self.replicas[node_id] += times
        for pair in _leader_pairs(nodes):
            self.successors[pair] += times


def _leader_pairs(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the leader paired with each follower, and with the first follower twice."""
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
    """Place new partitions of a topic: leaders and followers round-robin.

    Args:
        racks: Nodes to choose from, at least `factor`, with their racks. A partition uses as many
            different racks as possible.
        count: Number of new partitions.
        factor: Replicas per partition.
        load: Partitions of all topics per node, to break ties.
        last: Nodes that are down: used only if no other nodes are left, and never as leader.
        topic: Replicas of the existing partitions of the topic.

    Yields:
        The nodes of each partition, the preferred leader first. Placement is lazy, because it takes
        long with many nodes.
    """
    if len(racks) == 1:
        yield from (list(racks) for _ in range(count))
        return
    load, own, avoided = load or Load(), Load(topic), set(last)
    for _ in range(count):
        nodes = _place_one(racks, factor, own, load, avoided)
        own.add(nodes)
        yield nodes


def _place_one(racks: Racks, factor: int, own: Load, load: Load, avoided: set[int]) -> list[int]:
    leader = min(
        racks,
        key=lambda node: (
            node in avoided,
            own.leaders[node],
            own.replicas[node],
            load.leaders[node],
            node,
        ),
    )
    nodes = [leader]
    while len(nodes) < factor:
        nodes.append(_next_replica(racks, nodes, own, load, avoided))
    return nodes


def _next_replica(
    racks: Racks, nodes: Sequence[int], own: Load, load: Load, avoided: Iterable[int] = ()
) -> int:
    """Return the best additional node for a partition: in another rack, with few replicas."""
    taken = {racks[each] for each in nodes if each in racks}
    ring = {node: number for number, node in enumerate(sorted(racks))}
    after = ring.get(nodes[0], 0) if nodes else 0
    return min(
        (each for each in racks if each not in nodes),
        key=lambda node: (
            node in avoided,
            racks[node] is not None and racks[node] in taken,
            own.replicas[node],
            load.replicas[node],
            own.successors[nodes[0], node] if nodes else 0,
            (ring[node] - after) % len(ring),
        ),
    )


def drain(
    placed: Mapping[TopicPartition, Sequence[int]], node_id: int, racks: Racks
) -> dict[TopicPartition, list[int]]:
    """Return the moves that remove all partitions from a node.

    Partitions keep their replication factor as far as there are enough nodes.

    Args:
        placed: Replicas by partition.
        node_id: Node to drain.
        racks: Nodes that can take partitions, with their racks.

    Returns:
        New replicas of the partitions that move.
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


def confine(
    placed: Mapping[TopicPartition, Sequence[int]], topic: str, racks: Racks
) -> dict[TopicPartition, list[int]]:
    """Return the moves that place the replicas of a topic only on some nodes, evenly.

    Partitions keep their replication factor as far as there are enough nodes. A preferred leader
    on one of the nodes stays, unless it would lead more partitions of the topic than others.

    Args:
        placed: Replicas by partition of all topics.
        topic: Topic to move.
        racks: Nodes that may have replicas of the topic, with their racks.

    Returns:
        New replicas of the partitions that move.
    """
    now = {
        partition: [each for each in nodes if each in racks]
        for partition, nodes in placed.items()
        if partition[0] == topic
    }
    own = Load(now.values())
    load = Load(nodes for partition, nodes in placed.items() if partition not in now)
    for partition, nodes in now.items():
        own.remove(nodes)
        while len(nodes) < len(placed[partition]) and set(racks) - set(nodes):
            nodes.append(_next_replica(racks, nodes, own, load))
        own.add(nodes)
    for nodes in now.values():
        _move_replica(nodes, racks, own)
    for nodes in now.values():
        _swap_leader(nodes, racks, own)
    return {each: nodes for each, nodes in now.items() if nodes != list(placed[each])}


def rebalance(
    placed: Mapping[TopicPartition, Sequence[int]],
    racks: Racks,
    at_least: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, list[int]]:
    """Return moves that balance replicas and leaders over all nodes.

    As few replicas as possible move, at most one per partition. Then preferred leaders are
    swapped with followers. Partitions do not lose racks.

    Args:
        placed: Replicas by partition.
        racks: Nodes with their racks.
        at_least: Minimum replication factor by partition, applied as far as there are nodes.

    Returns:
        New replicas of the partitions that move.
    """
    now = {partition: list(nodes) for partition, nodes in placed.items()}
    load = Load(now.values())
    wanted = at_least or {}
    for partition, nodes in now.items():
        _add_replicas(nodes, wanted.get(partition, 0), racks, load)
    for partition, nodes in now.items():
        _move_replica(nodes, racks, load)
        now[partition] = nodes
    for nodes in now.values():
        _swap_leader(nodes, racks, load)
    return {each: nodes for each, nodes in now.items() if nodes != list(placed[each])}


def _add_replicas(nodes: list[int], factor: int, racks: Racks, load: Load) -> None:
    """Add replicas until there are `factor`, or no more nodes."""
    load.remove(nodes)
    while len(nodes) < factor and set(racks) - set(nodes):
        nodes.append(_next_replica(racks, nodes, load, load))
    load.add(nodes)


def _move_replica(nodes: list[int], racks: Racks, load: Load) -> None:
    """Move one replica from the most loaded node to the least loaded one."""
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
