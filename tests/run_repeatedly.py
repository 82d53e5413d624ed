"""Run tests repeatedly and report those that do not always pass.

Usage: python tests/run_repeatedly.py DIRECTORY COUNT [pytest's arguments]

Runs pytest on the directory in rounds until COUNT tests have run, or COUNT rounds if it is written
as 2x. Exit status 1 when a test failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent


def main(directory: str, count: str, arguments: list[str]) -> int:
    ran, rounds = 0, 0
    wanted = int(count.removesuffix("x"))
    failed: Counter[str] = Counter()
    began = time.monotonic()
    while (rounds if count.endswith("x") else ran) < wanted:
        rounds += 1
        tests, names = _round(directory, arguments)
        if not tests:
            print(f"no tests were run in {directory}")
            return 2
        ran += tests
        failed.update(names)
        print(f"round {rounds}: {ran} tests, {failed.total()} failed", flush=True)
    seconds = (time.monotonic() - began) / rounds
    flaky = ", ".join(f"{name} {times} times" for name, times in failed.items()) or "0 flaky"
    print(f"figures: {ran:,} test runs in {rounds} rounds of {seconds:.0f} s: {flaky}")
    return 1 if failed else 0


def _round(directory: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Run all tests once; return their number and the names of failed ones."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", directory, "-q", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, f"--junitxml={report}", f"--basetemp={place}/runs", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    bad = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if bad:
        print(run.stdout[-10_000:])
    return len(cases), bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
