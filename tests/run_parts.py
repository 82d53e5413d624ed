"""Run the parts of the test budget one after the other and print the time of each against it.

Usage: python tests/run_parts.py [PART ...]; without a name all parts of tests/budget.toml run but
those that are `again`.
Each run of pytest names its slowest tests; what failed is named once more at the end.
Exit status 1 when a part fails or the whole run takes longer than the limit: what still runs then is
stopped.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 20
FAILURES_MAX = 50
"""How many are named at the end."""
PYTEST_OPTIONS = "--durations=10 --durations-min=1 -o faulthandler_timeout=600"
"""A test that takes ten minutes shows what its threads do."""


def main(wanted: list[str]) -> int:
    budget = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    parts = [
        part
        for part in budget["part"]
        if (part["name"] in wanted if wanted else not part.get("again"))
    ]
    unknown = set(wanted) - {part["name"] for part in parts}
    if unknown:
        print(f"no part named {', '.join(sorted(unknown))} in tests/budget.toml")
        return 2
    give_up_at = time.monotonic() + 60 * budget["limit_minutes"]
    rows = [(part, *run(part, give_up_at)) for part in parts]
    failures = [failure for *_, failed in rows for failure in failed]
    if failures:
        print("\nfailed:", *failures[:FAILURES_MAX], sep="\n  ")
    print("\npart        minutes  budget  result")
    for part, minutes, failed in rows:
        verdict = "FAILED" if failed else "passed"
        if minutes > part["minutes"]:
            verdict += ", over its budget"
        print(f"{part['name']:<12}{minutes:7.1f} {part['minutes']:7.1f}  {verdict}")
    total = sum(minutes for _, minutes, _ in rows)
    print(f"{'sum':<12}{total:7.1f} {sum(part['minutes'] for part in parts):7.1f}")
    if total > budget["limit_minutes"]:
        print(f"the run took longer than {budget['limit_minutes']} minutes")
        return 1
    return 1 if failures else 0


def run(part: dict[str, Any], give_up_at: float = math.inf) -> tuple[float, list[str]]:
    """Run all commands of a part; returns minutes taken, and the tests and commands that failed.

    What runs longer than until `give_up_at` (`time.monotonic`) is stopped, and has failed.
    """
    started = time.monotonic()
    environment = dict(os.environ)
    # Hundreds of processes import the same modules: each would compile all of them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["PYTHONPATH"] = str(ROOT / "tests")
    environment["PYTEST_PLUGINS"] = "skips"
    environment["PYTEST_ADDOPTS"] = f"{environment.get('PYTEST_ADDOPTS', '')} {PYTEST_OPTIONS}"
    commands: list[str] = part["commands"]
    at_once = len(commands) if part.get("at_once") else 1
    with ThreadPoolExecutor(at_once) as threads:
        marks = [f"{number}| " if at_once > 1 else "" for number in range(1, len(commands) + 1)]
        run_command = partial(_failures_of, environment, part["name"], give_up_at)
        failures = [*chain.from_iterable(threads.map(run_command, commands, marks))]
    return (time.monotonic() - started) / 60, failures


def _failures_of(
    environment: Mapping[str, str], part: str, give_up_at: float, command: str, mark: str
) -> list[str]:
    """Run a command; `mark` is put before each line of its output.

    Returns the tests that pytest says have failed, and the command itself when it has.
    """
    print(f"\n{mark}--- {part}: {command}", flush=True)
    process = subprocess.Popen(
        command,
        shell=True,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    tests: list[str] = []
    printing = threading.Thread(target=_print_lines, args=(process, mark, tests), daemon=True)
    printing.start()
    try:
        process.wait(min(max(0, give_up_at - time.monotonic()), threading.TIMEOUT_MAX))
    except subprocess.TimeoutExpired:
        print(f"{mark}--- stopped, for the run is over its limit: {command}", flush=True)
        _stop(process, printing)
        return [*tests, f"stopped: {command}"]
    except BaseException:
        _stop(process, printing)
        raise
    printing.join(STOP_SECONDS)
    status = process.wait()
    return [*tests, f"exit status {status}: {command}"] if status else []


def _print_lines(process: subprocess.Popen[str], mark: str, failed_tests: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            print(f"{mark}{line}", end="", flush=True)
            if line.startswith(("FAILED ", "ERROR ")):  # of pytest's short summary
                failed_tests.append(line.rstrip())


def _stop(process: subprocess.Popen[str], printing: threading.Thread) -> None:
    """End a command and what it has started: as a terminal would, so that it can say where it was."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        printing.join(STOP_SECONDS)
    process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
