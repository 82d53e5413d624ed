"""Cost of a test compared with an empty test, for each kind of broker: `python -m benchmarks.kit`."""

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

from benchmarks.__main__ import describe_conditions
from benchmarks.brokers import ROOT, BenchmarkFailed, build_kfake, kafka_jars, output

from .plugin import RESULT_VARIABLE

SUITE = "benchmarks/kit/suite.py"
DOCUMENT = ROOT / "docs/explanation/comparison.md"
BEGIN, END = "<!-- benchmarks.kit -->\n", "<!-- /benchmarks.kit -->\n"
RUN_SECONDS_MAX = 600

EMPTY = "test_empty"
ROWS = {
    "test_fixture": "kbroker, one broker per test, unused",
    "test_kit_kbroker": "kbroker, one broker per test, used with the test kit",
    "test_kit_kafka": "Apache Kafka, one process for all tests, used with the test kit",
    "test_client_kbroker": "kbroker, one broker per test, used with confluent-kafka",
    "test_client_kafka": "Apache Kafka, one process for all tests, used with confluent-kafka",
    "test_client_kfake": "kfake, one process for all tests, used with confluent-kafka",
    "test_client_mock": "librdkafka's mock cluster, one per test, used with confluent-kafka",
}
TEXT = """\
Each test creates a topic, produces a record, reads it and compares it. Only the test of the row
"unused" does nothing with its broker.

* "Test kit": the test uses the Python API of [kbroker's test kit](../reference/test-kit.md), which
  can also connect to Apache Kafka. In the other rows, the test uses a client library.
* "Start" is the additional time of the first test.
* "Per test" is the median time above that of an empty test, with the minimum and maximum of the
  runs.
* "Memory" is that of pytest and all its child processes, above that of the empty tests.

Kafka runs as a plain process; a container would add its own start time. With kbroker and the mock
cluster, each test has a new broker. With Kafka and kfake, all tests share one, and each test uses a
new topic name. With confluent-kafka, each test starts and stops an admin client, a producer and a
consumer. Written by `python -m benchmarks.kit --write`.

"""


class Run(NamedTuple):
    """Measurements of one run of one test."""

    start_seconds: float
    test_seconds: float
    resident_bytes: int


def main() -> None:
    options = _options()
    names = [EMPTY, *(name for name in ROWS if _is_available(name, options.skip))]
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


def _is_available(name: str, skip: list[str]) -> bool:
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
    """Run one test of the suite `tests` times, in its own pytest process.

    Raises:
        BenchmarkFailed: The run failed.
    """
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
    """Return the section with text and table."""
    empty = _median(run.test_seconds for run in runs[EMPTY])
    empty_bytes = _median(run.resident_bytes for run in runs[EMPTY])
    lines = [
        "| broker | start | per test, over an empty one | memory |",
        "|---|--:|--:|--:|",
    ]
    for name, title in ROWS.items():
        if name in runs:
            lines.append(_line(title, runs[name], empty, empty_bytes))
    facts = describe_conditions(options.repeat) | {
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
    """Replace the section in the page."""
    page = DOCUMENT.read_text()
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    DOCUMENT.write_text(re.sub(pattern, lambda _: BEGIN + text + END, page, flags=re.DOTALL))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.kit", description=__doc__)
    parser.add_argument(
        "--repeat", type=int, default=3, help="number of runs of each kind (default 3)"
    )
    parser.add_argument(
        "--tests", type=int, default=50, help="number of tests in a run (default 50)"
    )
    parser.add_argument(
        "--skip", action="append", default=[], help="skip rows whose name contains this word"
    )
    parser.add_argument("--note", help="remark about this run for the page")
    parser.add_argument("--write", action="store_true", help=f"write into {DOCUMENT.name}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
