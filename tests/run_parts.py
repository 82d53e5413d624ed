"""Run the parts of a test command, and print the time of each one with its budget.

Usage: python tests/run_parts.py COMMAND [PART ...]

COMMAND is one of tests/budget.toml: quick, test, test-all. With PART, only these parts run. The
commands of one part run at the same time. The summary names the failed tests and the ten slowest ones.

Exit status 1 if a part fails or the run exceeds the time limit of the command. Commands that still run
at the limit are stopped.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 20
# Maximum number of failures in the summary.
FAILURES_MAX = 50
# Number of slow tests in the summary, and in the report of each pytest run.
SLOWEST = 10
# After ten minutes, a test prints the stacks of its threads.
PYTEST_OPTIONS = f"--durations={SLOWEST} --durations-min=1 -o faulthandler_timeout=600"
# A line of pytest's list of slow tests: seconds and node ID.
DURATION = re.compile(r"(\d+\.\d+)s (?:call|setup|teardown) +(\S.*)")

# A line of pytest's short summary, not of a log.
SUMMARY = re.compile(r"(?:FAILED|ERROR) \S+\.py\b")


@dataclass(slots=True)
class Result:
    """Outcome of a part or of one of its commands."""

    minutes: float = 0.0
    # Failed tests and commands.
    failures: list[str] = field(default_factory=list)
    # Seconds and node ID of slow tests.
    durations: list[tuple[float, str]] = field(default_factory=list)


def main(command: str, wanted: Sequence[str] = ()) -> int:
    """Run a command of the budget.

    Args:
        command: Name of the command.
        wanted: Names of the parts to run; all parts if empty.

    Returns:
        The exit status.
    """
    budget = tomllib.loads((ROOT / "tests" / "budget.toml").read_text())
    if command not in budget["command"]:
        print(f"no command {command!r} in tests/budget.toml: use {', '.join(budget['command'])}")
        return 2
    names: list[str] = budget["command"][command]["parts"]
    if unknown := set(wanted) - set(names):
        print(f"no part {', '.join(sorted(unknown))} in {command}: use {', '.join(names)}")
        return 2
    limit_minutes: float = budget["command"][command]["limit_minutes"]
    give_up_at = time.monotonic() + 60 * limit_minutes
    results = {
        name: run(name, budget["part"][name], give_up_at)
        for name in names
        if not wanted or name in wanted
    }
    _print_failures(results)
    _print_slowest(results)
    _print_minutes(results, {name: budget["part"][name]["minutes"] for name in results})
    if sum(result.minutes for result in results.values()) > limit_minutes:
        print(f"the run took longer than {limit_minutes} minutes")
        return 1
    return 1 if any(result.failures for result in results.values()) else 0


def _print_failures(results: Mapping[str, Result]) -> None:
    failures = [failure for result in results.values() for failure in result.failures]
    if failures:
        print("\nfailed:", *failures[:FAILURES_MAX], sep="\n  ")


def _print_slowest(results: Mapping[str, Result]) -> None:
    durations = sorted((each for one in results.values() for each in one.durations), reverse=True)
    if durations:
        print(f"\nthe {SLOWEST} slowest tests:")
        for seconds, test in durations[:SLOWEST]:
            print(f"{seconds:8.1f} s  {test}")


def _print_minutes(results: Mapping[str, Result], budget: Mapping[str, float]) -> None:
    print("\npart        minutes  budget  result")
    for name, result in results.items():
        verdict = "FAILED" if result.failures else "passed"
        if result.minutes > budget[name]:
            verdict += ", over its budget"
        print(f"{name:<12}{result.minutes:7.1f} {budget[name]:7.1f}  {verdict}")
    total = sum(result.minutes for result in results.values())
    print(f"{'sum':<12}{total:7.1f} {sum(budget.values()):7.1f}")


def run(name: str, part: Mapping[str, Any], give_up_at: float = math.inf) -> Result:
    """Run all commands of a part at the same time.

    Args:
        name: Name of the part.
        part: Table of the part in the budget.
        give_up_at: Time (`time.monotonic`) at which running commands are stopped and fail.
    """
    started = time.monotonic()
    environment = dict(os.environ)
    # Keep byte code: hundreds of processes import the same modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["PYTHONPATH"] = str(ROOT / "tests")
    environment["PYTEST_PLUGINS"] = "skips"
    environment["PYTEST_ADDOPTS"] = f"{environment.get('PYTEST_ADDOPTS', '')} {PYTEST_OPTIONS}"
    commands: list[str] = part["commands"]
    several = len(commands) > 1

    def run_one(number: int) -> Result:
        prefix = f"{number + 1}| " if several else ""
        return _run_command(environment, name, give_up_at, commands[number], prefix)

    with ThreadPoolExecutor(len(commands)) as threads:
        results = list(threads.map(run_one, range(len(commands))))
    return Result(
        (time.monotonic() - started) / 60,
        [failure for result in results for failure in result.failures],
        [duration for result in results for duration in result.durations],
    )


def _run_command(
    environment: Mapping[str, str], part: str, give_up_at: float, command: str, prefix: str
) -> Result:
    """Run a command and print its output, each line with `prefix`."""
    print(f"\n{prefix}--- {part}: {command}", flush=True)
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
    result = Result()
    printing = threading.Thread(target=_print_lines, args=(process, prefix, result), daemon=True)
    printing.start()
    try:
        process.wait(min(max(0, give_up_at - time.monotonic()), threading.TIMEOUT_MAX))
    except subprocess.TimeoutExpired:
        print(f"{prefix}--- stopped: the run exceeded its time limit: {command}", flush=True)
        _stop(process, printing)
        result.failures.append(f"stopped: {command}")
        return result
    except BaseException:
        _stop(process, printing)
        raise
    printing.join(STOP_SECONDS)
    if status := process.wait():
        result.failures.append(f"exit status {status}: {command}")
    else:
        result.failures.clear()  # the failure of a pytest run inside a test
    return result


def _print_lines(process: subprocess.Popen[str], prefix: str, result: Result) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            print(f"{prefix}{line}", end="", flush=True)
            if SUMMARY.match(line):
                result.failures.append(line.rstrip())
            elif match := DURATION.match(line):
                result.durations.append((float(match[1]), match[2]))


def _stop(process: subprocess.Popen[str], printing: threading.Thread) -> None:
    """Stop a command and its children like a terminal does, so that it prints where it was."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        printing.join(STOP_SECONDS)
    process.wait()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
