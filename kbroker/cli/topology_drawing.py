"""Drawing of the topology of a streams group in plain text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from kbroker.client.topology_descriptions import TopologyNode

# Maximum number of nodes in a drawing.
NODES_MAX = 1000
# A branch that is indented by more columns is drawn below, as a new root.
INDENT_MAX = 60
INDENT = "  "


class _Step(NamedTuple):
    """A node to draw: the text before its label, and the prefix of the lines that follow."""

    name: str
    lead: str
    prefix: str


def draw_topology(nodes: Iterable[TopologyNode]) -> list[str]:
    """Return the lines of a drawing.

    A node is drawn below its predecessor. The successors of a node with several successors are
    indented.

    Args:
        nodes: Nodes, grouped by subtopology.
    """
    listed = list(nodes)
    lines: list[str] = []
    for subtopology, members in groupby(listed[:NODES_MAX], key=lambda node: node.subtopology):
        lines.append("Global stores" if subtopology is None else f"Subtopology {subtopology}")
        lines += _draw(list(members))
    if len(listed) > NODES_MAX:
        lines.append(f"... and {len(listed) - NODES_MAX} more nodes; use --json to show them")
    return lines


def _draw(nodes: list[TopologyNode]) -> Iterator[str]:
    known = {node.name: node for node in nodes}
    targets = {name for node in nodes for name in node.successors}
    # Nodes of a cycle have no root, so all nodes follow the roots.
    roots = [name for name in known if name not in targets]
    pending = [_Step(name, INDENT, INDENT) for name in reversed((*roots, *known))]
    drawn: set[str] = set()
    while pending:
        step = pending.pop()
        is_root = step.lead == INDENT
        if step.name in drawn:
            if not is_root:
                yield f"{step.lead}{step.name} (drawn above)"
        elif len(step.lead) > INDENT_MAX:
            yield f"{step.lead}{step.name} (drawn below)"
            pending.insert(0, _Step(step.name, INDENT, INDENT))
        elif step.name not in known:
            yield f"{step.lead}{step.name}"
            drawn.add(step.name)
        else:
            yield f"{step.lead}{_label(known[step.name])}"
            drawn.add(step.name)
            pending += reversed(list(_successors(known[step.name], step)))


def _successors(node: TopologyNode, step: _Step) -> Iterator[_Step]:
    if len(node.successors) == 1:
        yield _Step(node.successors[0], f"{step.prefix}-> ", step.prefix)
        return
    base = step.prefix.ljust(len(step.lead))
    for number, name in enumerate(node.successors, 1):
        if number < len(node.successors):
            yield _Step(name, f"{base}+-> ", f"{base}|   ")
        else:
            yield _Step(name, f"{base}`-> ", f"{base}    ")


def _label(node: TopologyNode) -> str:
    details = []
    if node.type != "processor":
        details.append(f"{node.type}: {', '.join(node.topics)}" if node.topics else node.type)
    if node.stores:
        details.append(f"stores: {', '.join(node.stores)}")
    return f"{node.name} ({'; '.join(details)})" if details else node.name
