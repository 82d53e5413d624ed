"""Three nodes with many partitions: `python -m benchmarks.scale --write`

Each round has a new cluster, whose nodes are processes: over one member of etcd, over three, and beside
a supervisor. It gets a topic, is left alone for a while, loses the node that elects leaders by kill -9, and
gets it back. One thing is measured at a time; what others do on the machine is in the figures.
`python -m benchmarks.scale.metadata` has the figures of more nodes and partitions.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.brokers import ROOT, BenchmarkFailed
from benchmarks.turns import say

from .page import Row, cell, facts, write
from .rounds import Figure, on_etcd, supervised

PARTITIONS = (1000, 10_000)
MEMBERS = (1, 3)
SUPERVISED = 0
"""In place of members of etcd: the nodes are beside a supervisor."""
PROGRAM = "benchmarks.scale"

Figures = dict[int, dict[str, list[float]]]
"""By how many members there are, and row: a value for each round."""

ROWS: Mapping[str, Row] = {
    "create": Row("create the topic: until CreateTopics is answered", "s"),
    "create seen": Row("until all three nodes name all leaders", "s"),
    "create processor": Row("processor time of a node for it", "s"),
    "lease led": Row("**kill -9** of a node: until others lead all that it led", "s"),
    "lease acks": Row("until an idempotent producer has the acks of 20 of those", "s"),
    "lease processor": Row("processor time of another node until then", "s"),
    "lease writes": Row("writes to etcd until then", ""),
    "lease writes per second": Row("that is", "/s"),
    "lease back": Row("**start again** after that: exec to first Metadata", "s"),
    "lease in sync": Row("exec to all replicas in sync", "s"),
    "lease back processor": Row("processor time of the node until then", "s"),
    "lease back writes": Row("writes to etcd until then", ""),
    "given back": Row("ElectLeaders of all, after that", "s"),
    "gone led": Row("**kill -9, told at once**: until others lead", "s"),
    "gone acks": Row("until an idempotent producer has the acks of 20 of those", "s"),
    "gone processor": Row("processor time of another node until then", "s"),
    "gone writes": Row("writes to etcd until then", ""),
    "supervised back": Row("until the killed node, started again, answers Metadata", "s"),
    "supervised in sync": Row("until all replicas are in sync", "s"),
    "stop": Row("**clean stop** of one node: until its process has ended", "s"),
    "stop led": Row("until others lead what it led", "s"),
    "stop all": Row("clean stop of all nodes", "s"),
    "empty node memory": Row("**resident memory** of a node without topics", "MB"),
    "node memory": Row("with the topic, at rest", "MB"),
    "node memory after": Row("after two failovers", "MB"),
    "empty other memory": Row("of a member, or the supervisor, without topics", "MB"),
    "other memory": Row("with the topic, at rest", "MB"),
    "etcd database": Row("database of etcd, at rest", "MB"),
    "etcd database after": Row("after two failovers, not compacted", "MB"),
    "node rest": Row("**at rest**: processor time of a node", "%"),
    "other rest": Row("of a member, or the supervisor", "%"),
    "rest writes": Row("writes to etcd", "/s"),
}


def main() -> None:
    options = _options()
    for partitions in options.partitions:
        figures: Figures = {each: {} for each in options.members}
        for repeat in range(options.repeat):
            for members in options.members:
                try:
                    measured = [*_round(options.directory, members, partitions)]
                except BenchmarkFailed as error:
                    sys.exit(f"{PROGRAM}: {error}")
                for row, value in measured:
                    figures[members].setdefault(row, []).append(value)
                say(f"{partitions} partitions, {_head(members)}, round {repeat + 1}: {measured}")
        made_by = f"`python -m {PROGRAM} --write`; {facts(options.repeat)}"
        text = "\n".join([f"Made by {made_by}", "", *_table(figures)]) + "\n"
        print(text)
        if options.write:
            write(f"{partitions} partitions", text)


def _table(figures: Figures) -> Iterator[str]:
    yield f"| median (least to most) | {' | '.join(map(_head, figures))} |"
    yield "|---" + "|--:" * len(figures) + "|"
    for name, row in ROWS.items():
        found = [each.get(name, []) for each in figures.values()]
        if any(found):
            yield f"| {row.title} | {' | '.join(cell(row, values) for values in found)} |"


def _head(members: int) -> str:
    if members == SUPERVISED:
        return "`--processes 3`"
    return f"{members} member{'s' * (members > 1)} of etcd"


def _round(directory: Path, members: int, partitions: int) -> Iterable[Figure]:
    os.sync()  # what others left to be written is not written during this round
    if members == SUPERVISED:
        return supervised(directory / "scale", partitions)
    return on_etcd(directory / "scale", members, partitions)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="rounds (default 3)")
    parser.add_argument(
        "--partitions", type=_numbers, default=PARTITIONS, help="default: 1000,10000"
    )
    parser.add_argument(
        "--members",
        type=_numbers,
        default=(*MEMBERS, SUPERVISED),
        help="of etcd, 0 for a supervisor in its place; default: 1,3,0",
    )
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".work/benchmarks", help="for data"
    )
    parser.add_argument("--write", action="store_true", help="write docs/how-to/size-a-cluster.md")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
