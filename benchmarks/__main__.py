"""Benchmark of kbroker, Apache Kafka and kfake: `python -m benchmarks`.

kbroker is measured with compiled modules, as in its wheels, and interpreted. With `--against REF` it
compares interpreted kbroker with that at another commit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.compiled.making import CompileError, make

from .against import checkout, kbroker_at, slower_rows, verdict
from .brokers import (
    ROOT,
    BenchmarkFailed,
    Broker,
    Compiled,
    Interpreted,
    Kafka,
    Kbroker,
    Kfake,
    build_kfake,
    commit,
    kafka_jars,
)
from .clusters import kbroker_with
from .idle import idle_connections
from .picture import draw
from .spark_client import spark_python
from .table import PEERS, lines
from .turns import Contest, Machine, Record, is_wanted

BROKERS: Mapping[str, type[Broker]] = {
    "kbroker": Compiled,
    "interpreted": Interpreted,
    "kafka": Kafka,
    "kfake": Kfake,
}
RESULTS = Path(__file__).parent / "results"
DOCUMENT = ROOT / "docs/project/benchmarks.md"
MAIN = "benchmarks"
_MARK = re.compile("<!-- what follows is written by (.*) -->\n")
# Duration of the load before the measurements: a JVM compiles during its first minute, CPython never.
WARM_SECONDS, WARM_SECONDS_AGAINST = 60, 2
HEADINGS = {
    False: "Without fsync (kbroker `flush.policy=os`, Kafka's default)",
    True: "With fsync before each ack (kbroker's default, Kafka `log.flush.interval.messages=1`)",
}
OUR_HEADINGS = {False: "Without fsync (`flush.policy=os`)", True: "With fsync before each ack"}
INTRODUCTION = """\
Written by `make benchmarks`. All brokers run on one machine, each warmed up by a minute of load. Each
row is measured with one broker after the other, with the same clients. A measurement is repeated if a
hypervisor took more than 2 % of the CPU time.

* The first column is kbroker with compiled modules, as in its wheels for CPython. The second one is
  the same commit interpreted, as in the wheel for other Pythons.
* A ratio above 1 means that compiled kbroker is better, whatever the unit; ratios below 1 are bold.
* CPU is the CPU time of the broker process.
* Busy is the CPU time as a share of one core. Near 100 %, kbroker limits the row; far below, the client
  or the disk does.
* kfake uses a data directory, and `SyncWrites` in the rows with fsync.
* The memory of 1,000 connections is the growth of the process. A JVM may release memory at the same time.
"""


def main() -> None:
    parser = comparison_parser(MAIN, __doc__, BROKERS)
    parser.add_argument("--against", metavar="REF", help="compare with kbroker at this commit")
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="run kbroker with --processes N; the rows of connections then use N partitions, with "
        "all brokers (default: one process and one partition)",
    )
    options = parser.parse_args()
    if options.processes is not None and (options.against or options.processes < 2):
        parser.error("--processes needs a number of at least 2, and excludes --against")
    if options.against:
        if options.write:
            parser.error("--write cannot be combined with --against")
        sys.exit(run_against(options))
    if options.write and find_spec("matplotlib") is None:
        parser.error("--write needs matplotlib; run python -m pip install 'matplotlib>=3.8'")
    if "kbroker" in options.brokers:
        try:
            make(Compiled.root)
        except CompileError as error:
            sys.exit(f"benchmarks: kbroker: compilation failed:\n{error}")
    kinds = BROKERS
    if options.processes is not None:
        own = {
            "kbroker": kbroker_with(options.processes, Compiled),
            "interpreted": kbroker_with(options.processes, Interpreted),
        }
        kinds = {**BROKERS, **own}
    report = run(options, kinds, others=idle_connections(options, kinds))
    text = render_section(report)
    print(text)
    if options.write:
        write_section(text, MAIN)
        draw(report, DOCUMENT.parent)


def run_against(options: argparse.Namespace) -> int:
    """Measure this checkout and another commit in alternation; return the exit status.

    The status is 1 if a row became slower.
    """
    try:
        with checkout(options.against, ROOT) as directory:
            before = kbroker_at(directory)
            options.brokers = ["kbroker", "before"]
            options.warm = min(options.warm, WARM_SECONDS_AGAINST)
            kinds: Mapping[str, type[Broker]] = {"kbroker": Kbroker, "before": before}
            report = run(options, kinds, others=idle_connections(options, kinds))
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks: {error}")
    slower = slower_rows(report["samples"], before.name)
    title = f"# kbroker compared with commit {before.name}"
    print(render_section(report, title, "", OUR_HEADINGS, [before.name]))
    print(verdict(slower, before.name))
    return 1 if slower else 0


def run(
    options: argparse.Namespace,
    kinds: Mapping[str, type[Broker]],
    settings: Mapping[str, str] | None = None,
    others: Iterable[Record] = (),
) -> dict[str, Any]:
    """Measure all brokers in turns, then `others`, and save the report.

    The program exits if a broker or a client fails.
    """
    try:
        if "kafka" in options.brokers or any("java" in name for name in options.rows):
            kafka_jars()
        if options.durable and is_wanted("spark", options):
            spark_python()  # the row is measured last: report a missing environment now
        facts = describe_conditions(options.repeat)
        if options.processes is not None:
            facts["kbroker"] = (
                f"--processes {options.processes}, and as many partitions in the rows of connections"
            )
        if "kfake" in options.brokers:
            build_kfake()
            facts["kfake"] = _kfake_version()
        chosen = {name: kinds[name] for name in options.brokers}
        report: dict[str, Any] = {"about": facts, "samples": []}
        try:
            report["samples"] += _measure_policies(options, chosen, settings)
            report["samples"] += others
        finally:
            _save_report(report)
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks: {error}")
    return report


def _save_report(report: Mapping[str, Any]) -> None:
    """Save the measurements; `run` also calls this if a broker failed."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(report, indent=1))


