"""Benchmark of three nodes with many partitions: `python -m benchmarks.scale --write`.

Each round starts a new cluster with one process per node: over one etcd member, over three, and
with a supervisor. The round creates a topic, waits, kills the controller with SIGKILL and restarts
it. Only one measurement runs at a time; other load on the machine affects the results. `python -m
benchmarks.scale.metadata` measures larger clusters.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.brokers import ROOT, BenchmarkFailed
from benchmarks.turns import say

from .page import Row, cell, describe_conditions, write
from .rounds import Figure, on_etcd, supervised

PARTITIONS = (1000, 10_000)
MEMBERS = (1, 3)
SUPERVISED = 0  # number of etcd members that means a supervisor
PROGRAM = "benchmarks.scale"

# Values of each round, by number of etcd members and row.
Figures = dict[int, dict[str, list[float]]]

ROWS: Mapping[str, Row] = {
    "create": Row("create the topic: until the CreateTopics response", "s"),
    "create seen": Row("until all three nodes know all leaders", "s"),
    "create processor": Row("CPU time of a node for that", "s"),
    "lease led": Row("**kill -9** of a node: until all its partitions have new leaders", "s"),
    "lease acks": Row("until an idempotent producer has acks from 20 of these partitions", "s"),
    "lease processor": Row("CPU time of another node until then", "s"),
    "lease writes": Row("writes to etcd until then", ""),
    "lease writes per second": Row("writes to etcd per second", "/s"),
    "lease back": Row("**restart** after that: exec to first Metadata response", "s"),
    "lease in sync": Row("exec to all replicas in sync", "s"),
    "lease back processor": Row("CPU time of the node until then", "s"),
    "lease back writes": Row("writes to etcd until then", ""),
    "given back": Row("preferred leader election of all partitions (ElectLeaders)", "s"),
    "gone led": Row("**kill -9, then mark-dead**: until new leaders", "s"),
    "gone acks": Row("until an idempotent producer has acks from 20 of these partitions", "s"),
    "gone processor": Row("CPU time of another node until then", "s"),
    "gone writes": Row("writes to etcd until then", ""),
    "supervised back": Row("until the restarted node responds to Metadata", "s"),
    "supervised in sync": Row("until all replicas are in sync", "s"),
    "stop": Row("**graceful stop** of one node: until its process exits", "s"),
    "stop led": Row("until all its partitions have new leaders", "s"),
    "stop all": Row("graceful stop of all nodes", "s"),
    "empty node memory": Row("**resident memory** of a node without topics", "MB"),
    "node memory": Row("with the topic, idle", "MB"),
    "node memory after": Row("after two failovers", "MB"),
    "empty other memory": Row("of an etcd member, or the supervisor, without topics", "MB"),
    "other memory": Row("with the topic, idle", "MB"),
    "etcd database": Row("etcd database, idle", "MB"),
    "etcd database after": Row("after two failovers, not compacted", "MB"),
    "node rest": Row("**idle**: CPU use of a node", "%"),
    "other rest": Row("CPU use of an etcd member, or the supervisor", "%"),
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
        command = f"`python -m {PROGRAM} --write`; {describe_conditions(options.repeat)}"
        text = "\n".join([f"Written by {command}", "", *_table(figures)]) + "\n"
        print(text)
        if options.write:
            write(f"{partitions} partitions", text)


def _table(figures: Figures) -> Iterator[str]:
    yield f"| median (min to max) | {' | '.join(map(_head, figures))} |"
    yield "|---" + "|--:" * len(figures) + "|"
    for name, row in ROWS.items():
        found = [each.get(name, []) for each in figures.values()]
        if any(found):
            yield f"| {row.title} | {' | '.join(cell(row, values) for values in found)} |"


def _head(members: int) -> str:
    if members == SUPERVISED:
        return "`--processes 3`"
    return f"{members} etcd member{'s' * (members > 1)}"


def _round(directory: Path, members: int, partitions: int) -> Iterable[Figure]:
    os.sync()  # write earlier dirty pages now, not during this round
    if members == SUPERVISED:
        return supervised(directory / "scale", partitions)
    return on_etcd(directory / "scale", members, partitions)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="number of rounds (default 3)")
    parser.add_argument(
        "--partitions",
        type=_numbers,
        default=PARTITIONS,
        help="numbers of partitions (default 1000,10000)",
    )
    parser.add_argument(
        "--members",
        type=_numbers,
        default=(*MEMBERS, SUPERVISED),
        help="numbers of etcd members, 0 for a supervisor instead (default 1,3,0)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / ".work/benchmarks",
        help="directory for the brokers' data",
    )
    parser.add_argument("--write", action="store_true", help="write docs/how-to/size-a-cluster.md")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    return options


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
