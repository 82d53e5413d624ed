"""`python -m benchmarks`: kbroker, Apache Kafka and kfake in turns, then one table.

With `--against REF` the kbroker of that commit takes the place of the others.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .against import checkout, kbroker_at, slower_rows, verdict
from .brokers import (
    ROOT,
    BenchmarkFailed,
    Broker,
    Kafka,
    Kbroker,
    Kfake,
    build_kfake,
    kafka_jars,
)
from .rows import SIZES, TRANSACTING, Sample
from .table import PEERS, lines

BROKERS: Mapping[str, type[Broker]] = {"kbroker": Kbroker, "kafka": Kafka, "kfake": Kfake}
RESULTS = Path(__file__).parent / "results"
DOCUMENT = ROOT / "docs/benchmarks.md"
SECTION = "<!-- what follows is written by benchmarks.replicated -->"
IDLE_SECONDS = 1
WARM_SECONDS, WARM_SECONDS_AGAINST = 60, 2
"""For how long there is load before anything counts: a JVM compiles all through its first minute,
Python never does."""
DURABILITY = {False: "os", True: "fsync"}
HEADINGS = {
    False: "Without fsync (kbroker `flush.policy=os`, Kafka as it comes)",
    True: "With fsync before each ack (kbroker as it comes, Kafka `log.flush.interval.messages=1`)",
}
OUR_HEADINGS = {False: "Without fsync (`flush.policy=os`)", True: "With fsync before each ack"}
INTRODUCTION = """\
Made by `make benchmarks`. The brokers ran in turns on the same machine with the same clients, each
warmed by a minute of the same load before anything counted. A ratio above 1 means that kbroker is
ahead, whatever the unit; those below are bold. CPU is the processor time of the broker's process.
kfake has a data folder, and `SyncWrites` where records are synced before the ack.
"""


def main() -> None:
    parser = arguments("benchmarks", __doc__, BROKERS)
    parser.add_argument("--against", metavar="REF", help="a commit: which rows were faster there")
    options = parser.parse_args()
    if options.against:
        if options.write:
            parser.error("--write is for Apache Kafka's figures, not with --against")
        sys.exit(run_against(options))
    text = document(run(options, measure, BROKERS))
    print(text)
    if options.write:
        write_section(text, is_first=True)


def run_against(options: argparse.Namespace) -> int:
    """Measure this checkout and that of a commit in turns; returns 1 when a row has got slower."""
    try:
        with checkout(options.against, ROOT) as folder:
            before = kbroker_at(folder)
            options.brokers = ["kbroker", "before"]
            options.warm = WARM_SECONDS_AGAINST if options.warm is None else options.warm
            report = run(options, measure, {"kbroker": Kbroker, "before": before})
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks: {error}")
    slower = slower_rows(report["samples"], before.name)
    title = f"# kbroker beside its commit {before.name}"
    print(document(report, title, "", OUR_HEADINGS, [before.name]))
    print(verdict(slower, before.name))
    return 1 if slower else 0


Measure = Callable[[type[Broker], bool, argparse.Namespace], Iterator[Sample]]


def run(
    options: argparse.Namespace, measure: Measure, kinds: Mapping[str, type[Broker]]
) -> dict[str, Any]:
    """Measure all brokers in turns, keep the report; ends the program when one fails."""
    samples: list[dict[str, Any]] = []
    began = time.monotonic()
    try:
        if "kafka" in options.brokers or any("java" in name for name in options.rows):
            kafka_jars()
        facts = about(options.repeat)
        if "kfake" in options.brokers:
            build_kfake()
            facts["kfake"] = _kfake_version()
        for repeat in range(options.repeat):
            for durable in options.durable:
                # Who comes second finds a machine that the first one warmed up.
                for name in options.brokers if repeat % 2 == 0 else reversed(options.brokers):
                    for sample in measure(kinds[name], durable, options):
                        samples.append(_record(sample, kinds[name].name, durable, repeat))
                    minutes = (time.monotonic() - began) / 60
                    _say(f"{minutes:4.1f} min: {name}, {DURABILITY[durable]}, round {repeat + 1}")
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks: {error}")
    report = {"about": facts, "samples": samples}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(report, indent=1))
    return report


def write_section(text: str, *, is_first: bool) -> None:
    """Replace what one program wrote into the page: that with the marks, or all before it."""
    first, _, second = DOCUMENT.read_text().partition(SECTION)
    parts = (text, second) if is_first else (first, "\n" + text)
    DOCUMENT.write_text(f"{parts[0].rstrip()}\n\n{SECTION}{parts[1]}")


def measure(
    kind: type[Broker],
    durable: bool,
    options: argparse.Namespace,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Sample]:
    """All rows of one run of one broker."""
    broker = kind(options.folder / kind.name, durable=durable, settings=settings)
    try:
        yield Sample("start", broker.start_seconds)
        time.sleep(IDLE_SECONDS)
        yield Sample("idle memory", broker.resident_bytes() / 1e6)
        warm = WARM_SECONDS if options.warm is None else options.warm
        for name, run in _plan(broker, options.scale, warm).items():
            if not options.rows or any(wanted in name for wanted in options.rows):
                yield from run()
        yield Sample("memory", broker.resident_bytes() / 1e6)
    finally:
        broker.stop()


def _plan(
    broker: Broker, scale: float, warm_seconds: float
) -> dict[str, Callable[[], Iterator[Sample]]]:
    """What is run, in order; one entry may give several rows."""
    from .java_client import JavaClient
    from .python_client import PythonClient

    client = PythonClient(broker, scale)
    java = JavaClient(broker, scale, client.create_topic)
    client.warm_up(warm_seconds)
    plan = {
        "create topic": client.create_topics,
        "join": client.join,
        "ping": client.ping,
        "pipelined": client.pipelined,
        "produce at rate": client.produce_at_rate,
        "receive at rate": client.receive_at_rate,
    }
    for producers in TRANSACTING:
        plan[f"transactions {producers}"] = partial(client.transactions, producers)
    for size in SIZES:
        plan[f"bulk {size}"] = partial(client.bulk, size)
    for size in SIZES:
        plan[f"java {size}"] = partial(java.bulk, size)
    return plan


def _record(sample: Sample, broker: str, durable: bool, repeat: int) -> dict[str, Any]:
    return {"broker": broker, "durable": durable, "repeat": repeat, **sample._asdict()}


def about(repeat: int) -> dict[str, str]:
    """What the figures depend on; nothing that names this machine."""
    jars = sorted(path.name for path in kafka_jars().glob("kafka-server-4*.jar"))
    head = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.check_output(head, cwd=ROOT, text=True).strip()
    return {
        "date": f"{datetime.date.today()}",
        "commit": commit,
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


def document(
    report: dict[str, Any],
    title: str = "# kbroker beside Apache Kafka",
    introduction: str = INTRODUCTION,
    headings: Mapping[bool, str] = HEADINGS,
    peers: Sequence[str] = PEERS,
) -> str:
    """A part of the page, with both tables."""
    facts = "; ".join(f"{key}: {value}" for key, value in report["about"].items())
    parts = [title, "", introduction, facts + "."]
    for durable, heading in headings.items():
        table = list(lines(report["samples"], durable, peers))
        if len(table) > 2:
            parts += ["", f"{title.split()[0]}# {heading}", "", *table]
    return "\n".join(parts) + "\n"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(
    program: str, description: str | None, brokers: Iterable[str]
) -> argparse.ArgumentParser:
    """The options that all side-by-side runs have; `brokers` are those that can be compared."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each broker (default 3)")
    parser.add_argument("--scale", type=float, default=1, help="times as many records (default 1)")
    parser.add_argument(
        "--warm",
        type=float,
        metavar="SECONDS",
        help=f"load before anything counts (default {WARM_SECONDS}; with --against "
        f"{WARM_SECONDS_AGAINST})",
    )
    parser.add_argument(
        "--rows", type=_words, default=[], help="only rows with one of these words: ping,java"
    )
    parser.add_argument(
        "--brokers", type=_words, default=[*brokers], help=f"default: {','.join(brokers)}"
    )
    parser.add_argument(
        "--durability",
        dest="durable",
        type=_durable,
        default=[False, True],
        help="default: os,fsync",
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".work/benchmarks", help="for data")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    return parser


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _durable(text: str) -> list[bool]:
    return [word == "fsync" for word in _words(text)]


if __name__ == "__main__":
    main()
