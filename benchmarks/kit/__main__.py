"""`python -m benchmarks.kit`: what a test costs over an empty one, with each kind of broker."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.__main__ import about
from benchmarks.brokers import ROOT, BenchmarkFailed, build_kfake, kafka_jars, output

from .plugin import RESULT_VARIABLE

SUITE = "benchmarks/kit/suite.py"
DOCUMENT = ROOT / "docs/explanation/comparison.md"
BEGIN, END = "<!-- benchmarks.kit -->\n", "<!-- /benchmarks.kit -->\n"
RUN_SECONDS_MAX = 600

EMPTY = "test_empty"
ROWS = {
    "test_fixture": "kbroker: a broker of its own for each test, not used",
    "test_kit_kbroker": "kbroker: a broker of its own, by the kit's calls",
    "test_kit_kafka": "Apache Kafka, one process for all tests, by the kit's calls",
    "test_client_kbroker": "kbroker: a broker of its own, by confluent-kafka",
    "test_client_kafka": "Apache Kafka, one process for all tests, by confluent-kafka",
    "test_client_kfake": "kfake, one process for all tests, by confluent-kafka",
    "test_client_mock": "librdkafka's mock cluster, one for each test, by confluent-kafka",
}
TEXT = """\
The same small pytest test each time: create a topic, produce a record, read it, compare it.
"Start" is what the first test takes longer than the others; "per test" is the median over an empty
test, with the least and most of the runs; "memory" is that of pytest and of all processes that it
started, over those of the empty tests. Kafka runs as a plain process here: a container adds its own
start to it. kbroker and the mock begin each test with a new broker, Kafka and kfake have one for all
tests, and a topic with a new name in each. By confluent-kafka each test starts and stops an admin
client, a producer and a consumer. Made by `python -m benchmarks.kit --write`.

"""


class Run(NamedTuple):
    """What one run of one test measured."""

    start_seconds: float
    test_seconds: float
    resident_bytes: int


def main() -> None:
    options = _options()
    names = [EMPTY, *(name for name in ROWS if _is_there(name, options.skip))]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    try:
        for _ in range(options.repeat):
            for name in names:
                runs[name].append(measure(name, options.tests))
                print(f"{name}: {runs[name][-1]}", file=sys.stderr, flush=True)
    except BenchmarkFailed as error:
        sys.exit(f"benchmarks.kit: {error}")
    text = section(runs, options)
    print(text)
    if options.write:
        write(text)


def _is_there(name: str, skip: list[str]) -> bool:
    if any(word in name for word in skip):
        return False
    if name.endswith("_kfake"):
        if shutil.which("go") is None:
            return False
        build_kfake()
    if name.endswith("_kafka"):
        kafka_jars()
    return True


def measure(name: str, tests: int) -> Run:
    """Run one test of the suite that often, in a pytest of its own. Raises BenchmarkFailed."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", directory]
        command += ["-p", "no:cacheprovider", "-p", "benchmarks.kit.plugin"]
        command += ["--import-mode=importlib", f"--basetemp={directory}/pytest", f"{SUITE}::{name}"]
        environment = {RESULT_VARIABLE: str(result), "KBROKER_KIT_TESTS": str(tests)}
        output(command, name, environment=environment, seconds=RUN_SECONDS_MAX)
        report = json.loads(result.read_text())
    first, *others = report["seconds"]
    usual = statistics.median(others)
    return Run(first - usual, usual, report["resident"])


def section(runs: dict[str, list[Run]], options: argparse.Namespace) -> str:
    """The text and the table."""
    empty = _median(run.test_seconds for run in runs[EMPTY])
    empty_bytes = _median(run.resident_bytes for run in runs[EMPTY])
    lines = [
        "| broker | start | per test, over an empty one | memory |",
        "|---|--:|--:|--:|",
    ]
    for name, title in ROWS.items():
        if name in runs:
            lines.append(_line(title, runs[name], empty, empty_bytes))
    facts = about(options.repeat) | {
        "runs": f"{options.repeat}, in turns, of {options.tests} tests each"
    }
    if options.note:
        facts["note"] = options.note
    conditions = "; ".join(f"{key}: {value}" for key, value in facts.items())
    return TEXT + "\n".join(lines) + f"\n\n{conditions}.\n"


def _line(title: str, runs: list[Run], empty: float, empty_bytes: float) -> str:
    costs = [(run.test_seconds - empty) * 1000 for run in runs]
    start = _median(run.start_seconds for run in runs)
    megabytes = (_median(run.resident_bytes for run in runs) - empty_bytes) / 1e6
    cost = f"{statistics.median(costs):.1f} ms ({min(costs):.1f} to {max(costs):.1f})"
    return f"| {title} | {start:.2f} s | {cost} | {megabytes:.0f} MB |"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def write(text: str) -> None:
    """Put the section in the place of the one that the page has."""
    page = DOCUMENT.read_text()
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    DOCUMENT.write_text(re.sub(pattern, lambda _: BEGIN + text + END, page, flags=re.DOTALL))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.kit", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--tests", type=int, default=50, help="tests in a run (default 50)")
    parser.add_argument("--skip", action="append", default=[], help="leave out rows with this word")
    parser.add_argument("--note", help="what else there is to say about this run")
    parser.add_argument("--write", action="store_true", help=f"write into {DOCUMENT.name}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
