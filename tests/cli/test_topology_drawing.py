"""Drawing of the topology of a streams group."""

from __future__ import annotations

from kbroker.cli.topology_drawing import INDENT_MAX, NODES_MAX, draw_topology
from kbroker.client.topology_descriptions import TopologyNode


def node(
    name: str,
    *successors: str,
    type: str = "processor",
    topics: tuple[str, ...] = (),
    stores: tuple[str, ...] = (),
    subtopology: str | None = "0",
) -> TopologyNode:
    return TopologyNode(subtopology, name, type, [*topics], [*stores], [*successors])


def test_chain_is_drawn_without_indent_and_branches_are_indented() -> None:
    nodes = [
        node("SOURCE-0", "FILTER-1", type="source", topics=("orders", "returns")),
        node("FILTER-1", "AGGREGATE-2"),
        node("AGGREGATE-2", "MAP-3", "SINK-5", stores=("counts", "sums")),
        node("MAP-3", "SINK-4"),
        node("SINK-4", type="sink", topics=("totals",)),
        node("SINK-5", type="sink"),
        node("GLOBAL-6", "GLOBAL-7", type="source", topics=("rates",), subtopology=None),
        node("GLOBAL-7", stores=("rates",), subtopology=None),
    ]
    assert draw_topology(nodes) == [
        "Subtopology 0",
        "  SOURCE-0 (source: orders, returns)",
        "  -> FILTER-1",
        "  -> AGGREGATE-2 (stores: counts, sums)",
        "     +-> MAP-3",
        "     |   -> SINK-4 (sink: totals)",
        "     `-> SINK-5 (sink)",
        "Global stores",
        "  GLOBAL-6 (source: rates)",
        "  -> GLOBAL-7 (stores: rates)",
    ]


def test_node_with_several_predecessors_is_drawn_once() -> None:
    nodes = [
        node("LEFT", "MERGE", type="source"),
        node("RIGHT", "MERGE", type="source"),
        node("MERGE", "ELSEWHERE"),
    ]
    assert draw_topology(nodes)[1:] == [
        "  LEFT (source)",
        "  -> MERGE",
        "  -> ELSEWHERE",
        "  RIGHT (source)",
        "  -> MERGE (drawn above)",
    ]


def test_cycle_without_root_is_drawn() -> None:
    nodes = [node("A", "B"), node("B", "A")]
    assert draw_topology(nodes)[1:] == ["  A", "  -> B", "  -> A (drawn above)"]


def test_deep_branches_are_drawn_as_new_roots() -> None:
    nodes = [node(f"N{n}", f"N{n + 1}", f"LEAF{n}") for n in range(300)]
    lines = draw_topology(nodes)
    assert max(map(len, lines)) < INDENT_MAX + 30
    for n in range(300):
        assert any(line.split()[-1] == f"N{n}" for line in lines), n
        assert sum(line.split()[-1] == f"LEAF{n}" for line in lines) == 1


def test_drawing_is_limited_to_maximum_number_of_nodes() -> None:
    lines = draw_topology(node(f"N{n}", f"N{n + 1}") for n in range(NODES_MAX + 500))
    assert lines[-1] == "... and 500 more nodes; use --json to show them"
    assert len(lines) == NODES_MAX + 3, "a heading, and the last drawn successor"
