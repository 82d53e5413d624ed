"""Run the parts of the test budget one after the other and print the time of each against it.

Usage: python tests/run_parts.py [PART ...]; without a name all parts of tests/budget.toml run.
Each run of pytest names its slowest tests.
Exit status 1 when a part fails or the whole run takes longer than the limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLOWEST = "--durations=10 --durations-min=1"


def main(wanted: list[str]) -> int:
    budget = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    parts = [part for part in budget["part"] if not wanted or part["name"] in wanted]
    unknown = set(wanted) - {part["name"] for part in parts}
    if unknown:
        print(f"no part named {', '.join(sorted(unknown))} in tests/budget.toml")
        return 2
    rows = [(part, *run(part)) for part in parts]
    print("\npart        minutes  budget  result")
    for part, minutes, passed in rows:
        verdict = "passed" if passed else "FAILED"
        if minutes > part["minutes"]:
            verdict += ", over its budget"
        print(f"{part['name']:<12}{minutes:7.1f} {part['minutes']:7.1f}  {verdict}")
    total = sum(minutes for _, minutes, _ in rows)
    print(f"{'sum':<12}{total:7.1f} {sum(part['minutes'] for part in parts):7.1f}")
    if total > budget["limit_minutes"]:
        print(f"the run took longer than {budget['limit_minutes']} minutes")
        return 1
    return 0 if all(passed for _, _, passed in rows) else 1


def run(part: dict[str, Any]) -> tuple[float, bool]:
    """Run all commands of a part; returns minutes taken, and whether all of them passed."""
    started = time.monotonic()
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["PYTHONPATH"] = str(ROOT / "tests")
    environment["PYTEST_PLUGINS"] = "skips"
    environment["PYTEST_ADDOPTS"] = f"{environment.get('PYTEST_ADDOPTS', '')} {SLOWEST}"
    commands: list[str] = part["commands"]
    at_once = len(commands) if part.get("at_once") else 1
    with ThreadPoolExecutor(at_once) as threads:
        marks = [f"{number}| " if at_once > 1 else "" for number in range(1, len(commands) + 1)]
        passed = [*threads.map(partial(_passes, environment, part["name"]), commands, marks)]
    return (time.monotonic() - started) / 60, all(passed)


def _passes(environment: Mapping[str, str], part: str, command: str, mark: str) -> bool:
    """Run a command; `mark` is put before each line of its output."""
    print(f"\n{mark}--- {part}: {command}", flush=True)
    with subprocess.Popen(
        command,
        shell=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{mark}{line}", end="", flush=True)
    return process.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
