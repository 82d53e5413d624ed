"""Three nodes with many partitions: `python -m benchmarks.scale --write`

Each round has a new cluster, whose nodes are processes: over one member of etcd, over three, and beside
a supervisor. It gets a topic, is left alone for a while, loses the node that elects leaders by kill -9, and
gets it back. One thing is measured at a time; what others do on the machine is in the figures.
`python -m benchmarks.scale.metadata` has the figures of more nodes and partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

Setting = tuple[int, int]
"""How many members and partitions."""
Figures = dict[str, dict[str, list[float]]]
"""By setting, as text, and row: a value for each round."""

ROWS: Mapping[str, Row] = {
    "create": Row("topic: until CreateTopics is answered", "s"),
    "create seen": Row("topic: until all three nodes name all leaders", "s"),
    "lease led": Row("kill -9: until others lead all that it led", "s"),
    "lease acks": Row("kill -9: until the producer has acks of the sample", "s"),
    "gone led": Row("kill -9, and `cluster node gone`: until others lead", "s"),
    "gone acks": Row("kill -9, and `cluster node gone`: until acks", "s"),
    "supervised led": Row("kill -9: until others lead all that it led", "s"),
    "supervised acks": Row("kill -9: until the producer has acks of the sample", "s"),
    "lease back": Row("restart after kill -9: exec to first Metadata", "s"),
    "lease in sync": Row("restart after kill -9: exec to all replicas in sync", "s"),
    "supervised back": Row("killed node: until it answers Metadata again", "s"),
    "supervised in sync": Row("killed node: until all replicas are in sync", "s"),
    "given back": Row("ElectLeaders of all partitions, after that", "s"),
    "stop": Row("clean stop of one node: until its process has ended", "s"),
    "stop led": Row("clean stop of one node: until others lead", "s"),
    "stop all": Row("clean stop of all", "s"),
    "empty node memory": Row("resident memory of a node, no topics", "MB"),
    "node memory": Row("resident memory of a node, at rest", "MB"),
    "node memory after": Row("resident memory of a node, after two failovers", "MB"),
    "node rest": Row("processor time of a node, at rest", "%"),
    "empty etcd memory": Row("resident memory of a member, no topics", "MB"),
    "empty supervisor memory": Row("resident memory of the supervisor, no topics", "MB"),
    "other memory": Row("the same, at rest", "MB"),
    "other rest": Row("its processor time, at rest", "%"),
    "etcd database": Row("database of etcd, at rest", "MB"),
    "etcd database after": Row("database of etcd, after two failovers", "MB"),
    "rest writes": Row("writes to etcd, at rest", "/s"),
    "lease writes": Row("writes to etcd, kill -9 to acks", ""),
    "lease writes per second": Row("writes to etcd, kill -9 to acks", "/s"),
    "lease back writes": Row("writes to etcd, exec to all in sync", ""),
}


def main() -> None:
    options = _options()
    results = options.folder / "scale.json"
    figures: Figures = {}
    for repeat in range(options.repeat):
        for setting in options.settings:
            try:
                measured = [*_round(options.folder, setting)]
            except BenchmarkFailed as error:
                sys.exit(f"{PROGRAM}: {error}")
            for row, value in measured:
                figures.setdefault(repr(setting), {}).setdefault(row, []).append(value)
            say(f"round {repeat + 1}, {_head(setting)}: {dict(measured)}")
            results.write_text(json.dumps(figures, indent=1))
    text = document(figures, options.settings, options.repeat)
    print(text)
    if options.write:
        write("nodes", text)


def _round(folder: Path, setting: Setting) -> Iterable[Figure]:
    members, partitions = setting
    os.sync()  # what others left to be written is not written during this round
    if members == SUPERVISED:
        return supervised(folder / "scale", partitions)
    return on_etcd(folder / "scale", members, partitions)


def document(figures: Figures, settings: Sequence[Setting], rounds: int) -> str:
    """The part of the page."""
    parts = [f"Made by `python -m {PROGRAM} --write`; {facts(rounds)}"]
    groups = [
        ("Over etcd", [each for each in settings if each[0] != SUPERVISED]),
        ("Beside a supervisor", [each for each in settings if each[0] == SUPERVISED]),
    ]
    for title, columns in groups:
        if columns:
            parts += ["", f"### {title}", "", *_table(figures, columns)]
    return "\n".join(parts) + "\n"


def _table(figures: Figures, columns: Sequence[Setting]) -> Iterator[str]:
    heads = ["median (least to most)", *map(_head, columns)]
    yield f"| {' | '.join(heads)} |"
    yield "|---" + "|--:" * len(columns) + "|"
    for name, row in ROWS.items():
        found = [figures.get(repr(each), {}).get(name, []) for each in columns]
        if any(found):
            yield f"| {row.title} | {' | '.join(cell(row, values) for values in found)} |"


def _head(setting: Setting) -> str:
    members, partitions = setting
    where = "" if members == SUPERVISED else f"{members} member{'s' * (members > 1)}, "
    return f"{where}{partitions:,} partitions"


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
    parser.add_argument("--folder", type=Path, default=ROOT / ".work/benchmarks", help="for data")
    parser.add_argument("--write", action="store_true", help="write docs/scale.md")
    options = parser.parse_args()
    options.settings = [(some, many) for many in options.partitions for some in options.members]
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