def _measure_policies(
    options: argparse.Namespace,
    kinds: Mapping[str, type[Broker]],
    settings: Mapping[str, str] | None,
) -> Iterator[Record]:
    machine = Machine()
    for durable in options.durable:
        contest = Contest(kinds, durable, options, settings, machine)
        try:
            yield from contest.records()
        finally:
            contest.stop()


def write_section(text: str, program: str) -> None:
    """Replace the section of a program in the page, or append the section."""
    parts = _MARK.split(DOCUMENT.read_text())
    sections = {MAIN: parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True)), program: text}
    marked = (f"{_section_mark(name)}{each.strip()}\n" for name, each in sections.items())
    DOCUMENT.write_text("\n".join(marked))


def _section_mark(program: str) -> str:
    return "" if program == MAIN else f"<!-- what follows is written by {program} -->\n"


def describe_conditions(repeat: int) -> dict[str, str]:
    """Return the conditions of the measurements, without anything that identifies the machine."""
    jars = sorted(path.name for path in kafka_jars().glob("kafka-server-4*.jar"))
    return {
        "date": f"{datetime.date.today()}",
        "commit": commit(),
        "machine": f"{os.cpu_count()} cores, {_memory()}, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "Kafka": jars[0].removeprefix("kafka-server-").removesuffix(".jar"),
        "confluent-kafka": version("confluent-kafka"),
        "runs": f"{repeat} of each broker, in turns",
    }


def _kfake_version() -> str:
    module = (Path(__file__).parent / "kfake/go.mod").read_text()
    return next(line.split()[-1] for line in module.splitlines() if "/kfake v" in line)


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.0f} GB"


def render_section(
    report: dict[str, Any],
    title: str = "# kbroker compared with Apache Kafka",
    introduction: str = INTRODUCTION,
    headings: Mapping[bool, str] = HEADINGS,
    peers: Sequence[str] = (Interpreted.name, *PEERS),
) -> str:
    """Return a section of the page, with both tables."""
    facts = "; ".join(f"{key}: {value}" for key, value in report["about"].items())
    parts = [title, "", introduction, facts + "."]
    for durable, heading in headings.items():
        table = list(lines(report["samples"], durable, peers))
        if len(table) > 2:
            parts += ["", f"{title.split()[0]}# {heading}", "", *table]
    return "\n".join(parts) + "\n"


def comparison_parser(
    program: str, description: str | None, brokers: Iterable[str]
) -> argparse.ArgumentParser:
    """Return a parser of the options that all comparisons have.

    Args:
        program: Name of the program, for the usage message.
        description: Description of the program, for `--help`.
        brokers: Names of the brokers that can be compared.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.set_defaults(processes=None)  # only the main program has the option
    parser.add_argument(
        "--repeat", type=int, default=3, help="number of runs with each broker (default 3)"
    )
    parser.add_argument(
        "--scale", type=float, default=1, help="factor for the number of records (default 1)"
    )
    parser.add_argument(
        "--warm",
        type=float,
        metavar="SECONDS",
        default=WARM_SECONDS,
        help=f"duration of the warm-up load (default {WARM_SECONDS}; with --against at most "
        f"{WARM_SECONDS_AGAINST})",
    )
    parser.add_argument(
        "--rows",
        type=_split_words,
        default=[],
        help="only rows whose name contains one of these words, such as ping,java",
    )
    parser.add_argument(
        "--brokers",
        type=_split_words,
        default=[*brokers],
        help=f"brokers to measure (default {','.join(brokers)})",
    )
    parser.add_argument(
        "--durability",
        dest="durable",
        type=_parse_policies,
        default=[False, True],
        help="flush policies to measure (default os,fsync)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / ".work/benchmarks",
        help="directory for the brokers' data",
    )
    parser.set_defaults(processes=None)
    parser.add_argument("--write", action="store_true", help="write docs/project/benchmarks.md")
    return parser


def _split_words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _parse_policies(text: str) -> list[bool]:
    return [word == "fsync" for word in _split_words(text)]


if __name__ == "__main__":
    main()
